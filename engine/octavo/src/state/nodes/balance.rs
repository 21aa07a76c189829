//! Balance between nodes: a node under more memory pressure than the others becomes home to fewer
//! pages and gets more memory.
//!
//! *Pressure* is the rate at which pages arrive in full sets. The clocks of some sets show it, so
//! it needs no counters of its own. Once a period the reaper compares the node with the most
//! pressure (*hot*) with the node with the least (*cold*). If, twice in a row, the hot node has
//! more than a quarter more pressure, and more than the differences between sets explain:
//!
//! - Some of the hot node's directory entries move to the cold node's segments (`Table::shift`).
//!   The hot node then has fewer pages in the same memory. Because misses grow faster than load,
//!   only half of the entries that would even out the two nodes move, and at most a 32nd of all
//!   entries.
//! - The next segment that the partition gets is on the hot node, and the next one that it gives
//!   back is on the cold node, unless one node would then have a quarter more memory than another.
//!
//! Not here: the comparison itself (`control/balance.rs`, called by the reaper), how entries
//! move (`control/resize.rs`). A partition that is being recorded keeps its entries.

use octavo_table::NodeId;

use crate::sync::{Mutex, lock};

/// A node is hot if its pressure is more than this many times the coldest node's. Smaller
/// differences are left alone, so that entries do not move back and forth.
const TOO_MUCH: f64 = 1.25;

/// The difference must also exceed this many standard deviations, to exclude sampling errors.
const DEVIATIONS: f64 = 3.0;

/// Comparisons in a row that must agree before anything moves.
pub(crate) const TIMES: u32 = 2;

/// Arrivals in the sampled sets of one node. A set that is not full counts as one without
/// arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pressure {
    pub sets: f64,
    pub arrivals: f64,
    squares: f64,
}

impl Pressure {
    pub fn add(&mut self, arrivals: u16) {
        self.sets += 1.0;
        self.arrivals += f64::from(arrivals);
        self.squares += f64::from(arrivals) * f64::from(arrivals);
    }

    fn per_set(&self) -> f64 {
        self.arrivals / self.sets.max(1.0)
    }

    /// Returns the variance of the mean: how far the mean of the sampled sets may be from the mean
    /// of all sets, estimated from the differences between the sampled sets. It is at least that of
    /// a Poisson distribution, because random arrivals are no more even than that, and some sets
    /// get more pages than they can hold.
    fn variance(&self) -> f64 {
        let sets = self.sets.max(2.0);
        ((self.squares - self.arrivals * self.per_set()) / (sets - 1.0)).max(self.per_set()) / sets
    }
}

/// Two nodes, of which one has too much pressure compared with the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub hot: NodeId,
    pub cold: NodeId,
    /// The part of the hot node's load that would have to move to make both equal, if pressure
    /// were proportional to load.
    pub excess: f64,
}

/// Compares the nodes with the most and the least pressure. Returns `None` if the difference is
/// small or may be a sampling error.
pub(crate) fn judge(nodes: &[Pressure]) -> Option<Verdict> {
    let by_pressure =
        |(_, a): &(usize, &Pressure), (_, b): &(usize, &Pressure)| a.per_set().total_cmp(&b.per_set());
    // A node without a segment is not compared.
    let with_sets = || nodes.iter().enumerate().filter(|(_, node)| node.sets > 0.0);
    let ((hot, most), (cold, least)) = (with_sets().max_by(by_pressure)?, with_sets().min_by(by_pressure)?);
    let luck = DEVIATIONS * (most.variance() + least.variance()).sqrt();
    let (most, least) = (most.per_set(), least.per_set());
    (most > TOO_MUCH * least && most - least > luck).then(|| Verdict {
        hot: NodeId(hot as u32),
        cold: NodeId(cold as u32),
        excess: (most - least) / (2.0 * most),
    })
}

/// The outcome of a partition's comparisons so far.
#[derive(Default)]
pub(crate) struct Balance(pub Mutex<Looks>);

#[derive(Default)]
pub(crate) struct Looks {
    /// Each segment's clocks when the current count of arrivals began.
    pub clocks: Vec<Option<[u16; octavo_table::CLOCKS]>>,
    pub verdict: Option<Verdict>,
    /// Number of comparisons in a row whose verdict named the same nodes.
    pub times: u32,
}

impl Balance {
    /// Returns the last verdict, once enough comparisons in a row agree.
    pub fn verdict(&self) -> Option<Verdict> {
        let looks = lock(&self.0);
        looks.verdict.filter(|_| looks.times >= TIMES)
    }

    /// Starts the count of arrivals again after pages were moved: the moves themselves caused
    /// arrivals.
    pub fn forget(&self) {
        lock(&self.0).clocks.clear();
    }
}
