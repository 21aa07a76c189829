//! From a picture of all partitions to the next steps: targets, then hysteresis and a bounded rate.

use crate::allocate::Tree;
use crate::spread::{spread, whole};
use crate::state::{Pace, State};

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
