//! Pages: the hit, the steps of the slot protocol, the accounting of accesses, and what NUMA nodes
//! and recordings add to them. Nothing here does I/O or waits for it.

pub(crate) mod access;
pub(crate) mod ahead;
pub(crate) mod hit;
pub(crate) mod mover;
pub(crate) mod nodes;
pub(crate) mod overwrite;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod steps;
