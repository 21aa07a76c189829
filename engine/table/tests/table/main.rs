//! The table through its public interface: against naive twins, in degenerate shapes, under threads
//! and under shuttle's schedules.
//!
//! A test that draws random numbers prints its seed when it fails; the environment variable
//! `OCTAVO_SEED` repeats it.

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
mod occupancy;
#[cfg(not(any(loom, shuttle, miri)))]
mod placement;
#[cfg(not(any(loom, shuttle)))]
mod policies;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(not(any(loom, shuttle)))]
mod setup;
#[cfg(not(any(loom, shuttle)))]
mod threads;
#[cfg(not(any(loom, shuttle)))]
mod twin;
