//! From a picture of all partitions to the next steps: targets, then hysteresis and a bounded rate.

use crate::allocate::Tree;
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

/// A partition's next size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Which, by its place in [`State::nodes`].
    pub node: usize,
    /// How large.
    pub to_bytes: u64,
}

impl State {
    /// What each partition should have, by its place in [`State::nodes`]; the sum of what is below
    /// it for a group. At least a granule and what `min` promises, at most what its own `max`
    /// and those above it leave; all together at most the total, as far as the promises
    /// fit into it.
    pub fn targets(&self, pace: &Pace) -> Vec<u64> {
        let mut tree = Tree::new(self);
        tree.keep_promises();
        tree.share_by_use(pace);
        tree.leave_the_rest();
        tree.into_sizes()
    }

    /// What must be there for all that `min` promises, and for a granule for everybody: a total
    /// below it breaks promises.
    pub fn least_bytes(&self) -> u64 {
        let granule = self.granule_bytes.max(1);
        let mut needs = vec![0u64; self.nodes.len()];
        let mut all = 0u64;
        for (number, node) in self.nodes.iter().enumerate().rev() {
            let own = if node.leaf.is_some() { node.limits.min_bytes.max(1) } else { node.limits.min_bytes };
            let need = whole(own, granule).max(needs[number]);
            match node.parent {
                Some(parent) => needs[parent] = needs[parent].saturating_add(need),
                None => all = all.saturating_add(need),
            }
        }
        all
    }

    /// What some must give so that no `max` is exceeded, no partition's and no group's; nobody goes
    /// below his `min` for it, or below a granule. A plan begins with this; by itself it is for
    /// who wants bounds kept and nothing else moved.
    pub fn keep_bounds(&self) -> Vec<Resize> {
        let given = self.beyond_max();
        let less = self.nodes.iter().enumerate().zip(given).filter(|(_, given)| *given > 0);
        less.filter_map(|((node, of), given)| {
            Some(Resize { node, to_bytes: of.leaf.as_ref()?.current_bytes - given })
        })
        .collect()
    }

    /// What each must give because a `max` is exceeded, its own or that of a group above it, in
    /// proportion to sizes; by its place.
    fn beyond_max(&self) -> Vec<u64> {
        let (tree, granule) = (Tree::new(self), self.granule_bytes.max(1));
        let mut given = vec![0u64; self.nodes.len()];
        // Children stand behind their parents: what they gave counts for those above.
        for bounded in (0..self.nodes.len()).rev() {
            let below = (0..self.nodes.len()).filter(|node| tree.above(*node).any(|above| above == bounded));
            let below: Vec<usize> = below.filter(|node| self.nodes[*node].leaf.is_some()).collect();
            let current = |node: &usize| self.nodes[*node].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes);
            let held: Vec<u64> = below.iter().map(|node| current(node) - given[*node]).collect();
            let over = held.iter().sum::<u64>().saturating_sub(tree.most(bounded));
            let least = |node: &usize| whole(self.nodes[*node].limits.min_bytes.max(1), granule);
            let room: Vec<u64> =
                below.iter().zip(&held).map(|(node, held)| held.saturating_sub(least(node))).collect();
            let gives = spread(whole(over, granule), &held, &room, granule);
            below.iter().zip(gives).for_each(|(node, gives)| given[*node] += gives);
        }
        given
    }

    /// The next steps, those that shrink first. Carried out in this order they never need more than
    /// the total, or than what is held now.
    pub fn plan(&self, pace: &Pace) -> Vec<Resize> {
        let targets = self.targets(pace);
        let granule = self.granule_bytes.max(1);
        let leaves: Vec<(usize, u64, u64)> = (0..self.nodes.len())
            .filter_map(|node| {
                self.nodes[node].leaf.as_ref().map(|leaf| (node, leaf.current_bytes, targets[node]))
            })
            .collect();
        let held: u64 = leaves.iter().map(|(_, current, _)| current).sum();
        let over = held.saturating_sub(self.total_bytes);
        // 1. Who has more than he should gives, in proportion to his size, so that one wrong guess costs
        //    each of them little.
        let step = ((self.total_bytes as f64 * pace.step) as u64).max(granule);
        let excess: Vec<u64> =
            leaves.iter().map(|(_, current, target)| current.saturating_sub(*target)).collect();
        let wanted: u64 = leaves.iter().map(|(_, current, target)| target.saturating_sub(*current)).sum();
        let free = self.total_bytes.saturating_sub(held);
        let to_free = wanted.saturating_sub(free).min(step).max(over);
        let weights: Vec<u64> = leaves.iter().map(|(_, current, _)| *current).collect();
        let mut given = spread(to_free.next_multiple_of(granule), &weights, &excess, granule);
        //    A bound is kept at once, whether or not anybody wants what lies beyond it.
        let beyond = self.beyond_max();
        given.iter_mut().zip(&leaves).for_each(|(given, (node, _, _))| *given = (*given).max(beyond[*node]));
        // 2. What is free then goes to those who should have more, in proportion to that.
        let room = (self.total_bytes + given.iter().sum::<u64>()).saturating_sub(held);
        let lacks: Vec<u64> = leaves
            .iter()
            .zip(&given)
            .map(|((node, current, target), given)| {
                // Who has just given gets nothing.
                let lack = if *given > 0 { 0 } else { target.saturating_sub(*current) };
                // Beyond `high` it grows slowly.
                if *current >= self.nodes[*node].limits.high_bytes { lack.min(granule) } else { lack }
            })
            .collect();
        let mut got = spread(room, &lacks, &lacks, granule);
        //    A group's members get no more than it has room for before the others of it have given what
        // they should.
        let tree = Tree::new(self);
        let mut sizes = vec![0u64; self.nodes.len()];
        for ((leaf, current, _), given) in leaves.iter().zip(&given) {
            tree.above(*leaf).for_each(|node| sizes[node] += current - given);
        }
        for ((leaf, _, _), got) in leaves.iter().zip(&mut got) {
            let room = tree.above(*leaf).map(|node| tree.most(node).saturating_sub(sizes[node])).min();
            *got = room.unwrap_or(0).min(*got) / granule * granule;
            tree.above(*leaf).for_each(|node| sizes[node] += *got);
        }
        let less = leaves.iter().zip(&given).filter(|(_, given)| **given > 0);
        let more = leaves.iter().zip(&got).filter(|(_, got)| **got > 0);
        let less = less.map(|((node, current, _), given)| Resize { node: *node, to_bytes: current - given });
        let more = more.map(|((node, current, _), got)| Resize { node: *node, to_bytes: current + got });
        less.chain(more).collect()
    }
}

/// Rounded up to whole granules, as far as numbers go.
pub(crate) fn whole(bytes: u64, granule: u64) -> u64 {
    bytes.checked_next_multiple_of(granule).unwrap_or(u64::MAX / granule * granule)
}

/// Spreads an amount by weights, nobody more than fits him, in whole granules (or all that fits,
/// where that is less). Returns what each gets; the sum is at most the amount.
pub(crate) fn spread(amount: u64, weights: &[u64], room: &[u64], granule: u64) -> Vec<u64> {
    let mut got = vec![0u64; room.len()];
    let mut left = amount;
    // Each turn but the last fills somebody, or all are given their share.
    for _ in 0..=room.len() {
        let open: Vec<usize> = (0..room.len()).filter(|one| got[*one] < room[*one]).collect();
        let sum: u128 = open.iter().map(|one| u128::from(weights[*one].max(1))).sum();
        let before = left;
        for one in open {
            let share = (u128::from(before) * u128::from(weights[one].max(1)) / sum.max(1)) as u64;
            let share = (share / granule * granule).min(room[one] - got[one]).min(left);
            got[one] += share;
            left -= share;
        }
        if left == before || left == 0 {
            break;
        }
    }
    // What is less than a granule for each goes by granules to the heaviest.
    let mut order: Vec<usize> = (0..room.len()).collect();
    order.sort_by_key(|one| std::cmp::Reverse(weights[*one]));
    for one in order.into_iter().cycle().take(4 * room.len()) {
        let share = granule.min(room[one] - got[one]);
        if share > 0 && share <= left {
            got[one] += share;
            left -= share;
        }
    }
    got
}
