//! The file tier below the cache: restarts, corrupt blocks, new versions, and a writer that is
//! killed.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_objects::tier::{BlockKey, ObjectKey, Tier, TierConfig};
use octavo_objects::{Answer, Error, ErrorKind, Meta, Objects, ObjectsConfig, Origin, Scope, Usage, Version};
use octavo_random::Random;

const FILL: u32 = 64 << 10;

/// A server in memory that counts.
#[derive(Default)]
struct Server {
    objects: Mutex<HashMap<String, (Version, Bytes)>>,
    gets: AtomicU64,
    is_weak: bool,
}

impl Server {
    fn set(&self, path: &str, version: &str, bytes: Vec<u8>) {
        let tag = format!("{}\"{version}\"", if self.is_weak { "W/" } else { "" });
        let version = Version { e_tag: Some(tag), ..Version::default() };
        self.objects.lock().unwrap().insert(path.into(), (version, bytes.into()));
    }

    fn gets(&self) -> u64 {
        self.gets.swap(0, SeqCst)
    }

    fn find(&self, path: &str) -> Result<(Meta, Bytes), Error> {
        let objects = self.objects.lock().unwrap();
        let missing = || Error::new(ErrorKind::NotFound, path, "there is no such object");
        let (version, bytes) = objects.get(path).ok_or_else(missing)?;
        Ok((Meta { size: bytes.len() as u64, version: version.clone(), details: None }, bytes.clone()))
    }
}

impl Origin for Server {
    fn head<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Meta, Error>> {
        async move { self.find(path).map(|(meta, _)| meta) }.boxed()
    }

    fn get<'a>(
        &'a self,
        path: &'a str,
        range: Range<u64>,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        async move {
            self.gets.fetch_add(1, SeqCst);
            let (meta, bytes) = self.find(path)?;
            if !meta.version.is_same(version) {
                return Err(Error::new(ErrorKind::Changed, path, "another version"));
            }
            let piece = Ok(bytes.slice(range.start as usize..range.end as usize));
            Ok(Answer { meta, range, body: stream::iter([piece]).boxed() })
        }
        .boxed()
    }
}

fn tier_config(directory: &Path) -> TierConfig {
    TierConfig { directory: directory.join("tier"), max_bytes: 32 << 20, block_bytes: FILL }
}

/// A cache with a tier, as after a start of the process.
fn start(server: &Arc<Server>, directory: &Path) -> (Objects, Scope) {
    let cache = Cache::new(CacheConfig { page_bytes: 16_384, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("objects")).unwrap();
    let tier = Some(tier_config(directory));
    let config = ObjectsConfig { fill_bytes: FILL, tier, ..ObjectsConfig::default() };
    let objects = Objects::new(&cache, &partition, config).unwrap();
    let scope = objects.scope("memory", server.clone());
    (objects, scope)
}

async fn read(scope: &Scope, path: &str, usage: Usage) -> Vec<u8> {
    let whole = |meta: &Meta| Ok::<_, Error>(0..meta.size);
    let got = scope.get(path, &usage.into(), whole).await.unwrap();
    let parts: Vec<Bytes> = got.body.try_collect().await.unwrap();
    parts.concat()
}

/// Waits until the tier has written so many blocks since it was opened.
async fn written(objects: &Objects, blocks: u64) {
    let since = Instant::now();
    while objects.stat().tier.unwrap().written < blocks {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", objects.stat());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_warm_and_a_corrupt_block_is_fetched_again() {
    let (server, directory) = (Arc::new(Server::default()), tempfile::tempdir().unwrap());
    // Ten whole blocks and a part of one.
    let bytes = Random::new(1).bytes(10 * FILL as usize + 1000);
    server.set("object", "1", bytes.clone());
    let (objects, scope) = start(&server, directory.path());
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    assert_eq!(server.gets(), 11);
    written(&objects, 11).await;
    // From memory.
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    assert_eq!((server.gets(), objects.stat().tier.unwrap().hits), (0, 0));
    drop((objects, scope));

    let (objects, scope) = start(&server, directory.path());
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    let (stat, tier) = (objects.stat(), objects.stat().tier.unwrap());
    assert_eq!((server.gets(), stat.gets, tier.hits, tier.blocks), (0, 0, 11, 11), "{stat:?}");
    drop((objects, scope));

    let (objects, scope) = start(&server, directory.path());
    let file = directory.path().join("tier/blocks-00000");
    let file = File::options().read(true).write(true).open(file).unwrap();
    let (mut byte, at) = ([0], 3 * (4096 + u64::from(FILL)) + 5000);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    file.sync_all().unwrap();
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    written(&objects, 1).await;
    let (stat, tier) = (objects.stat(), objects.stat().tier.unwrap());
    assert_eq!((server.gets(), tier.hits, tier.corrupt, tier.blocks), (1, 10, 1, 11), "{stat:?}");
    drop((objects, scope));

    let (_objects, scope) = start(&server, directory.path());
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    assert_eq!(server.gets(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_comes_from_the_server_and_the_old_one_is_deleted() {
    let (server, directory) = (Arc::new(Server::default()), tempfile::tempdir().unwrap());
    let (objects, scope) = start(&server, directory.path());
    for version in 0..5 {
        let bytes = Random::new(version).bytes(3 * FILL as usize);
        server.set("object", &version.to_string(), bytes.clone());
        assert!(read(&scope, "object", Usage::Normal).await == bytes);
        assert_eq!(server.gets(), 3);
        written(&objects, 3 * (version + 1)).await;
    }
    let since = Instant::now();
    while objects.stat().tier.unwrap().blocks > 3 {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", objects.stat());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // An object that is forgotten leaves the tier, too.
    scope.forget("object");
    while objects.stat().tier.unwrap().blocks > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", objects.stat());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_once_use_the_tier_but_do_not_fill_it_and_a_bypass_does_neither() {
    let (server, directory) = (Arc::new(Server::default()), tempfile::tempdir().unwrap());
    let bytes = Random::new(1).bytes(2 * FILL as usize);
    server.set("object", "1", bytes.clone());
    let (objects, scope) = start(&server, directory.path());
    assert!(read(&scope, "object", Usage::Once).await == bytes);
    assert!(read(&scope, "object", Usage::Bypass).await == bytes);
    assert_eq!((server.gets(), objects.stat().tier.unwrap().written), (4, 0));
    assert!(read(&scope, "object", Usage::Normal).await == bytes);
    written(&objects, 2).await;
    drop((objects, scope));
    let (objects, scope) = start(&server, directory.path());
    server.gets();
    assert!(read(&scope, "object", Usage::Once).await == bytes);
    assert_eq!((server.gets(), objects.stat().tier.unwrap().hits), (0, 2));
    assert!(read(&scope, "object", Usage::Bypass).await == bytes);
    assert_eq!((server.gets(), objects.stat().tier.unwrap().hits), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_may_stand_for_other_bytes_does_not_outlive_the_process() {
    let server = Arc::new(Server { is_weak: true, ..Server::default() });
    let directory = tempfile::tempdir().unwrap();
    let bytes = Random::new(1).bytes(2 * FILL as usize);
    server.set("object", "1", bytes.clone());
    for _ in 0..2 {
        let (objects, scope) = start(&server, directory.path());
        assert!(read(&scope, "object", Usage::Normal).await == bytes);
        assert_eq!((server.gets(), objects.stat().tier.unwrap().misses), (2, 0));
    }
}

#[test]
fn a_tier_with_blocks_of_another_length_than_fills_is_refused() {
    let tier = TierConfig { block_bytes: 2 * FILL, ..tier_config(Path::new("/nowhere")) };
    let config = ObjectsConfig { fill_bytes: FILL, tier: Some(tier), ..ObjectsConfig::default() };
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("131072 bytes, fills have 65536"), "{error}");
    let tier = TierConfig { max_bytes: 100, ..tier_config(Path::new("/nowhere")) };
    let config = ObjectsConfig { fill_bytes: FILL, tier: Some(tier), ..ObjectsConfig::default() };
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("max_bytes is 100"), "{error}");
}

/// Names the directory for the process that is killed.
const DIRECTORY: &str = "OCTAVO_TEST_TIER";
const BLOCKS: u64 = 600;

fn block(number: u64) -> (BlockKey, Vec<u8>) {
    let object = Random::new(number / 10).bytes(32).try_into().unwrap();
    let key = BlockKey { object: ObjectKey(object), block: number % 10, len: FILL };
    (key, Random::new(number).bytes(FILL as usize))
}

#[test]
#[ignore = "the process that the next test kills"]
fn a_writer_without_end() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by the next test"));
    let tier = Tier::open(&tier_config(&directory)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tier = &tier;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                loop {
                    let (key, bytes) = block(random.below(BLOCKS));
                    tier.put(&key, &bytes);
                }
            });
        }
    });
}

#[test]
fn a_writer_that_is_killed_leaves_no_wrong_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new(9);
    for round in 0..8 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_writer_without_end", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300 + random.below(300)));
        assert!(writer.try_wait().unwrap().is_none(), "the writer writes");
        // SIGKILL.
        writer.kill().unwrap();
        writer.wait().unwrap();
        let tier = Tier::open(&tier_config(directory.path())).unwrap();
        let (mut found, mut into) = (0, vec![0; FILL as usize]);
        for (key, bytes) in (0..BLOCKS).map(block) {
            if tier.get(&key, &mut into).is_some() {
                assert!(into == bytes, "wrong bytes in round {round}");
                found += 1;
            }
        }
        let stat = tier.stat();
        // At most what the four threads were writing is torn.
        assert!(found > 100 && stat.corrupt <= 4, "{stat:?}");
    }
}
