//! Control: moves memory between partitions, and writes dirty pages ahead of need.
//!
//! The cleaner and the reaper each run on a thread of the cache. They and the API call the other
//! modules here, and reach the cache through [`Core`].
//!
//! Not here: how to divide memory between partitions (`octavo_share`), how pages are written
//! (`flight`).

mod alarm;
mod balance;
mod buffers;
mod cleaner;
mod core;
mod demand;
mod ledger;
mod plan;
mod reaper;
mod resize;
mod roster;
mod turn;

pub(crate) use self::core::Core;
pub use self::core::Partition;
pub(crate) use buffers::{take_from_pages, with_room};
pub(crate) use cleaner::Cleaner;
pub use ledger::ReaperStat;
pub(crate) use plan::Picture;
pub(crate) use reaper::{continue_resizes, drain_monitors, enforce_max, make_room, period, reaper_thread};
pub use resize::Owed;
pub(crate) use roster::{Names, excluding};
pub(crate) use turn::{Stop, Turn};
