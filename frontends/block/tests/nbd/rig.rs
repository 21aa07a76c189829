//! A server over files in a directory of its own, and checks that it leaves nothing behind.

use crate::carried::Carried;
use crate::client::Client;
use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig, Queue, disk};
use octavo_block::{Address, Export, Limits, Server, Tls, Traffic};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a test waits for an event before it fails, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        // Gives every directory of this process a name of its own.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("octavo-nbd-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Rig {
    pub server: Option<Server>,
    pub cache: Cache,
    pub objects: Vec<Object>,
    pub socket: PathBuf,
    pub directory: Directory,
    /// The buffers in use without any client, in bytes: those of the engine.
    buffers_bytes: u64,
}

/// The options of a rig: exports with these lengths, of which the second is read-only.
pub struct Plan {
    pub lens: Vec<u64>,
    pub cache: CacheConfig,
    pub cache_mode: CacheMode,
    pub limits: Limits,
    pub tls: Option<Tls>,
    /// The files are empty and sparse.
    pub sparse: bool,
    /// The first export has a store that is no file, and fails from this offset on.
    pub carried: Option<u64>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            lens: vec![1 << 20, 1 << 20],
            cache: CacheConfig::default(),
            cache_mode: CacheMode::default(),
            limits: Limits::default(),
            tls: None,
            sparse: false,
            carried: None,
        }
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

impl Rig {
    pub fn new(plan: Plan) -> Rig {
        let directory = Directory::new();
        let cache = Cache::new(plan.cache).unwrap();
        let config = PartitionConfig { cache_mode: plan.cache_mode, ..PartitionConfig::new("test") };
        let partition = cache.partition(config).unwrap();
        let mut objects = Vec::new();
        let mut exports = Vec::new();
        for (i, len) in plan.lens.into_iter().enumerate() {
            let (path, name) = (directory.0.join(format!("disk{i}")), format!("disk{i}"));
            match plan.sparse {
                true => std::fs::File::create(&path).unwrap().set_len(len).unwrap(),
                false => std::fs::write(&path, pattern(len as usize)).unwrap(),
            }
            let store = match plan.carried.filter(|_| i == 0) {
                Some(fails_from) => Carried::store(&path, fails_from),
                None => disk::Store::open(&path, &disk::OpenOptions::default()).unwrap(),
            };
            let object = partition.open(store, &name).unwrap();
            objects.push(object.clone());
            exports.push(Export {
                name,
                description: format!("number {i}"),
                object,
                read_only: i == 1,
                is_listed: true,
            });
        }
        let socket = directory.0.join("socket");
        let listen = [Address::Unix(socket.clone()), "tcp:127.0.0.1:0".parse().unwrap()];
        let server = Server::start(cache.clone(), exports, &listen, plan.limits).unwrap();
        server.set_tls(plan.tls).unwrap();
        // A thread's first blocking call allocates memory that the thread keeps, and `image` makes
        // such calls.
        objects[0].sync().unwrap();
        let buffers_bytes = bytes_without_rings(&cache);
        Rig { server: Some(server), cache, objects, socket, directory, buffers_bytes }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn traffic(&self) -> Traffic {
        self.server().traffic()
    }

    pub fn client(&self) -> Client {
        Client::unix(&self.socket)
    }

    pub fn tcp_client(&self) -> Client {
        Client::tcp(self.tcp_address())
    }

    pub fn tcp_address(&self) -> SocketAddr {
        match &self.server().addresses()[1] {
            Address::Tcp(address) => *address,
            Address::Unix(_) => unreachable!(),
        }
    }

    /// Returns a client in transmission on an export.
    pub fn attached(&self, export: &str, structured: bool) -> Client {
        let mut client = self.client();
        client.enter(export, structured);
        client
    }

    pub fn image(&self, index: usize) -> Vec<u8> {
        self.objects[index].sync().unwrap();
        std::fs::read(self.directory.0.join(format!("disk{index}"))).unwrap()
    }

    /// Asserts that the server has noticed the end of every client, and freed its memory.
    pub fn assert_deserted(&self) {
        eventually("the last connection leaves", || self.traffic().connections() == 0);
        eventually("queues are dropped", || self.cache.stat().queues == 0);
        eventually("buffers come back", || bytes_without_rings(&self.cache) == self.buffers_bytes);
        assert_eq!(self.traffic().exports().iter().map(|stat| stat.connections).sum::<u64>(), 0);
    }
}

/// Returns the buffer share in use, without rings: the cache makes rings of its own when it needs
/// them, and keeps them.
fn bytes_without_rings(cache: &Cache) -> u64 {
    let stat = cache.stat();
    stat.buffers_used_bytes.saturating_sub(stat.rings * Queue::CHARGED_BYTES)
}

/// Every test ends with a check that the server noticed the end of its clients.
impl Drop for Rig {
    fn drop(&mut self) {
        if self.server.is_some() && !std::thread::panicking() {
            self.assert_deserted();
        }
    }
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "still not true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the number of open descriptors of this process, without those of rings. A ring of a
/// client would count as a queue.
pub fn descriptors(cache: &Cache) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().count();
    all.saturating_sub(cache.stat().rings as usize)
}

/// Returns the `status` files of this process's threads whose names begin with `prefix`.
fn statuses(prefix: &str) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.filter(move |status| status["Name:".len()..].trim_start().starts_with(prefix))
}

/// Returns the number of this process's threads whose names begin with `prefix`.
pub fn threads(prefix: &str) -> usize {
    statuses(prefix).count()
}

/// Returns how often all those threads have fallen asleep so far. None if one of them is awake.
pub fn naps(prefix: &str) -> Option<u64> {
    statuses(prefix).try_fold(0, |sum, status| {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let naps: u64 = field("voluntary_ctxt_switches:")?.parse().ok()?;
        field("State:")?.starts_with('S').then_some(sum + naps)
    })
}

pub fn path_of(rig: &Rig, name: &str) -> PathBuf {
    rig.directory.0.join(name)
}
