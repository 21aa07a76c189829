//! The cached store passes object_store's own integration suite, and reads what is there.

use std::ops::Range;
use std::sync::Arc;

use crate::cached::{CachedStore, Hint, Usage};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, integration, memory::InMemory};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_objects::{Objects, ObjectsConfig};
use octavo_random::Random;

fn objects(config: ObjectsConfig) -> Objects {
    let cache = Cache::new(CacheConfig { page_bytes: 16_384, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("objects")).unwrap();
    Objects::new(&cache, &partition, config).unwrap()
}

fn cached(inner: Arc<dyn ObjectStore>) -> CachedStore {
    CachedStore::new(inner, &objects(ObjectsConfig::default()), "scope")
}

fn pattern(len: usize, seed: u64) -> Bytes {
    Random::new(seed).bytes(len).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_store_in_memory_passes_the_integration_suite() {
    let store = cached(Arc::new(InMemory::new()));
    integration::put_get_delete_list(&store).await;
    integration::get_opts(&store).await;
    integration::list_uses_directories_correctly(&store).await;
    integration::list_with_delimiter(&store).await;
    integration::rename_and_copy(&store).await;
    integration::copy_if_not_exists(&store).await;
    integration::copy_rename_nonexistent_object(&store).await;
    integration::stream_get(&store).await;
    integration::put_opts(&store, true).await;
    integration::put_get_attributes(&store).await;
    integration::multipart_race_condition(&store, true).await;
    integration::multipart_out_of_order(&store).await;
    let missing = integration::get_nonexistent_object(&store, None).await.unwrap_err();
    assert!(missing.to_string().contains("not found"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_local_directory_passes_the_integration_suite() {
    let directory = tempfile::tempdir().unwrap();
    let local = object_store::local::LocalFileSystem::new_with_prefix(directory.path()).unwrap();
    let store = cached(Arc::new(local));
    integration::put_get_delete_list(&store).await;
    integration::stream_get(&store).await;
    integration::list_uses_directories_correctly(&store).await;
    integration::list_with_delimiter(&store).await;
    integration::rename_and_copy(&store).await;
    integration::copy_if_not_exists(&store).await;
    integration::copy_rename_nonexistent_object(&store).await;
    integration::get_opts(&store).await;
    integration::put_opts(&store, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_read_asks_for_the_version_only() {
    let inner = Arc::new(InMemory::new());
    let objects = objects(ObjectsConfig::default());
    let store = CachedStore::new(inner, &objects, "scope");
    let (path, bytes) = (Path::from("a/b"), pattern(3 << 20, 1));
    store.put(&path, bytes.clone().into()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), bytes);
        let ranges: Vec<Range<u64>> = vec![5..9, 1 << 20..(2 << 20) + 3, 0..1, (3 << 20) - 1..3 << 20];
        let parts = store.get_ranges(&path, &ranges).await.unwrap();
        for (part, range) in parts.iter().zip(&ranges) {
            assert_eq!(part[..], bytes[range.start as usize..range.end as usize]);
        }
    }
    let stat = objects.stat();
    // Every byte once, in at most six units of 512 KiB; a HEAD for each of the four reads.
    assert_eq!((stat.heads, stat.fetched_bytes), (4, 3 << 20), "{stat:?}");
    assert!(stat.gets <= 6, "{stat:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_written_object_is_read_as_it_was_written() {
    let inner = Arc::new(InMemory::new());
    let ttl = std::time::Duration::from_secs(3600);
    let store = CachedStore::new(
        inner,
        &objects(ObjectsConfig { meta_ttl: ttl, ..ObjectsConfig::default() }),
        "scope",
    );
    let path = Path::from("object");
    for round in 0..20 {
        let bytes = pattern(100_000, round);
        store.put(&path, bytes.clone().into()).await.unwrap();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), bytes);
        store.copy(&path, &Path::from("copy")).await.unwrap();
        assert_eq!(store.get(&Path::from("copy")).await.unwrap().bytes().await.unwrap(), bytes);
    }
    store.delete(&path).await.unwrap();
    assert!(matches!(store.get(&path).await, Err(object_store::Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_say_what_is_kept() {
    let objects = objects(ObjectsConfig::default());
    let store = CachedStore::new(Arc::new(InMemory::new()), &objects, "scope");
    let (path, bytes) = (Path::from("object"), pattern(1 << 20, 2));
    store.put(&path, bytes.clone().into()).await.unwrap();
    let read = async |usage: Usage| {
        let mut options = GetOptions::default();
        options.extensions.insert(Hint::from(usage));
        store.get_opts(&path, options).await.unwrap().bytes().await.unwrap()
    };
    assert_eq!(read(Usage::Once).await, bytes);
    assert_eq!((objects.stat().gets, objects.stat().miss_bytes), (2, 0));
    assert_eq!(read(Usage::Normal).await, bytes);
    let stat = objects.stat();
    assert_eq!((stat.fetched_bytes, stat.miss_bytes), (2 << 20, 1 << 20));
    // Now a read that is done once finds the bytes.
    assert_eq!(read(Usage::Once).await, bytes);
    assert_eq!(objects.stat().fetched_bytes, 2 << 20);
    assert_eq!(read(Usage::Bypass).await, bytes);
    assert_eq!(objects.stat().fetched_bytes, 3 << 20);
    assert_eq!(read(Usage::Pin).await, bytes);
    let stat = objects.stat();
    assert_eq!((stat.fetched_bytes, stat.pinned_bytes), (3 << 20, 1 << 20));
    store.delete(&path).await.unwrap();
    while objects.stat().pinned_bytes > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_tenant_is_refused_by_name() {
    let store = cached(Arc::new(InMemory::new()));
    let path = Path::from("object");
    store.put(&path, pattern(100, 3).into()).await.unwrap();
    let mut options = GetOptions::default();
    options.extensions.insert(Hint { tenant: Some("nobody".into()), ..Hint::default() });
    let error = store.get_opts(&path, options).await.unwrap_err();
    assert!(error.to_string().contains("there is no partition \"nobody\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_scope_never_hits() {
    let objects = objects(ObjectsConfig::default());
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (one, two) =
        (CachedStore::new(inner.clone(), &objects, "one"), CachedStore::new(inner, &objects, "two"));
    let path = Path::from("object");
    one.put(&path, pattern(100_000, 4).into()).await.unwrap();
    for store in [&one, &two] {
        store.get(&path).await.unwrap().bytes().await.unwrap();
    }
    assert_eq!((objects.stat().gets, objects.stat().hit_bytes), (2, 0));
}
