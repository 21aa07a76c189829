//! The public calls of the cache: handles and their methods. They check arguments, count
//! requests, and pass the work to the floors below.
//!
//! Not here: tasks in flight (`flight`), hits (`pages`), threads and sizes (`control`).

pub(crate) mod cache;
pub(crate) mod charge;
mod creation;
mod debug;
mod extending;
mod foreign;
pub(crate) mod lifecycle;
mod limits;
mod numa;
mod object;
mod outside;
pub(crate) mod owned_pin;
mod partition;
pub(crate) mod pin;
pub(crate) mod planned;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod sizing;
