//! Finding holes: the parts of a range that read as zeros because neither the store nor the cache
//! has data for them.
//!
//! - **H1 hint** The store is asked for the holes of the range. This only bounds H2: outside of the
//!   first hole's start and the last one's end, the range counts as data. If nothing of the
//!   partition is dirty, H2 is cheap and H1 is skipped.
//! - **H2 dirty** The dirty pages of the range are listed, also those that a writer owns or that a
//!   clearing holds.
//! - **H3 look** The store is asked for the holes of the range.
//! - **H4 answer** The holes of H3 are those of the range, less the pages of H2.
//!
//! No write that was acknowledged before H2 is in such a hole: its page was dirty at H2, or the
//! store had its bytes before H3. The other order would be wrong. Between a look at the store that
//! finds a hole, and a look at the pages, a write-back may fill the hole and clean the page.
//!
//! Each list has a maximum, and the answer ends where the first full list ends. Not here: how a
//! file is asked (`octavo_disk`).

use std::ops::Range;

use octavo_disk::{Holes, Survey};

use super::blocking::Object;
use super::lane::Lane;
use super::owner::Owner;
use super::task::{Job, Kind, NONE, Pages, Task, Transfer};
use crate::error::Error;
use crate::memory::Lent;
use crate::position::{ByteOffset, PageIndex, PageSize};
use crate::request::Op;
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::RESUME;

/// The most dirty pages that one answer takes into account: 32 KiB of memory.
const DIRTY_MAX: usize = if cfg!(test) { 8 } else { 4096 };

/// A search for the holes of a range.
pub(crate) struct Search {
    range: Range<u64>,
    extents_max: usize,
    step: Step,
    found: Holes,
}

enum Step {
    Begin,
    /// H1 is under way.
    Hint(Arc<Survey>),
    /// H3 is under way. If it finds the holes of all of its range, the answer ends at `end`.
    Look {
        survey: Arc<Survey>,
        dirty: Vec<PageIndex>,
        range_end: u64,
        end: u64,
    },
    Done,
}

impl Search {
    fn new(range: Range<u64>, extents_max: usize) -> Search {
        let found = Holes { ranges: Vec::new(), end: range.start };
        Search { range, extents_max: extents_max.max(1), step: Step::Begin, found }
    }

    /// Takes the next step, after the survey that the last step returned has ended. Returns the
    /// survey that the next step needs, or None at the end.
    fn next(&mut self, object: &ObjectInner) -> Option<Arc<Survey>> {
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Begin if self.range.is_empty() || !object.store.may_have_holes() => {
                self.found.end = self.range.end;
                None
            }
            Step::Begin if object.partition.table.dirty_pages() == 0 => {
                Some(self.look(object, self.range.clone(), self.range.end))
            }
            Step::Begin => {
                let survey = Arc::new(Survey::new(self.range.clone(), self.extents_max));
                self.step = Step::Hint(survey.clone());
                Some(survey)
            }
            Step::Hint(survey) => {
                let Holes { ranges, end } = survey.take();
                let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
                    self.found.end = end;
                    return None;
                };
                Some(self.look(object, first.start..last.end, end))
            }
            Step::Look { survey, dirty, range_end, end } => {
                let page_size = object.partition.page_size;
                let Holes { ranges, end: seen } = survey.take();
                let end = if seen == range_end { end } else { seen };
                self.found = without(&ranges, &dirty, page_size, self.extents_max, end);
                None
            }
            Step::Done => None,
        }
    }

    /// H2, and the survey of H3.
    fn look(&mut self, object: &ObjectInner, range: Range<u64>, end: u64) -> Arc<Survey> {
        let page_size = object.partition.page_size;
        let pages = page_size.page_range(ByteOffset(range.start), range.end - range.start);
        let dirty = object.dirty_pages(&pages, DIRTY_MAX);
        let known = match dirty.last() {
            Some(last) if dirty.len() == DIRTY_MAX => page_size.start_of(*last + 1).0.min(range.end),
            _ => range.end,
        };
        let end = if known < range.end { known } else { end };
        let survey = Arc::new(Survey::new(range.start..known, self.extents_max));
        self.step = Step::Look { survey: survey.clone(), dirty, range_end: known, end };
        survey
    }

    fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }
}

/// H4: returns the holes without the bytes of the dirty pages, at most `most`.
fn without(holes: &[Range<u64>], dirty: &[PageIndex], size: PageSize, most: usize, end: u64) -> Holes {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut dirty = dirty.iter().peekable();
    for hole in holes {
        let mut at = hole.start;
        while at < hole.end {
            // Pages that end before this byte concern no later one.
            while dirty.next_if(|page| size.start_of(**page + 1).0 <= at).is_some() {}
            let next = dirty.peek().map(|page| (size.start_of(**page).0, size.start_of(**page + 1).0));
            let (clean_end, next) = next.filter(|page| page.0 < hole.end).unwrap_or((hole.end, hole.end));
            if at < clean_end {
                if ranges.len() == most {
                    return Holes { end: at, ranges };
                }
                ranges.push(at..clean_end);
            }
            at = next;
        }
    }
    Holes { ranges, end }
}

impl Task {
    /// Creates a task that finds holes, for a request [`Op::Holes`].
    ///
    /// # Errors
    /// [`Error::PastEnd`]; [`Error::Closed`].
    pub fn finding_holes(
        object: &Arc<ObjectInner>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Task, Error> {
        object.check(ByteOffset(offset), len)?;
        let job = Job::Holes(Box::new(Search::new(offset..offset + len, extents_max)));
        let mut task = Task::new(job, object.clone(), ByteOffset(offset), Lent::NONE, len as usize);
        // The search is not made page by page.
        Range { start: task.next, end: task.end } = NONE;
        Ok(task)
    }

    fn search(&mut self) -> &mut Search {
        match &mut self.job {
            Job::Holes(search) => search,
            _ => unreachable!("only a search for holes surveys its store"),
        }
    }

    /// Returns whether a search for holes is complete.
    pub fn has_searched(&self) -> bool {
        matches!(&self.job, Job::Holes(search) if search.is_done())
    }
}

/// Takes the next step of a search.
pub(crate) fn advance(owner: &mut Owner<'_>) {
    let object = owner.object;
    let task = owner.task();
    if task.error.is_some() {
        return task.search().step = Step::Done;
    }
    if task.search().next(object).is_some() {
        return owner.push(Kind::Survey, PageIndex(0), Pages::none(owner.id), None);
    }
    let result = std::mem::take(&mut task.search().found);
    if let Some((_, Op::Holes { found, .. })) = &mut task.request {
        *found = result;
    }
}

/// Lets the owner take the next step, after a survey.
pub(crate) fn surveyed(lane: &Lane, transfer: &Transfer) {
    lane.retry(transfer.pages.first().task, RESUME);
}

/// Returns the survey that a task waits for.
pub(crate) fn survey_of(task: &Task) -> &Arc<Survey> {
    match &task.job {
        Job::Holes(search) => match &search.step {
            Step::Hint(survey) | Step::Look { survey, .. } => survey,
            Step::Begin | Step::Done => unreachable!("no survey is under way"),
        },
        _ => unreachable!("only a search for holes surveys its store"),
    }
}

impl Object {
    /// Finds the holes of the range of `len` bytes at `offset`: parts that read as zeros because
    /// nothing was ever written there, or what was written has been discarded. The answer covers
    /// the range up to [`Holes::end`], after `extents_max` extents (holes and data in turn) or
    /// earlier, but at least one byte of it.
    ///
    /// A byte of a write that was acknowledged before the call lies in no hole, unless it was
    /// discarded or zeroed afterwards, even if only the cache has the byte. A range outside of
    /// holes may still read as zeros. Only regular files have holes.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::Closed`], [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::{OpenOptions, Store}};
    /// # let path = std::env::temp_dir().join(format!("octavo-holes-{}", std::process::id()));
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let create = OpenOptions { create_len_bytes: Some(1 << 20), ..OpenOptions::default() };
    /// let object = partition.open(Store::open(&path, &create)?, "file")?;
    /// object.write_at(8192, &[1; 4096])?;
    /// let holes = object.holes(0, 1 << 20, 100)?;
    /// assert_eq!((holes.ranges, holes.end), (vec![0..8192, 12288..1 << 20], 1 << 20));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holes(&self, offset: u64, len: u64, extents_max: usize) -> Result<Holes, Error> {
        self.inner.partition.shared.check_process()?;
        self.inner.check(ByteOffset(offset), len)?;
        let mut search = Search::new(offset..offset + len, extents_max);
        while let Some(survey) = search.next(&self.inner) {
            self.inner.store.survey(&survey);
        }
        Ok(search.found)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_disk::{OpenOptions, Store};
    use octavo_random::{Random, for_seeds};

    use super::*;
    use crate::{Cache, CacheConfig, CacheMode, PartitionConfig};

    const PAGE: u64 = 4096;

    /// The twin decides for every byte of a multiple of 512.
    #[test]
    fn holes_less_dirty_pages_are_the_bytes_that_neither_has() {
        for_seeds(0..300, |seed| {
            let mut random = Random::new(seed);
            let mut at = 0;
            let holes: Vec<Range<u64>> = (0..random.below(6))
                .map(|_| {
                    let start = at + 512 * (1 + random.below(30));
                    at = start + 512 * (1 + random.below(40));
                    start..at
                })
                .collect();
            let dirty: Vec<PageIndex> = (0..30).filter(|_| random.one_in(4)).map(PageIndex).collect();
            let most = 1 + random.below(8) as usize;
            let end = at + 512 * random.below(9);
            let found = without(&holes, &dirty, PageSize::new(PAGE as usize), most, end);
            assert!(found.ranges.len() <= most && found.end <= end);
            assert!(found.end == end || found.ranges.len() == most);
            for byte in (0..found.end).step_by(512) {
                let is_hole =
                    holes.iter().any(|hole| hole.contains(&byte)) && !dirty.contains(&PageIndex(byte / PAGE));
                assert_eq!(found.ranges.iter().any(|hole| hole.contains(&byte)), is_hole, "byte {byte}");
            }
        });
    }

    #[test]
    fn an_answer_ends_where_the_list_of_dirty_pages_is_full() {
        const PAGES: u64 = 100;
        let path = std::env::temp_dir().join(format!("octavo-holes-full-{}", std::process::id()));
        let create = OpenOptions { create_len_bytes: Some(PAGES * PAGE), ..OpenOptions::default() };
        let store = Store::open(&path, &create).unwrap();
        std::fs::remove_file(&path).unwrap();
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        let partition = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("p") };
        let object = cache.partition(partition).unwrap().open(store, "object").unwrap();
        (0..PAGES).step_by(3).for_each(|page| object.write_at(page * PAGE, b"octavo").unwrap());
        let (mut at, mut answers, mut holes) = (0, 0, Vec::new());
        while at < PAGES * PAGE {
            let found = object.holes(at, PAGES * PAGE - at, 1000).unwrap();
            assert!(at < found.end && found.ranges.len() <= DIRTY_MAX + 1, "{found:?}");
            holes.extend(found.ranges);
            (at, answers) = (found.end, answers + 1);
        }
        assert!(answers >= PAGES / 3 / DIRTY_MAX as u64, "{answers} answers");
        let expected = (0..PAGES).step_by(3).map(|page| (page + 1) * PAGE..(page + 3) * PAGE);
        assert!(holes.into_iter().eq(expected.filter(|hole| hole.end <= PAGES * PAGE)));
    }
}
