//! The nodes of a table: the node of each segment and page, the segments that should join and leave
//! next.
//!
//! Not here: how segments and entries are divided among nodes (`memory::nodes`), the entries that
//! segments take and give (`deal`), and moving the pages of an entry (`moves::resize`).

use std::ops::Range;

use super::Table;
use crate::index::{NodeId, SegmentIndex};
use crate::memory::layout::{Layout, Shape, front_bytes, set_bytes};
use crate::memory::nodes::Nodes;
use crate::sync::atomic::Ordering;
use crate::word::tag::Tag;

/// Number of sets of a segment whose clocks [`Table::clocks`] reads.
pub const CLOCKS: usize = 8;

impl<const W: usize> Table<W> {
    /// Returns the segments that a new table of `live` segments has in use: the first of each node,
    /// then the second of each, and so on.
    ///
    /// # Panics
    /// If the shape has fewer than `live` segments.
    pub fn first_segments(shape: Shape, nodes: u32, live: u32) -> Vec<SegmentIndex> {
        let division = Nodes::new(nodes, shape.segments_max, 0);
        let mut ranges: Vec<_> =
            (0..nodes).map(|node| division.segments(NodeId(node), shape.segments_max)).collect();
        let mut first = Vec::new();
        while first.len() < live as usize {
            let before = first.len();
            first.extend(ranges.iter_mut().filter_map(Iterator::next).map(SegmentIndex));
            assert!(
                first.len() > before,
                "a table cannot begin with {live} of {} segments",
                shape.segments_max
            );
        }
        first.truncate(live as usize);
        first
    }

    /// Returns the number of nodes that the segments are divided among.
    pub fn nodes(&self) -> u32 {
        self.nodes.count
    }

    /// Returns the node that a segment belongs to.
    pub fn node_of_segment(&self, segment: SegmentIndex) -> NodeId {
        self.nodes.of_segment(segment)
    }

    /// Returns the node of the page's set: there the page is, or would be, unless it is away from
    /// home (T9). The page may move at any time.
    #[inline]
    pub fn node_of(&self, tag: Tag) -> NodeId {
        self.nodes.of_segment(self.segment_of_set(self.set_of(tag)))
    }

    /// Returns the node that the page belongs to by its tag, wherever the page is now.
    #[inline]
    pub fn owner_of(&self, tag: Tag) -> NodeId {
        self.nodes.of_entry(tag.place() >> self.layout().set_shift)
    }

    /// Returns the page's place on a node, as a tag: the page's own tag with the group bits of a
    /// page of that node, and so with the same set number inside a segment.
    #[inline]
    pub fn twin_place(&self, tag: Tag, node: NodeId) -> Tag {
        let (bits, count) = (self.nodes.group_bits, self.nodes.count);
        if count == 1 {
            return tag;
        }
        let shift = self.layout().set_shift;
        let group = self.nodes.group_of(tag.place() >> shift);
        let placed = group - group % count + node.0;
        // The last row of groups may have fewer groups than there are nodes.
        let placed = if placed >> bits == 0 { placed } else { placed - count };
        Tag(tag.0 ^ u64::from(group ^ placed) << shift)
    }

    /// Returns the ranges of a table's memory that belong to a node's segments, in bytes:
    /// fronts, tags, and sets. They are known before the memory is touched.
    pub fn memory_of_node(shape: Shape, nodes: u32, node: NodeId) -> [Range<usize>; 3] {
        let layout = Layout::new::<W>(shape);
        let segments = Nodes::new(nodes, shape.segments_max, 0).segments(node, shape.segments_max);
        let sets = shape.sets_per_segment as usize;
        let part = |at: usize, segment_bytes: usize| {
            at + segments.start as usize * segment_bytes..at + segments.end as usize * segment_bytes
        };
        [
            part(layout.fronts_at, sets * front_bytes::<W>()),
            part(layout.tags_at, sets * W * size_of::<u64>()),
            part(layout.segments_at, sets * set_bytes::<W>()),
        ]
    }

    /// Counts the pages in a segment, without a lock.
    pub fn pages_in_segment(&self, segment: SegmentIndex) -> usize {
        self.sets_of(segment).map(|set| self.pages_in(set).count()).sum()
    }

    /// Returns the segment that a growing table should bring into use: the lowest unused one of the
    /// node with the fewest segments in use. Nodes without unused segments do not count.
    pub fn spare_segment(&self) -> Option<SegmentIndex> {
        let spare = |node: NodeId| self.numbers_of(node).find(|segment| !self.is_live(*segment));
        let nodes = (0..self.nodes.count).map(NodeId).filter(|node| spare(*node).is_some());
        nodes.min_by_key(|node| self.live_of(*node)).and_then(spare)
    }

    /// Returns the segment that a shrinking table should give up: the last one of the node with the
    /// most segments in use. The segments of `besides` do not count.
    pub fn segment_to_leave(&self, besides: &[SegmentIndex]) -> Option<SegmentIndex> {
        let mut counts = vec![0; self.nodes.count as usize];
        let live: Vec<_> = self.segments().filter(|segment| !besides.contains(segment)).collect();
        live.iter().for_each(|segment| counts[self.node_of_segment(*segment).0 as usize] += 1);
        live.into_iter().max_by_key(|segment| (counts[self.node_of_segment(*segment).0 as usize], *segment))
    }

    /// Returns the segments that a table should give up which shrinks by `count`, in this order.
    /// Keeps at least one. Each is the last one of `cold`, if that node has not become much smaller
    /// than the others ([`Self::segment_to_leave_of`]), and otherwise
    /// [`Self::segment_to_leave`]'s. The segments of `besides` do not count.
    pub fn segments_to_leave(
        &self,
        count: usize,
        besides: &[SegmentIndex],
        cold: Option<NodeId>,
    ) -> Vec<SegmentIndex> {
        let mut is_besides = vec![false; self.shape().segments_max as usize];
        besides.iter().for_each(|segment| is_besides[segment.0 as usize] = true);
        let mut own = vec![Vec::new(); self.nodes.count as usize];
        for segment in self.segments().filter(|segment| !is_besides[segment.0 as usize]) {
            own[self.node_of_segment(segment).0 as usize].push(segment);
        }
        let total = own.iter().map(Vec::len).sum::<usize>();
        let mut leaving = Vec::new();
        for _ in 0..count.min(total.saturating_sub(1)) {
            let most = own.iter().map(Vec::len).max().unwrap_or(0);
            let may_leave = |node: &usize| {
                let left = own[*node].len().saturating_sub(1);
                !own[*node].is_empty() && left + left / 4 >= most
            };
            let cold = cold.map(|node| node.0 as usize).filter(may_leave);
            let largest = || (0..own.len()).max_by_key(|node| (own[*node].len(), own[*node].last().copied()));
            let Some(segment) = cold.or_else(largest).and_then(|node| own[node].pop()) else { break };
            leaving.push(segment);
        }
        leaving
    }

    /// Returns an unused segment of a node, for a table that grows there. Returns `None` if the
    /// node would then have more than 1.25 times as many segments in use as the node with the
    /// fewest.
    pub fn spare_segment_of(&self, node: NodeId) -> Option<SegmentIndex> {
        let fewest = (0..self.nodes.count).map(|node| self.live_of(NodeId(node))).min()?;
        let spare = self.numbers_of(node).find(|segment| !self.is_live(*segment));
        spare.filter(|_| self.live_of(node) < fewest + fewest / 4)
    }

    /// Returns the segment that a table should give up if it shrinks on this node. The segments of
    /// `besides` are no candidates, and all of them count as given up on this node. Returns `None`
    /// if the node with the most segments in use, which may be this one, has more than 1.25 times
    /// as many as would be left here.
    pub fn segment_to_leave_of(&self, node: NodeId, besides: &[SegmentIndex]) -> Option<SegmentIndex> {
        let left = self.live_of(node).saturating_sub(besides.len() + 1);
        let most = (0..self.nodes.count).map(|node| self.live_of(NodeId(node))).max()?;
        let own =
            self.numbers_of(node).filter(|segment| self.is_live(*segment) && !besides.contains(segment));
        own.last().filter(|_| left + left / 4 >= most)
    }

    /// Returns the number of entries that name segments of a node.
    pub fn entries_of_node(&self, node: NodeId) -> usize {
        let counts = self.entry_counts();
        self.numbers_of(node).map(|segment| counts[segment.0 as usize]).sum()
    }

    /// Returns the clocks of [`CLOCKS`] sets spread over a segment, and whether each of these sets
    /// is full. The clocks of full sets show how fast arrivals evict pages.
    pub fn clocks(&self, segment: SegmentIndex) -> ([u16; CLOCKS], [bool; CLOCKS]) {
        let sets = self.shape().sets_per_segment as usize;
        let (mut clocks, mut full) = ([0; CLOCKS], [false; CLOCKS]);
        for (at, set) in self.sets_of(segment).step_by(sets.div_ceil(CLOCKS)).take(CLOCKS).enumerate() {
            let head = self.head(set);
            // Relaxed, both: figures.
            clocks[at] = head.clock.load(Ordering::Relaxed);
            full[at] = head.occupied.load(Ordering::Relaxed).count_ones() as usize == W;
        }
        (clocks, full)
    }

    pub(super) fn numbers_of(&self, node: NodeId) -> impl Iterator<Item = SegmentIndex> {
        self.nodes.segments(node, self.shape().segments_max).map(SegmentIndex)
    }

    fn live_of(&self, node: NodeId) -> usize {
        self.numbers_of(node).filter(|segment| self.is_live(*segment)).count()
    }
}
