//! Read-ahead: together with a read, claims the pages that its stream will probably want next, and
//! the rest of the unit in which the store is read best. Only a task that wants such a page waits
//! for it.
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

/// Returns the pages to bring in together with a read of `pages`, which missed: those that its
/// stream will probably want next, and the rest of their units.
pub(crate) fn wanted_next(object: &ObjectInner, pages: Range<PageIndex>) -> Option<Ahead> {
    let partition = &*object.partition;
    // Nothing follows a read of all pages. The streams of many small files would only take memory.
    let is_whole = pages.start.0 == 0 && pages.end.0 * partition.page_bytes() as u64 >= object.len_bytes();
    let stream = || object.streams.missed(pages.clone(), || partition.window_pages());
    let ahead = (partition.reads_ahead() && !is_whole).then(stream).flatten();
    // A unit must not empty a tiny partition.
    let unit = object.unit_pages;
    if unit < 2 || unit > partition.table.slots_count() / 8 || object.streams.is_random() {
        return ahead;
    }
    Some(whole_units(unit, &pages, ahead))
}

/// Extends a read of `pages`, and what is read ahead of a sequential stream, to whole units. The
/// pages of the read are resident or busy by then, and are passed over.
fn whole_units(unit: u64, pages: &Range<PageIndex>, ahead: Option<Ahead>) -> Ahead {
    let first = pages.start.0 / unit * unit;
    let sequential = ahead.filter(|ahead| ahead.stride == 1 && ahead.first >= pages.start);
    let end = sequential.map_or(0, |ahead| ahead.first.0 + u64::from(ahead.count)).max(pages.end.0);
    let count = end.next_multiple_of(unit) - first;
    Ahead { first: PageIndex(first), stride: 1, count: u32::try_from(count).unwrap_or(u32::MAX) }
}

/// Whether a miss on `lane` may bring more pages than it wants. A call drops its spare lane when it
/// returns, and waits for these reads (B4), which only a unit is worth.
pub(crate) fn may_bring_more(lane: &Lane, object: &ObjectInner) -> bool {
    !lane.is_spare() || object.unit_pages > 1
}

/// Claims the pages that the stream of a read that missed will probably want next. The caller
/// flushes.
pub(crate) fn after_miss(lane: &Arc<Lane>, work: &mut Work, id: TaskId) {
    let task = &work.tasks[id];
    if !may_bring_more(lane, &task.object) {
        return;
    }
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
    let is_elsewhere = guard.find(tag).is_some() || partition.strays.has(tag);
    // The last of these after the ranges (N2 of `state/numbers.rs`).
    if is_elsewhere || object.ranges.is_closed(page) || object.takes_no_page() {
        return;
    }
    // If the set is full, leave the page to the task that wants it.
    let slot = match partition.claim(guard, tag, Claiming::Ahead) {
        Claimed::Slot(slot) => slot,
        Claimed::Full(_) | Claimed::Resident => return,
    };
    owner.gather(page, slot, Role::Bring);
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_miss_asks_for_the_whole_units_of_its_pages() {
        let pages = |range: Range<u64>| PageIndex(range.start)..PageIndex(range.end);
        let ahead = |first: u64, count| Some(Ahead { first: PageIndex(first), stride: 1, count });
        assert_eq!(Some(whole_units(8, &pages(13..14), None)), ahead(8, 8));
        assert_eq!(Some(whole_units(8, &pages(15..17), None)), ahead(8, 16));
        assert_eq!(Some(whole_units(8, &pages(8..16), None)), ahead(8, 8));
        // A stream that reads ahead ends at the end of a unit, too.
        assert_eq!(Some(whole_units(8, &pages(13..14), ahead(14, 4))), ahead(8, 16));
        // A strided stream is left to its units.
        let strided = Ahead { first: PageIndex(113), stride: 100, count: 4 };
        assert_eq!(Some(whole_units(8, &pages(13..14), Some(strided))), ahead(8, 8));
    }
}
