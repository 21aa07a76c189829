//! Tasks in flight, their I/O, and the lanes that carry both.
//!
//! The event loop (`dispatch`) and the verbs call each other: a completion continues a task, whose
//! next page may need another I/O. This recursion cannot be avoided, and all of it stays in this
//! folder.
//!
//! | what | where |
//! |---|---|
//! | a task, its phases, a transfer | `task` |
//! | a lane, the lanes of a cache, lanes lent to calls | `lane`, `crew`, `lanes` |
//! | a lane's owner at work on a task | `owner` |
//! | which verb continues or ends a task | `dispatch` |
//! | how I/O travels | `transfers` |
//! | how owners wait, in the lane or elsewhere | `parking`, `descriptor` |
//! | the verbs | `read`, `read_ahead`, `write`, `writeback`, `discard`, `holes` |
//! | requests for other nodes | `messages`, `workers` |
//! | blocking calls | `blocking`, `alone` |
//! | what the clones of an object share | `handle` |

mod alone;
mod blocking;
mod crew;
mod descriptor;
mod discard;
mod dispatch;
mod handle;
mod holes;
mod lane;
mod lanes;
mod messages;
mod owner;
mod parking;
mod read;
mod read_ahead;
mod task;
mod transfers;
mod workers;
mod write;
mod writeback;

pub use blocking::Object;
pub(crate) use crew::Crew;
pub(crate) use descriptor::Descriptor;
pub(crate) use dispatch::Batch;
pub(crate) use handle::Handle;
pub(crate) use lane::{LANE_BYTES, Lane};
pub(crate) use lanes::Lanes;
pub(crate) use parking::poll_only;
pub(crate) use task::{EVERY, Ended, Job, NONE, Task};
pub(crate) use workers::Workers;
pub(crate) use writeback::SyncState;
