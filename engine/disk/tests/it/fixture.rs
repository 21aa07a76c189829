//! What the tests share: files on two file systems, rings of both engines, one I/O at a time, and
//! random numbers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_disk::{AlignedBytes, Engine, IoError, Op, OpenOptions, Ring, RingOptions, Store};

/// A directory on a real file system, and one on tmpfs.
pub fn directories() -> Vec<tempfile::TempDir> {
    let real = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut directories = vec![real];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(shared) => directories.push(shared),
        Err(error) => eprintln!("skipped on /dev/shm: {error}"),
    }
    directories
}

/// A directory on the file system that the build uses.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A ring of every engine that this system has.
pub fn rings(entries: u32) -> Vec<Ring> {
    static SAID: Once = Once::new();
    static COLLECTED: Once = Once::new();
    COLLECTED.call_once(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    let blocking = Ring::new(&RingOptions { entries, engine: Engine::Blocking }).unwrap();
    let mut rings = vec![blocking];
    match Ring::new(&RingOptions { entries, engine: Engine::Uring }) {
        Ok(ring) => rings.push(ring),
        Err(error) => SAID.call_once(|| eprintln!("skipped with io_uring: {error}")),
    }
    rings
}

pub fn file(directory: &Path, content: &[u8]) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let path = directory.join(format!("file-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&path, content).unwrap();
    path
}

pub fn open(path: &Path) -> Store {
    Store::open(path, &OpenOptions::default()).unwrap()
}

/// `len` bytes that differ from place to place and from `salt` to `salt`.
pub fn pattern(salt: u64, len: usize) -> Vec<u8> {
    let mut random = Random(salt);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

pub fn aligned(bytes: &[u8]) -> AlignedBytes {
    let mut aligned = AlignedBytes::new(bytes.len());
    aligned.copy_from_slice(bytes);
    aligned
}

/// One I/O through the ring's queue.
pub fn transfer(
    ring: &Ring,
    store: &Store,
    op: Op,
    offset: u64,
    bytes: &AlignedBytes,
) -> Result<(), IoError> {
    // SAFETY: `bytes` is borrowed until the completion was delivered below.
    unsafe { ring.push(store, op, offset, &[bytes.io_buffer()], 77) };
    outcome(ring)
}

/// One clearing through the ring's queue.
pub fn clear(ring: &Ring, store: &Store, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
    ring.push_clear(store, op, offset, len, 77);
    outcome(ring)
}

/// How the one I/O in flight ends.
fn outcome(ring: &Ring) -> Result<(), IoError> {
    let mut outcome = None;
    while outcome.is_none() {
        ring.wait(
            &mut |token, result| {
                assert_eq!(token, 77);
                assert!(outcome.replace(result).is_none(), "delivered twice");
            },
            None,
        );
    }
    outcome.unwrap()
}

pub fn read(ring: &Ring, store: &Store, offset: u64, len: usize) -> Vec<u8> {
    let bytes = aligned(&vec![0xee; len]);
    transfer(ring, store, Op::Read, offset, &bytes).unwrap();
    bytes.to_vec()
}

pub fn write(ring: &Ring, store: &Store, offset: u64, bytes: &[u8]) {
    transfer(ring, store, Op::Write, offset, &aligned(bytes)).unwrap();
}

pub fn sync(ring: &Ring, store: &Store) -> Result<(), IoError> {
    transfer(ring, store, Op::Sync, 0, &AlignedBytes::new(0))
}

/// `bytes`, and zeros up to `len`.
pub fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    bytes
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Runs `test` with `count` seeds, or with the one that the environment names. A panic tells its
/// seed.
pub fn for_seeds(count: u64, test: impl Fn(u64)) {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with OCTAVO_DISK_SEED={}", self.0);
            }
        }
    }
    let named = std::env::var("OCTAVO_DISK_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = named.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let _tell = Tell(seed);
        test(seed);
    }
}

/// Every warning that was logged since `rings` was first called.
pub fn warnings() -> Vec<String> {
    WARNINGS.lock().unwrap().clone()
}

static WARNINGS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}
