//! Read-ahead: together with a read, claims the pages that its stream will probably want next. Only
//! a task that wants such a page waits for it.
//!
//! Not here: how streams are detected (`state/streams.rs`).

use std::ops::Range;

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{Job, NONE, Role, Task};
use crate::pages::steps::{Claimed, Claiming};
use crate::position::{ByteOffset, PageIndex};
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::state::streams::Ahead;
use crate::sync::{Arc, Ordering};
use crate::wait::TaskId;

impl PartitionInner {
    /// Whether pages are read ahead at all.
    #[inline]
    pub fn reads_ahead(&self) -> bool {
        self.windows.max_pages > 0
    }

    fn window_pages(&self) -> u32 {
        let tally = self.table.tally();
        let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        let share = (self.table.slots_count() / 8).min(u64::from(u32::MAX)) as u32;
        self.windows.pages(count(&tally.ahead_used), count(&tally.ahead_wasted)).min(share)
    }
}

/// Returns the pages that the stream of a read of `pages`, which missed, will probably want next.
pub(crate) fn wanted_next(object: &ObjectInner, pages: Range<PageIndex>) -> Option<Ahead> {
    let partition = &*object.partition;
    partition.reads_ahead().then(|| object.streams.missed(pages, || partition.window_pages()))?
}

/// Claims the pages that the stream of a read that missed will probably want next. The caller
/// flushes.
pub(crate) fn after_miss(lane: &Arc<Lane>, work: &mut Work, id: TaskId) {
    // A call drops its spare lane when it returns, and would have to wait for these reads (B4).
    if lane.is_spare() {
        return;
    }
    let task = &work.tasks[id];
    if let Some(ahead) = wanted_next(&task.object, task.page_range()) {
        let object = task.object.clone();
        start(lane, work, &object, ahead);
    }
}

/// Does the same for a read that hit, if its stream has come to what was read ahead last.
pub(crate) fn after_hit(
    lane: &Arc<Lane>,
    work: &mut Work,
    object: &Arc<ObjectInner>,
    pages: &Range<PageIndex>,
) {
    if lane.is_spare() {
        return;
    }
    let partition = &*object.partition;
    if let Some(ahead) = object.streams.passed(pages, || partition.window_pages()) {
        start(lane, work, object, ahead);
    }
}

impl Lane {
    /// Does the same for a read that was no task.
    pub fn note_hit(self: &Arc<Self>, object: &Arc<ObjectInner>, pages: &Range<PageIndex>) {
        let mut work = self.work();
        after_hit(self, &mut work, object, pages);
        self.flush(&mut work);
        drop(work);
        self.leave();
    }
}

/// Claims the pages that are read ahead. The caller flushes.
pub(crate) fn start(lane: &Arc<Lane>, work: &mut Work, object: &Arc<ObjectInner>, ahead: Ahead) {
    let Range { end, .. } = object.partition.page_size.page_range(ByteOffset(0), object.len_bytes());
    let mut task = Task::of_pages(Job::Ahead, object, NONE);
    if ahead.stride == 1 {
        (task.next, task.end) = (ahead.first, end.min(ahead.first + u64::from(ahead.count)));
    } else {
        let page = |number| ahead.first.checked_add_signed(ahead.stride * i64::from(number));
        task.again = (0..ahead.count).filter_map(page).filter(|page| *page < end).collect();
        task.again.reverse();
    }
    if task.next < task.end || !task.again.is_empty() {
        lane.start(work, task);
    }
}

/// Claims one page for reading ahead, unless the page is resident or busy.
pub(crate) fn page(owner: &mut Owner<'_>, page: PageIndex) {
    let object = owner.object;
    let partition = &*object.partition;
    let tag = object.tag(page);
    if partition.table.find(tag).is_some() {
        return;
    }
    let guard = partition.table.lock(tag);
    if guard.find(tag).is_some() || partition.strays.has(tag) || object.ranges.is_closed(page) {
        return;
    }
    // If the set is full, leave the page to the task that wants it.
    let slot = match partition.claim(guard, tag, Claiming::Ahead) {
        Claimed::Slot(slot) => slot,
        Claimed::Full(_) | Claimed::Resident => return,
    };
    owner.gather(page, slot, Role::Bring);
}
