//! The steps that make a page dirty or clean and update the counts of dirty pages, and the walk
//! over dirty pages.

use super::Table;
use crate::index::{Found, SlotIndex};
use crate::sync::atomic::Ordering;
use crate::word::slot::{EndedWriteback, State, Word};
use crate::word::tag::Tag;

impl<const W: usize> Table<W> {
    /// P2, and adds the page to the counts if it is dirty. Returns whether a waiter must be woken.
    #[must_use]
    pub fn publish(&self, slot: SlotIndex, dirty: bool) -> bool {
        if dirty {
            self.count_dirty(slot, 1);
        }
        self.slot(slot).publish(dirty)
    }

    /// P7, and adds the page to the counts if it became dirty; `before` is the word that
    /// `begin_write` replaced. Returns whether a waiter must be woken.
    #[must_use]
    #[inline(always)]
    pub fn end_write(&self, page: &Found<'_>, before: Word, dirty: bool) -> bool {
        let was_dirty = before.state() == State::Dirty;
        debug_assert!(dirty || !was_dirty, "a write does not clean");
        if dirty && !was_dirty {
            self.count_dirty(page.index, 1);
        }
        page.slot().end_write(dirty)
    }

    /// P11, and subtracts the page from the counts if it became clean.
    #[must_use]
    pub fn end_writeback(&self, slot: SlotIndex, version: u64, written: bool) -> EndedWriteback {
        let ended = self.slot(slot).end_writeback(version, written);
        if ended.cleaned {
            self.count_dirty(slot, -1);
        }
        ended
    }

    /// Returns the number of dirty pages. Exact while no thread uses the table; otherwise it may be
    /// too high, and includes every dirty page whose write has completed.
    pub fn dirty_pages(&self) -> u64 {
        // Acquire: pairs with `count_dirty`; a thread that finds no page counted need not look for
        // dirty pages.
        self.header().dirty.load(Ordering::Acquire)
    }

    /// Visits the pages that are or may become dirty, without a lock. Segments without dirty pages
    /// are skipped. A page that moves may be visited twice.
    pub fn for_each_dirty(&self, mut visit: impl FnMut(SlotIndex, Tag, Word)) {
        self.walk(|segment| {
            // Acquire: pairs with `count_dirty`; a page that is no longer counted is clean or has
            // arrived elsewhere.
            if self.record(segment).dirty.load(Ordering::Acquire) == 0 {
                return;
            }
            for found in self.sets_of(segment).flat_map(|set| self.pages_in(set)) {
                // A page in state Writing may have been dirty before, or become dirty when its
                // writer completes. A held page becomes dirty again if the store does not clear its
                // range (P14).
                if matches!(found.word.state(), State::Dirty | State::Writing) || found.word.held() {
                    visit(found.index, found.tag(), found.word);
                }
            }
        });
    }

    /// Adds `change` to the counts of dirty pages. A page is added before it becomes dirty and
    /// subtracted after it became clean, so that the counts are never too low.
    pub(crate) fn count_dirty(&self, slot: SlotIndex, change: i32) {
        let record = self.record(self.segment_of(slot));
        // Release: pairs with `for_each_dirty`. A page that becomes dirty needs no ordering here:
        // `publish` and `end_write` release after the count, and a sync that must see the page has
        // synchronised with its writer.
        record.dirty.fetch_add(change as u32, Ordering::Release);
        // Release: pairs with `dirty_pages`, for the same reasons.
        self.header().dirty.fetch_add(change as i64 as u64, Ordering::Release);
    }
}
