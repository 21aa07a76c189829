//! [`Leases`]: [`Coherence::Lease`](crate::Coherence::Lease). A file's pages are kept only while
//! the mount holds a lease for reading (`F_RDLCK`) on the lower file: then no program has it open
//! for writing, and the kernel lets none open it before the mount has given the lease back. All
//! other reads and all writes go to the lower file itself, through the kernel's page cache.
//!
//! Rules:
//! - **L1** The kernel's own answer (`F_GETLEASE`) decides whether a lease is held. It is no longer
//!   held from the moment when another program begins to open the file for writing.
//! - **L2** `Leased::keeps` says that all pages of the file were read under the lease. Before a
//!   lease is taken, it is false. Under the lease, the length is adopted and all pages are dropped;
//!   that waits for fills in flight. Then it becomes true.
//! - **L3** A read asks the kernel for the lease (L1), then looks at `keeps`, and takes pages of
//!   the cache only if both are true. At the moment of the question, which lies between the
//!   beginning and the end of the read, no other program had the file open for writing. The pages
//!   that the read finds later were read under that lease, or after that moment. So its bytes are
//!   not older than the read. A request that comes late, and fills a page when the lease is gone,
//!   does no harm: the page is dropped when the next lease is taken (L2).
//! - **L4** A break is handled by one thread: it makes `keeps` false, has the kernel drop the pages
//!   and attributes that it keeps for the mount, and gives the lease back. None of this waits for
//!   I/O of the cache, or for a lock that is held across I/O. When no break is left to handle, the
//!   thread drops the pages, one file at a time, which waits for that file's fills in flight.
//! - **L5** A handle that may write is counted before its descriptor is opened, and after that the
//!   lease is given back: the descriptor would break it. No lease is taken while handles are
//!   counted.
//! - **L6** The kernel tells the thread of a break by a signal. If it has no memory for that, it
//!   sends SIGIO, and the thread asks for all leases. Signals that come late, for descriptors that
//!   are another file's by now, do no harm: the thread asks for the lease first (L1).
//! - **L7** A lease is tried at each open for reading, and at reads at most every [`PAUSE`].
//!
//! Lock order: `Leased::state`, then the table. Under `state`, which is held across I/O, a lease is
//! taken; the thread never takes it. The table's is a leaf, and no file is freed under it.
//!
//! *Considered instead*: leaving out the question of L3 (0.3 µs), because a break makes `keeps`
//! false before the other program's `open` returns. But the kernel gives a lease away that is not
//! given back within `/proc/sys/fs/lease-break-time`. A server that was stopped for so long, or had
//! no processor, would serve old bytes.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::Pid;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::lease_calls::{self, Notice, Notices};
use crate::lower;
use crate::nodes::Node;
use crate::wire::{NOTIFY_INVAL_INODE, NotifyInvalInodeOut};

/// How long a file that is read all the time is read without the cache before its lease is tried
/// again.
const PAUSE: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that may keep pages.
pub trait Pages: Send + Sync {
    fn lease(&self) -> Option<&Leased>;

    /// Adopts the length of the lower file, and drops all pages. Waits for fills in flight.
    ///
    /// # Errors
    /// Those of the lower file system.
    fn renew(&self, node: &Node) -> Result<(), Errno>;

    /// Frees the memory of pages that are not served any more.
    fn drop_pages(&self);
}

/// The leases of a mount, and the thread that gives them back.
pub struct Leases {
    /// The thread that the kernel signals when a lease is broken. Set when it runs.
    thread: OnceLock<Pid>,
    table: Mutex<Table>,
    /// Readable when the thread has work, or is to end.
    wake: OwnedFd,
    breaks: AtomicU64,
    ended: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Table {
    /// The files that may have leases, by the descriptor of the lease.
    files: HashMap<RawFd, Weak<dyn Pages>>,
    /// Files whose pages are not served any more.
    outdated: Vec<Weak<dyn Pages>>,
    /// Nodes of which the kernel may keep old pages.
    nodes: Vec<u64>,
    is_over: bool,
}

/// What a file has to do with leases.
pub struct Leased {
    leases: Arc<Leases>,
    /// Carries the lease, and serves reads without the cache. `None` if the server may not read
    /// the file.
    reader: Option<OwnedFd>,
    /// L2.
    keeps: AtomicBool,
    /// The node by which the kernel knows the file.
    node: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Handles that may write (L5).
    writers: usize,
    /// L7.
    next_try: Option<Instant>,
}

impl Leases {
    /// # Errors
    /// EMFILE and the like.
    pub fn new() -> Result<Arc<Leases>, Errno> {
        Ok(Arc::new(Leases {
            thread: OnceLock::new(),
            table: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            breaks: AtomicU64::new(0),
            ended: Mutex::default(),
        }))
    }

    /// What a file needs for leases.
    pub fn of(self: &Arc<Self>, node: &Node) -> Leased {
        let reader = node.place.at().and_then(|place| lower::open_again(place, OFlags::RDONLY));
        Leased {
            leases: self.clone(),
            reader: reader.ok(),
            keeps: AtomicBool::new(false),
            node: AtomicU64::new(node.id),
            state: Mutex::default(),
        }
    }

    /// Starts the thread. No lease is taken before that.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(self: &Arc<Self>, device: Arc<Device>) -> Result<(), String> {
        let (sender, receiver) = mpsc::channel();
        let leases = self.clone();
        let serve = move || match Notices::of_this_thread() {
            Ok(notices) => {
                let _ = sender.send(Ok(rustix::thread::gettid()));
                leases.serve(&device, &notices);
            }
            Err(errno) => _ = sender.send(Err(errno)),
        };
        let thread = std::thread::Builder::new().name("octavo-fuse-leases".into()).spawn(serve);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        *lock(&self.ended) = Some(thread);
        let started = receiver.recv().unwrap_or(Err(Errno::IO));
        let id = started.map_err(|errno| format!("cannot wait for leases to be broken: {errno}"))?;
        let _ = self.thread.set(id);
        Ok(())
    }

    /// Gives all leases back, and ends the thread.
    pub fn end(&self) {
        lock(&self.table).is_over = true;
        self.wake();
        let thread = lock(&self.ended).take();
        thread.map(JoinHandle::join);
    }

    /// The number of files whose pages are served.
    pub fn count(&self) -> usize {
        self.files().iter().filter(|file| file.lease().is_some_and(Leased::serves)).count()
    }

    /// The number of leases that other programs have broken.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Relaxed)
    }

    fn files(&self) -> Vec<Arc<dyn Pages>> {
        lock(&self.table).files.values().filter_map(Weak::upgrade).collect()
    }

    fn wake(&self) {
        // It fails if the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The thread.
    fn serve(&self, device: &Device, notices: &Notices) {
        loop {
            while let Some(notice) = notices.take() {
                self.handle(notice, device);
            }
            let (outdated, nodes, is_over) = {
                let mut table = lock(&self.table);
                (table.outdated.pop(), std::mem::take(&mut table.nodes), table.is_over)
            };
            nodes.into_iter().for_each(|node| drop_in_kernel(device, node));
            if is_over {
                self.files().iter().filter_map(|file| file.lease()).for_each(Leased::give_up);
                return;
            }
            if let Some(file) = outdated {
                // One at a time: leases that are broken meanwhile come first.
                file.upgrade().iter().for_each(|file| file.drop_pages());
                continue;
            }
            let mut fds =
                [&notices.as_fd(), &self.wake.as_fd()].map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// L6.
    fn handle(&self, notice: Notice, device: &Device) {
        let found = match notice {
            Notice::Break(fd) => {
                lock(&self.table).files.get(&fd).and_then(Weak::upgrade).into_iter().collect()
            }
            Notice::Any => {
                let mut files = self.files();
                files.retain(|file| file.lease().is_some_and(|lease| lease.keeps.load(SeqCst)));
                files
            }
        };
        found.iter().for_each(|file| self.give_back(file, device));
    }

    /// L4.
    fn give_back(&self, file: &Arc<dyn Pages>, device: &Device) {
        let Some(lease) = file.lease().filter(|lease| !lease.is_held()) else { return };
        lease.keeps.store(false, SeqCst);
        drop_in_kernel(device, lease.node.load(SeqCst));
        lease.reader.iter().for_each(|reader| lease_calls::give_back(reader.as_fd()));
        self.breaks.fetch_add(1, Relaxed);
        lock(&self.table).outdated.push(Arc::downgrade(file));
    }
}

/// Has the kernel drop the pages and the attributes that it keeps for a node. Waits for requests of
/// the kernel that are about these pages, so a thread that serves requests must not call it.
fn drop_in_kernel(device: &Device, node: u64) {
    let whole = NotifyInvalInodeOut { ino: node, off: 0, len: 0 };
    match device.notify(NOTIFY_INVAL_INODE, &[whole.as_bytes()]) {
        // The kernel has forgotten the node, or the mount has ended.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(errno) => log::warn!("the kernel does not drop its pages of a file: {errno}"),
    }
}

impl Leased {
    /// L1.
    fn is_held(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| lease_calls::is_held(reader.as_fd()))
    }

    /// L3. The first look saves a system call.
    pub fn serves(&self) -> bool {
        self.keeps.load(SeqCst) && self.is_held() && self.keeps.load(SeqCst)
    }

    /// Whether the kernel may keep the attributes of the file. The mount has them dropped when the
    /// lease is broken.
    pub fn covers(&self, node: &Node) -> bool {
        // First, so that a break after the look finds it.
        self.node.store(node.id, SeqCst);
        self.serves()
    }

    /// The lower file, for reads without the cache.
    pub fn reader(&self) -> Option<&OwnedFd> {
        self.reader.as_ref()
    }

    /// Counts a handle that may write, before it has a descriptor (L5).
    pub fn add_writer<P: Pages + 'static>(&self, file: &Arc<P>) {
        lock(&self.state).writers += 1;
        if self.keeps.load(SeqCst) {
            let file: Weak<P> = Arc::downgrade(file);
            lock(&self.leases.table).outdated.push(file);
            self.leases.wake();
        }
        self.give_up();
    }

    /// Takes back a count, after the descriptor was closed.
    pub fn remove_writer(&self) {
        let mut state = lock(&self.state);
        state.writers -= 1;
        state.next_try = None;
    }

    /// Gives the lease back, without a break.
    fn give_up(&self) {
        self.keeps.store(false, SeqCst);
        self.reader.iter().for_each(|reader| lease_calls::give_back(reader.as_fd()));
    }

    /// Takes a lease if that may succeed (L2, L7).
    pub fn try_take<P: Pages + 'static>(&self, file: &Arc<P>, node: &Node, is_at_open: bool) {
        // Not waiting: if another thread is about to take it, this read does without.
        let Ok(mut state) = self.state.try_lock() else { return };
        let is_too_early = |next: Instant| !is_at_open && Instant::now() < next;
        if state.writers > 0 || state.next_try.is_some_and(is_too_early) || self.serves() {
            return;
        }
        state.next_try = Some(Instant::now() + PAUSE);
        let (Some(reader), Some(thread)) = (&self.reader, self.leases.thread.get()) else { return };
        self.keeps.store(false, SeqCst);
        self.node.store(node.id, SeqCst);
        {
            // First, so that a break finds it.
            let mut table = lock(&self.leases.table);
            if table.is_over {
                return;
            }
            let file: Weak<P> = Arc::downgrade(file);
            table.files.insert(reader.as_raw_fd(), file);
        }
        if lease_calls::take(reader.as_fd(), *thread).is_err() {
            return;
        }
        let is_fresh = file.renew(node).is_ok();
        self.keeps.store(is_fresh, SeqCst);
        // A break before `keeps` was true may have been passed over (L6).
        if !is_fresh || !self.is_held() || lock(&self.leases.table).is_over {
            return self.give_up();
        }
        // Pages that the kernel has read for mappings meanwhile.
        lock(&self.leases.table).nodes.push(node.id);
        self.leases.wake();
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            lock(&self.leases.table).files.remove(&reader.as_raw_fd());
            // A child of this process may have the descriptor, too, until it runs its program.
            lease_calls::give_back(reader.as_fd());
        }
    }
}
