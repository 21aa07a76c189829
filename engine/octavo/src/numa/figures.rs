//! Statistics of nodes: what `octavo ctl numa` shows. Not here: counting (`state/counters.rs`,
//! `pages/nodes`), asking for them (`api/numa.rs`).

use super::{Topology, Traffic, sys};

/// Statistics of a cache's nodes.
#[derive(Clone, Debug)]
pub struct NumaStat {
    /// Name of the cache's NUMA mode.
    pub mode: &'static str,
    /// The nodes.
    pub topology: Topology,
    /// Whether the kernel refused to bind memory.
    pub refused: bool,
    /// Statistics of the partitions.
    pub partitions: Vec<PartitionNumaStat>,
}

/// Statistics of a partition's nodes.
#[derive(Clone, Debug)]
pub struct PartitionNumaStat {
    /// The partition's name.
    pub name: String,
    /// The partition's segments and pages on each node, in the topology's order.
    pub nodes: Vec<NodeStat>,
    /// The strategy by which threads access other nodes' pages: the mode, or the choice of
    /// `auto`.
    pub way: &'static str,
    /// Times that `auto` changed the strategy.
    pub way_changes: u64,
    /// Pages that threads found on their own node.
    pub local_hits: u64,
    /// Pages that threads found on another node.
    pub remote_hits: u64,
    /// Pages among `remote_hits` that were written.
    pub remote_writes: u64,
    /// Requests sent to another node.
    pub messages: u64,
    /// Bundles that carried them.
    pub bundles: u64,
    /// Requests for which the queue had no room: their senders served them.
    pub messages_refused: u64,
    /// Pages found in a copy on the thread's own node; included in `local_hits`.
    pub twin_hits: u64,
    /// Copies made.
    pub twins_made: u64,
    /// Copies refreshed after a write.
    pub twins_refreshed: u64,
    /// Copies overtaken by writes.
    pub twins_overtaken: u64,
    /// Pages that had left and were restored from a copy, without I/O.
    pub elections: u64,
    /// Mains moved to the node that writes them, or back.
    pub switches: u64,
    /// Traffic charged for emulated distance; zeros if distance costs nothing.
    pub traffic: Traffic,
}

/// A partition's segments and pages on a node.
#[derive(Clone, Debug, Default)]
pub struct NodeStat {
    /// Segments that belong to the node.
    pub segments: u64,
    /// Pages in them.
    pub pages: u64,
    /// Copies of other nodes' pages in them that may be read.
    pub twins: u64,
    /// Where the memory of their frames lies.
    pub frames: NodePages,
    /// Where the memory of their metadata lies.
    pub metadata: NodePages,
}

/// Kernel pages by their location; of many pages, every n-th is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePages {
    /// On the node where they belong.
    pub here: u64,
    /// On another node.
    pub elsewhere: u64,
    /// Not touched yet, or unknown to the kernel.
    pub unknown: u64,
}

impl NodePages {
    /// Asks the kernel about addresses that belong to the node `number`; `None`: emulated nodes,
    /// for which any node is right.
    pub(crate) fn ask(addresses: &[*mut u8], number: Option<u32>) -> NodePages {
        let mut pages = NodePages::default();
        match sys::nodes_of(addresses) {
            Ok(nodes) => nodes.into_iter().for_each(|node| match node {
                Some(node) if number.is_none_or(|number| node == number) => pages.here += 1,
                Some(_) => pages.elsewhere += 1,
                None => pages.unknown += 1,
            }),
            Err(_) => pages.unknown = addresses.len() as u64,
        }
        pages
    }
}
