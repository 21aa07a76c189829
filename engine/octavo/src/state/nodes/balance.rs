//! Balance between nodes: a node whose sets are under more pressure than others' takes fewer pages
//! and more memory.
//!
//! Pressure is how fast pages come into sets that are full, as some sets' clocks tell: nothing is
//! counted for it. Once a period the node with most is compared with the one with least.
//! Where twice in a row it has a quarter more, and more than the differences between sets explain,
//! some of its entries move to the other's segments (`Table::shift`): a 32nd of all at most, and
//! half of what would even them out, for misses grow faster than load. So a node's pages become
//! fewer while its memory stays. And the next segment that the partition gets is the hot node's,
//! the one that it gives the cold one's, as long as no node has a quarter more memory than another
//! by that.
//!
//! What is not here: who calls this (the reaper), how entries move (`partition`). A partition that
//! is being recorded keeps its entries.

use octavo_table::NodeId;

use crate::sync::{Mutex, lock};

/// So much more pressure is too much; what is less is left as it is, so that nothing goes to and
/// fro.
const TOO_MUCH: f64 = 1.25;

/// By so many standard deviations it is more than luck.
const DEVIATIONS: f64 = 3.0;

/// Comparisons with the same outcome before anything moves.
pub(crate) const TIMES: u32 = 2;

/// What was seen of some sets of a node: arrivals in those that are full, and none in others.
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

    /// How far off the mean of these sets is from that of all, by how they differ. Pages are not
    /// spread more evenly than by chance, and some sets have more than they can hold.
    fn variance(&self) -> f64 {
        let sets = self.sets.max(2.0);
        ((self.squares - self.arrivals * self.per_set()) / (sets - 1.0)).max(self.per_set()) / sets
    }
}

/// Two nodes of which one has too much pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub hot: NodeId,
    pub cold: NodeId,
    /// The part of the hot node's load that would make both equal, if pressure were in proportion
    /// to load.
    pub excess: f64,
}

pub(crate) fn judge(nodes: &[Pressure]) -> Option<Verdict> {
    let by_pressure =
        |(_, a): &(usize, &Pressure), (_, b): &(usize, &Pressure)| a.per_set().total_cmp(&b.per_set());
    // A node that has no segment takes no part.
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

/// What a partition's looks have told so far.
#[derive(Default)]
pub(crate) struct Balance(pub Mutex<Looks>);

#[derive(Default)]
pub(crate) struct Looks {
    /// The clocks that arrivals are counted from, by segment.
    pub clocks: Vec<Option<[u16; octavo_table::CLOCKS]>>,
    pub verdict: Option<Verdict>,
    /// How often in a row the verdict was the same.
    pub times: u32,
}

impl Balance {
    /// The node that needs memory most, and the one that needs it least, if it is known that there
    /// are such.
    pub fn verdict(&self) -> Option<Verdict> {
        let looks = lock(&self.0);
        looks.verdict.filter(|_| looks.times >= TIMES)
    }

    /// Starts over, where pages have moved: arrivals since the last look were not the load's.
    pub fn forget(&self) {
        lock(&self.0).clocks.clear();
    }
}
