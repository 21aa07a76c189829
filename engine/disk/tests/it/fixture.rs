//! Helpers for the tests: files on two file systems, rings of both engines, single I/Os, and the
//! log's warnings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use octavo_random::{Random, for_seeds};

use octavo_disk::{
    AlignedBytes, Engine, IoBuffer, IoError, Op, OpenOptions, Ring, RingOptions, SimDisk, SimOptions, Store,
};

/// Creates a directory on the file system of the build, and one on tmpfs.
pub fn directories() -> Vec<tempfile::TempDir> {
    std::iter::once(directory()).chain(directory_on_tmpfs()).collect()
}

fn directory_on_tmpfs() -> Option<tempfile::TempDir> {
    let skipped = |error: &_| eprintln!("skipped on /dev/shm: {error}");
    tempfile::tempdir_in("/dev/shm").inspect_err(skipped).ok()
}

/// Creates a directory on the file system of the build.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Creates a ring of every engine that this system offers.
pub fn rings(entries: u32) -> Vec<Ring> {
    static WARNED: Once = Once::new();
    static COLLECTED: Once = Once::new();
    COLLECTED.call_once(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    let blocking = Ring::new(&RingOptions { entries, engine: Engine::Blocking }).unwrap();
    let mut rings = vec![blocking];
    match Ring::new(&RingOptions { entries, engine: Engine::Uring }) {
        Ok(ring) => rings.push(ring),
        Err(error) => WARNED.call_once(|| eprintln!("skipped: no io_uring: {error}")),
    }
    rings
}

/// Creates a ring of every engine, each with a directory on the file system of the build.
pub fn rigs(entries: u32) -> Vec<(tempfile::TempDir, Ring)> {
    rings(entries).into_iter().map(|ring| (directory(), ring)).collect()
}

/// Creates a ring of every engine for each of the two file systems, with a directory there.
pub fn rigs_everywhere(entries: u32) -> Vec<(tempfile::TempDir, Ring)> {
    let on_tmpfs = rings(entries).into_iter().filter_map(|ring| directory_on_tmpfs().zip(Some(ring)));
    rigs(entries).into_iter().chain(on_tmpfs).collect()
}

/// Opens one file of each kind of store with this many zeros.
pub fn stores(directory: &Path, len: usize) -> [Store; 3] {
    let disk = SimDisk::new(SimOptions::default());
    let on_file = open(&file(directory, &vec![0; len]));
    [on_file, Store::memory("memory", len as u64), disk.store("data", len as u64)]
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

/// Returns `len` random bytes that depend on `salt`.
pub fn pattern(salt: u64, len: usize) -> Vec<u8> {
    Random::new(salt).bytes(len)
}

pub fn aligned(bytes: &[u8]) -> AlignedBytes {
    let mut aligned = AlignedBytes::new(bytes.len());
    aligned.copy_from_slice(bytes);
    aligned
}

/// Executes one I/O through the ring's queue.
pub fn transfer(
    ring: &Ring,
    store: &Store,
    op: Op,
    offset: u64,
    bytes: &AlignedBytes,
) -> Result<(), IoError> {
    // SAFETY: `bytes` is borrowed until the completion is delivered below.
    unsafe { ring.push(store, op, offset, &[bytes.io_buffer()], 77) };
    outcome(ring)
}

/// Clears a range through the ring's queue.
pub fn clear(ring: &Ring, store: &Store, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
    ring.push_clear(store, op, offset, len, 77);
    outcome(ring)
}

/// Waits for the only I/O in flight and returns its result.
fn outcome(ring: &Ring) -> Result<(), IoError> {
    let mut outcomes = outcomes(ring, 1);
    assert_eq!((outcomes.len(), outcomes[0].0), (1, 77));
    outcomes.remove(0).1
}

/// Waits until `count` I/Os have completed. Returns tokens and results in the order of completion.
pub fn outcomes(ring: &Ring, count: usize) -> Vec<(u64, Result<(), IoError>)> {
    let mut outcomes = Vec::new();
    while outcomes.len() < count {
        ring.wait(&mut |token, result| outcomes.push((token, result)), None);
    }
    outcomes
}

/// Waits until `count` I/Os have succeeded. Returns their tokens in the order of completion.
pub fn successes(ring: &Ring, count: usize) -> Vec<u64> {
    let succeeded = |(token, result): (u64, Result<(), IoError>)| result.map(|()| token).unwrap();
    outcomes(ring, count).into_iter().map(succeeded).collect()
}

/// Zeroed pages, to read into.
pub fn pages(count: usize, len: usize) -> Vec<AlignedBytes> {
    (0..count).map(|_| AlignedBytes::new(len)).collect()
}

/// The first `len` bytes of each 4096 bytes of `memory`.
pub fn pieces(memory: &AlignedBytes, len: usize) -> Vec<IoBuffer> {
    let piece = |at| IoBuffer { ptr: memory.io_buffer().ptr.wrapping_add(at), len };
    (0..memory.len()).step_by(4096).map(piece).collect()
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

/// Returns `bytes`, padded with zeros to `len`.
pub fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    bytes
}

/// Returns every warning that was logged since the first call of `rings`.
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
