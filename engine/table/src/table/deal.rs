//! Who owns which directory entries.
//!
//! A run of 2^j neighbouring groups of pages meets 2^j neighbouring entries (`tag`). For the run to
//! load all segments equally, each segment must own equally many entries of every range of the
//! directory, not only of the whole. So entries are dealt by *strata*, sixteen equal ranges:
//!
//! * A new table deals its entries in turn. Neighbours then belong to different segments, and every
//!   range is divided equally, up to one entry.
//! * A joining segment takes each entry from a segment that has most in all, in the stratum of
//!   which it has least itself so far, from the segment that has most there.
//! * A leaving segment gives each entry to a segment that has least in all, and among these to the
//!   one that has least of the entry's stratum.
//!
//! No two segments' numbers of entries differ by more than one, and a resize moves no more entries
//! than that takes. With several nodes all this happens inside each node.
//!
//! What goes wrong otherwise: entries that are a power of two apart belong to pages that are far
//! apart, so a segment that owns only such entries gets nothing of one run and all of another.

use super::Table;
use crate::index::{NodeId, SegmentIndex};
use crate::sync::atomic::Ordering;

const STRATA_BITS: u32 = 4;
const STRATA: usize = 1 << STRATA_BITS;

/// An entry that goes from one segment to another.
pub(crate) struct Given {
    pub entry: u32,
    pub from: SegmentIndex,
    pub to: SegmentIndex,
}

/// The entries of all segments, sorted into strata.
struct Hands {
    level: u32,
    hands: Vec<Hand>,
}

/// The entries of one segment.
#[derive(Clone, Default)]
struct Hand {
    entries: Vec<u32>,
    /// Number of entries by stratum.
    counts: [u32; STRATA],
}

impl Hand {
    fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Hands {
    fn of<const W: usize>(table: &Table<W>) -> Hands {
        let level = table.level();
        let mut hands = Hands { level, hands: vec![Hand::default(); table.shape().segments_max as usize] };
        for (segment, entries) in table.entries_by_segment().into_iter().enumerate() {
            entries.into_iter().for_each(|entry| hands.give(segment, entry));
        }
        hands
    }

    fn stratum(&self, entry: u32) -> usize {
        (u64::from(entry) << STRATA_BITS >> self.level) as usize
    }

    /// Takes an entry of a stratum from a segment.
    fn take(&mut self, from: usize, stratum: usize) -> u32 {
        let hand = &self.hands[from];
        let is_there = |entry: &u32| self.stratum(*entry) == stratum;
        let at = hand.entries.iter().rposition(is_there).expect("the segment has an entry of the stratum");
        self.hands[from].counts[stratum] -= 1;
        self.hands[from].entries.remove(at)
    }

    fn give(&mut self, to: usize, entry: u32) {
        let stratum = self.stratum(entry);
        self.hands[to].counts[stratum] += 1;
        self.hands[to].entries.push(entry);
    }

    /// Moves an entry from a segment with most entries to `to`. Returns the giver and the entry, or
    /// `None` if no giver has any.
    fn draw(&mut self, givers: &[usize], to: usize) -> Option<(usize, u32)> {
        let most = givers.iter().map(|giver| self.hands[*giver].len()).max().filter(|most| *most > 0)?;
        // Where `to` has least; among equals, strata far from the last one first.
        let mut strata: [usize; STRATA] =
            std::array::from_fn(|at| (at as u32).reverse_bits() as usize >> (u32::BITS - STRATA_BITS));
        strata.sort_by_key(|stratum| self.hands[to].counts[*stratum]);
        strata.into_iter().find_map(|stratum| {
            let count = |giver: &&usize| self.hands[**giver].counts[stratum];
            let eligible =
                givers.iter().filter(|giver| self.hands[**giver].len() == most && count(giver) > 0);
            let giver = *eligible.max_by_key(count)?;
            let entry = self.take(giver, stratum);
            self.give(to, entry);
            Some((giver, entry))
        })
    }

    /// Gives an entry to a segment with fewest entries, and returns the segment.
    fn place(&mut self, takers: &[usize], entry: u32) -> Option<usize> {
        let stratum = self.stratum(entry);
        let load = |taker: &usize| (self.hands[*taker].len(), self.hands[*taker].counts[stratum]);
        let taker = takers.iter().copied().min_by_key(load)?;
        self.give(taker, entry);
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
        if peers.iter().all(|peer| hands.hands[*peer].len() == 0) {
            // The node's first segment takes all entries of the node, wherever they are now.
            let all = hands.hands.iter().enumerate();
            let all = all.flat_map(|(from, hand)| hand.entries.iter().map(move |entry| (from, *entry)));
            return all.filter(|(_, entry)| self.nodes.of_entry(*entry) == node).map(given).collect();
        }
        let share = peers.iter().map(|peer| hands.hands[*peer].len()).sum::<usize>() / peers.len();
        let givers: Vec<usize> = peers.into_iter().filter(|peer| *peer != to).collect();
        (0..share).map_while(|_| hands.draw(&givers, to)).map(given).collect()
    }

    /// Returns the entries of a leaving segment. They go to segments of the same node, or to any if
    /// that node has no other.
    pub(crate) fn entries_of_leaving(&self, segment: SegmentIndex) -> Vec<Given> {
        let mut hands = Hands::of(self);
        let leaving = std::mem::take(&mut hands.hands[segment.0 as usize]);
        let node = self.node_of_segment(segment);
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let others: Vec<usize> = (0..hands.hands.len()).filter(|s| hands.hands[*s].len() > 0).collect();
        let is_peer = |s: &usize| self.node_of_segment(SegmentIndex(*s as u32)) == node;
        let peers: Vec<usize> = others.iter().copied().filter(is_peer).collect();
        let takers = if peers.is_empty() { others } else { peers };
        let give = |entry| {
            let to = SegmentIndex(hands.place(&takers, entry)? as u32);
            Some(Given { entry, from: segment, to })
        };
        leaving.entries.into_iter().filter_map(give).collect()
    }

    /// Returns up to `count` entries that go from one node to another. Each segment keeps at least
    /// a quarter of its share.
    pub(crate) fn entries_to_shift(&self, from: NodeId, to: NodeId, count: usize) -> Vec<Given> {
        assert!(from != to, "entries go from one node to another");
        let mut hands = Hands::of(self);
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let own = |node: NodeId| self.numbers_of(node).map(|segment| segment.0 as usize);
        let givers: Vec<usize> = own(from).filter(|segment| hands.hands[*segment].len() > 0).collect();
        let takers: Vec<usize> = own(to).filter(|segment| hands.hands[*segment].len() > 0).collect();
        let least = (1usize << self.level()) / self.live_segments().max(1) as usize / 4;
        let mut shift = || {
            let taker = takers.iter().copied().min_by_key(|segment| hands.hands[*segment].len())?;
            let most = givers.iter().map(|segment| hands.hands[*segment].len()).max()?;
            if most <= least.max(1) {
                return None;
            }
            let (giver, entry) = hands.draw(&givers, taker)?;
            let (from, to) = (SegmentIndex(giver as u32), SegmentIndex(taker as u32));
            Some(Given { entry, from, to })
        };
        (0..count).map_while(|_| shift()).collect()
    }
}
