//! The mailbox of a lane: pages that the lane's owner must try again, and whether the owner
//! sleeps.
//!
//! Wake-up protocol, for everything that a sleeping owner must notice:
//!
//! 1. A sender publishes its news (here, or in a list of the lane's own), fences, and reads
//!    `parked`. If the owner is parked, the sender wakes the ring.
//! 2. The owner sets `parked`, fences, and looks for news once more before it sleeps.
//!
//! The two fences are sequentially consistent: the sender sees `parked`, or the owner sees the
//! news.

use octavo_disk::Ring;

use crate::position::PageIndex;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, fence, lock};

/// The number of a task in its lane.
pub(crate) type TaskId = usize;

/// Stands for a page in the registration of a task that only wants to continue.
pub(crate) const RESUME: PageIndex = PageIndex(u64::MAX);

/// A lane's mailbox. Any thread may put something in; the lane's owner takes it out.
pub(crate) struct Mailbox {
    ring: Arc<Ring>,
    ready: Mutex<Vec<Ready>>,
    /// The owner sleeps, or is about to, and needs a wake-up for news.
    parked: AtomicBool,
    /// The owner takes the lane's completions itself; no other thread needs to.
    attended: AtomicBool,
}

/// A page of a task that the lane's owner must try again.
pub(crate) struct Ready {
    pub task: TaskId,
    pub page: PageIndex,
    /// The task had registered a waiter, which the lane counts as `waiting`.
    pub registered: bool,
}

/// Registration of one task for one page: tells the task's lane that the page may be tried
/// again.
pub(crate) struct Waiter {
    mailbox: Arc<Mailbox>,
    task: TaskId,
    page: PageIndex,
}

impl Waiter {
    /// Tells the task to try its page again.
    pub fn wake(self) {
        self.mailbox.put(Ready { task: self.task, page: self.page, registered: true });
        self.mailbox.notify();
    }

    /// Whether the owner of the task's lane is running or waiting there, and acts on a wake-up.
    pub fn is_attended(&self) -> bool {
        self.mailbox.is_attended()
    }
}

impl Mailbox {
    pub fn new(ring: Arc<Ring>) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            ring,
            ready: Mutex::new(Vec::new()),
            parked: AtomicBool::new(false),
            attended: AtomicBool::new(false),
        })
    }

    /// Creates a waiter for `page` of `task`. The lane counts it when it is registered.
    pub fn waiter(self: &Arc<Self>, task: TaskId, page: PageIndex) -> Waiter {
        Waiter { mailbox: self.clone(), task, page }
    }

    /// Adds a page without waking the owner: for the owner itself, and for completions, which
    /// the owner takes before it sleeps.
    pub fn put(&self, ready: Ready) {
        lock(&self.ready).push(ready);
    }

    /// Takes everything out.
    pub fn take(&self) -> Vec<Ready> {
        std::mem::take(&mut *lock(&self.ready))
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.ready).is_empty()
    }

    /// Step 1: wakes the owner, if it sleeps, after the caller has published news.
    pub fn notify(&self) {
        // Pairs with the fence in `park`.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) {
            self.ring.wake();
        }
    }

    /// Step 2: announces that the owner is about to sleep. The owner then looks for news, sleeps
    /// only if there is none, and calls [`Mailbox::unpark`].
    pub fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
    }

    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// Wakes a sleeping owner, so that it checks again which lanes are attended.
    pub fn wake_if_parked(&self) {
        if self.parked.load(Ordering::SeqCst) {
            self.ring.wake();
        }
    }

    /// Ends the owner's sleep, or its next one.
    pub fn wake(&self) {
        self.ring.wake();
    }

    /// Sets whether the owner takes the lane's completions itself.
    pub fn set_attended(&self, attended: bool) {
        self.attended.store(attended, Ordering::SeqCst);
    }

    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::SeqCst)
    }
}
