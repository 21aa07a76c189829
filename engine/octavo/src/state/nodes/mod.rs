//! What a partition knows of the machine's nodes: where its pages are to lie, and the sums by which
//! it decides on copies, moves and messages. With one node all of it is empty. Not here: what is
//! done to pages (`pages/nodes`).

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

/// Where a partition's pages are to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Nodes that its segments are divided among.
    pub nodes: u32,
    /// The node of all, where they are not divided.
    pub home: NodeId,
    /// Whether it is counted who reads whose pages.
    pub counted: bool,
    /// Whether all requests of a batch travel to the nodes of their pages.
    pub messages: bool,
    /// Whether pages may be copied to nodes that read them from afar.
    pub replicates: bool,
    /// Whether the partition chooses when to do either.
    pub chooses: bool,
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
        Ok(Places { nodes: divided, home, counted, messages, replicates, chooses, charged })
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
