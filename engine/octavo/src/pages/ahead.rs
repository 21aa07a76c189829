//! The tags of a range's pages, for operations that look up every page of a range.
//!
//! In a table that is larger than the processor's caches, such an operation waits for the lines of
//! each set. The iterator prefetches them some pages ahead, so the waits overlap: first those whose
//! address follows from the tag, later the word and the tag of the slot that the fingerprints name.
//! Prefetching changes nothing that the operation finds.
//!
//! Not here: the lookups themselves, and pages whose bytes are copied (`run.rs`).

use std::ops::Range;

use octavo_table::Tag;

use crate::position::PageIndex;
use crate::state::partition::ObjectInner;

/// A set is prefetched this many pages before its page is returned: enough to keep the memory
/// system busy.
const SETS_AHEAD: u64 = 16;

/// A slot is prefetched this many pages before its page is returned. Its set's front has arrived
/// by then.
const SLOTS_AHEAD: u64 = 8;

/// What the caller does with a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// `Table::find`, without a lock.
    Find,
    /// `Table::lock`.
    Lock,
}

/// The pages of a range, in order, with their tags.
pub(crate) struct TagsAhead<'o> {
    object: &'o ObjectInner,
    lookup: Lookup,
    /// The pages that are not returned yet.
    pages: Range<PageIndex>,
    /// The tags of the next pages, each at its page's number modulo the length.
    tags: [Tag; SETS_AHEAD as usize],
}

impl ObjectInner {
    /// Returns the pages of a range with their tags, for lookups of this kind.
    pub fn tags_ahead(&self, pages: &Range<PageIndex>, lookup: Lookup) -> TagsAhead<'_> {
        let tags = [Tag::default(); SETS_AHEAD as usize];
        let mut ahead = TagsAhead { object: self, lookup, pages: pages.clone(), tags };
        (0..SETS_AHEAD).for_each(|distance| ahead.prefetch_set(distance));
        (0..SLOTS_AHEAD).for_each(|distance| ahead.prefetch_slot(distance));
        ahead
    }
}

impl TagsAhead<'_> {
    /// Returns the page at a distance from the next, and its place in `tags`, if the range has it.
    #[inline(always)]
    fn at(&self, distance: u64) -> Option<(PageIndex, usize)> {
        let page = self.pages.start + distance;
        (page < self.pages.end).then_some((page, (page.0 % SETS_AHEAD) as usize))
    }

    #[inline(always)]
    fn prefetch_set(&mut self, distance: u64) {
        let Some((page, place)) = self.at(distance) else { return };
        let (table, tag) = (&self.object.partition.table, self.object.tag(page));
        self.tags[place] = tag;
        match self.lookup {
            Lookup::Find => table.prefetch_set(tag),
            Lookup::Lock => table.prefetch_lock(tag),
        }
    }

    #[inline(always)]
    fn prefetch_slot(&self, distance: u64) {
        if let Some((_, place)) = self.at(distance) {
            self.object.partition.table.prefetch_page(self.tags[place]);
        }
    }
}

impl Iterator for TagsAhead<'_> {
    type Item = (PageIndex, Tag);

    #[inline(always)]
    fn next(&mut self) -> Option<(PageIndex, Tag)> {
        let (page, place) = self.at(0)?;
        let tag = self.tags[place];
        // Overwrites the tag's place.
        self.prefetch_set(SETS_AHEAD);
        self.prefetch_slot(SLOTS_AHEAD);
        self.pages.start += 1;
        Some((page, tag))
    }
}
