//! On which node each of a partition's pages lies, and how threads access pages of other nodes.
//!
//! A whole partition can lie on one node. Otherwise its table's segments are divided among the
//! nodes (`octavo_table`, `nodes.rs`), and the memory of each segment, frames and metadata, is
//! bound to its node. Four modes determine how a thread accesses another node's pages:
//!
//! - `partition`: every thread reads and writes every page directly.
//! - `message`: requests of a batch are sent to the nodes of their pages (`flight/messages.rs`).
//! - `replicate`: pages are copied to the nodes that read them (`replicate.rs`).
//! - `auto`: each partition chooses among the other three (`weigh.rs`, `state/nodes/auto.rs`).
//!
//! Finding a page's node costs a hit nothing: the node follows from the directory entry that every
//! lookup reads. With several nodes, accesses are counted by node: no counter is *at hand*, so
//! every hit takes the accounted path (`pages/access.rs`). With one node nothing here runs.

mod charge;
mod replicate;
mod weigh;

use octavo_table::{Found, NodeId, Tag};

use crate::state::counters::Count;
use crate::state::partition::PartitionInner;

impl PartitionInner {
    /// Returns the node where a page is, or would be if it were resident.
    #[inline]
    pub fn node_of(&self, tag: Tag) -> NodeId {
        match self.places.nodes {
            1 => self.places.home,
            _ if self.table.has_away() => self.node_of_main(tag),
            _ => self.table.node_of(tag),
        }
    }

    #[cold]
    fn node_of_main(&self, tag: Tag) -> NodeId {
        match self.table.find_from(tag, self.shared.numa.here()) {
            Some(main) => self.node_of_segment(self.table.segment_of(main.index)),
            None => self.table.node_of(tag),
        }
    }

    /// Finds a page from the calling thread's node: a page that is away from home may be on that
    /// node.
    #[inline]
    pub fn find_near(&self, tag: Tag) -> Option<Found<'_>> {
        match self.places.replicates {
            true => self.table.find_from(tag, self.shared.numa.here()),
            false => self.table.find(tag),
        }
    }

    /// Returns the node where a page is, unless it is the calling thread's node.
    pub fn other_node(&self, tag: Tag) -> Option<NodeId> {
        let node = self.node_of(tag);
        (node != self.shared.numa.here()).then_some(node)
    }

    /// Counts a hit by the page's node, local or remote.
    pub fn count_place(&self, tag: Tag, write: bool, hit: bool) {
        if !hit {
            return;
        }
        let is_here = self.node_of(tag) == self.shared.numa.here();
        self.counters.add(if is_here { Count::LocalHits } else { Count::RemoteHits }, 1);
        if write && !is_here {
            self.counters.add(Count::RemoteWrites, 1);
        }
    }
}
