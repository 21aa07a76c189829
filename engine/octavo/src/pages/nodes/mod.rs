//! Where a partition's pages lie among the nodes, and how a thread gets at those of other nodes.
//!
//! In mode `partition` a table's segments are divided among the nodes (`octavo_table`, `nodes.rs`)
//! and the memory of each, frames and metadata, is bound to its node; any thread reads any page. In
//! mode `message` batches go to where their pages are (`flight/messages.rs`), in mode `replicate`
//! pages come to where they are read (`replicate.rs`), in mode `auto` each partition chooses among
//! these (`auto.rs`). A partition can also lie on one node whole.
//!
//! Nodes cost a hit nothing but the distance: a page's node follows from the directory entry that
//! every lookup reads. While there is more than one node, accesses are counted by node: no counter
//! is *at hand* then, so every hit takes the accounted path (`state/access.rs`). With one node
//! nothing here runs.

mod charge;
mod replicate;
mod weigh;

use octavo_table::{Found, NodeId, Tag};

use crate::state::counters::Count;
use crate::state::partition::PartitionInner;

impl PartitionInner {
    /// The node where a page is, if it is in the cache.
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

    /// A page as a thread of this node looks for it: it may be away from home, and here.
    #[inline]
    pub fn find_near(&self, tag: Tag) -> Option<Found<'_>> {
        match self.places.replicates {
            true => self.table.find_from(tag, self.shared.numa.here()),
            false => self.table.find(tag),
        }
    }

    /// The node where a page is, if that is not the calling thread's.
    pub fn other_node(&self, tag: Tag) -> Option<NodeId> {
        let node = self.node_of(tag);
        (node != self.shared.numa.here()).then_some(node)
    }

    /// Counts an access by whose page it was.
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
