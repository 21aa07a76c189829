//! How many requests reach the server: one fill for all, whoever leaves; metadata with an age.

use std::time::{Duration, Instant};

use super::*;
use octavo::Advice;
use octavo_s3_stub::{Lie, Operation};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_sequential_read_of_an_object_gets_each_unit_once() {
    let server = Server::new(patient());
    for (number, len) in [0, 1, UNIT - 1, UNIT, UNIT + 1, 16 * UNIT, (1 << 20) + 5].into_iter().enumerate() {
        let (path, bytes) = (format!("object-{number}"), pattern(len as usize, len));
        server.put(&path, &bytes);
        for _ in 0..2 {
            assert_eq!(server.read(&path).await.unwrap(), bytes);
            assert_eq!(server.gets(&path), len.div_ceil(UNIT), "{len} bytes");
        }
        assert_eq!(server.stub.counts().path(&format!("bucket/{path}")).sent_bytes, len);
    }
    let (stat, counts) = (server.objects.stat(), server.stub.counts());
    assert_eq!((stat.gets, stat.heads), (counts.gets(), counts.heads()));
    assert_eq!((stat.fetched_bytes, stat.retries), (counts.sent_bytes, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_of_an_object_share_one_fill_of_each_unit() {
    let server = Server::new(patient());
    let bytes = pattern(1 << 20, 1);
    server.put("object", &bytes);
    let slow = Duration::from_millis(30);
    server.stub.set_lies(Lies::always(Lie::StallBefore(slow)));
    let mut readers = JoinSet::new();
    for reader in 0..64_u64 {
        let store = server.store.clone();
        readers.spawn(async move {
            let path = Path::from("object");
            match reader % 2 {
                0 => (0..1 << 20, store.get(&path).await.unwrap().bytes().await.unwrap()),
                _ => {
                    let start = reader * 7919;
                    let range = start..start + 500_000;
                    (range.clone(), store.get_ranges(&path, &[range]).await.unwrap().remove(0))
                }
            }
        });
    }
    while let Some(read) = readers.join_next().await {
        let (range, read) = read.unwrap();
        assert_eq!(read, bytes[range.start as usize..range.end as usize]);
    }
    assert_eq!(server.gets("object"), 16);
    assert_eq!(server.stub.counts().path("bucket/object").sent_bytes, 1 << 20);
}

/// A cache smaller than its objects keeps parts of units. Each run of missing pages was a GET of
/// its own: up to four for a unit of eight pages.
#[tokio::test(flavor = "multi_thread")]
async fn one_get_brings_all_that_a_unit_lacks() {
    // Longer than a busy machine needs to ask for all parts of a unit.
    let config = ObjectsConfig { merge_window: Duration::from_millis(300), ..patient() };
    let server = Server::new(config);
    let (pages, page) = (4, UNIT / 4);
    let bytes = pattern(8 * UNIT as usize, 1);
    server.put("object", &bytes);
    assert_eq!(server.read("object").await.unwrap(), bytes);
    let before = (server.gets("object"), server.stub.counts().sent_bytes);
    assert_eq!(before, (8, 8 * UNIT));
    // Of the first unit, pages 0 and 2 leave; of the second, all but the last; of the third, one.
    let gone = [0, 2, pages, pages + 1, pages + 2, 2 * pages + 1];
    let partition = &server.objects.cache().partitions()[0];
    let object = partition.objects().into_iter().next().unwrap();
    for page_number in gone {
        object.advise(page_number * page, page, Advice::DontNeed).unwrap();
    }
    assert_eq!(object.resident_bytes(0, 8 * UNIT).unwrap(), 8 * UNIT - gone.len() as u64 * page);
    assert_eq!(server.read("object").await.unwrap(), bytes);
    // The page between the first two is fetched with them.
    assert_eq!(server.gets("object") - before.0, 3);
    assert_eq!(server.stub.counts().sent_bytes - before.1, 7 * page);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_takes_no_fill_with_it() {
    let server = Server::new(patient());
    let bytes = pattern(1000, 1);
    for leave in 0..3 {
        let path = format!("object-{leave}");
        server.put(&path, &bytes);
        server.stub.set_lies(Lies::always(Lie::StallBefore(Duration::from_millis(400))));
        let read = || {
            let (store, path) = (server.store.clone(), Path::from(&*path));
            tokio::spawn(async move { store.get_range(&path, 10..20).await })
        };
        let first = read();
        until("the GET is at the server", || server.gets(&path) == 1).await;
        let others = [read(), read()];
        // They wait for the same fill: it takes longer than a HEAD.
        until("the others have asked", || server.stub.counts().path(&format!("bucket/{path}")).heads == 3)
            .await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        for (number, other) in others.into_iter().enumerate() {
            match leave > number {
                true => other.abort(),
                false => assert_eq!(other.await.unwrap().unwrap(), bytes[10..20]),
            }
        }
        // Also if all have left: the fill belongs to the cache.
        let objects = &server.objects;
        let filled = |count| move || objects.stat().fetched_bytes == count;
        until("the fill has ended", filled((leave + 1) as u64 * 1000)).await;
        server.stub.set_lies(Lies::none());
        assert_eq!(read().await.unwrap().unwrap(), bytes[10..20]);
        assert_eq!(server.gets(&path), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_believed_for_its_time_and_not_longer() {
    let ttl = Duration::from_millis(1500);
    let server = Server::new(ObjectsConfig { meta_ttl: ttl, ..patient() });
    let (old, present) = (pattern(100_000, 1), pattern(70_000, 2));
    server.put("object", &old);
    let start = Instant::now();
    assert_eq!(server.read("object").await.unwrap(), old);
    assert_eq!(server.read("object").await.unwrap(), old);
    server.put("object", &present);
    let read = server.read("object").await.unwrap();
    let heads = server.stub.counts().heads();
    // On a machine that was busy meanwhile, nothing is known.
    if start.elapsed() < ttl {
        assert_eq!((read, heads, server.gets("object")), (old, 1, 2));
    }
    tokio::time::sleep(ttl).await;
    assert_eq!(server.read("object").await.unwrap(), present);
    assert_eq!((server.stub.counts().heads(), server.gets("object")), (2, 4));
    // What the wrapper writes, it does not believe afterwards.
    server.store.put(&Path::from("object"), old_again().into()).await.unwrap();
    assert_eq!(server.read("object").await.unwrap(), old_again());
}

fn old_again() -> Bytes {
    pattern(30_000, 3)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_renews_what_it_tells() {
    let server = Server::new(ObjectsConfig { meta_ttl: Duration::from_secs(60), ..patient() });
    let bytes = pattern(1000, 1);
    server.put("a/object", &bytes);
    assert_eq!(server.read("a/object").await.unwrap(), bytes);
    let listed: Vec<_> = futures_util::StreamExt::collect(server.store.list(None)).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(server.read("a/object").await.unwrap(), bytes);
    assert_eq!((server.stub.counts().heads(), server.gets("a/object")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_holder_of_credentials_never_hits() {
    let server = Server::new(ObjectsConfig { meta_ttl: Duration::from_secs(60), ..patient() });
    let bytes = pattern(200_000, 1);
    server.put("object", &bytes);
    let path = Path::from("object");
    let other = client(&server.stub.endpoint(), "bucket", "other", "other secret");
    let other = CachedStore::new(other, &server.objects, "scope of another");
    let third = CachedStore::new(server.client.clone(), &server.objects, "scope");
    for (store, requests) in [(&server.store, (1, 4)), (&other, (2, 8)), (&third, (2, 8)), (&other, (2, 8))] {
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), bytes);
        assert_eq!((server.stub.counts().heads(), server.gets("object")), requests);
    }
    // One that may not read asks the server, which refuses, although the bytes are in memory.
    server.stub.set_lies(Lies::with(|asked| {
        let denied = Lie::Status { code: 403, retry_after_s: None };
        matches!(asked.operation, Operation::Get | Operation::Head).then_some(denied)
    }));
    let denied = client(&server.stub.endpoint(), "bucket", "denied", "no");
    let denied = CachedStore::new(denied, &server.objects, "scope of the denied");
    let error = denied.get(&path).await.unwrap_err();
    assert!(matches!(error, object_store::Error::PermissionDenied { .. }), "{error:?}");
}
