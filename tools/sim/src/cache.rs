//! Caches that hold page numbers without bytes, and tell for each access whether the page was
//! resident.

use octavo_table::{Claim, Mixer, PolicyKind, Shape, SlotIndex, State, Table, Tag};

/// A cache without bytes.
pub trait Cache: Send {
    /// Accesses a page and returns whether it was resident. Whether it is resident afterwards is
    /// the policy's decision.
    fn access(&mut self, page: u64) -> bool;

    /// Accesses pages in order and returns the misses.
    fn run(&mut self, pages: &[u64]) -> u64 {
        pages.iter().map(|page| u64::from(!self.access(*page))).sum()
    }

    /// Returns the number of resident pages.
    fn resident_pages(&self) -> u64;
}

/// Returns one cache constant or function of `SetCache<W>` for a number of ways that is known only
/// at run time.
macro_rules! of_ways {
    ($ways:expr, $($item:tt)*) => {
        match $ways {
            8 => SetCache::<8>::$($item)*,
            16 => SetCache::<16>::$($item)*,
            32 => SetCache::<32>::$($item)*,
            ways => panic!("sets have 8, 16 or 32 ways, not {ways}"),
        }
    };
}

/// The numbers of ways that are compiled in.
pub const WAYS: [u32; 3] = [8, 16, 32];

/// Creates a cache of the engine's page sets, with `ways` pages per set; see [`SetCache::new`].
///
/// # Panics
/// If `ways` is not among [`WAYS`].
pub fn engine_cache(kind: PolicyKind, ways: u32, capacity_pages: u64, seed: u64) -> Box<dyn Cache> {
    of_ways!(ways, boxed(kind, capacity_pages, seed))
}

/// Returns the real capacity, in pages, of an engine's cache when `capacity_pages` are requested:
/// whole sets, and at least one.
///
/// # Panics
/// If `ways` is not among [`WAYS`].
pub fn engine_capacity(ways: u32, capacity_pages: u64) -> u64 {
    of_ways!(ways, capacity_for(capacity_pages))
}

/// Returns the largest capacity, in pages, that an engine's cache can have.
///
/// # Panics
/// If `ways` is not among [`WAYS`].
pub fn engine_capacity_max(ways: u32) -> u64 {
    of_ways!(ways, PAGES_MAX)
}

/// The engine's own page sets, with the engine's own code. A page is clean and readable as soon as
/// it is claimed.
pub struct SetCache<const W: usize> {
    pub(crate) table: Table<W>,
    pub(crate) mixer: Mixer,
}

impl<const W: usize> SetCache<W> {
    /// The most pages that one table of the engine can have.
    const PAGES_MAX: u64 =
        octavo_table::SEGMENTS_MAX as u64 * octavo_table::SETS_PER_SEGMENT_MAX as u64 * W as u64;

    /// Creates a cache of at most `capacity_pages`, in whole sets and at least one. The capacity
    /// must not exceed that of the engine's largest table. `seed` places pages in sets.
    pub fn new(policy: PolicyKind, capacity_pages: u64, seed: u64) -> Self {
        let shape = Self::shape(capacity_pages);
        SetCache { table: Table::new(shape, policy, shape.segments_max), mixer: Mixer::new(seed) }
    }

    fn boxed(policy: PolicyKind, capacity_pages: u64, seed: u64) -> Box<dyn Cache> {
        Box::new(Self::new(policy, capacity_pages, seed))
    }

    #[inline(always)]
    fn access_tag(&mut self, tag: Tag) -> bool {
        if let Some(found) = self.table.find(tag) {
            self.table.touch(&found);
            return true;
        }
        let claim = self.table.lock(tag).claim(tag);
        let Claim::Claimed { slot, .. } = claim else { unreachable!("every page is clean and unpinned") };
        let waited = self.table.publish(slot, false);
        debug_assert!(!waited, "no other thread waits");
        false
    }

    fn capacity_for(capacity_pages: u64) -> u64 {
        let shape = Self::shape(capacity_pages);
        u64::from(shape.segments_max) * u64::from(shape.sets_per_segment) * W as u64
    }

    /// Returns the shape with as many sets as fit. A segment has as many sets as possible while
    /// rounding to whole segments costs at most 0.5 % of the capacity.
    fn shape(capacity_pages: u64) -> Shape {
        let sets = (capacity_pages / W as u64).max(1);
        let mut sets_per_segment = 1;
        while sets_per_segment < 32 && sets >= 400 * sets_per_segment
            || sets / sets_per_segment > octavo_table::SEGMENTS_MAX as u64
        {
            sets_per_segment *= 2;
        }
        Shape { segments_max: (sets / sets_per_segment) as u32, sets_per_segment: sets_per_segment as u32 }
    }
}

impl<const W: usize> Cache for SetCache<W> {
    fn access(&mut self, page: u64) -> bool {
        self.access_tag(self.mixer.tag(page))
    }

    fn run(&mut self, pages: &[u64]) -> u64 {
        // The pages of a group wait for memory together: first for the fingerprints of their sets,
        // then for the slots that these name.
        const GROUP: usize = 16;
        let mut tags = [Tag(0); GROUP];
        let mut misses = 0;
        for group in pages.chunks(GROUP) {
            for (tag, page) in tags.iter_mut().zip(group) {
                *tag = self.mixer.tag(*page);
                self.table.prefetch_set(*tag);
            }
            let tags = &tags[..group.len()];
            for candidate in tags.iter().filter_map(|tag| self.table.candidate(*tag)) {
                self.table.prefetch_tag(candidate);
            }
            misses += tags.iter().map(|tag| u64::from(!self.access_tag(*tag))).sum::<u64>();
        }
        misses
    }

    fn resident_pages(&self) -> u64 {
        let is_free = |slot: &u64| self.table.slot(SlotIndex(*slot as u32)).load().state() == State::Free;
        (0..self.table.slots_count()).filter(|slot| !is_free(slot)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_fits_misses_once_per_page_and_a_larger_one_misses_more() {
        let mut cache = SetCache::<16>::new(PolicyKind::Lru, 1 << 12, 7);
        assert_eq!(cache.table.slots_count(), 1 << 12);
        let pages: Vec<u64> = (0..1 << 11).collect();
        assert_eq!(cache.run(&pages), 1 << 11);
        assert_eq!((cache.run(&pages), cache.resident_pages()), (0, 1 << 11));
        let pages: Vec<u64> = (0..1 << 14).collect();
        assert!(cache.run(&pages) + cache.run(&pages) > 1 << 14);
    }

    #[test]
    fn a_run_of_pages_misses_like_the_same_pages_one_by_one() {
        let pages: Vec<u64> = (0..20_003u64).map(|number| number * number % 4001).collect();
        for policy in PolicyKind::ALL {
            let [mut one, mut many] = [0; 2].map(|_| SetCache::<16>::new(policy, 1000, 7));
            let misses = pages.iter().filter(|page| !one.access(**page)).count() as u64;
            assert_eq!(many.run(&pages), misses, "{}", policy.name());
        }
    }

    #[test]
    fn a_cache_has_whole_sets_and_nearly_the_capacity_asked_for() {
        fn check<const W: usize>(capacity: u64) {
            let capacity = capacity.min(SetCache::<W>::PAGES_MAX);
            let made = SetCache::<W>::new(PolicyKind::Fifo, capacity, 0).table.slots_count();
            assert_eq!(made, engine_capacity(W as u32, capacity));
            assert!(made <= capacity.max(W as u64), "{made} of {capacity}");
            assert!(made + W as u64 + capacity / 200 >= capacity, "{made} of {capacity}");
        }
        for capacity in [1u64, 15, 16, 17, 100, 1000, 12_345, 999_999] {
            check::<8>(capacity);
            check::<16>(capacity);
            check::<32>(capacity);
        }
        check::<16>(40_000_000);
    }
}
