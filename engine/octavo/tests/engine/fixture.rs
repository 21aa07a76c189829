//! What many tests need: small caches, simulated disks, requests, and ways to wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use octavo::disk::{OpenOptions, SimDisk, SimOptions, Store};
use octavo::{
    Cache, CacheConfig, CacheMode, Completion, Error, Object, Op, Partition, PartitionConfig, Queue, Read,
    Request, WAYS,
};

/// Bytes of a page, and of a set's frames: the smallest segment.
pub const PAGE: u64 = 4096;
pub const SET_BYTES: u64 = PAGE * WAYS as u64;

/// A cache of 4 MiB with segments of one set and without threads of its own.
pub fn small(seed: u64) -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 4 << 20,
        segment_bytes: SET_BYTES,
        buffers_max_bytes: Some(512 << 10),
        background: false,
        seed: Some(seed),
        ..CacheConfig::default()
    }
}

/// The configuration of partition "p" with this `max`.
pub fn sized(max_bytes: u64) -> PartitionConfig {
    PartitionConfig { max_bytes: Some(max_bytes), ..PartitionConfig::new("p") }
}

/// The same in write-back mode.
pub fn written_back(max_bytes: u64) -> PartitionConfig {
    PartitionConfig { cache_mode: CacheMode::Writeback, ..sized(max_bytes) }
}

/// A cache with one partition, and this store as its object.
pub fn scene(cache: CacheConfig, partition: PartitionConfig, store: Store) -> (Cache, Partition, Object) {
    let cache = Cache::new(cache).unwrap();
    let partition = cache.partition(partition).unwrap();
    let object = partition.open(store, "object").unwrap();
    (cache, partition, object)
}

/// A file of one test, removed on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A file of zeros.
    pub fn new(name: &str, len: u64) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        Scratch(path)
    }

    /// A file of these bytes.
    pub fn of(name: &str, bytes: &[u8]) -> Scratch {
        let file = Scratch::new(name, 0);
        std::fs::write(&file.0, bytes).unwrap();
        file
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn open(path: &Path) -> Store {
    Store::open(path, &OpenOptions::default()).unwrap()
}

pub fn request(op: Op) -> Request {
    Request { user_data: 0, op }
}

/// A read into a buffer that is not zero, so that a read which moves no bytes is noticed.
pub fn read_request(user_data: u64, offset: u64, len: usize) -> Request {
    Request { user_data, op: Op::Read { offset, len, buffer: vec![0xEE; len].into() } }
}

pub fn write_request(user_data: u64, offset: u64, bytes: Vec<u8>, durable: bool) -> Request {
    Request { user_data, op: Op::Write { offset, len: bytes.len(), buffer: bytes.into(), durable } }
}

/// The bytes of one read.
pub fn bytes_at(object: &Object, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; len as usize];
    object.read_at(offset, &mut bytes).unwrap();
    bytes
}

/// The bytes of one batch of reads, each an offset and a length.
pub fn batch_at(object: &Object, ranges: &[(u64, usize)]) -> (Result<(), Error>, Vec<Vec<u8>>) {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, len)| vec![0xEE; *len]).collect();
    let reads = ranges.iter().zip(&mut buffers);
    let mut reads: Vec<Read<'_>> =
        reads.map(|((offset, _), buffer)| Read { offset: *offset, buffer }).collect();
    (object.read_batch(&mut reads), buffers)
}

/// A simulated disk with the default latencies.
pub fn disk(seed: u64) -> SimDisk {
    SimDisk::new(SimOptions { seed, ..SimOptions::default() })
}

/// Waits for a condition that another thread brings about. A test that waits holds a watchdog.
pub fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for all requests of a queue, in whatever order they complete.
pub fn complete_all(queue: &mut Queue) -> Vec<Completion> {
    let mut completions = Vec::new();
    while queue.pending() > 0 {
        queue.wait(1, |completion| completions.push(completion));
    }
    completions
}

/// Waits for all requests of a queue, each of which must succeed.
pub fn succeed_all(queue: &mut Queue) {
    complete_all(queue).into_iter().for_each(|completion| completion.result.unwrap());
}

/// How often a thread has gone to sleep, by its folder in `/proc`. None if the thread has ended.
pub fn sleeps(task: &std::path::Path) -> Option<u64> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a test of this name again in a process of its own, where nothing else runs. Returns true in
/// that process, and false in the calling one once it has ended successfully.
pub fn is_alone(name: &str) -> bool {
    const MARK: &str = "OCTAVO_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(MARK, "1");
    assert!(command.status().unwrap().success(), "{name} failed in a process of its own");
    false
}
