//! What a partition knows about the machine's NUMA nodes: where its pages belong, and the
//! statistics from which it decides about twins, moves of mains, and messages. With one node all of
//! this is empty. Not here: what happens to pages (`pages/nodes`).

mod auto;
mod balance;
mod worth;
mod writers;

pub(crate) use auto::{Auto, Looks, TURNS};
pub(crate) use balance::{Balance, Pressure, TIMES, Verdict, judge};
pub(crate) use worth::{Worth, is_probe};
pub(crate) use writers::Writers;

use std::ops::Range;

use octavo_table::{NodeId, Shape, Table};

use crate::numa::{Numa, NumaMode};
use crate::ways::WAYS;

/// Where a partition's pages belong, and by which strategies threads access them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// The number of nodes among which the segments are divided.
    pub nodes: u32,
    /// The node of all segments, if they are not divided.
    pub home: NodeId,
    /// Whether accesses are counted by node (local or remote).
    pub counted: bool,
    /// Whether all requests of a batch are sent to the nodes of their pages.
    pub messages: bool,
    /// Whether pages may have twins on nodes that read them remotely.
    pub replicates: bool,
    /// Whether the partition chooses its strategy (mode `auto`).
    pub chooses: bool,
    /// Whether distance is emulated and charged.
    pub charged: bool,
}

impl Places {
    /// Places a partition. If `node`, a node number of the kernel, is set, binds the partition to
    /// that node. The error is the text of a message.
    pub fn new(numa: &Numa, node: Option<u32>) -> Result<Places, String> {
        let nodes = numa.nodes();
        let home = match node {
            None => None,
            Some(number) if numa.mode == NumaMode::Off => {
                return Err(format!(
                    "node = {number} needs a NUMA mode other than `off`, such as `partition`"
                ));
            }
            Some(number) => {
                let at = numa.topology.nodes.iter().position(|node| node.number == number);
                let Some(at) = at else {
                    let known: Vec<u32> = numa.topology.nodes.iter().map(|node| node.number).collect();
                    return Err(format!("there is no node {number}; the nodes are {known:?}"));
                };
                Some(NodeId(at as u32))
            }
        };
        let counted = nodes > 1;
        let divided = if home.is_some() { 1 } else { nodes };
        let messages = numa.mode == NumaMode::Message && numa.sends_messages();
        let chooses = numa.mode == NumaMode::Auto && divided > 1;
        let replicates = chooses || numa.mode == NumaMode::Replicate && divided > 1;
        let charged = counted && numa.topology.is_emulated && numa.cost.is_some();
        let home = home.unwrap_or_default();
        Ok(Places { nodes: divided, home, counted, messages, replicates, chooses, charged })
    }

    /// Returns the ranges of a table's memory that belong to one node each, in whole kernel pages.
    /// A kernel page that belongs to two nodes is in no range: it lies on the node that touches it
    /// first.
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

    /// Binds each node's part of the table's memory, which begins at `at`. Must run before the
    /// memory is touched: otherwise one huge page could hold the parts of several nodes.
    pub fn bind_metadata(&self, numa: &Numa, shape: Shape, at: *mut u8) {
        for (node, range) in self.metadata(shape) {
            numa.bind(at.wrapping_add(range.start), range.len(), node);
        }
    }
}
