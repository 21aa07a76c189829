//! The input of a plan: a description of all partitions and groups, and the pace at which sizes
//! follow their targets.

use crate::curve::Curve;
use crate::limits::Limits;

/// All partitions and groups at one moment. The reaper builds a `State` once per period.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Bytes for all partitions together.
    pub total_bytes: u64,
    /// Partitions grow and shrink by multiples of this number of bytes.
    pub granule_bytes: u64,
    /// Groups and partitions; a parent comes before its children.
    pub nodes: Vec<Node>,
}

impl State {
    /// Returns the current size of a partition in bytes; 0 for a group.
    pub(crate) fn current(&self, node: usize) -> u64 {
        self.nodes[node].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes)
    }
}

/// A group, or a partition.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The group that the node is in, as an index of [`State::nodes`].
    pub parent: Option<usize>,
    /// The limits that the operator set.
    pub limits: Limits,
    /// The partition's data; `None` for a group.
    pub leaf: Option<Leaf>,
}

/// The size of a partition, and its use of more or less memory.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    /// Current size in bytes.
    pub current_bytes: u64,
    /// The partition's misses by size, over a window that is the same for all partitions.
    pub curve: Curve,
    /// The direction of the partition's last change of size.
    pub trend: Trend,
    /// Number of sampled pages behind the curve that the current size holds; 0 if unknown.
    pub sampled_pages: f64,
    /// The curve has too few references to be trusted. Until it has more, the partition gets half
    /// of a fair share.
    pub is_new: bool,
    /// No page of the partition was ever requested. It gets its granule, `min` and `low`, keeps its
    /// other memory until another partition gains by it, and then gives that memory without
    /// inertia.
    pub is_unused: bool,
}

/// The direction in which a partition's size changed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trend {
    /// The partition has its initial size.
    #[default]
    None,
    /// The partition grew.
    Grew,
    /// The partition shrank.
    Shrank,
}

impl Trend {
    /// Returns the trend after a change from one size to another.
    pub fn after(self, from_bytes: u64, to_bytes: u64) -> Trend {
        match from_bytes.cmp(&to_bytes) {
            std::cmp::Ordering::Less => Trend::Grew,
            std::cmp::Ordering::Equal => self,
            std::cmp::Ordering::Greater => Trend::Shrank,
        }
    }
}

/// How fast sizes follow their targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Maximum share of the total that partitions give away per period. Exceptions: the total has
    /// fallen, or a `max` is exceeded. Default: 1/16.
    pub step: f64,
    /// Upper bound on the misses that a move of memory must save: this share of all misses for a
    /// move of all memory, and proportionally less for a smaller move. With large samples, whose
    /// curves have less noise, fewer misses suffice. Default: 0.05.
    pub inertia: f64,
    /// Factor by which a move must save more if it reverses the last change of a partition's size:
    /// a change due to noise would soon be reversed. Default: 4.
    pub turn: f64,
    /// Factor by which the counts behind the curves decay per period. Default: 0.95.
    pub keep: f64,
    /// Number of references that all samples together must have seen since the last decay before
    /// counts decay again, however many periods that takes. Curves from fewer references would make
    /// sizes oscillate. Default: 96.
    pub news: u64,
    /// Maximum number of partitions for which memory is divided by dynamic programming, which is
    /// exact; with more, it is divided by look-ahead, which is faster. Default: 48.
    pub exact_max: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { step: 1.0 / 16.0, inertia: 0.05, turn: 4.0, keep: 0.95, news: 96, exact_max: 48 }
    }
}

impl Pace {
    /// Returns the factor by which counts decay at the end of a period, if all samples together
    /// have seen `news` references since the last decay. The factor is the same for all partitions,
    /// because a miss must weigh the same everywhere.
    pub fn keep_after(&self, news: u64) -> f64 {
        if news >= self.news { self.keep } else { 1.0 }
    }
}
