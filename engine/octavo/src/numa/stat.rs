//! Where pages really lie, and whose pages were read: what `octavo ctl numa` tells.

use octavo_table::{NodeId, SegmentIndex};

use super::{Topology, Traffic, sys};
use crate::cache::Cache;
use crate::counters::Count;
use crate::partition::{Partition, PartitionInner};

/// Most addresses of a partition that the kernel is asked about at a time: some milliseconds.
const LOOKS_MAX: usize = 1 << 14;

/// The kernel's pages.
const PAGE: usize = 4096;

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
    fn ask(addresses: &[*mut u8], number: Option<u32>) -> NodePages {
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

impl PartitionInner {
    fn node_stat(&self, node: NodeId) -> NodeStat {
        let segments: Vec<SegmentIndex> =
            self.table.segments().filter(|segment| self.node_of_segment(*segment) == node).collect();
        let numa = &self.shared.numa;
        let number = (!numa.topology.is_emulated).then(|| numa.topology.nodes[node.0 as usize].number);
        let every = |bytes: usize| (bytes / PAGE).div_ceil(LOOKS_MAX).max(1) * PAGE;
        let pages_of = |at: *mut u8, bytes: usize, step: usize| {
            (0..bytes).step_by(step).map(move |offset| at.wrapping_add(offset))
        };
        let (_, segment_bytes) = self.frames.segment(SegmentIndex(0));
        let step = every(segments.len() * segment_bytes);
        let frames: Vec<*mut u8> = segments
            .iter()
            .map(|segment| self.frames.segment(*segment))
            .flat_map(|(at, bytes)| pages_of(at, bytes, step))
            .collect();
        let base = self.metadata.base().as_ptr();
        let metadata: Vec<*mut u8> = match segments.is_empty() {
            true => Vec::new(),
            false => self
                .places
                .metadata(self.table.shape())
                .filter(|(lies_on, _)| *lies_on == node)
                .flat_map(|(_, range)| {
                    pages_of(base.wrapping_add(range.start), range.len(), every(range.len()))
                })
                .collect(),
        };
        NodeStat {
            segments: segments.len() as u64,
            pages: segments.iter().map(|segment| self.table.pages_in_segment(*segment) as u64).sum(),
            twins: segments.iter().map(|segment| self.table.copies_in_segment(*segment).1 as u64).sum(),
            frames: NodePages::ask(&frames, number),
            metadata: NodePages::ask(&metadata, number),
        }
    }
}

impl Partition {
    fn numa_stat(&self) -> PartitionNumaStat {
        let inner = &self.0;
        let nodes = if inner.places.counted { inner.shared.numa.topology.nodes.len() as u32 } else { 1 };
        let nodes = (0..nodes).map(|node| inner.node_stat(NodeId(node))).collect();
        PartitionNumaStat { nodes, ..self.counts() }
    }

    /// What is counted of nodes, without what they hold (`nodes` is empty): for whoever asks often.
    /// None: there is one node.
    pub fn numa_counts(&self) -> Option<PartitionNumaStat> {
        self.0.places.counted.then(|| self.counts())
    }

    fn counts(&self) -> PartitionNumaStat {
        let inner = &self.0;
        PartitionNumaStat {
            name: self.name().into(),
            nodes: Vec::new(),
            way: inner.way().name(),
            way_changes: inner.auto.changes(),
            local_hits: inner.counters.sum(Count::LocalHits),
            remote_hits: inner.counters.sum(Count::RemoteHits),
            remote_writes: inner.counters.sum(Count::RemoteWrites),
            messages: inner.counters.sum(Count::Messages),
            bundles: inner.counters.sum(Count::Bundles),
            messages_refused: inner.counters.sum(Count::MessagesRefused),
            twin_hits: inner.counters.sum(Count::TwinHits),
            twins_made: inner.counters.sum(Count::TwinsMade),
            twins_refreshed: inner.counters.sum(Count::TwinsRefreshed),
            twins_overtaken: inner.counters.sum(Count::TwinsOvertaken),
            elections: inner.counters.sum(Count::Elections),
            switches: inner.counters.sum(Count::Switches),
            traffic: inner.traffic(),
        }
    }
}

impl Cache {
    /// Where the partitions' pages lie, as the kernel says, and whose pages threads found. Asks the
    /// kernel about thousands of pages: for people.
    pub fn numa_stat(&self) -> NumaStat {
        let numa = &self.shared().numa;
        NumaStat {
            mode: numa.mode.name(),
            topology: numa.topology.clone(),
            refused: numa.refused.load(std::sync::atomic::Ordering::Relaxed),
            partitions: self.partitions().iter().map(Partition::numa_stat).collect(),
        }
    }
}
