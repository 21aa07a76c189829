//! What a simulation drives: a cache that says of each access whether the page was there.

use octavo_table::{Claim, Mixer, PolicyKind, Shape, Table, Tag};

/// A cache without bytes.
pub trait Cache: Send {
    /// Accesses a page, which is in the cache afterwards if the policy wants it so. True: it was
    /// there.
    fn access(&mut self, page: u64) -> bool;

    /// Accesses pages in order; returns how many were not there.
    fn run(&mut self, pages: &[u64]) -> u64 {
        pages.iter().map(|page| u64::from(!self.access(*page))).sum()
    }

    /// How many pages it holds at most.
    fn capacity_pages(&self) -> u64;
}

/// The engine's own page sets, with the engine's own code; a page is clean and readable as soon as
/// it was claimed.
pub struct SetCache<const W: usize> {
    table: Table<W>,
    mixer: Mixer,
}

impl<const W: usize> SetCache<W> {
    /// The most pages that one table of the engine can have.
    pub const PAGES_MAX: u64 =
        octavo_table::SEGMENTS_MAX as u64 * octavo_table::SETS_PER_SEGMENT_MAX as u64 * W as u64;

    /// At most `capacity_pages`, in whole sets and at least one; not above [`Self::PAGES_MAX`].
    /// `seed` places the pages.
    pub fn new(policy: PolicyKind, capacity_pages: u64, seed: u64) -> Self {
        let shape = Self::shape(capacity_pages);
        SetCache { table: Table::new(shape, policy, shape.segments_max), mixer: Mixer::new(seed) }
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
        debug_assert!(!waited, "nobody else is there to wait");
        false
    }

    /// The pages that a cache has if so many are asked for.
    pub fn capacity_for(capacity_pages: u64) -> u64 {
        let shape = Self::shape(capacity_pages);
        u64::from(shape.segments_max) * u64::from(shape.sets_per_segment) * W as u64
    }

    /// As many sets as fit; a segment has as many of them as cost at most half a percent of the
    /// capacity in rounding.
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
        // Pages of a group wait for memory together: first for their sets' fingerprints, then for the slots
        // that these name.
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

    fn capacity_pages(&self) -> u64 {
        self.table.slots_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_fits_misses_once_a_page_and_one_that_does_not_misses_more() {
        let mut cache = SetCache::<16>::new(PolicyKind::Lru, 1 << 12, 7);
        assert_eq!(cache.capacity_pages(), 1 << 12);
        let pages: Vec<u64> = (0..1 << 11).collect();
        assert_eq!(cache.run(&pages), 1 << 11);
        assert_eq!(cache.run(&pages), 0);
        let pages: Vec<u64> = (0..1 << 14).collect();
        assert!(cache.run(&pages) + cache.run(&pages) > 1 << 14);
    }

    #[test]
    fn many_at_a_time_are_the_same_as_one_by_one() {
        let pages: Vec<u64> = (0..20_003u64).map(|number| number * number % 4001).collect();
        for policy in PolicyKind::ALL {
            let [mut one, mut many] = [0; 2].map(|_| SetCache::<16>::new(policy, 1000, 7));
            let misses = pages.iter().filter(|page| !one.access(**page)).count() as u64;
            assert_eq!(many.run(&pages), misses, "{}", policy.name());
        }
    }

    #[test]
    fn any_capacity_has_whole_sets_of_nearly_that_many_pages() {
        for capacity in [1u64, 15, 16, 17, 100, 1000, 12_345, 999_999, 40_000_000] {
            let made = SetCache::<16>::new(PolicyKind::Fifo, capacity, 0).capacity_pages();
            assert_eq!(made, SetCache::<16>::capacity_for(capacity));
            assert!(
                made <= capacity.max(16) && made + 16 + capacity / 200 >= capacity,
                "{made} of {capacity}"
            );
        }
    }
}
