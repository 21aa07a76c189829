//! NUMA: which memory a partition's pages lie in, and how a thread gets at those that lie
//! elsewhere.
//!
//! In mode `partition` a table's segments are divided among the nodes (`octavo_table`, `nodes.rs`),
//! and the memory of each, frames and metadata, is bound to its node; any thread reads any page. In
//! mode `message` batches go to where their pages are (`message.rs`), in mode `replicate` pages
//! come to where they are read (`replicate.rs`), in mode `auto` each partition chooses among these
//! (`auto.rs`). A partition can also lie on one node whole, with the objects that are opened in it.
//! Nodes cost a hit nothing but the distance: a page's node follows from the entry of the directory
//! that every lookup reads.
//!
//! Whose pages a thread reads is counted where accesses are heard
//! (`PartitionInner::record_access`): while there is more than one node no counter is *at hand*,
//! and with one node nobody looks.
//!
//! A kernel or container that refuses to bind memory is warned of once, and everything goes on:
//! placement is a matter of speed. What came of it is asked of the kernel (`move_pages`), and told
//! by `Cache::numa_stat`. What is not here: topologies (`topology.rs`), the calls (`sys.rs`).

mod auto;
mod balance;
mod cost;
mod here;
mod message;
mod replicate;
mod stat;
mod sys;
mod topology;
mod writers;

pub(crate) use auto::Auto;
pub(crate) use balance::Balance;
pub(crate) use cost::Prices;
pub use cost::{BUNDLE_NS, LETTER_NS, LocalMemory, MACHINES, Machine, RemoteCost, Traffic};
pub use here::sit;
pub(crate) use message::{Mail, Parcel, Post, Workers};
pub use replicate::Replication;
pub(crate) use replicate::Worth;
pub use stat::{NodePages, NodeStat, NumaStat, PartitionNumaStat};
pub use topology::{Node, Topology, TopologySource};
pub(crate) use writers::Writers;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use octavo_table::{Found, NodeId, SegmentIndex, Shape, Table, Tag};

use crate::WAYS;
use crate::config::CacheConfig;
use crate::counters::Count;
use crate::partition::PartitionInner;

/// How a cache uses the machine's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaMode {
    /// Memory lies where it was touched first.
    #[default]
    Off,
    /// Each page belongs to a node, by its tag; any thread reads it directly.
    Partition,
    /// As `Partition`; and requests of a batch for another node's pages are done by workers of that
    /// node.
    Message,
    /// As `Partition`; and pages that are read from afar are copied to the nodes that read them.
    Replicate,
    /// Each partition chooses among `Partition`, `Message` and `Replicate`, by what it counts, and
    /// again when its load changes.
    Auto,
}

impl NumaMode {
    /// All modes.
    pub const ALL: [NumaMode; 5] =
        [NumaMode::Off, NumaMode::Partition, NumaMode::Message, NumaMode::Replicate, NumaMode::Auto];

    /// The name that configurations use.
    pub const fn name(self) -> &'static str {
        match self {
            NumaMode::Off => "off",
            NumaMode::Partition => "partition",
            NumaMode::Message => "message",
            NumaMode::Replicate => "replicate",
            NumaMode::Auto => "auto",
        }
    }
}

/// The nodes, as a cache uses them.
pub(crate) struct Numa {
    pub topology: Topology,
    pub mode: NumaMode,
    pub replication: Replication,
    /// The place in the topology of each processor's node.
    node_of_cpu: Vec<u8>,
    /// What distance costs, where that is emulated.
    pub cost: Option<RemoteCost>,
    /// The kernel refused to bind something.
    refused: AtomicBool,
}

impl Numa {
    pub fn new(config: &CacheConfig) -> Numa {
        let topology = config.topology.topology();
        let cpus = topology.nodes.iter().flat_map(|node| &node.cpus).max().map_or(0, |last| last + 1);
        let node_of_cpu = (0..cpus).map(|cpu| topology.node_of_cpu(cpu) as u8).collect();
        Numa {
            topology,
            mode: config.numa,
            replication: config.replication,
            node_of_cpu,
            cost: config.remote_cost,
            refused: AtomicBool::new(false),
        }
    }

    /// How many nodes there are to tell apart.
    pub fn nodes(&self) -> u32 {
        match self.mode {
            NumaMode::Off => 1,
            _ => self.topology.nodes.len() as u32,
        }
    }

    /// Whether requests may be sent to the nodes of their pages.
    pub fn sends_messages(&self) -> bool {
        matches!(self.mode, NumaMode::Message | NumaMode::Auto) && self.nodes() > 1
    }

    /// How many nodes' writes are followed in a partition, so that mains go where they are written.
    pub fn followed_nodes(&self, node: Option<u32>) -> u32 {
        let follows = matches!(self.mode, NumaMode::Replicate | NumaMode::Auto)
            && node.is_none()
            && self.replication.switch_writes > 0;
        if follows && self.nodes() > 1 { self.nodes() } else { 0 }
    }

    /// What is near and far costs: as is emulated, or as on a machine like many.
    pub fn prices(&self) -> Prices {
        Prices(self.cost.map_or(MACHINES[0], |cost| cost.machine))
    }

    /// The calling thread's node.
    pub fn here(&self) -> NodeId {
        here::here(self)
    }

    /// Asks for memory of a node for addresses of ours, which begin and end with pages.
    pub fn bind(&self, at: *mut u8, len: usize, node: NodeId) {
        if self.nodes() == 1 || self.topology.is_emulated {
            return;
        }
        let Some(to) = self.topology.nodes.get(node.0 as usize) else { return };
        if let Err(error) = sys::prefer(at, len, to.number)
            && !self.refused.swap(true, Ordering::Relaxed)
        {
            log::warn!("memory cannot be bound to node {}, pages lie where they lie: {error}", to.number);
        }
    }
}

/// Where a partition's pages are to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Nodes that its segments are divided among.
    pub nodes: u32,
    /// The node of all, where they are not divided.
    home: NodeId,
    /// Whether it is counted who reads whose pages.
    pub counted: bool,
    /// Whether all requests of a batch travel to the nodes of their pages.
    pub messages: bool,
    /// Whether pages may be copied to nodes that read them from afar.
    pub replicates: bool,
    /// Whether the partition chooses when to do either.
    pub chooses: bool,
    /// A batch of reads is more than so many hits, for one of the two reasons above.
    pub batches_differ: bool,
    /// Whether distance is emulated, and charged.
    pub charged: bool,
}

impl Places {
    /// As a partition's `node` says, a number of the kernel's; the error is a sentence.
    pub fn new(numa: &Numa, node: Option<u32>) -> Result<Places, String> {
        let nodes = numa.nodes();
        let home = match node {
            None => None,
            Some(number) if numa.mode == NumaMode::Off => {
                return Err(format!(
                    "node = {number} needs a mode of NUMA that knows nodes, such as partition"
                ));
            }
            Some(number) => {
                let at = numa.topology.nodes.iter().position(|node| node.number == number);
                Some(NodeId(at.ok_or_else(|| format!("there is no node {number}"))? as u32))
            }
        };
        let counted = nodes > 1;
        let divided = if home.is_some() { 1 } else { nodes };
        let messages = numa.mode == NumaMode::Message && numa.sends_messages();
        let chooses = numa.mode == NumaMode::Auto && divided > 1;
        let replicates = chooses || numa.mode == NumaMode::Replicate && divided > 1;
        let charged = counted && numa.topology.is_emulated && numa.cost.is_some();
        let home = home.unwrap_or_default();
        let batches_differ = messages || replicates;
        Ok(Places { nodes: divided, home, counted, messages, replicates, chooses, batches_differ, charged })
    }

    /// The parts of a table's memory that lie on one node each, in whole pages of the kernel. Pages
    /// that two nodes share lie with whoever touches them first.
    pub fn metadata(&self, shape: Shape) -> impl Iterator<Item = (NodeId, Range<usize>)> {
        const PAGE: usize = 4096;
        let whole = |range: Range<usize>| range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
        let (nodes, home) = (self.nodes, self.home);
        (0..nodes).map(NodeId).flat_map(move |node| {
            let parts = Table::<WAYS>::memory_of_node(shape, nodes, node).into_iter();
            let at = if nodes == 1 { home } else { node };
            parts.map(whole).filter(|range| !range.is_empty()).map(move |range| (at, range))
        })
    }

    /// Binds the memory of a table that begins there. Before anybody touches it: a huge page would
    /// have what several nodes need.
    pub fn bind_metadata(&self, numa: &Numa, shape: Shape, at: *mut u8) {
        for (node, range) in self.metadata(shape) {
            numa.bind(at.wrapping_add(range.start), range.len(), node);
        }
    }
}

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

    /// The node that a segment's memory is bound to.
    pub fn node_of_segment(&self, segment: SegmentIndex) -> NodeId {
        match self.places.nodes {
            1 => self.places.home,
            _ => self.table.node_of_segment(segment),
        }
    }

    /// Makes a segment's frames ready for use, on its node.
    pub fn commit(&self, segment: SegmentIndex) {
        self.frames.commit(segment);
        let (at, len) = self.frames.segment(segment);
        self.shared.numa.bind(at, len, self.node_of_segment(segment));
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
