//! The table as its users see it: against naive twins, in degenerate shapes, under threads and
//! under schedules.
//!
//! A test that draws random numbers prints its seed when it fails; `OCTAVO_SEED` replays it.

#[cfg(not(any(loom, shuttle)))]
mod away;
#[cfg(not(loom))]
mod cache;
#[cfg(not(any(loom, shuttle)))]
mod change;
#[cfg(not(any(loom, shuttle)))]
mod known;
#[cfg(not(any(loom, shuttle)))]
mod layout;
#[cfg(not(any(loom, shuttle, miri)))]
mod monitor;
#[cfg(not(any(loom, shuttle)))]
mod policies;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(not(any(loom, shuttle)))]
mod threads;
#[cfg(not(any(loom, shuttle)))]
mod twin;
