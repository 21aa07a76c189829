//! INTERIM STUB of the public interface: no cache yet, plain pread/pwrite, so that the front ends can be written.
#![allow(missing_docs, dead_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Backing stores (will be `pub use octavo_disk as disk`).
pub mod disk {
    use super::*;
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Engine {
        #[default]
        Auto,
        Uring,
        Blocking,
    }
    #[derive(Clone, Debug)]
    pub struct OpenOptions {
        pub read_only: bool,
        pub direct: bool,
        pub lock: bool,
    }
    impl Default for OpenOptions {
        fn default() -> Self {
            OpenOptions { read_only: false, direct: true, lock: true }
        }
    }
    #[derive(Clone)]
    pub struct Store(pub(crate) Arc<(File, PathBuf, bool)>);
    pub type OpenError = std::io::Error; // will be an error enum with Display that names path and reason
    impl Store {
        pub fn open(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
            let f = File::options().read(true).write(!options.read_only).open(path)?;
            Ok(Store(Arc::new((f, path.into(), options.read_only))))
        }
        pub fn name(&self) -> &str {
            self.0.1.to_str().unwrap()
        }
        pub fn len_bytes(&self) -> u64 {
            self.0.0.metadata().unwrap().len()
        }
        pub fn block_bytes(&self) -> u32 {
            512
        }
        pub fn is_direct(&self) -> bool {
            true
        }
        pub fn read_only(&self) -> bool {
            self.0.2
        }
    }
}

#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Hard bound on everything: frames, metadata, buffers in flight.
    pub memory_max_bytes: u64,
    pub page_bytes: u32,
    pub engine: disk::Engine,
    /// Bytes of `memory_max_bytes` set aside for buffers (None: a sane share).
    pub buffers_max_bytes: Option<u64>,
    /// Whether the cache runs its own cleaner thread.
    pub background: bool,
}
impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            memory_max_bytes: 64 << 20,
            page_bytes: 4096,
            engine: disk::Engine::Auto,
            buffers_max_bytes: None,
            background: true,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    #[default]
    Writethrough,
    Writeback,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    Fifo,
    #[default]
    Lru,
    Clock,
    Lfu,
    Nrlfu,
}
impl PolicyName {
    pub const ALL: [PolicyName; 5] =
        [PolicyName::Fifo, PolicyName::Lru, PolicyName::Clock, PolicyName::Lfu, PolicyName::Nrlfu];
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Fifo => "fifo",
            PolicyName::Lru => "lru",
            PolicyName::Clock => "clock",
            PolicyName::Lfu => "lfu",
            PolicyName::Nrlfu => "nrlfu",
        }
    }
}
impl std::str::FromStr for PolicyName {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|p| p.as_str() == s).ok_or_else(|| format!("unknown policy {s:?}"))
    }
}

#[derive(Clone, Debug)]
pub struct PartitionConfig {
    pub name: String,
    pub policy: PolicyName,
    pub cache_mode: CacheMode,
    /// Frames and metadata of this partition; None: an equal share of what the cache has left.
    pub max_bytes: Option<u64>,
    /// Most bytes of dirty pages; None: 40 % of the partition.
    pub dirty_max_bytes: Option<u64>,
}
impl PartitionConfig {
    pub fn new(name: &str) -> Self {
        PartitionConfig {
            name: name.into(),
            policy: PolicyName::default(),
            cache_mode: CacheMode::default(),
            max_bytes: None,
            dirty_max_bytes: None,
        }
    }
}

#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The store failed; the source tells how.
    Io { object: String, errno: i32, message: String },
    /// The request reaches past the object's end.
    PastEnd { object: String, offset_bytes: u64, len_bytes: u64, end_bytes: u64 },
    ReadOnly { object: String },
    /// An fdatasync failed: every later sync fails until the object is opened again.
    Failed { object: String },
    /// `memory_max` leaves no room.
    NoMemory { wanted_bytes: u64, left_bytes: u64, what: String },
    Config(String),
    Closed { object: String },
}
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}
impl std::error::Error for Error {}

#[derive(Clone)]
pub struct Cache(Arc<(CacheConfig, Mutex<Vec<Partition>>)>);

#[derive(Clone)]
pub struct Partition(Arc<(PartitionConfig, Mutex<Vec<Object>>)>);

#[derive(Clone)]
pub struct Object(Arc<(String, disk::Store)>);

/// Memory for requests, charged to the cache, 4096-aligned.
pub struct Buffer(Vec<u8>);
impl From<Vec<u8>> for Buffer {
    /// A buffer of the caller's own memory (not charged).
    fn from(v: Vec<u8>) -> Buffer {
        Buffer(v)
    }
}
impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[derive(Clone, Debug, Default)]
pub struct Evictions {
    pub capacity: u64,
    pub resize: u64,
    pub discard: u64,
    pub write: u64,
}

#[derive(Clone, Debug, Default)]
pub struct PartitionStat {
    pub name: String,
    pub policy: &'static str,
    pub cache_mode: &'static str,
    pub hits: u64,
    pub misses: u64,
    pub fills: u64,
    pub bypasses: u64,
    pub evictions: Evictions,
    /// Pages written back, and the I/Os that took.
    pub writebacks: u64,
    pub writeback_ios: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub sync_errors: u64,
    pub resident_bytes: u64,
    pub dirty_bytes: u64,
    /// What the partition may hold in frames.
    pub max_bytes: u64,
    /// Frames and metadata charged to the cache.
    pub charged_bytes: u64,
    pub requests_read: u64,
    pub requests_write: u64,
    pub requests_sync: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct ObjectStat {
    pub name: String,
    pub len_bytes: u64,
    pub dirty_bytes: u64,
    pub failed: bool,
    /// The last write-back error, if its pages are still dirty.
    pub writeback_error: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct CacheStat {
    pub memory_max_bytes: u64,
    pub memory_charged_bytes: u64,
    pub buffers_max_bytes: u64,
    pub buffers_used_bytes: u64,
    pub io_engine: &'static str,
}

impl Cache {
    pub fn new(config: CacheConfig) -> Result<Cache, Error> {
        Ok(Cache(Arc::new((config, Mutex::default()))))
    }
    pub fn partition(&self, config: PartitionConfig) -> Result<Partition, Error> {
        let p = Partition(Arc::new((config, Mutex::default())));
        self.0.1.lock().unwrap().push(p.clone());
        Ok(p)
    }
    pub fn partitions(&self) -> Vec<Partition> {
        self.0.1.lock().unwrap().clone()
    }
    pub fn stat(&self) -> CacheStat {
        CacheStat { memory_max_bytes: self.0.0.memory_max_bytes, io_engine: "stub", ..Default::default() }
    }
    /// A charged, 4096-aligned buffer; None where the buffers' share is used up (buffers come back as others drop theirs).
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        Some(Buffer(vec![0; bytes]))
    }
    /// A batch queue for the calling thread (one per thread; it may move between threads, not be shared).
    pub fn queue(&self) -> Result<Queue, Error> {
        Ok(Queue { done: vec![] })
    }
}

impl Partition {
    pub fn name(&self) -> &str {
        &self.0.0.name
    }
    /// Opens a store as an object of this partition. `name` is for people (errors, statistics).
    pub fn open(&self, store: disk::Store, name: &str) -> Result<Object, Error> {
        let o = Object(Arc::new((name.into(), store)));
        self.0.1.lock().unwrap().push(o.clone());
        Ok(o)
    }
    pub fn objects(&self) -> Vec<Object> {
        self.0.1.lock().unwrap().clone()
    }
    pub fn stat(&self) -> PartitionStat {
        PartitionStat { name: self.name().into(), policy: self.0.0.policy.as_str(), ..Default::default() }
    }
    /// Syncs every object: returns the first error after having tried all.
    pub fn sync(&self) -> Result<(), Error> {
        self.objects().iter().try_for_each(|o| o.sync())
    }
}

fn io(o: &Object) -> impl Fn(std::io::Error) -> Error + '_ {
    |e| Error::Io { object: o.0.0.clone(), errno: e.raw_os_error().unwrap_or(5), message: e.to_string() }
}

impl Object {
    pub fn name(&self) -> &str {
        &self.0.0
    }
    pub fn store(&self) -> &disk::Store {
        &self.0.1
    }
    pub fn len_bytes(&self) -> u64 {
        self.0.1.len_bytes()
    }
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Error> {
        self.0.1.0.0.set_len(len).map_err(io(self))
    }
    pub fn read_only(&self) -> bool {
        self.0.1.read_only()
    }
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.check(offset, buffer.len() as u64)?;
        self.0.1.0.0.read_exact_at(buffer, offset).map_err(io(self))
    }
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len() as u64)?;
        self.0.1.0.0.write_all_at(bytes, offset).map_err(io(self))
    }
    /// Returns when every write replied to before the call is durable.
    pub fn sync(&self) -> Result<(), Error> {
        self.0.1.0.0.sync_data().map_err(io(self))
    }
    /// Syncs a byte range's dirty pages (FUA).
    pub fn sync_range(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        self.sync()
    }
    /// The range reads as zeros afterwards; the store may give its space back.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.zero(offset, len)
    }
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.write_at(offset, &vec![0; len as usize])
    }
    pub fn advise(&self, _offset: u64, _len: u64, _advice: Advice) -> Result<(), Error> {
        Ok(())
    }
    pub fn stat(&self) -> ObjectStat {
        ObjectStat { name: self.name().into(), len_bytes: self.len_bytes(), ..Default::default() }
    }
    /// Syncs, drops its pages and lets go of the store. Fails (and stays open) while dirty pages cannot be written.
    pub fn close(&self) -> Result<(), Error> {
        self.sync()
    }
    /// Gives up the dirty pages that cannot be written; returns how many bytes that loses.
    pub fn abandon(&self) -> u64 {
        0
    }
    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        let end = self.len_bytes();
        if offset.checked_add(len).is_none_or(|e| e > end) {
            return Err(Error::PastEnd { object: self.name().into(), offset_bytes: offset, len_bytes: len, end_bytes: end });
        }
        Ok(())
    }
}

/// posix_fadvise's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    Normal,
    Sequential,
    Random,
    WillNeed,
    DontNeed,
    NoReuse,
}

/// What a request does. Buffers are owned by the request until its completion gives them back.
pub enum Op {
    /// Fills `buffer[..len]`.
    Read { offset: u64, len: usize, buffer: Buffer },
    /// Writes `buffer[..len]`; with `durable` (FUA) the completion comes when the bytes are durable.
    Write { offset: u64, len: usize, buffer: Buffer, durable: bool },
    Sync,
    Discard { offset: u64, len: u64, durable: bool },
    Zero { offset: u64, len: u64, durable: bool },
    Advise { offset: u64, len: u64, advice: Advice },
}

pub struct Request {
    pub op: Op,
    pub user_data: u64,
}

pub struct Completion {
    pub user_data: u64,
    pub op: Op,
    pub result: Result<(), Error>,
}

/// What `wait_or` shall look for on the caller's own descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub readable: bool,
    pub writable: bool,
}

/// The batch queue: `submit` takes an array of requests, completions come in any order.
pub struct Queue {
    done: Vec<Completion>,
}

impl Queue {
    /// Submits a batch against one object. Hits may complete at once (their completions still come from `wait`).
    pub fn submit(&mut self, object: &Object, requests: impl IntoIterator<Item = Request>) {
        for r in requests {
            let mut op = r.op;
            let result = match &mut op {
                Op::Read { offset, len, buffer } => object.read_at(*offset, &mut buffer[..*len]),
                Op::Write { offset, len, buffer, durable } => object
                    .write_at(*offset, &buffer[..*len])
                    .and_then(|()| if *durable { object.sync() } else { Ok(()) }),
                Op::Sync => object.sync(),
                Op::Discard { offset, len, .. } => object.discard(*offset, *len),
                Op::Zero { offset, len, .. } => object.zero(*offset, *len),
                Op::Advise { offset, len, advice } => object.advise(*offset, *len, *advice),
            };
            self.done.push(Completion { user_data: r.user_data, op, result });
        }
    }
    /// Requests submitted and not yet delivered by a wait.
    pub fn pending(&self) -> usize {
        self.done.len()
    }
    /// Waits until at least `min` (at most `pending`) completions were delivered; min = 0 only looks. Returns how many.
    pub fn wait(&mut self, _min: usize, mut on_completion: impl FnMut(Completion)) -> usize {
        let n = self.done.len();
        self.done.drain(..).for_each(&mut on_completion);
        n
    }
    /// Waits until a completion is there or `fd` is ready (or the timeout passed), delivers what has completed, and says what `fd` is ready for.
    pub fn wait_or(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        timeout: Option<std::time::Duration>,
        on_completion: impl FnMut(Completion),
    ) -> Interest {
        let had = self.wait(0, on_completion);
        let events = if interest.readable { libc::POLLIN } else { 0 } | if interest.writable { libc::POLLOUT } else { 0 };
        let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let ms = if had > 0 { 0 } else { timeout.map_or(-1, |t| t.as_millis() as i32) };
        // SAFETY: one pollfd, alive over the call.
        unsafe { libc::poll(&mut p, 1, ms) };
        Interest {
            readable: p.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0,
            writable: p.revents & libc::POLLOUT != 0,
        }
    }
}
