//! Which node of the machine a segment belongs to, and which segments an entry of the directory may
//! name.
//!
//! The numbers of segments are divided among the nodes, one range each, so that what lies in the
//! table's memory by a segment's number (fingerprints, marks, sets) lies together by node too. An
//! entry belongs to a node by its top bits, its *group*, and names a segment of that node, if the
//! node has one. So a page's node follows from its entry, which every lookup reads anyway: nodes
//! cost a lookup nothing, and a page changes its node only as its entry moves to another segment
//! (R1 to R4 in `resize`).
//!
//! With one node all of it is what it is without nodes. What is not here: memory, threads, and what
//! a node is to the machine.

use std::ops::Range;

use crate::index::{NODES_MAX, NodeId, SegmentIndex};

/// Top bits of a tag that choose the node: 64 groups, so that of three nodes none has a twentieth
/// more pages than another.
const GROUP_BITS: u32 = 6;

/// How a table's segments and entries are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    pub count: u32,
    /// Segments of a node at most.
    per_node: u32,
    pub group_bits: u32,
}

impl Nodes {
    pub fn new(count: u32, segments_max: u32, level_max: u32) -> Nodes {
        assert!(
            (1..=NODES_MAX.min(segments_max)).contains(&count),
            "{count} nodes of {segments_max} segments"
        );
        let group_bits = if count == 1 { 0 } else { GROUP_BITS.min(level_max) };
        Nodes { count, per_node: segments_max.div_ceil(count), group_bits }
    }

    /// A directory has so many bits at least.
    pub fn level_min(&self) -> u32 {
        self.group_bits
    }

    pub fn of_segment(&self, segment: SegmentIndex) -> NodeId {
        NodeId(segment.0 / self.per_node)
    }

    /// Whose an entry is.
    pub fn of_entry(&self, level: u32, entry: u32) -> NodeId {
        NodeId((entry >> (level - self.group_bits)) % self.count)
    }

    /// The numbers of a node's segments. The last node may have fewer than the others.
    pub fn segments(&self, node: NodeId, segments_max: u32) -> Range<u32> {
        let end = ((node.0 + 1) * self.per_node).min(segments_max);
        (node.0 * self.per_node).min(end)..end
    }
}
