//! The mailbox of a lane: the pages that the lane's owner must try again, and whether the owner is
//! asleep.
//!
//! The wake-up protocol, for all news that a sleeping owner must notice:
//!
//! 1. A sender publishes its news (here, or in another list of the lane), fences, and reads
//!    `parked`. If the owner is parked, the sender wakes the ring.
//! 2. The owner sets `parked`, fences, and checks for news once more before it sleeps.
//!
//! Both fences are sequentially consistent, so either the sender sees `parked` or the owner sees
//! the news.

use octavo_disk::Ring;

use crate::position::PageIndex;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, fence, lock};

/// The index of a task in its lane. Reused after the task has ended.
pub(crate) type TaskId = usize;

/// Takes the place of a page in a registration: the task is to continue, and no particular page is
/// to be tried again.
pub(crate) const RESUME: PageIndex = PageIndex(u64::MAX);

/// A lane's mailbox. Any thread may put pages in; the lane's owner takes them out.
pub(crate) struct Mailbox {
    ring: Arc<Ring>,
    ready: Mutex<Vec<Ready>>,
    /// The owner is asleep or about to sleep: a sender must wake the ring.
    parked: AtomicBool,
    /// The owner takes the lane's completions itself, so no other thread needs to.
    attended: AtomicBool,
}

/// A page of a task that the lane's owner must try again.
pub(crate) struct Ready {
    pub task: TaskId,
    pub page: PageIndex,
    /// The page comes from a registered waiter, which the lane counts in `waiting`.
    pub registered: bool,
}

/// A registration of one task for one page. Waking it tells the task's lane to try the page again.
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

    /// Whether the owner of the task's lane is working or waiting there, and will act on a wake-up.
    pub fn is_attended(&self) -> bool {
        self.mailbox.is_attended()
    }
}

impl Mailbox {
    pub fn new(ring: Arc<Ring>) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            ring,
            ready: Mutex::default(),
            parked: AtomicBool::default(),
            attended: AtomicBool::default(),
        })
    }

    /// Creates a waiter for `page` of `task`. The lane counts the waiter when it is registered.
    pub fn waiter(self: &Arc<Self>, task: TaskId, page: PageIndex) -> Waiter {
        Waiter { mailbox: self.clone(), task, page }
    }

    /// Adds a page without waking the owner. For the owner itself, and for a thread that takes
    /// completions: if that is another thread, it wakes the owner afterwards.
    pub fn put(&self, ready: Ready) {
        lock(&self.ready).push(ready);
    }

    /// Takes all pages out.
    pub fn take(&self) -> Vec<Ready> {
        std::mem::take(&mut *lock(&self.ready))
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.ready).is_empty()
    }

    /// Step 1: wakes the owner if it is asleep. The caller has published its news.
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

    /// Ends the owner's sleep. If the owner is awake, its next sleep ends at once.
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
