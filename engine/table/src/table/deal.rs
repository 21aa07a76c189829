//! Who owns which directory entries.
//!
//! A run of 2^j neighbouring groups of pages meets 2^j neighbouring entries (`tag`). For the run to
//! load all segments equally, each segment must own equally many entries of every range of the
//! directory, not only of the whole. So the entries of a segment lie far apart:
//!
//! * A new table deals its entries in turn.
//! * A joining segment takes each entry from a segment that has most: near the middle of its own
//!   widest gap so far, the one around which the giver's entries are most crowded.
//! * A leaving segment gives each entry to a segment that has least: the one whose entries are
//!   least crowded around it.
//!
//! *Crowded* is counted on four scales: in ranges around the entry in which a segment has, on
//! average, 1, 4, 16 and 64 entries. Their numbers are added, each divided by the deviation that
//! chance would give it. Other rules were tried on models of tables that grow fourfold, shrink to a
//! quarter, or change at random: the distance of the nearest entry leaves 0.97 of a file in its
//! frames, the count on one scale 0.92, several scales 0.985.
//!
//! No two segments' numbers of entries differ by more than one, and a resize moves no more entries
//! than that takes. With several nodes all this happens inside each node.
//!
//! What goes wrong otherwise: if a segment's entries lie close together, it gets all of one run and
//! nothing of another.

use std::cmp::Reverse;

use super::Table;
use crate::index::{NodeId, SegmentIndex};
use crate::sync::atomic::Ordering;

/// Number of entries among which a joining segment chooses the next one, and of segments among
/// which a leaving segment chooses the taker of an entry.
const CHOICES: usize = 8;
const TAKERS: usize = 64;

/// The weights of the scales of crowding, in eighths: the scale on which a segment has 4^k entries
/// counts by 2^-k.
const WEIGHTS: [u64; 4] = [8, 4, 2, 1];

/// An entry that goes from one segment to another.
pub(crate) struct Given {
    pub entry: u32,
    pub from: SegmentIndex,
    pub to: SegmentIndex,
}

/// The entries of all segments, in ascending order, and the owner of each.
struct Hands {
    entries: Vec<Vec<u32>>,
    owners: Vec<u32>,
}

impl Hands {
    fn of<const W: usize>(table: &Table<W>) -> Hands {
        let entries = table.entries_by_segment();
        let mut owners = vec![0; 1 << table.level()];
        for (segment, entries) in entries.iter().enumerate() {
            entries.iter().for_each(|entry| owners[*entry as usize] = segment as u32);
        }
        Hands { entries, owners }
    }

    fn len(&self, segment: usize) -> usize {
        self.entries[segment].len()
    }

    fn move_entry(&mut self, entry: u32, to: usize) {
        let from = std::mem::replace(&mut self.owners[entry as usize], to as u32) as usize;
        if let Ok(at) = self.entries[from].binary_search(&entry) {
            self.entries[from].remove(at);
        }
        let at = self.entries[to].partition_point(|other| *other < entry);
        self.entries[to].insert(at, entry);
    }

    /// Returns how crowded a segment's entries are around `entry`. The directory is a ring: its two
    /// ends are neighbours.
    fn crowding(&self, segment: usize, entry: u32) -> u64 {
        let (entries, count) = (&self.entries[segment], self.owners.len() as u64);
        let below = |bound: u64| entries.partition_point(|other| u64::from(*other) < bound) as u64;
        let within = |width: u64| {
            let from = u64::from(entry).wrapping_sub(width / 2) & (count - 1);
            match from + width {
                to if to <= count => below(to) - below(from),
                to => entries.len() as u64 - below(from) + below(to - count),
            }
        };
        let apart = count / entries.len().max(1) as u64;
        WEIGHTS
            .into_iter()
            .zip(0..)
            .map(|(weight, scale)| weight * within(count.min(apart << (2 * scale))))
            .sum()
    }

    /// Returns the middle of the widest gap between a segment's entries.
    fn widest_gap(&self, segment: usize) -> u32 {
        let (entries, mask) = (&self.entries[segment], self.owners.len() as u32 - 1);
        let next = entries.iter().cycle().skip(1);
        let width = |from: &u32, to: &u32| to.wrapping_sub(*from).wrapping_sub(1) & mask;
        let gaps = entries.iter().zip(next).map(|(from, to)| (width(from, to), *from));
        gaps.max_by_key(|(width, from)| (*width, Reverse(*from)))
            .map_or(0, |(width, from)| from.wrapping_add(width / 2 + 1) & mask)
    }

    /// Moves an entry from a segment with most entries to `to`. `is_giver` says by segment whether
    /// it may give. Returns the giver and the entry, or `None` if no giver has any.
    fn draw(&mut self, is_giver: &[bool], to: usize) -> Option<(usize, u32)> {
        let givers = (0..is_giver.len()).filter(|segment| is_giver[*segment]);
        let most = givers.map(|giver| self.len(giver)).max().filter(|most| *most > 0)?;
        let (middle, count) = (self.widest_gap(to), self.owners.len() as u32);
        // From the middle outwards: 0, 1, -1, 2, -2, ...
        let outwards = (0..count).map(|step| {
            let away = step.div_ceil(2);
            middle.wrapping_add(if step % 2 == 0 { away.wrapping_neg() } else { away }) & (count - 1)
        });
        let eligible = outwards.filter(|entry| {
            let owner = self.owners[*entry as usize] as usize;
            is_giver[owner] && self.len(owner) == most
        });
        let crowding = |entry: &u32| self.crowding(self.owners[*entry as usize] as usize, *entry);
        let entry = eligible.take(CHOICES).max_by_key(crowding)?;
        let giver = self.owners[entry as usize] as usize;
        self.move_entry(entry, to);
        Some((giver, entry))
    }

    /// Moves an entry to a segment with fewest entries, and returns the segment.
    fn place(&mut self, takers: &[usize], entry: u32) -> Option<usize> {
        let least = takers.iter().map(|taker| self.len(*taker)).min()?;
        let eligible: Vec<usize> = takers.iter().copied().filter(|taker| self.len(*taker) == least).collect();
        // Of many segments, only some are looked at, others for each entry.
        let step = eligible.len().div_ceil(TAKERS);
        let some = eligible.iter().copied().skip(entry as usize % step).step_by(step);
        let taker = some.min_by_key(|taker| self.crowding(*taker, entry))?;
        self.move_entry(entry, taker);
        Some(taker)
    }
}

impl<const W: usize> Table<W> {
    /// Fills the entries of a new table's first level: each names a segment of its node in turn, or
    /// any segment if the node has none.
    pub(crate) fn deal_entries(&self, level: u32, live: &[SegmentIndex]) {
        // The segments are grouped once, before the loop: a table of 128 GiB has four million
        // entries and 65536 segments.
        let mut own = vec![Vec::new(); self.nodes.count as usize];
        live.iter().for_each(|segment| own[self.node_of_segment(*segment).0 as usize].push(*segment));
        let mut dealt = vec![0; self.nodes.count as usize];
        for entry in 0..1u32 << level {
            let owner = self.nodes.of_entry(entry).0 as usize;
            let segments = if own[owner].is_empty() { live } else { &own[owner] };
            let segment = segments[dealt[owner] % segments.len()];
            dealt[owner] += 1;
            self.entry(entry as usize).store(self.first_set(segment), Ordering::Relaxed);
        }
    }

    /// Returns the entries that a joining segment takes from others.
    pub(crate) fn entries_for(&self, segment: SegmentIndex) -> Vec<Given> {
        let node = self.node_of_segment(segment);
        let (mut hands, to) = (Hands::of(self), segment.0 as usize);
        let given = |(from, entry)| Given { entry, from: SegmentIndex(from as u32), to: segment };
        let peers: Vec<usize> =
            self.numbers_of(node).filter(|s| self.is_live(*s)).map(|s| s.0 as usize).collect();
        if peers.iter().all(|peer| hands.len(*peer) == 0) {
            // The node's first segment takes all entries of the node, wherever they are now.
            let all = (0..).zip(&hands.owners).map(|(entry, from)| (*from as usize, entry));
            return all.filter(|(_, entry)| self.nodes.of_entry(*entry) == node).map(given).collect();
        }
        let share = peers.iter().map(|peer| hands.len(*peer)).sum::<usize>() / peers.len();
        let is_giver = among(&peers, hands.entries.len(), |peer| peer != to);
        (0..share).map_while(|_| hands.draw(&is_giver, to)).map(given).collect()
    }

    /// Returns the entries of a leaving segment. They go to segments of the same node, or to any if
    /// that node has no other.
    pub(crate) fn entries_of_leaving(&self, segment: SegmentIndex) -> Vec<Given> {
        let mut hands = Hands::of(self);
        let leaving = std::mem::take(&mut hands.entries[segment.0 as usize]);
        let node = self.node_of_segment(segment);
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let others: Vec<usize> = (0..hands.entries.len()).filter(|s| hands.len(*s) > 0).collect();
        let is_peer = |s: &usize| self.node_of_segment(SegmentIndex(*s as u32)) == node;
        let peers: Vec<usize> = others.iter().copied().filter(is_peer).collect();
        let takers = if peers.is_empty() { others } else { peers };
        let give = |entry| {
            let to = SegmentIndex(hands.place(&takers, entry)? as u32);
            Some(Given { entry, from: segment, to })
        };
        leaving.into_iter().filter_map(give).collect()
    }

    /// Returns up to `count` entries that go from one node to another. Each segment keeps at least
    /// a quarter of its share.
    pub(crate) fn entries_to_shift(&self, from: NodeId, to: NodeId, count: usize) -> Vec<Given> {
        assert!(from != to, "entries go from one node to another");
        let mut hands = Hands::of(self);
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let own = |node: NodeId| self.numbers_of(node).map(|segment| segment.0 as usize);
        let takers: Vec<usize> = own(to).filter(|segment| hands.len(*segment) > 0).collect();
        let givers: Vec<usize> = own(from).filter(|segment| hands.len(*segment) > 0).collect();
        let is_giver = among(&givers, hands.entries.len(), |_| true);
        let least = (1usize << self.level()) / self.live_segments().max(1) as usize / 4;
        let mut shift = || {
            let taker = takers.iter().copied().min_by_key(|segment| hands.len(*segment))?;
            let most = givers.iter().map(|segment| hands.len(*segment)).max()?;
            if most <= least.max(1) {
                return None;
            }
            let (giver, entry) = hands.draw(&is_giver, taker)?;
            let (from, to) = (SegmentIndex(giver as u32), SegmentIndex(taker as u32));
            Some(Given { entry, from, to })
        };
        (0..count).map_while(|_| shift()).collect()
    }
}

/// Returns by segment whether it is one of `segments` that satisfies `is_one`.
fn among(segments: &[usize], count: usize, is_one: impl Fn(usize) -> bool) -> Vec<bool> {
    let mut among = vec![false; count];
    segments.iter().for_each(|segment| among[*segment] = is_one(*segment));
    among
}
