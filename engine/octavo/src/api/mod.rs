//! The public face: handles and their methods. Checks arguments, and hands everything on.

pub(crate) mod cache;
mod lifecycle;
mod limits;
mod numa;
mod object;
mod partition;
pub(crate) mod pin;
pub(crate) mod queue;
pub(crate) mod recording;
