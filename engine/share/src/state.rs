//! What a plan is made from: a picture of all partitions and groups, and how fast sizes may follow.

use crate::curve::Curve;
use crate::limits::Limits;

/// A picture of all partitions and groups, as it is looked at once a period.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Bytes for all together.
    pub total_bytes: u64,
    /// Partitions grow and shrink by this much.
    pub granule_bytes: u64,
    /// Groups and partitions; a parent stands before what is below it.
    pub nodes: Vec<Node>,
}

/// A group, or a partition.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The group that it is in, by its place in [`State::nodes`].
    pub parent: Option<usize>,
    /// What it was promised.
    pub limits: Limits,
    /// What a partition has and could use. None: a group.
    pub leaf: Option<Leaf>,
}

/// What a partition has and could use.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    /// What it has.
    pub current_bytes: u64,
    /// What it would miss at other sizes, over a window that is the same for all.
    pub curve: Curve,
    /// What its last change was.
    pub trend: Trend,
    /// Pages of the curve's sample in what it has; 0 where that is not known.
    pub sampled_pages: f64,
    /// Its curve says little yet: it is given half of a fair share until it does.
    pub is_new: bool,
    /// It was never asked for a page: it gets what it was promised, keeps the rest as long as
    /// nobody gains by that, and gives it without inertia.
    pub is_unused: bool,
}

/// The direction in which a partition's size went last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trend {
    /// It has the size that it began with.
    #[default]
    None,
    /// It was given memory.
    Grew,
    /// It gave memory away.
    Shrank,
}

impl Trend {
    /// After a change from one size to another.
    pub fn after(self, from_bytes: u64, to_bytes: u64) -> Trend {
        match from_bytes.cmp(&to_bytes) {
            std::cmp::Ordering::Less => Trend::Grew,
            std::cmp::Ordering::Equal => self,
            std::cmp::Ordering::Greater => Trend::Shrank,
        }
    }
}

/// How fast sizes follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The share of the total that partitions give away in a period at most, unless the total
    /// falls.
    pub step: f64,
    /// What moving memory must save, at most: this share of all misses for all of the memory, and
    /// less for less of it. By large samples it is less, for less of what they say is noise.
    pub inertia: f64,
    /// So many times as much it must save where a partition's size would go back to where it came
    /// from: what a curve's noise says one way, it takes back soon.
    pub turn: f64,
    /// What the counts behind the curves are worth in the next period: older ones fade.
    pub keep: f64,
    /// Counts fade when all samples together have seen so many references since they last did,
    /// however many periods that takes: curves of next to nothing send sizes to and fro.
    pub news: u64,
    /// So many partitions share by dynamic programming, which is exact; more by look-ahead, which
    /// is quicker.
    pub exact_max: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { step: 1.0 / 16.0, inertia: 0.05, turn: 4.0, keep: 0.95, news: 96, exact_max: 48 }
    }
}

impl Pace {
    /// What counts are worth from now on, where all samples together have seen so many references
    /// since they last faded. The same for all partitions, for a miss must weigh the same
    /// everywhere.
    pub fn keep_after(&self, news: u64) -> f64 {
        if news >= self.news { self.keep } else { 1.0 }
    }
}
