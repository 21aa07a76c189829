//! Plans: takes a snapshot of the cache, from which `octavo_share` plans sizes, and carries out the
//! planned resizes.
//!
//! Not here: how much a partition gains from memory (`octavo_share`), when a plan is made
//! (`reaper.rs`), how a partition is resized (`resize.rs`).

use std::collections::BTreeMap;

use octavo_share::{Curve, Leaf, Limits, Node, Pace, Resize, Seen, State, Stretch, Trend};

use super::core::{Core, Partition};
use super::turn::{Stop, Turn};
use crate::name::groups_of;
use crate::sync::{Arc, lock};

/// A curve is used once its monitor has seen this many sampled references.
const SEEN_MIN: u64 = 64;

/// A snapshot of a cache from which a plan is made: a tree of groups and partitions.
pub(crate) struct Picture {
    pub state: State,
    /// By node of the tree: the partition, or `None` for a group.
    pub partitions: Vec<Option<Partition>>,
    /// Bytes of the frames of the smallest segment. It is the granule of the plan; partitions of
    /// large pages have segments of several granules.
    pub least_frames_bytes: usize,
}

impl Picture {
    /// Takes the snapshot, and then decays the curves' counts: multiplies them by `keep`. With
    /// `keep` 1, nothing changes.
    pub fn of(core: &Arc<Core>, keep: f64) -> Picture {
        let (shared, partitions) = (&core.shared, core.partitions());
        let groups = core.ledger.groups();
        let frames = partitions.iter().map(|partition| partition.inner.frames.segment_bytes());
        let least_frames_bytes = frames.min().unwrap_or(1);
        let mut picture = Picture { state: State::default(), partitions: Vec::new(), least_frames_bytes };
        let granules = partitions
            .iter()
            .map(|partition| partition.inner.segment_bytes().div_ceil(picture.segment_granules(partition)));
        picture.state.granule_bytes = granules.max().unwrap_or(0);
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut apart = shared.budget.max_bytes().saturating_sub(lock(&core.ledger.total).bytes);
        apart += shared.reserve.set_aside_bytes();
        for partition in &partitions {
            let mut parent = None;
            for group in groups_of(partition.name()) {
                let place = *places.entry(group.into()).or_insert_with(|| {
                    let limits = groups.get(group).copied().unwrap_or_default();
                    picture.state.nodes.push(Node { parent, limits, leaf: None });
                    picture.partitions.push(None);
                    picture.state.nodes.len() - 1
                });
                parent = Some(place);
            }
            let segment_bytes = picture.segment_granules(partition) * picture.state.granule_bytes;
            let share = partition.share(keep, segment_bytes);
            apart += share.fixed_bytes;
            // A group's limits also cover everything charged to its partitions.
            let mut above = parent;
            while let Some(place) = above {
                let group = &mut picture.state.nodes[place];
                group.limits = besides(group.limits, share.fixed_bytes);
                above = group.parent;
            }
            picture.state.nodes.push(Node { parent, limits: share.limits, leaf: Some(share.leaf) });
            picture.partitions.push(Some(partition.clone()));
        }
        // The minimums are guaranteed, however short of memory the system is.
        let least = picture.state.least_bytes();
        picture.state.total_bytes = shared.budget.max_bytes().saturating_sub(apart).max(least);
        picture
    }

    /// Returns the granules of a partition's segment.
    fn segment_granules(&self, partition: &Partition) -> u64 {
        (partition.inner.frames.segment_bytes() / self.least_frames_bytes) as u64
    }

    /// Returns the segments of a partition's size in a plan.
    pub fn segments(&self, partition: &Partition, bytes: u64) -> u64 {
        bytes / self.state.granule_bytes.max(1) / self.segment_granules(partition)
    }

    /// Changes the snapshot so that partitions whose stores do not answer keep their sizes. A plan
    /// then distributes only memory that it can get.
    pub fn spare_held_up(mut self) -> Picture {
        let nodes = &mut self.state.nodes;
        // In `nodes`, children follow their parents. Going backwards raises each group's limit to
        // what the partitions below it keep.
        let mut kept = vec![0u64; nodes.len()];
        for (place, partition) in self.partitions.iter().enumerate().rev() {
            if partition.as_ref().is_some_and(Partition::is_held_up) {
                kept[place] = nodes[place].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes);
                nodes[place].limits.min_bytes = nodes[place].limits.min_bytes.max(kept[place]);
            }
            nodes[place].limits.max_bytes = nodes[place].limits.max_bytes.max(kept[place]);
            if let Some(parent) = nodes[place].parent {
                kept[parent] += kept[place];
            }
        }
        self.state.total_bytes = self.state.total_bytes.max(self.state.least_bytes());
        self
    }

    /// Takes `bytes` from all partitions, in whole segments and in proportion to their sizes, but
    /// not below their minimums. Returns the bytes taken.
    pub fn shrink_all(&self, bytes: u64, turn: Option<Turn<'_>>) -> u64 {
        let State { granule_bytes, nodes, .. } = &self.state;
        let held: u64 =
            nodes.iter().filter_map(|node| node.leaf.as_ref()).map(|leaf| leaf.current_bytes).sum();
        let total_bytes = held.saturating_sub(bytes.next_multiple_of((*granule_bytes).max(1)));
        let smaller = Picture {
            state: State { total_bytes, ..self.state.clone() },
            partitions: self.partitions.clone(),
            least_frames_bytes: self.least_frames_bytes,
        };
        smaller.carry_out(&Pace { step: 0.0, ..Pace::default() }, turn)
    }

    /// Makes a plan and carries out its steps. Returns the bytes taken from partitions.
    pub fn carry_out(&self, pace: &Pace, turn: Option<Turn<'_>>) -> u64 {
        self.make(self.state.plan(pace), turn).0
    }

    /// Carries out `steps`. Returns the bytes taken from partitions, and the partitions whose
    /// resizes were given up because their stores did not answer.
    pub fn make(&self, steps: Vec<Resize>, turn: Option<Turn<'_>>) -> (u64, Vec<Partition>) {
        let (mut moved, mut held_up) = (0, Vec::new());
        for resize in steps {
            let Some(partition) = &self.partitions[resize.node] else { continue };
            let before = self.state.nodes[resize.node].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes);
            match partition.resize_in_turn(self.segments(partition, resize.to_bytes) as u32, turn) {
                Ok(()) => {
                    partition.note_resize(before, resize.to_bytes);
                    moved += before.saturating_sub(resize.to_bytes);
                }
                // If a store refuses dirty pages, they stay resident. The next period tries again.
                Err(Stop::Failed(error)) => {
                    log::debug!("partition {}: not resized: {error}", partition.name())
                }
                // Other partitions do not wait for this partition's store. The next period
                // continues this resize.
                Err(Stop::HeldUp) => held_up.push(partition.clone()),
            }
        }
        (moved, held_up)
    }
}

/// A partition in a plan: its limits, the memory that it has, and the memory that it could use.
pub(crate) struct Share {
    pub limits: Limits,
    pub leaf: Leaf,
    /// Bytes charged in addition to the segments.
    pub fixed_bytes: u64,
}

/// How recently a partition was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// No page was ever requested.
    Never,
    /// No page was requested in this many periods up to now, in which other partitions were used.
    Before(u32),
}

impl Use {
    /// Quiet periods that have no effect yet: some loads pause for a while.
    const QUIET: u32 = 4;

    /// Returns the fraction of the observed load that is expected to continue: 1 for up to
    /// [`Use::QUIET`] quiet periods, then half as much with each further one.
    fn expected(self) -> f64 {
        match self {
            Use::Never => 1.0,
            Use::Before(periods) => 0.5f64.powi(periods.saturating_sub(Use::QUIET).min(30) as i32),
        }
    }
}

impl Share {
    /// Computes the share from a partition's figures. A partition's limits apply to all memory
    /// charged to it, but a plan distributes only segments, and a partition has at least one.
    pub fn new(
        limits: Limits,
        (segment_bytes, fixed_bytes): (u64, u64),
        curve: Option<octavo_table::MissCurve>,
        page_bytes: u64,
        (seen, stretch): (&Seen, &mut Stretch),
        (trend, use_): (Trend, Use),
    ) -> Share {
        let mut limits = besides(limits, fixed_bytes);
        limits.min_bytes = limits.min_bytes.max(segment_bytes.min(limits.max_bytes));
        let current_bytes = seen.bytes;
        // `is_new`: a plan changes a partition with few observations as little as possible.
        let is_new = curve.as_ref().is_none_or(|curve| curve.seen < SEEN_MIN);
        let curve = curve.unwrap_or_default();
        let points = curve.points.iter().map(|(pages, misses)| (pages * page_bytes, *misses));
        let curve = Curve::new(curve.references, points).fitted(seen, stretch).scaled(use_.expected());
        let sampled_pages = seen.sampled_per_byte * current_bytes as f64;
        let leaf = Leaf { current_bytes, curve, trend, sampled_pages, is_new, is_unused: use_ == Use::Never };
        Share { limits, leaf, fixed_bytes }
    }
}

/// Returns the limits on segments alone: `fixed_bytes` are charged in addition.
fn besides(limits: Limits, fixed_bytes: u64) -> Limits {
    let less = |bytes: u64| if bytes == u64::MAX { bytes } else { bytes.saturating_sub(fixed_bytes) };
    Limits {
        min_bytes: less(limits.min_bytes),
        low_bytes: less(limits.low_bytes),
        high_bytes: less(limits.high_bytes),
        max_bytes: less(limits.max_bytes),
        ..limits
    }
}
