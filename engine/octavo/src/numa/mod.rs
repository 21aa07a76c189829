//! The machine's NUMA nodes: which nodes exist, on which one a thread runs, how memory is bound
//! to one, and what distance costs.
//!
//! A kernel or container that refuses to bind memory is reported once in the log, and the cache
//! continues: placement affects speed only.
//!
//! Not here: pages and partitions (`state/nodes`), requests that travel (`flight/messages.rs`).

pub(crate) mod cost;
mod figures;
mod here;
mod replication;
pub(crate) mod sys;
mod topology;

pub use cost::{BUNDLE_NS, LETTER_NS, LocalMemory, MACHINES, Machine, RemoteCost, Traffic};
pub(crate) use cost::{LETTERS_MAX, Prices};
pub use figures::{NodePages, NodeStat, NumaStat, PartitionNumaStat};
pub use here::sit;
pub use replication::Replication;
pub(crate) use replication::SWITCH_WRITES_MAX;
pub use topology::{Node, Topology, TopologySource};

use std::sync::atomic::{AtomicBool, Ordering};

use octavo_table::NodeId;

/// How a cache uses the machine's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaMode {
    /// Nodes are ignored: memory lies on the node that touches it first.
    #[default]
    Off,
    /// Each page belongs to a node, by its tag; any thread accesses it directly.
    Partition,
    /// As `Partition`, but workers of a page's node serve the requests of a batch for that page.
    Message,
    /// As `Partition`, but pages read remotely are copied to the nodes that read them.
    Replicate,
    /// Each partition chooses among `Partition`, `Message` and `Replicate` from its own counts,
    /// and chooses again when its load changes.
    Auto,
}

impl NumaMode {
    /// All modes.
    pub const ALL: [NumaMode; 5] =
        [NumaMode::Off, NumaMode::Partition, NumaMode::Message, NumaMode::Replicate, NumaMode::Auto];

    /// Returns the name that configuration files use.
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
    /// The node of each processor, as an index into the topology.
    node_of_cpu: Vec<u8>,
    /// The cost of distance, if it is emulated.
    pub cost: Option<RemoteCost>,
    /// The kernel refused to bind some memory.
    pub refused: AtomicBool,
}

impl Numa {
    pub fn new(
        source: &TopologySource,
        mode: NumaMode,
        replication: Replication,
        cost: Option<RemoteCost>,
    ) -> Numa {
        let topology = source.topology();
        let cpus = topology.nodes.iter().flat_map(|node| &node.cpus).max().map_or(0, |last| last + 1);
        let node_of_cpu = (0..cpus).map(|cpu| topology.node_of_cpu(cpu) as u8).collect();
        Numa { topology, mode, replication, node_of_cpu, cost, refused: AtomicBool::new(false) }
    }

    /// The number of nodes to distinguish.
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

    /// The number of nodes whose writes are followed in a partition, so that mains move to where
    /// they are written.
    pub fn followed_nodes(&self, node: Option<u32>) -> u32 {
        let follows = matches!(self.mode, NumaMode::Replicate | NumaMode::Auto)
            && node.is_none()
            && self.replication.switch_writes > 0;
        if follows && self.nodes() > 1 { self.nodes() } else { 0 }
    }

    /// The prices of local and remote accesses: those of the emulated machine, or else of a
    /// typical one.
    pub fn prices(&self) -> Prices {
        Prices(self.cost.map_or(MACHINES[0], |cost| cost.machine))
    }

    /// The calling thread's node.
    pub fn here(&self) -> NodeId {
        here::here(&self.topology, &self.node_of_cpu)
    }

    /// Binds a range of whole pages of ours to a node's memory.
    pub fn bind(&self, at: *mut u8, len: usize, node: NodeId) {
        if self.nodes() == 1 || self.topology.is_emulated {
            return;
        }
        let Some(to) = self.topology.nodes.get(node.0 as usize) else { return };
        if let Err(error) = sys::prefer(at, len, to.number)
            && !self.refused.swap(true, Ordering::Relaxed)
        {
            log::warn!("cannot bind memory to node {}, so the kernel places pages: {error}", to.number);
        }
    }
}
