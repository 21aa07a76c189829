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
//! * Segments that leave together give their entries to those that stay, in one pass.
//!
//! No two segments' numbers of entries differ by more than one, and a resize moves no more entries
//! than that takes. With several nodes all this happens inside each node.
//!
//! What goes wrong otherwise: if a segment's entries lie close together, it gets all of one run and
//! nothing of another.
//!
//! Not here: how crowded entries are, and what a resize knows of the directory (`hands`).

use super::Table;
use super::hands::{Givers, Hands, Shares, Takers};
use crate::index::{NodeId, SegmentIndex};
use crate::sync::atomic::Ordering;

/// An entry that goes from one segment to another.
pub(crate) struct Given {
    pub entry: u32,
    pub from: SegmentIndex,
    pub to: SegmentIndex,
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
        let (mut hands, to) = (self.hands(), segment.0 as usize);
        let given = |(from, entry)| Given { entry, from: SegmentIndex(from as u32), to: segment };
        let peers: Vec<usize> =
            self.numbers_of(node).filter(|s| self.is_live(*s)).map(|s| s.0 as usize).collect();
        if peers.iter().all(|peer| hands.len(*peer) == 0) {
            // The node's first segment takes all entries of the node, wherever they are now.
            let all = (0..).zip(&hands.owners).map(|(entry, from)| (*from as usize, entry));
            return all.filter(|(_, entry)| self.nodes.of_entry(*entry) == node).map(given).collect();
        }
        let share = peers.iter().map(|peer| hands.len(*peer)).sum::<usize>() / peers.len();
        let others: Vec<usize> = peers.into_iter().filter(|peer| *peer != to).collect();
        let mut givers = Givers::new(&others, hands.entries.len());
        let drawn = (0..share).map_while(|_| hands.draw(&mut givers, to)).map(given).collect();
        self.dealer.keep(Some(hands));
        drawn
    }

    /// Returns the entries of a leaving segment. They go to segments of the same node, or to any if
    /// that node has no other.
    pub(crate) fn entries_of_leaving(&self, segment: SegmentIndex) -> Vec<Given> {
        let mut hands = self.hands();
        let leaving = hands.entries[segment.0 as usize].clone();
        let node = self.node_of_segment(segment);
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let others: Vec<usize> =
            (0..hands.entries.len()).filter(|s| *s != segment.0 as usize && hands.len(*s) > 0).collect();
        let is_peer = |s: &usize| self.node_of_segment(SegmentIndex(*s as u32)) == node;
        let peers: Vec<usize> = others.iter().copied().filter(is_peer).collect();
        let mut takers = Takers::new(if peers.is_empty() { others } else { peers });
        let give = |entry| {
            let to = SegmentIndex(hands.place(&mut takers, entry)? as u32);
            Some(Given { entry, from: segment, to })
        };
        let given = leaving.into_iter().filter_map(give).collect();
        self.dealer.keep(Some(hands));
        given
    }

    /// Returns the entries of segments that leave together, those of one segment after the other,
    /// in the order of `leaving`. They go to segments of the same node, or to any if that node
    /// keeps none.
    pub(crate) fn entries_of_leaving_all(&self, leaving: &[SegmentIndex]) -> Vec<Given> {
        self.dealer.keep(None);
        let owners: Vec<u32> = self.owners().map(|owner| owner.0).collect();
        let mut counts = self.entry_counts();
        let mut places = vec![None; counts.len()];
        leaving.iter().zip(0..).for_each(|(segment, place)| places[segment.0 as usize] = Some(place));
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let others: Vec<usize> =
            (0..counts.len()).filter(|s| places[*s].is_none() && counts[*s] > 0).collect();
        let node_of = |segment: usize| self.node_of_segment(SegmentIndex(segment as u32));
        let mut given: Vec<Vec<Given>> = leaving.iter().map(|_| Vec::new()).collect();
        for node in (0..self.nodes.count).map(NodeId) {
            let peers: Vec<usize> = others.iter().copied().filter(|s| node_of(*s) == node).collect();
            let takers = if peers.is_empty() { &others } else { &peers };
            let of_node = |s: &SegmentIndex| node_of(s.0 as usize) == node;
            let dealt = leaving.iter().filter(|s| of_node(s)).map(|s| counts[s.0 as usize]).sum();
            let mut shares = Shares::new(takers, &counts, dealt);
            let mut is_taker = vec![false; counts.len()];
            takers.iter().for_each(|taker| is_taker[*taker] = true);
            for (owner, entry) in owners.iter().map(|owner| *owner as usize).zip(0..) {
                if is_taker[owner] {
                    shares.meet(owner);
                } else if let Some(place) = places[owner].filter(|_| node_of(owner) == node)
                    && let Some(to) = shares.take(&mut counts)
                {
                    let from = SegmentIndex(owner as u32);
                    given[place].push(Given { entry, from, to: SegmentIndex(to as u32) });
                }
            }
        }
        given.into_iter().flatten().collect()
    }

    /// Returns up to `count` entries that go from one node to another. Each segment keeps at least
    /// a quarter of its share.
    pub(crate) fn entries_to_shift(&self, from: NodeId, to: NodeId, count: usize) -> Vec<Given> {
        assert!(from != to, "entries go from one node to another");
        let mut hands = self.hands();
        // A segment that is emptied but not yet retired has no entries, and gets none.
        let own = |node: NodeId| self.numbers_of(node).map(|segment| segment.0 as usize);
        let takers = own(to).filter(|segment| hands.len(*segment) > 0).collect();
        let givers: Vec<usize> = own(from).filter(|segment| hands.len(*segment) > 0).collect();
        let (mut givers, mut takers) = (Givers::new(&givers, hands.entries.len()), Takers::new(takers));
        let least = (1usize << self.level()) / self.live_segments().max(1) as usize / 4;
        let mut shift = || {
            if givers.most(&hands)? <= least.max(1) {
                return None;
            }
            let taker = takers.fewest(&hands).pop_front()?;
            let (giver, entry) = hands.draw(&mut givers, taker)?;
            let (from, to) = (SegmentIndex(giver as u32), SegmentIndex(taker as u32));
            Some(Given { entry, from, to })
        };
        let shifted = (0..count).map_while(|_| shift()).collect();
        self.dealer.keep(Some(hands));
        shifted
    }

    /// Returns whether directory entries name the segment.
    pub(crate) fn has_entries(&self, segment: SegmentIndex) -> bool {
        self.dealer.count_of(segment, || self.entry_counts()) > 0
    }

    /// Frees the memory in which a resize leaves the owners of all entries to the next one, about
    /// ten bytes an entry. Call it after the last of several.
    pub fn end_resizes(&self) {
        self.dealer.keep(None);
        self.dealer.forget_counts();
    }

    /// Takes the owners of all entries, which the caller keeps for the next resize.
    fn hands(&self) -> Hands {
        self.kept_hands().unwrap_or_else(|| {
            let owners = self.owners().map(|owner| owner.0).collect();
            Hands::of(owners, self.entry_counts(), self.dealer.moved())
        })
    }

    /// Takes the owners that the last resize has left, if its moves have all ended.
    fn kept_hands(&self) -> Option<Hands> {
        let is_current =
            |hands: &Hands| hands.moved == self.dealer.moved() && hands.owners.len() == 1 << self.level();
        self.dealer.take().filter(is_current)
    }
}
