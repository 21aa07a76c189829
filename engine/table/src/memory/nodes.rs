//! The division of a table among the nodes of the machine: which node a segment belongs to, and
//! which segments a directory entry may name.
//!
//! Each node has a range of segment numbers. The memory that is indexed by segment number
//! (fronts, tags, sets) is therefore contiguous per node. The lowest bits of an entry's number, its
//! *group*, determine the entry's node. The entry names a segment of that node, if the node has
//! one. A page's node thus follows from its entry, which every lookup reads anyway: nodes cost a
//! lookup nothing. A page in its home set changes its node only when its entry moves to a segment
//! of another node (R1 to R4 in `resize`).
//!
//! With one node the division changes nothing. Not here: memory, threads, and the machine's
//! topology.

use std::ops::Range;

use crate::index::{NODES_MAX, NodeId, SegmentIndex};

/// Number of directory bits that choose the node. They make 64 groups, so that with three nodes
/// no node has 5 % more pages than another.
const GROUP_BITS: u32 = 6;

/// The division of a table's segments and entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    pub count: u32,
    /// Maximum number of segments of a node.
    per_node: u32,
    pub group_bits: u32,
}

impl Nodes {
    pub fn new(count: u32, segments_max: u32, level_max: u32) -> Nodes {
        assert!(
            (1..=NODES_MAX.min(segments_max)).contains(&count),
            "a table of {segments_max} segments cannot be divided among {count} nodes"
        );
        let group_bits = if count == 1 { 0 } else { GROUP_BITS.min(level_max) };
        Nodes { count, per_node: segments_max.div_ceil(count), group_bits }
    }

    /// Returns the minimum number of directory bits.
    pub fn level_min(&self) -> u32 {
        self.group_bits
    }

    pub fn of_segment(&self, segment: SegmentIndex) -> NodeId {
        NodeId(segment.0 / self.per_node)
    }

    /// Returns the node that an entry belongs to.
    pub fn of_entry(&self, entry: u32) -> NodeId {
        NodeId(self.group_of(entry) % self.count)
    }

    /// Returns the group that an entry belongs to, at whatever level.
    pub fn group_of(&self, entry: u32) -> u32 {
        entry & ((1 << self.group_bits) - 1)
    }

    /// Returns the numbers of a node's segments. The last node may have fewer than the others.
    pub fn segments(&self, node: NodeId, segments_max: u32) -> Range<u32> {
        let end = ((node.0 + 1) * self.per_node).min(segments_max);
        (node.0 * self.per_node).min(end)..end
    }
}
