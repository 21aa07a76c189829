//! Stores that answer late, small caches, an executor, and ways to wait.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use octavo::disk::{Backend, IoRequest, Op, Store};
use octavo::{Cache, CacheConfig, CacheMode, Partition, PartitionConfig};
use octavo_async::{AsyncObject, Driver, DriverConfig};
use octavo_random::Random;

pub const PAGE: u64 = 4096;

/// A volume in memory whose thread answers in any order, and not while it is held.
#[derive(Clone)]
pub struct Late {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Whether it is held.
    gate: Arc<(Mutex<bool>, Condvar)>,
}

struct Volume {
    late: Late,
    requests: Sender<IoRequest>,
}

impl Late {
    pub fn new(len_bytes: u64) -> Late {
        Late { bytes: Arc::new(Mutex::new(vec![0; len_bytes as usize])), gate: Arc::default() }
    }

    pub fn store(&self, seed: u64) -> Store {
        let (requests, receiver) = channel();
        let late = self.clone();
        std::thread::spawn(move || late.answer(&receiver, Random::new(seed)));
        Store::from_backend("late", Volume { late: self.clone(), requests }).unwrap()
    }

    /// Answers nothing from now on, or answers again.
    pub fn hold(&self, is_held: bool) {
        *self.gate.0.lock().unwrap() = is_held;
        self.gate.1.notify_all();
    }

    pub fn image(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn answer(&self, requests: &Receiver<IoRequest>, mut random: Random) {
        let mut here: Vec<IoRequest> = Vec::new();
        loop {
            if here.is_empty() {
                let Ok(request) = requests.recv() else { return };
                here.push(request);
            }
            here.extend(requests.try_iter().take(8));
            let mut request = here.swap_remove(random.below(here.len() as u64) as usize);
            drop(self.gate.1.wait_while(self.gate.0.lock().unwrap(), |is_held| *is_held).unwrap());
            let (start, len) = (request.offset() as usize, request.len_bytes());
            let mut bytes = self.bytes.lock().unwrap();
            match request.op() {
                Op::Read => request.copy_in(0, &bytes[start..][..len]),
                Op::Write => request.copy_out(0, &mut bytes[start..][..len]),
                Op::Zero | Op::Discard => bytes[start..][..len].fill(0),
                Op::Sync => {}
            }
            drop(bytes);
            request.complete(Ok(len));
        }
    }
}

impl Backend for Volume {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.late.bytes.lock().unwrap().len() as u64)
    }

    fn submit(&self, request: IoRequest) {
        self.requests.send(request).unwrap();
    }
}

/// A cache that holds a part of its object.
pub struct Scene {
    pub object: AsyncObject,
    pub driver: Driver,
    pub partition: Partition,
    pub cache: Cache,
    pub late: Late,
}

pub fn scene(pages: u64, cache_mode: CacheMode, config: DriverConfig) -> Scene {
    let segment_bytes = 16 * PAGE;
    let small = CacheConfig { memory_max_bytes: 16 << 20, segment_bytes, ..CacheConfig::default() };
    let cache = Cache::new(CacheConfig { seed: Some(1), ..small }).unwrap();
    // Pages are evicted all the time.
    let sized = PartitionConfig { max_bytes: Some(1 << 20), ..PartitionConfig::new("p") };
    let sized = PartitionConfig { cache_mode, read_ahead_max_bytes: 64 << 10, ..sized };
    let partition = cache.partition(sized).unwrap();
    let late = Late::new(pages * PAGE);
    let driver = Driver::with_config(&cache, config).unwrap();
    let object = driver.object(partition.open(late.store(7), "object").unwrap());
    Scene { object, driver, partition, cache, late }
}

/// Wakes a thread.
pub struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn waker() -> (Arc<Unpark>, Waker) {
    let unpark = Arc::new(Unpark(std::thread::current()));
    (unpark.clone(), Waker::from(unpark))
}

/// Polls a future until it is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let (_, waker) = waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Polls a future once.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for a condition, for ten seconds at most.
pub fn until(is_met: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_met() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("this takes too long");
}

/// Ends the process if a test takes longer.
pub struct Watchdog(#[expect(dead_code, reason = "its drop ends the watch")] Sender<()>);

pub fn watch(seconds: u64) -> Watchdog {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if receiver.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs");
            std::process::abort();
        }
    });
    Watchdog(sender)
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

/// Owners of memory that are alive.
static OWNERS: AtomicUsize = AtomicUsize::new(0);

/// Memory that counts itself.
pub struct Counted(Vec<u8>);

impl Counted {
    pub fn new(bytes: Vec<u8>) -> Counted {
        OWNERS.fetch_add(1, Relaxed);
        Counted(bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OWNERS.fetch_sub(1, Relaxed);
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::Deref for Counted {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A number from the environment.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until the dropped calls of a scene have ended, and checks that nothing is left of them:
/// no call, no memory, no pin. Only in a process of its own.
pub fn nothing_is_left(scene: Scene, charged: u64) {
    let Scene { object, driver, partition, cache, late } = scene;
    until(|| driver.stat().running + driver.stat().orphans == 0);
    let stat = driver.stat();
    assert_eq!((stat.waiting, stat.ended), (0, 0));
    until(|| OWNERS.load(Relaxed) == 0 && cache.stat().buffers_used_bytes <= charged);
    assert_eq!(partition.pinned_bytes(), 0);
    drop((object, driver));
    drop((partition, cache, late));
}
