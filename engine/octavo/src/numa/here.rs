//! The node of the calling thread.
//!
//! On a real machine the kernel knows the node, and is asked every 256 reads: a thread that has
//! moved has a wrong node for that long, which costs locality and nothing else. On an emulated
//! machine a thread takes the next *seat* and keeps it; seat *n* is core *n* of the topology,
//! and after the last core the first one follows.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use octavo_table::NodeId;

use super::sys;
use super::topology::Topology;
use crate::sync::thread_local;

/// Answers that a thread gives from memory before it asks the kernel again.
const ANSWERS: u32 = 256;

/// Number of seats taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's seat among emulated cores, if it has one.
    static SEAT: Cell<Option<u32>> = const { Cell::new(None) };
    /// The processor, and the number of answers for which it is still valid.
    static CPU: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Puts the calling thread on a core of emulated topologies: core `seat`, counted over all
/// nodes.
pub fn sit(seat: u32) {
    SEAT.with(|cell| cell.set(Some(seat)));
}

/// The calling thread's node.
pub(super) fn here(topology: &Topology, node_of_cpu: &[u8]) -> NodeId {
    if topology.nodes.len() == 1 {
        return NodeId(0);
    }
    if topology.is_emulated {
        let seat = SEAT.with(|cell| {
            // Relaxed: any order of seats will do.
            let seat = cell.get().unwrap_or_else(|| TAKEN.fetch_add(1, Ordering::Relaxed));
            cell.set(Some(seat));
            seat as usize
        });
        let cores = topology.nodes[0].cpus.len();
        return NodeId((seat / cores % topology.nodes.len()) as u32);
    }
    let (mut cpu, mut good_for) = CPU.with(Cell::get);
    if good_for == 0 {
        (cpu, good_for) = (sys::cpu().unwrap_or(0), ANSWERS);
    }
    CPU.with(|cell| cell.set((cpu, good_for - 1)));
    NodeId(node_of_cpu.get(cpu as usize).map_or(0, |node| u32::from(*node)))
}
