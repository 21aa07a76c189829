//! Control: moves memory between partitions, and writes dirty pages ahead of need.
//!
//! The cleaner and the reaper are threads of the cache; they and the API call the rest. They see
//! a cache as its [`Core`].
//!
//! Not here: which sizes are worth what (`octavo_share`), how pages are written (`flight`).

mod alarm;
mod balance;
mod cleaner;
mod core;
mod demand;
mod ledger;
mod plan;
mod reaper;
mod resize;
mod turn;

pub(crate) use self::core::Core;
pub use self::core::Partition;
pub(crate) use cleaner::Cleaner;
pub use ledger::ReaperStat;
pub(crate) use plan::{groups_of, has_empty_level};
pub(crate) use reaper::{drain, go_on, keep_bounds, make_room, period, reaper_thread};
pub use resize::Owed;
pub(crate) use turn::Stop;
