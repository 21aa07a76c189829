//! Pages: the hit, the steps of the slot protocol, the accounting of accesses, and what nodes
//! and recordings add to these. Nothing here waits or does I/O.

pub(crate) mod access;
pub(crate) mod hit;
pub(crate) mod mover;
pub(crate) mod nodes;
pub(crate) mod record;
pub(crate) mod steps;
