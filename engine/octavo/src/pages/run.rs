//! A hit of a run: a read of several pages that are resident, one after the other, without a task.
//!
//! Each page takes the steps of a hit (`hit.rs`). Neighbouring pages lie in neighbouring sets, so
//! the fronts of a run share cache lines; all of them are prefetched first. Each page is looked up
//! some pages before it is copied.
//!
//! The run ends at the first page that is not a hit. The rest is a task, which looks at that page
//! again and counts it. A blocking read makes that task (`Task::starting_at`); the read of a queue
//! or in a batch is one already (`flight/read.rs`). A read of several pages is not atomic, neither
//! here nor as a task: pages may be written between the copies of two pages.
//!
//! Not here: reads that go to several pieces of memory, and reads that are recorded or accounted by
//! node. Their pages are served one by one by a task (`access.rs`).

use std::mem::MaybeUninit;
use std::ops::Range;

use octavo_table::{Candidate, Tag};

use super::hit::TOGETHER;
use crate::memory::copy::{self, Width};
use crate::position::{ByteOffset, PageIndex, page_count, pages_in};
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::ways::WAYS;

/// A page is looked up this many pages before it is copied, which fetches its slot's tag.
const AHEAD: usize = 4;

/// A page's first bytes are prefetched this many pages before they are copied.
const BYTES_AHEAD: usize = 2;

/// The bytes of a read, which may lie in several pages.
#[derive(Clone, Copy)]
struct Run {
    offset: ByteOffset,
    to: *mut u8,
    len: usize,
}

/// A page between its lookup and its copy.
#[derive(Clone, Copy)]
struct Looked<'p> {
    tag: Tag,
    candidate: Option<Candidate<'p, WAYS>>,
}

impl ObjectInner {
    /// Copies the pages of a range up to the first that is not resident, that a writer interferes
    /// with, or whose access must be accounted. Counts them as hits, but no request. Returns the
    /// first page that was not copied, or the end of the range.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and the range lies in the object.
    pub unsafe fn read_run(&self, offset: ByteOffset, to: *mut u8, len: usize) -> PageIndex {
        let run = Run { offset, to, len };
        let Range { start: mut next, end } = self.partition.page_size.page_range(offset, len as u64);
        while next < end {
            let part = next..end.min(next + TOGETHER as u64);
            // Asked for each part, because a recording may begin during a long run.
            let Some(counts) = self.partition.counters.at_hand() else { break };
            // SAFETY: the caller's promise.
            let hits = unsafe { self.read_part(&run, &part) };
            counts.add(Count::Hits, hits);
            next += hits;
            if next < part.end {
                break;
            }
        }
        next
    }

    /// Copies the pages of a part of a run. Returns the number of pages before the first that was
    /// not a hit.
    ///
    /// # Safety
    /// As `read_run`; the part has at most `TOGETHER` pages, which are the run's.
    unsafe fn read_part(&self, run: &Run, part: &Range<PageIndex>) -> u64 {
        let partition = &*self.partition;
        let count = page_count(part) as usize;
        let mut places = [const { MaybeUninit::<Looked<'_>>::uninit() }; TOGETHER];
        for (page, place) in pages_in(part).zip(&mut places) {
            let tag = self.tag(page);
            partition.table.prefetch_set(tag);
            place.write(Looked { tag, candidate: None });
        }
        // SAFETY: the loop has written the first `count` places, which are at most all.
        let places =
            unsafe { std::slice::from_raw_parts_mut(places.as_mut_ptr().cast::<Looked<'_>>(), count) };
        places.iter_mut().take(AHEAD).for_each(|place| self.look_up(place));
        places.iter().take(BYTES_AHEAD).for_each(|place| self.prefetch_bytes(place));
        for number in 0..count {
            if let Some(place) = places.get_mut(number + AHEAD) {
                self.look_up(place);
            }
            if let Some(place) = places.get(number + BYTES_AHEAD) {
                self.prefetch_bytes(place);
            }
            // SAFETY: the caller's promise.
            if !unsafe { self.read_page_of(run, part.start + number as u64, places[number]) } {
                return number as u64;
            }
        }
        count as u64
    }

    /// Finds the candidate slot of a page, and prefetches its tag.
    #[inline(always)]
    fn look_up<'p>(&'p self, place: &mut Looked<'p>) {
        let table = &self.partition.table;
        // SAFETY: it relies on nothing.
        place.candidate = unsafe { table.candidate_known::<false>(place.tag) };
        if let Some(candidate) = place.candidate {
            table.prefetch_tag(candidate.slot);
        }
    }

    /// Prefetches the first bytes of a page that was looked up.
    #[inline(always)]
    fn prefetch_bytes(&self, place: &Looked<'_>) {
        if let Some(candidate) = place.candidate {
            copy::prefetch_frame(self.partition.frames.at(candidate.slot), copy::PREFETCH_BYTES_MAX);
        }
    }

    /// Copies the run's bytes in one page. Returns whether that was a hit.
    ///
    /// # Safety
    /// As `read_run`, and the page is one of the run's.
    #[inline(always)]
    unsafe fn read_page_of(&self, run: &Run, page: PageIndex, place: Looked<'_>) -> bool {
        let (partition, page_size) = (&*self.partition, self.partition.page_size);
        let start = page_size.start_of(page).max(run.offset);
        let done = (start - run.offset) as usize;
        let skip = page_size.offset_in_page(start);
        let (to, len) = (run.to.wrapping_add(done), (run.len - done).min(page_size.bytes() - skip));
        let tag = place.tag;
        if let Some(candidate) = place.candidate {
            let from = partition.frames.at(candidate.slot).wrapping_add(skip);
            // SAFETY: the caller's promise, and the bytes lie in one page.
            if unsafe { partition.copy_candidate(Width::Unknown, candidate, tag, from, to, len) } {
                return true;
            }
        }
        // SAFETY: as above.
        unsafe { partition.copy_again(tag, skip, to, len) }
    }
}
