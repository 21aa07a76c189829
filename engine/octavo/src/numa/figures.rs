//! Figures about nodes: what `octavo ctl numa` shows.

use super::{Topology, Traffic, sys};

/// What a cache knows about nodes.
#[derive(Clone, Debug)]
pub struct NumaStat {
    /// How it uses them.
    pub mode: &'static str,
    /// The nodes.
    pub topology: Topology,
    /// The kernel refused to bind memory.
    pub refused: bool,
    /// Its partitions.
    pub partitions: Vec<PartitionNumaStat>,
}

/// A partition's side of it.
#[derive(Clone, Debug)]
pub struct PartitionNumaStat {
    /// Its name.
    pub name: String,
    /// What it has on each node, in the topology's order.
    pub nodes: Vec<NodeStat>,
    /// The way that threads get at other nodes' pages: the mode, or what `auto` has chosen.
    pub way: &'static str,
    /// Times that `auto` chose another.
    pub way_changes: u64,
    /// Pages that threads found on their own node.
    pub local_hits: u64,
    /// Pages that threads found on another.
    pub remote_hits: u64,
    /// Those of them that were written.
    pub remote_writes: u64,
    /// Requests that went to another node, and the bundles that they went in.
    pub messages: u64,
    /// See `messages`.
    pub bundles: u64,
    /// Requests whose queue was full: their senders did them.
    pub messages_refused: u64,
    /// Pages that were found in a copy on the thread's own node; among `local_hits`.
    pub twin_hits: u64,
    /// Copies that were made.
    pub twins_made: u64,
    /// Copies that were made anew after a write.
    pub twins_refreshed: u64,
    /// Copies that writes have overtaken.
    pub twins_overtaken: u64,
    /// Pages that had left and came back from a copy, without I/O.
    pub elections: u64,
    /// Pages that went to the node that writes them, or back.
    pub switches: u64,
    /// What emulated distance was charged for; nothing where it costs nothing.
    pub traffic: Traffic,
}

/// What a partition has on a node.
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

/// Some of the kernel's pages, by where they are; every so-manyth where there are many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePages {
    /// On the node where they belong.
    pub here: u64,
    /// On another.
    pub elsewhere: u64,
    /// Not touched yet, or the kernel does not say.
    pub unknown: u64,
}

impl NodePages {
    /// Asks the kernel about addresses that belong to the node of that number; to any, if they are
    /// emulated.
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
