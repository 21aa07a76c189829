//! Computes the next steps from a state: targets first, then steps towards them at a bounded rate.

use crate::allocate::Tree;
use crate::spread::{spread, whole};
use crate::state::{Pace, State};

/// The next size of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The partition, as an index of [`State::nodes`].
    pub node: usize,
    /// The new size in bytes.
    pub to_bytes: u64,
}

impl State {
    /// Returns the size in bytes that each node should have, indexed as [`State::nodes`]; a group's
    /// is the sum of its members'. Each partition gets at least a granule and, as far as the total
    /// suffices, its `min`; it gets at most its own `max` and what the groups above it allow. The
    /// sum is at most the total, unless a granule for each partition is already more.
    pub fn targets(&self, pace: &Pace) -> Vec<u64> {
        let mut tree = Tree::new(self);
        tree.keep_promises();
        tree.share_by_use(pace);
        tree.leave_the_rest();
        tree.into_sizes()
    }

    /// Returns the bytes that all `min` sizes need, with at least a granule for each partition.
    /// With a smaller total, some `min` cannot be kept.
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

    /// Returns the steps that enforce every `max`, of partitions and of groups. No partition goes
    /// below its `min`, or below a granule. [`Self::plan`] includes these reductions; this function
    /// is for callers that only enforce bounds.
    pub fn keep_bounds(&self) -> Vec<Resize> {
        let given = self.beyond_max();
        let less = given.into_iter().enumerate().filter(|(_, given)| *given > 0);
        less.map(|(node, given)| Resize { node, to_bytes: self.current(node) - given }).collect()
    }

    /// Returns, indexed as [`State::nodes`], the bytes that each partition must give because its
    /// own `max` or that of a group above it is exceeded. The members of a group give in proportion
    /// to their sizes.
    fn beyond_max(&self) -> Vec<u64> {
        let tree = Tree::new(self);
        let granule = self.granule_bytes.max(1);
        let members = tree.members();
        let mut given = vec![0u64; self.nodes.len()];
        // Children come after their parents, so in reverse order the bytes that members give count
        // for the groups above them.
        for bounded in (0..self.nodes.len()).rev() {
            let below = &members[bounded];
            let held: Vec<u64> = below.iter().map(|node| self.current(*node) - given[*node]).collect();
            let over = held.iter().sum::<u64>().saturating_sub(tree.most(bounded));
            if over == 0 {
                continue;
            }
            let least = |node: &usize| whole(self.nodes[*node].limits.min_bytes.max(1), granule);
            let room: Vec<u64> =
                below.iter().zip(&held).map(|(node, held)| held.saturating_sub(least(node))).collect();
            let gives = spread(whole(over, granule), &held, &room, granule);
            below.iter().zip(gives).for_each(|(node, gives)| given[*node] += gives);
        }
        given
    }

    /// Returns the next steps, reductions first. Carried out in this order, they never need more
    /// memory than the total, or than the partitions hold now if that is more.
    pub fn plan(&self, pace: &Pace) -> Vec<Resize> {
        let targets = self.targets(pace);
        let granule = self.granule_bytes.max(1);
        let leaves = (0..self.nodes.len()).filter(|node| self.nodes[*node].leaf.is_some());
        let leaves: Vec<(usize, u64, u64)> =
            leaves.map(|node| (node, self.current(node), targets[node])).collect();
        let held: u64 = leaves.iter().map(|(_, current, _)| current).sum();
        let over = held.saturating_sub(self.total_bytes);
        // 1. Partitions above their targets give in proportion to their sizes, so that a wrong
        //   estimate costs each of them little.
        let step = ((self.total_bytes as f64 * pace.step) as u64).max(granule);
        let excess: Vec<u64> =
            leaves.iter().map(|(_, current, target)| current.saturating_sub(*target)).collect();
        let wanted: u64 = leaves.iter().map(|(_, current, target)| target.saturating_sub(*current)).sum();
        let free = self.total_bytes.saturating_sub(held);
        let to_free = wanted.saturating_sub(free).min(step).max(over);
        let weights: Vec<u64> = leaves.iter().map(|(_, current, _)| *current).collect();
        let mut given = spread(to_free.next_multiple_of(granule), &weights, &excess, granule);
        // Bounds are enforced at once, even if no partition wants the memory beyond them.
        let beyond = self.beyond_max();
        given.iter_mut().zip(&leaves).for_each(|(given, (node, _, _))| *given = (*given).max(beyond[*node]));
        // 2. The memory that is then free goes to partitions below their targets, in proportion to
        //   what they lack.
        let room = (self.total_bytes + given.iter().sum::<u64>()).saturating_sub(held);
        let lacks: Vec<u64> = leaves
            .iter()
            .zip(&given)
            .map(|((node, current, target), given)| {
                // A partition that has just given gets nothing.
                let lack = if *given > 0 { 0 } else { target.saturating_sub(*current) };
                // Beyond `high` a partition grows slowly.
                if *current >= self.nodes[*node].limits.high_bytes { lack.min(granule) } else { lack }
            })
            .collect();
        let mut got = spread(room, &lacks, &lacks, granule);
        // A group may grow only into the room that it has after this plan's reductions, even if
        // other members are to give more later.
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
