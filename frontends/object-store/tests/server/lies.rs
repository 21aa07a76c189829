//! Each lie alone: never a wrong byte, in bounded time, with a clear error, and counted.

use std::time::{Duration, Instant};

use super::*;
use octavo_objects::ObjectsStat;
use octavo_s3_stub::{Lie, Operation};

const MINUTE: Duration = Duration::from_secs(60);

/// What becomes of answers that always lie.
enum Ending {
    /// An error with these words.
    Error(&'static str),
    /// The bytes of the present version, from the server past the cache.
    Present,
    /// The bytes of the version before, as whose they are told.
    Old,
}

use Ending::{Error, Old, Present};

/// A counter of the cache.
type Counted = fn(&ObjectsStat) -> u64;

/// The lies; which counter of the cache has them; and how a read ends that meets nothing else.
fn lies() -> Vec<(Lie, Counted, Ending)> {
    let unavailable = |stat: &ObjectsStat| stat.unavailable;
    let wrong = |stat: &ObjectsStat| stat.wrong;
    let changed = |stat: &ObjectsStat| stat.changed;
    let busy = Lie::Status { code: 503, retry_after_s: Some(60) };
    vec![
        (Lie::ClosedEarly, unavailable, Error("(3 attempts)")),
        (Lie::Short, wrong, Error("asked for 65536 bytes, the body ended after 32768 (3 attempts)")),
        (Lie::Long, wrong, Error("asked for 65536 bytes, the body has more (3 attempts)")),
        (Lie::OtherRange, unavailable, Error("Requested 0..65536, got 65536..131072 (3 attempts)")),
        (Lie::WholeObject, unavailable, Error("non-partial response when range requested (3 attempts)")),
        (Lie::OldVersion, changed, Old),
        (Lie::OtherTag, changed, Present),
        (Lie::Status { code: 500, retry_after_s: None }, unavailable, Error("500")),
        (busy, unavailable, Error("503")),
        (Lie::Status { code: 304, retry_after_s: None }, wrong, Error("304 Not Modified (3 attempts)")),
        (Lie::ResetBefore, unavailable, Error("(3 attempts)")),
        (Lie::ResetInside, unavailable, Error("(3 attempts)")),
        (Lie::StallBefore(MINUTE), unavailable, Error("the server sent nothing for 800ms (3 attempts)")),
        (Lie::StallInside(MINUTE), unavailable, Error("the server sent nothing for 800ms (3 attempts)")),
    ]
}

/// A server with an object of five units, in its second version, for tests of one lie.
fn server(lie: &Lie) -> (Server, Bytes, Bytes) {
    let stalls = matches!(lie, Lie::StallBefore(_) | Lie::StallInside(_));
    let server = Server::new(if stalls { impatient() } else { patient() });
    let (old, present) = (pattern(290_000, 1), pattern(300_000, 2));
    server.put("object", &old);
    server.put("object", &present);
    (server, old, present)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lie_costs_an_attempt_and_no_wrong_byte() {
    for (lie, count, _) in lies() {
        let (server, _, present) = server(&lie);
        server.stub.set_lies(Lies::first(1, lie.clone()));
        let start = Instant::now();
        let read = server.read("object").await;
        assert_eq!(read.unwrap(), present, "{lie:?}");
        assert!(start.elapsed() < ANSWER_MAX, "{lie:?}: {:?}", start.elapsed());
        let stat = server.objects.stat();
        assert_eq!((count(&stat), stat.failed), (1, stat.changed), "{lie:?}: {stat:?}");
        assert_eq!(stat.retries, 1 - stat.changed, "{lie:?}: {stat:?}");
        assert_eq!(server.stub.counts().lies.values().sum::<u64>(), 1, "{lie:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_always_lies_gets_a_clear_error_and_is_forgiven() {
    for (lie, count, ending) in lies() {
        let (server, old, present) = server(&lie);
        server.stub.set_lies(Lies::always(lie.clone()));
        let start = Instant::now();
        let read = server.read("object").await;
        assert!(start.elapsed() < ANSWER_MAX, "{lie:?}: {:?}", start.elapsed());
        match (ending, read) {
            (Error(words), Err(error)) => {
                let text = error.to_string();
                assert!(text.contains("object: ") && text.contains(words), "{lie:?}: {text}");
            }
            (Present, Ok(read)) => assert_eq!(read, present, "{lie:?}"),
            (Old, Ok(read)) => assert_eq!(read, old, "{lie:?}"),
            (_, read) => panic!("{lie:?}: {:?}", read.map(|bytes| bytes.len())),
        }
        let stat = server.objects.stat();
        assert!(count(&stat) > 0 && stat.failed > 0, "{lie:?}: {stat:?}");
        server.stub.set_lies(Lies::none());
        // A failure is repeated for a second to those that come after it.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(server.read("object").await.unwrap(), present, "{lie:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_passes_the_cache_by_is_checked_too() {
    for (lie, count, _) in lies().into_iter().filter(|(_, _, ending)| matches!(ending, Error(_))) {
        let (server, _, present) = server(&lie);
        let read = async || {
            let mut options = object_store::GetOptions::default();
            options.extensions.insert(crate::cached::Hint::from(crate::cached::Usage::Bypass));
            server.store.get_opts(&Path::from("object"), options).await?.bytes().await
        };
        server.stub.set_lies(Lies::first(1, lie.clone()));
        assert_eq!(read().await.unwrap(), present, "{lie:?}");
        assert_eq!(count(&server.objects.stat()), 1, "{lie:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_fails_is_tried_again() {
    let busy = Lie::Status { code: 503, retry_after_s: Some(60) };
    for lie in [busy, Lie::ResetBefore, Lie::StallBefore(MINUTE)] {
        let (server, _, present) = server(&lie);
        let always = lie.clone();
        server.stub.set_lies(Lies::with(move |asked| {
            (asked.operation == Operation::Head && asked.number == 1).then(|| always.clone())
        }));
        assert_eq!(server.read("object").await.unwrap(), present, "{lie:?}");
        let stat = server.objects.stat();
        assert_eq!((stat.heads, stat.unavailable, stat.retries), (2, 1, 1), "{lie:?}: {stat:?}");
        let always = lie.clone();
        server
            .stub
            .set_lies(Lies::with(move |asked| (asked.operation == Operation::Head).then(|| always.clone())));
        let start = Instant::now();
        let error = server.read("object").await.unwrap_err();
        assert!(error.to_string().contains("(3 attempts)"), "{lie:?}: {error}");
        assert!(start.elapsed() < ANSWER_MAX, "{lie:?}: {:?}", start.elapsed());
    }
}

/// `object_store` puts a date in place of one that is missing, and two versions had the same one.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_head_tells_no_version_is_refused() {
    let tell = |names: &[&'static str]| Lie::Headers(names.iter().map(|name| (*name, None)).collect());
    let (server, _, present) = server(&tell(&[]));
    let neither = tell(&["etag", "last-modified"]);
    server.stub.set_lies(Lies::with(move |_| Some(neither.clone())));
    let error = server.read("object").await.unwrap_err().to_string();
    assert!(error.contains("no entity tag (ETag), no version and no date (Last-Modified)"), "{error}");
    assert_eq!(server.gets("object"), 0);
    for names in [&["etag"][..], &["last-modified"]] {
        let lie = tell(names);
        server.stub.set_lies(Lies::with(move |_| Some(lie.clone())));
        assert_eq!(server.read("object").await.unwrap(), present, "{names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_with_a_wrong_tag_is_corrected() {
    let (server, _, present) = server(&Lie::OtherTag);
    server.stub.set_lies(Lies::with(|asked| {
        (asked.operation == Operation::Head && asked.number == 1).then_some(Lie::OtherTag)
    }));
    assert_eq!(server.read("object").await.unwrap(), present);
    let stat = server.objects.stat();
    assert_eq!((stat.heads, stat.changed), (2, 1), "{stat:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_conditions_is_found_out_by_its_tags() {
    let server = Server::new(ObjectsConfig { meta_ttl: MINUTE, ..patient() });
    let (old, present) = (pattern(300_000, 3), pattern(300_000, 4));
    server.put("object", &old);
    let path = Path::from("object");
    assert_eq!(server.store.get_range(&path, 0..10).await.unwrap(), old[..10]);
    server.put("object", &present);
    server.stub.set_lies(Lies::always(Lie::IfMatchIgnored));
    // The first unit is in memory and believed for a minute; the second must be fetched.
    assert_eq!(server.store.get_range(&path, 0..10).await.unwrap(), old[..10]);
    assert_eq!(server.store.get_range(&path, 65_530..65_540).await.unwrap(), present[65_530..65_540]);
    assert_eq!(server.store.get_range(&path, 0..10).await.unwrap(), present[..10]);
    assert_eq!(server.objects.stat().changed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_in_mid_stream_ends_the_stream() {
    for ignores_conditions in [false, true] {
        let server = Server::new(patient());
        let (old, present) = (pattern(1 << 20, 5), pattern(1 << 20, 6));
        server.put("object", &old);
        let new = present.clone();
        server.stub.set_lies(Lies::with(move |asked| {
            if asked.operation == Operation::Get && asked.number == 7 {
                asked.contents.put(asked.path, new.clone());
            }
            ignores_conditions.then_some(Lie::IfMatchIgnored)
        }));
        let got = server.store.get(&Path::from("object")).await.unwrap();
        let mut stream = got.into_stream();
        let (mut read, mut ended) = (Vec::new(), None);
        while let Some(piece) = futures_util::StreamExt::next(&mut stream).await {
            match piece {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            }
        }
        // Six units of sixteen are of the old version, and nothing of the new one comes after them.
        assert!(read.len() <= 6 * UNIT as usize && read[..] == old[..read.len()], "{}", read.len());
        let error = ended.expect("not all bytes can come");
        assert!(matches!(error, object_store::Error::Precondition { .. }), "{error}");
        assert_eq!(server.read("object").await.unwrap(), present);
        assert!(server.objects.stat().changed > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_past_the_cache_does_not_accept_another_body() {
    // The object seems to change all the time, so that the cached store leaves the read to the
    // client; and then the server sends other bytes than it should.
    for lie in [Lie::Short, Lie::Long, Lie::OtherRange, Lie::ClosedEarly, Lie::OldVersion] {
        let (server, old, present) = server(&lie);
        let second = lie.clone();
        server.stub.set_lies(Lies::with(move |asked| match asked.operation {
            Operation::Get if asked.if_match => Some(Lie::OtherTag),
            Operation::Get => Some(second.clone()),
            _ => None,
        }));
        if let Ok(read) = server.read("object").await {
            assert!(read == present || (lie == Lie::OldVersion && read == old), "{lie:?}: {}", read.len());
        }
        let ranges = [10..100_000, 200_000..200_010];
        let path = Path::from("object");
        let Ok(parts) = server.store.get_ranges(&path, &ranges).await else { continue };
        let all_of = |whole: &Bytes| {
            let is_of = |(part, range): (&Bytes, &std::ops::Range<u64>)| {
                *part == whole[range.start as usize..range.end as usize]
            };
            parts.iter().zip(&ranges).all(is_of)
        };
        assert!(all_of(&present) || (lie == Lie::OldVersion && all_of(&old)), "{lie:?}");
    }
}
