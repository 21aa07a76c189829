//! The owner of a lane, while it works on one of its tasks. The verbs start I/O and register for
//! wake-ups through it, so what the task waits for is counted here, in one place.

use std::time::Instant;

use octavo_table::{SlotIndex, Tag};

use super::lane::{Gathered, Lane, Work};
use super::task::{Kind, Pages, Role, Task, Transfer};
use crate::error::Error;
use crate::memory::Bounce;
use crate::position::PageIndex;
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::{TaskId, Waiter};

/// The owner of `lane`, at work on the task `id`.
pub(crate) struct Owner<'a> {
    pub lane: &'a Arc<Lane>,
    pub work: &'a mut Work,
    pub id: TaskId,
    /// The task's object.
    pub object: &'a Arc<ObjectInner>,
}

impl Owner<'_> {
    pub fn task(&mut self) -> &mut Task {
        &mut self.work.tasks[self.id]
    }

    /// Lets the owner try a page again later, after other tasks.
    pub fn retry(&mut self, page: PageIndex) {
        self.task().outstanding += 1;
        self.lane.retry(self.id, page);
    }

    /// Calls `register` with a maker of waiters for `page`. Counts the waiter and returns `true` if
    /// `register` returns `true`, because it has registered one.
    pub fn waits(&mut self, page: PageIndex, register: impl FnOnce(&dyn Fn() -> Waiter) -> bool) -> bool {
        let is_registered = register(&|| self.lane.waiter(self.id, page));
        if is_registered {
            self.work.registered(self.id);
        }
        is_registered
    }

    /// Registers the task if another one serves the page without a slot or has closed its range,
    /// and returns whether it does. The caller holds the lock of the page's set.
    pub fn waits_elsewhere(&mut self, page: PageIndex, tag: Tag) -> bool {
        let object = self.object;
        self.waits(page, |waiter| {
            object.partition.strays.wait(tag, waiter) || object.ranges.wait(page, waiter)
        })
    }

    /// Fails the task if its object was closed since the request was checked, and returns whether
    /// it was. The caller holds the lock of the set of a page that is not resident, and has looked
    /// at the closed ranges: from here on the page may be claimed (N2 of `state/numbers.rs`).
    pub fn fails_closed(&mut self) -> bool {
        let is_closed = self.object.takes_no_page();
        if is_closed {
            let object = self.object.name.clone();
            self.task().fail(Error::Closed { object });
        }
        is_closed
    }

    /// Takes up to `wanted` bounce pages. If there is none, the task tries `page` again when one is
    /// returned.
    pub fn take_bounce(&mut self, page: PageIndex, wanted: usize) -> Option<Bounce> {
        let mut bounce = None;
        let (pool, share) = (&self.object.partition.bounce, &self.object.bounced);
        self.waits(page, |waiter| {
            bounce = pool.take(share, wanted, waiter);
            bounce.is_none()
        });
        bounce
    }

    /// Adds a claimed slot to the fills that the next `flush` submits.
    pub fn gather(&mut self, page: PageIndex, slot: SlotIndex, role: Role) {
        self.task().outstanding += 1;
        self.work.gathered.push(Gathered { page, slot, task: self.id, role });
    }

    /// Queues an I/O of the task.
    pub fn push(&mut self, kind: Kind, page: PageIndex, pages: Pages, bounce: Option<Bounce>) {
        self.task().outstanding += 1;
        let object = self.object.clone();
        self.lane.push(self.work, Transfer { kind, object, page, pages, bounce, made_at: Instant::now() });
    }
}
