//! On which node the calling thread is.
//!
//! On a real machine the kernel knows, and is asked now and then: a thread that has moved is wrong
//! about itself for a few hundred reads, which costs locality and nothing else. On an emulated one
//! a thread takes the next *seat*, and keeps it; seat *n* is core *n* of the topology, again and
//! again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use octavo_table::NodeId;

use super::sys;
use super::topology::Topology;
use crate::sync::thread_local;

/// How often a thread answers by what it knew before it asks again.
const ANSWERS: u32 = 256;

/// Seats that were taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's seat among emulated cores; none yet.
    static SEAT: Cell<Option<u32>> = const { Cell::new(None) };
    /// The processor, and how many answers it is good for.
    static CPU: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Sits the calling thread down on a core of emulated topologies: core `seat`, counted over all
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
