//! Computes the target of each partition in three steps: promises (`min`, `low`), then memory that
//! saves misses, then the rest.
//!
//! The worth of memory is computed from whole curves, and not from their slopes. By slopes, a loop
//! that is a little larger than its share would starve: no single step of growth helps it, but all
//! steps together do. Up to [`Pace::exact_max`] partitions share by dynamic programming over
//! [`CHUNKS`] pieces of the memory, which is exact for these pieces. More partitions share by
//! look-ahead (Qureshi, Patt, "Utility-Based Cache Partitioning", MICRO '06): again and again, the
//! stretch of growth that saves most misses per byte is granted, however long it is.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::limits::WEIGHT_DEFAULT;
use crate::spread::{spread, whole};
use crate::state::{Leaf, Pace, State, Trend};

/// Maximum number of pieces into which dynamic programming divides the memory. Because pieces are
/// whole granules, there are 128 to 256 of them, or fewer if the memory has fewer granules.
const CHUNKS: u64 = 256;

/// The inertia is the share of all misses that a move of all memory must save. It is `NOISE` times
/// the relative error of the samples, which is one divided by the square root of the number of all
/// sampled pages. It is at least `INERTIA_LEAST`, because loads change too, and at most
/// [`Pace::inertia`].
const NOISE: f64 = 1.6;
const INERTIA_LEAST: f64 = 0.02;

/// The partitions and groups of a state, with the memory allocated to them so far.
pub(crate) struct Tree<'s> {
    state: &'s State,
    /// Bytes allocated to each node; a group's include those of its members.
    sizes: Vec<u64>,
    leaves: Vec<usize>,
    granule: u64,
}

/// The limit that an allocation must keep.
#[derive(Clone, Copy, PartialEq)]
enum Ceiling {
    High,
    Max,
}

impl<'s> Tree<'s> {
    pub fn new(state: &'s State) -> Tree<'s> {
        let leaves = (0..state.nodes.len()).filter(|node| state.nodes[*node].leaf.is_some()).collect();
        let granule = state.granule_bytes.max(1);
        for (number, node) in state.nodes.iter().enumerate() {
            assert!(node.parent.is_none_or(|parent| parent < number), "a parent stands before its children");
        }
        Tree { state, sizes: vec![0; state.nodes.len()], leaves, granule }
    }

    fn leaves_that(&self, will_do: impl Fn(&Leaf) -> bool) -> Vec<usize> {
        let of = |leaf: &usize| self.state.nodes[*leaf].leaf.as_ref();
        self.leaves.iter().copied().filter(|leaf| of(leaf).is_some_and(&will_do)).collect()
    }

    pub fn into_sizes(self) -> Vec<u64> {
        self.sizes
    }

    /// Returns the maximum size of a node, in whole granules, and at least one.
    fn ceiling(&self, node: usize, which: Ceiling) -> u64 {
        let limits = &self.state.nodes[node].limits;
        let most = match which {
            Ceiling::High => limits.high_bytes.min(limits.max_bytes).max(limits.min_bytes),
            Ceiling::Max => limits.max_bytes,
        };
        (most / self.granule * self.granule).max(self.granule)
    }

    /// Returns the maximum size of a node under `max`.
    pub fn most(&self, node: usize) -> u64 {
        self.ceiling(node, Ceiling::Max)
    }

    /// Returns a node and the groups above it, innermost first.
    pub fn above(&self, node: usize) -> impl Iterator<Item = usize> + use<'s> {
        let state = self.state;
        std::iter::successors(Some(node), move |node| state.nodes[*node].parent)
    }

    /// Returns, by node, the partitions that are the node or below it, in ascending order. The
    /// length of all lists together is the number of partitions times the depth of the tree.
    pub fn members(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.state.nodes.len()];
        for leaf in &self.leaves {
            self.above(*leaf).for_each(|node| members[node].push(*leaf));
        }
        members
    }

    /// Returns the bytes that a partition may still get: the minimum of its own room and that of
    /// the groups above it.
    fn room(&self, leaf: usize, which: Ceiling) -> u64 {
        self.above(leaf)
            .map(|node| self.ceiling(node, which).saturating_sub(self.sizes[node]))
            .min()
            .unwrap_or(0)
    }

    fn give(&mut self, leaf: usize, bytes: u64) {
        self.above(leaf).for_each(|node| self.sizes[node] += bytes);
    }

    fn left(&self) -> u64 {
        let given: u64 = self.leaves.iter().map(|leaf| self.sizes[*leaf]).sum();
        self.state.total_bytes.saturating_sub(given)
    }

    /// Distributes up to `budget` bytes among the partitions `among`, by `weight`. Each partition
    /// grows at most to the size that `to` returns for it, and only as far as the groups above it
    /// have room.
    fn raise(
        &mut self,
        among: &[usize],
        weight: impl Fn(usize) -> u64,
        to: impl Fn(usize) -> u64,
        which: Ceiling,
        budget: u64,
    ) {
        let mut budget = budget;
        // If a group has no room for all that its members should get, the next iteration offers the
        // rest to the other partitions.
        for _ in 0..8 {
            let room: Vec<u64> = among
                .iter()
                .map(|leaf| to(*leaf).saturating_sub(self.sizes[*leaf]).min(self.room(*leaf, which)))
                .collect();
            let weights: Vec<u64> = among.iter().map(|leaf| weight(*leaf)).collect();
            let got = spread(budget, &weights, &room, self.granule);
            let before = budget;
            for (leaf, bytes) in among.iter().zip(got) {
                let bytes = bytes.min(self.room(*leaf, which));
                self.give(*leaf, bytes);
                budget -= bytes;
            }
            if budget == before || budget == 0 {
                break;
            }
        }
    }

    fn weight(&self, leaf: usize) -> u64 {
        // The weight of a group multiplies the weights of its members.
        self.above(leaf).fold(1_000_000u64, |weight, node| {
            (weight as u128 * u128::from(self.state.nodes[node].limits.weight) / u128::from(WEIGHT_DEFAULT))
                .clamp(1, 1 << 40) as u64
        })
    }

    /// Returns the weights of all nodes.
    fn weights(&self) -> Vec<u64> {
        (0..self.sizes.len()).map(|node| self.weight(node)).collect()
    }

    /// Keeps the promises: a granule for each partition, then `min`, then `low` (each for
    /// partitions before groups), then up to half a share by weight for each used partition whose
    /// curve has too few references. If memory does not suffice for every partition's `min` (or
    /// `low`), each partition gets the same fraction of what it lacks.
    pub fn keep_promises(&mut self) {
        let all = self.leaves.clone();
        let members = self.members();
        let weights = self.weights();
        for leaf in &all {
            // A partition always has a granule, even if that exceeds the total.
            self.give(*leaf, self.granule);
        }
        for low in [false, true] {
            let promise = |tree: &Self, node: usize| {
                let limits = &tree.state.nodes[node].limits;
                if low { limits.low_bytes.max(limits.min_bytes) } else { limits.min_bytes }
            };
            // 1. The promises to partitions.
            let to: Vec<u64> = (0..self.sizes.len())
                // Bounded by the total, because a promise may be as large as `u64::MAX`.
                .map(|node| whole(promise(self, node).min(self.state.total_bytes), self.granule))
                .collect();
            let lacks: Vec<u64> =
                self.sizes.iter().zip(&to).map(|(size, to)| to.saturating_sub(*size)).collect();
            self.raise(&all, |leaf| lacks[leaf], |leaf| to[leaf], Ceiling::Max, self.left());
            // 2. The promises to groups, innermost first: the part that the members' own promises
            //   do not use is shared among them by weight.
            for group in (0..self.sizes.len()).rev().filter(|node| self.state.nodes[*node].leaf.is_none()) {
                let lack = to[group].saturating_sub(self.sizes[group]).min(self.left());
                if lack > 0 {
                    self.raise(&members[group], |leaf| weights[leaf], |_| u64::MAX, Ceiling::Max, lack);
                }
            }
        }
        let new = self.leaves_that(|leaf| leaf.is_new && !leaf.is_unused);
        let sum: u128 = all.iter().map(|leaf| u128::from(weights[*leaf])).sum::<u128>().max(1);
        let total = self.state.total_bytes;
        let granule = self.granule;
        let half_share = |leaf: usize| {
            (u128::from(total / 2) * u128::from(weights[leaf]) / sum) as u64 / granule * granule
        };
        self.raise(&new, |leaf| weights[leaf], half_share, Ceiling::High, self.left());
    }

    /// Gives memory, up to `high`, to the partitions where it saves most misses. Memory that stays
    /// where it is has an advantage: a move must save as many misses as the inertia demands.
    pub fn share_by_use(&mut self, pace: &Pace) {
        let left = self.left();
        let misses: f64 = self.leaves.iter().map(|leaf| self.worth(*leaf).now()).sum();
        let still = self.inertia(pace.inertia) * misses / self.state.total_bytes.max(1) as f64;
        let drag = Drag { still, turn: pace.turn };
        if left < self.granule || misses <= 0.0 {
            return;
        }
        if self.leaves.len() <= pace.exact_max {
            self.share_exactly(left, drag)
        } else {
            self.share_ahead(left, drag)
        }
    }

    /// Returns the inertia for the samples' error, at most `most`.
    fn inertia(&self, most: f64) -> f64 {
        let leaves = self.leaves.iter().filter_map(|leaf| self.state.nodes[*leaf].leaf.as_ref());
        let sampled_pages: f64 = leaves.map(|leaf| leaf.sampled_pages).sum();
        // Without samples the noise is infinite.
        (NOISE / sampled_pages.max(0.0).sqrt()).max(INERTIA_LEAST).min(most)
    }

    fn worth(&self, leaf: usize) -> Worth<'s> {
        let of = self.state.nodes[leaf].leaf.as_ref().expect("a partition");
        Worth { of, weight: self.weight(leaf) as f64 / 1e6 }
    }

    // Dynamic programming

    fn share_exactly(&mut self, left: u64, drag: Drag) {
        let chunk = (left / CHUNKS).next_multiple_of(self.granule).max(self.granule);
        let count = (left / chunk) as usize;
        let mut roots: Vec<Dealt> = Vec::new();
        // Parents precede their children in the state. In reverse order, all children of a group
        // are therefore complete before the group.
        let mut below: Vec<Vec<Dealt>> = (0..self.sizes.len()).map(|_| Vec::new()).collect();
        for node in (0..self.sizes.len()).rev() {
            let room = self.ceiling(node, Ceiling::High).saturating_sub(self.sizes[node]);
            let dealt = match &self.state.nodes[node].leaf {
                Some(_) => {
                    let (worth, base) = (self.worth(node), self.sizes[node]);
                    let most = (room.div_ceil(chunk) as usize).min(count);
                    let value = |chunks: usize| worth.at(base + (chunks as u64 * chunk).min(room), drag);
                    Dealt::partition(node, most, value)
                }
                None => Dealt::group(std::mem::take(&mut below[node]), ((room / chunk) as usize).min(count)),
            };
            match self.state.nodes[node].parent {
                Some(parent) => below[parent].push(dealt),
                None => roots.push(dealt),
            }
        }
        let mut chosen = Vec::new();
        Dealt::group(roots, count).choose(count, &mut chosen);
        for (leaf, chunks) in chosen {
            let room = self.room(leaf, Ceiling::High);
            self.give(leaf, (chunks as u64 * chunk).min(room));
        }
    }

    // Look-ahead

    fn share_ahead(&mut self, mut left: u64, drag: Drag) {
        let mut offers: BinaryHeap<Offer> =
            self.leaves.iter().map(|leaf| self.offer(*leaf, left, drag)).collect();
        // Each iteration reaches a known size of a curve, or fills a partition or one of its
        // groups. So there are not many more iterations than points.
        let most =
            self.leaves.iter().map(|leaf| self.worth(*leaf).of.curve.points().count() + 3).sum::<usize>() * 2;
        for _ in 0..most {
            let Some(best) = offers.pop().filter(|best| best.saved_per_byte > 0.0) else { break };
            let room = self.room(best.leaf, Ceiling::High);
            if best.bytes <= room.min(left / self.granule * self.granule) {
                self.give(best.leaf, best.bytes);
                left -= best.bytes;
            }
            // The partition's next offer, or what is left of this one after others were served.
            offers.push(self.offer(best.leaf, left, drag));
        }
    }

    /// Returns the stretch of growth, in whole granules, that saves most misses per byte of a
    /// partition.
    fn offer(&self, leaf: usize, left: u64, drag: Drag) -> Offer {
        let worth = self.worth(leaf);
        let base = self.sizes[leaf];
        let most = self.room(leaf, Ceiling::High).min(left) / self.granule * self.granule;
        let lengths =
            worth.of.curve.points().map(|(bytes, _)| bytes).chain([worth.of.current_bytes, base + most]);
        let lengths = lengths
            .filter(|bytes| *bytes > base)
            .map(|bytes| (bytes - base).next_multiple_of(self.granule).min(most));
        let stretch = |bytes: u64| {
            let saved = worth.at(base + bytes, drag) - worth.at(base, drag);
            Offer { saved_per_byte: saved / bytes as f64, bytes, leaf }
        };
        let stretches = lengths.filter(|length| *length > 0).map(stretch);
        let best = stretches.max_by(|one, other| one.saved_per_byte.total_cmp(&other.saved_per_byte));
        best.unwrap_or(Offer { saved_per_byte: 0.0, bytes: 0, leaf })
    }

    /// Distributes the memory that saves no misses. First, partitions keep the memory that they
    /// have, up to `high`. The rest is shared by weight among all partitions that were ever used
    /// (among all, if none was): up to `high` first, and then up to `max`.
    pub fn leave_the_rest(&mut self) {
        let all = self.leaves.clone();
        let (state, granule, weights) = (self.state, self.granule, self.weights());
        let current = |leaf: usize| state.current(leaf);
        let kept = |leaf: usize| current(leaf) / granule * granule;
        self.raise(&all, current, kept, Ceiling::High, self.left());
        let mut takers = self.leaves_that(|leaf| !leaf.is_unused);
        if takers.is_empty() {
            takers = all;
        }
        self.raise(&takers, |leaf| weights[leaf], |_| u64::MAX, Ceiling::High, self.left());
        self.raise(&takers, |leaf| weights[leaf], |_| u64::MAX, Ceiling::Max, self.left());
    }
}

/// A stretch of growth of one partition. Offers are ordered by the misses that they save per byte;
/// among equals, the partition that stands last in the state comes first.
struct Offer {
    saved_per_byte: f64,
    bytes: u64,
    leaf: usize,
}

impl Ord for Offer {
    fn cmp(&self, other: &Offer) -> Ordering {
        self.saved_per_byte.total_cmp(&other.saved_per_byte).then(self.leaf.cmp(&other.leaf))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Offer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Offer) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offer {}

/// The worth of memory to one partition.
struct Worth<'s> {
    of: &'s Leaf,
    weight: f64,
}

/// The cost of moving a byte to a partition or away from it: `still`, or `turn` times as much if
/// the move reverses the partition's trend.
#[derive(Clone, Copy)]
struct Drag {
    still: f64,
    turn: f64,
}

impl Worth<'_> {
    /// Returns the weighted misses at the current size.
    fn now(&self) -> f64 {
        self.weight * self.of.curve.misses_at(self.of.current_bytes)
    }

    /// Returns the worth of a size: minus its weighted misses, minus the cost of each byte by which
    /// it differs from the current size.
    fn at(&self, bytes: u64, drag: Drag) -> f64 {
        let current = self.of.current_bytes;
        let turns = match self.of.trend {
            Trend::None => false,
            Trend::Grew => bytes < current,
            Trend::Shrank => bytes > current,
        };
        let cost = match (self.of.is_unused, turns) {
            (true, _) => 0.0,
            (false, true) => drag.still * drag.turn,
            (false, false) => drag.still,
        };
        -self.weight * self.of.curve.misses_at(bytes) - cost * bytes.abs_diff(current) as f64
    }
}

/// The best values for 0, 1, 2, ... chunks below a node, and the choices that reach them.
struct Dealt {
    values: Vec<f64>,
    how: How,
}

enum How {
    /// A partition, and the number of chunks that it uses, indexed by the number of chunks that it
    /// is given.
    Partition(usize, Vec<u16>),
    /// The members, each with the number of chunks that it gets, indexed by the number of chunks
    /// that are left after the members behind it in the list were served.
    Group(Vec<(Dealt, Vec<u16>)>),
}

impl Dealt {
    fn partition(node: usize, most: usize, value: impl Fn(usize) -> f64) -> Dealt {
        let (mut values, mut taken) = (Vec::with_capacity(most + 1), Vec::with_capacity(most + 1));
        let (mut best, mut best_at) = (f64::NEG_INFINITY, 0);
        for chunks in 0..=most {
            let value = value(chunks);
            if value > best {
                (best, best_at) = (value, chunks);
            }
            values.push(best);
            taken.push(best_at as u16);
        }
        Dealt { values, how: How::Partition(node, taken) }
    }

    fn group(members: Vec<Dealt>, most: usize) -> Dealt {
        let mut values = vec![0.0];
        let mut merged = Vec::with_capacity(members.len());
        for member in members {
            let len = (values.len() + member.values.len() - 1).min(most + 1);
            let mut sums = vec![f64::NEG_INFINITY; len];
            let mut choice = vec![0u16; len];
            for (own, value) in values.iter().enumerate().take(len) {
                for (given, other) in member.values.iter().enumerate().take(len - own) {
                    if value + other > sums[own + given] {
                        sums[own + given] = value + other;
                        choice[own + given] = given as u16;
                    }
                }
            }
            values = sums;
            merged.push((member, choice));
        }
        Dealt { values, how: How::Group(merged) }
    }

    /// Appends (partition, number of chunks) for every partition below, if the node itself gets
    /// `chunks` chunks.
    fn choose(self, chunks: usize, chosen: &mut Vec<(usize, usize)>) {
        let mut chunks = chunks.min(self.values.len() - 1);
        match self.how {
            How::Partition(node, taken) => chosen.push((node, taken[chunks] as usize)),
            How::Group(members) => {
                for (member, choice) in members.into_iter().rev() {
                    let given = choice[chunks.min(choice.len() - 1)] as usize;
                    chunks -= given;
                    member.choose(given, chosen);
                }
            }
        }
    }
}
