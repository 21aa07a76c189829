//! The driver: a thread with a queue of the engine, which does what calls of tasks cannot do at
//! once.
//!
//! Not here: how calls get to the thread and back (`handover.rs`).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use octavo::disk::Process;
use octavo::{Cache, Charge, Completion, Error, Interest, Memory, Object, Op, Queue, Request};

use crate::bell::Bell;
use crate::handover::{Handover, Limits, Next, Overlap, Taken, Ticket, Work};
use crate::sync::{AtomicU64, Ordering};

/// Settings of a [`Driver`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// Most requests that run in the engine at the same time. Further calls wait for their turn, in
    /// the order in which they came. Default: 256.
    pub requests_max: usize,
    /// Memory for the bytes of reads that miss, while they run; charged to the cache's share of
    /// buffers as long as the driver lives. A longer read is several requests, one after the
    /// other. Default: 1 MiB.
    pub reads_max_bytes: u64,
}

impl Default for DriverConfig {
    fn default() -> DriverConfig {
        DriverConfig { requests_max: 256, reads_max_bytes: 1 << 20 }
    }
}

impl DriverConfig {
    /// # Errors
    /// [`Error::Config`] with a sentence that says what is wrong.
    pub fn validate(&self) -> Result<(), Error> {
        let problem = match self {
            DriverConfig { requests_max: 0, .. } => "requests_max is 0: at least 1 is needed",
            DriverConfig { reads_max_bytes: ..4096, .. } => {
                "reads_max_bytes is too small: at least 4096 are needed"
            }
            _ => return Ok(()),
        };
        Err(Error::Config(problem.into()))
    }
}

/// Statistics of a [`Driver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverStat {
    /// Calls that wait for their turn.
    pub waiting: usize,
    /// Calls that run in the engine.
    pub running: usize,
    /// Calls that run although their futures were dropped. They end with the engine's request.
    pub orphans: usize,
    /// Calls that have ended, and whose futures were not polled since.
    pub ended: usize,
    /// How often the driver's thread has gone to sleep. An idle driver stays asleep.
    pub sleeps: u64,
}

/// The thread that serves the misses, writes and syncs of the
/// [`AsyncObject`](crate::AsyncObject)s of one cache. One driver serves any number of tasks and
/// objects.
///
/// Dropping a driver refuses the calls that wait, waits for the requests that run, and joins the
/// thread. If a store hangs, the drop hangs with it. Later calls of its objects fail with
/// [`Error::Closed`], except reads and writes that hit.
///
/// # Examples
/// ```
/// use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
/// use octavo_async::Driver;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), octavo::Error> {
/// let cache = Cache::new(CacheConfig::default())?;
/// let partition = cache.partition(PartitionConfig::new("app"))?;
/// let driver = Driver::new(&cache)?;
/// let object = driver.object(partition.open(Store::memory("disk", 1 << 20), "disk")?);
/// object.write_at(5000, b"octavo").await?;
/// object.sync().await?;
/// assert_eq!(object.read_bytes_at(5000, 6).await?, "octavo");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driver {
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a driver, its thread, and the calls of its objects share.
pub(crate) struct Shared {
    pub handover: Handover<Task>,
    process: Process,
    sleeps: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("limits", &self.handover.limits()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Fails in a child of `fork`, in which the driver's thread does not exist and its lock may
    /// stay locked for ever.
    pub fn check_process(&self) -> Result<(), Error> {
        if self.process.is_this() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// The work of one call.
#[derive(Debug)]
pub(crate) struct Task {
    pub object: Object,
    pub job: Job,
}

#[derive(Debug)]
pub(crate) enum Job {
    /// A request of the caller's.
    Op(Op),
    /// A read into memory that is allocated when it begins.
    Read { offset: u64, len: usize },
}

/// What became of a call. No operation comes back from a read that was refused.
pub(crate) struct Outcome {
    pub op: Option<Op>,
    pub result: Result<(), Error>,
}

/// A read that hit, in which the engine may want to read ahead.
pub(crate) struct Hit {
    pub object: Object,
    pub offset: u64,
    pub len: usize,
}

/// A range that a call changes.
pub(crate) struct Changed {
    object: Object,
    offset: u64,
    len: u64,
}

impl Overlap for Changed {
    fn overlaps(&self, other: &Changed) -> bool {
        let reaches = |one: &Changed, two: &Changed| one.offset.saturating_add(one.len) > two.offset;
        reaches(self, other) && reaches(other, self) && self.object.is_same(&other.object)
    }
}

impl Work for Task {
    type Outcome = Outcome;
    type Note = Hit;
    type Bytes = Changed;

    fn memory_bytes(&self) -> u64 {
        match self.job {
            Job::Read { len, .. } => len as u64,
            Job::Op(_) => 0,
        }
    }

    fn changes(&self) -> Option<Changed> {
        let Job::Op(op) = &self.job else { return None };
        let (offset, len) = match op {
            Op::Write { offset, len, .. } => (*offset, *len as u64),
            Op::WriteFrom { offset, memory, .. } => (*offset, memory.len() as u64),
            Op::Discard { offset, len, .. } | Op::Zero { offset, len, .. } => (*offset, *len),
            Op::ZeroFast { offset, len, .. } => (*offset, *len),
            _ => return None,
        };
        Some(Changed { object: self.object.clone(), offset, len })
    }

    fn refused(self) -> Outcome {
        let object = format!("{}, whose driver was dropped", self.object.name());
        let op = match self.job {
            Job::Op(op) => Some(op),
            Job::Read { .. } => None,
        };
        Outcome { op, result: Err(Error::Closed { object }) }
    }
}

impl Driver {
    /// Starts a driver with default settings.
    ///
    /// # Errors
    /// Those of [`with_config`](Driver::with_config).
    pub fn new(cache: &Cache) -> Result<Driver, Error> {
        Driver::with_config(cache, DriverConfig::default())
    }

    /// Starts a driver: a thread, a queue and an eventfd.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the cache's share of buffers has no room for the queue and the reads;
    /// [`Error::Config`] if a setting is invalid or the system refuses a thread or a descriptor;
    /// [`Error::Forked`].
    pub fn with_config(cache: &Cache, config: DriverConfig) -> Result<Driver, Error> {
        config.validate()?;
        let charge = cache.charge(config.reads_max_bytes, "the reads of an async driver")?;
        let queue = cache.queue()?;
        let limits = Limits { calls: config.requests_max, memory_bytes: config.reads_max_bytes };
        let shared = Arc::new(Shared {
            handover: Handover::new(Bell::new()?, limits),
            process: Process::this(),
            sleeps: AtomicU64::new(0),
        });
        let work = shared.clone();
        let thread = std::thread::Builder::new()
            .name("octavo-async".into())
            .spawn(move || run(queue, &work, charge))
            .map_err(|error| Error::Config(format!("cannot start the thread of a driver: {error}")))?;
        Ok(Driver { shared, thread: Some(thread) })
    }

    /// Returns the driver's statistics.
    pub fn stat(&self) -> DriverStat {
        if self.shared.check_process().is_err() {
            return DriverStat::default();
        }
        let counts = self.shared.handover.counts();
        DriverStat {
            waiting: counts.waiting,
            running: counts.running,
            orphans: counts.orphans,
            ended: counts.ended,
            // Relaxed: a statistic.
            sleeps: self.shared.sleeps.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.check_process().is_err() {
            // The thread exists in the parent only.
            return std::mem::forget(thread);
        }
        self.shared.handover.close();
        // A waker, or the memory of a call, may own the driver: then this is its own thread.
        if thread.thread().id() != std::thread::current().id() {
            // It fails if the thread has panicked, which has been reported.
            let _ = thread.join();
        }
    }
}

/// The driver's thread. The charge ends with it, when no read can run any more.
fn run(mut queue: Queue, shared: &Shared, _charge: Charge) {
    let handover = &shared.handover;
    let readable = Interest { readable: true, writable: false };
    let (mut taken, mut ended) = (Taken::<Task>::default(), Vec::new());
    loop {
        match handover.take(&mut taken) {
            Next::Start => {
                taken.notes.drain(..).for_each(|hit| queue.note_hit(&hit.object, hit.offset, hit.len as u64));
                submit(&mut queue, &mut taken.works);
                queue.wait(0, |completion| ended.push(outcome(completion)));
            }
            Next::Sleep => {
                // Relaxed: a statistic.
                shared.sleeps.fetch_add(1, Ordering::Relaxed);
                let bell = handover.bell();
                let came =
                    queue.wait_or(bell.as_fd(), readable, None, |completion| ended.push(outcome(completion)));
                if came.readable {
                    bell.clear();
                }
            }
            Next::Finish => return,
        }
        handover.end(&mut ended);
    }
}

/// Submits works in order, all neighbours of one object together.
fn submit(queue: &mut Queue, works: &mut Vec<(Ticket, Task)>) {
    let mut works = works.drain(..).peekable();
    while let Some((ticket, Task { object, job })) = works.next() {
        let first = request(ticket, job);
        let others = std::iter::from_fn(|| {
            let (ticket, task) = works.next_if(|(_, next)| next.object.is_same(&object))?;
            Some(request(ticket, task.job))
        });
        queue.submit(&object, std::iter::once(first).chain(others));
    }
}

fn request(ticket: Ticket, job: Job) -> Request {
    let op = match job {
        Job::Op(op) => op,
        Job::Read { offset, len } => Op::ReadInto { offset, memory: Memory::new(vec![0_u8; len]) },
    };
    Request { op, user_data: ticket }
}

fn outcome(Completion { user_data, op, result, .. }: Completion) -> (Ticket, Outcome) {
    (user_data, Outcome { op: Some(op), result })
}
