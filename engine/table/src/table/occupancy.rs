//! How full the sets are, on a sample: whether the map spreads pages evenly over them.

use super::Table;
use crate::index::{SegmentIndex, SetNumber};
use crate::word::slot::State;

/// How many sets of a sample have how many ways in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The sets in use.
    pub sets: u64,
    /// The sets of the sample.
    pub sampled: u64,
    /// By a number of ways, from none to all: the sampled sets with that many ways in use. A way is
    /// in use if it holds a page, a copy or a snapshot, or a page is being read into it.
    pub occupied: Vec<u64>,
    /// The same for ways that hold dirty pages.
    pub dirty: Vec<u64>,
}

impl<const W: usize> Table<W> {
    /// Looks at `sets_max` sets at most, spread evenly over all sets in use. Takes no lock: the
    /// ways of a set are counted one after the other, while other threads may change them.
    pub fn occupancy(&self, sets_max: u64) -> Occupancy {
        let segments: Vec<SegmentIndex> = self.segments().collect();
        let per_segment = u64::from(self.shape().sets_per_segment);
        let sets = segments.len() as u64 * per_segment;
        let none = vec![0; W + 1];
        let mut all = Occupancy { sets, sampled: 0, occupied: none.clone(), dirty: none };
        let step = sets.div_ceil(sets_max.max(1)).max(1);
        for number in (0..sets).step_by(step as usize) {
            let segment = segments[(number / per_segment) as usize];
            let set = SetNumber(self.first_set(segment) + (number % per_segment) as u32);
            let (mut occupied, mut dirty) = (0, 0);
            for way in 0..W {
                let state = self.slot_in(set, way).load().state();
                occupied += usize::from(state != State::Free);
                dirty += usize::from(state == State::Dirty);
            }
            all.sampled += 1;
            all.occupied[occupied] += 1;
            all.dirty[dirty] += 1;
        }
        all
    }
}
