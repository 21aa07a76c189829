//! Tests of the public interface, in one binary. A random test that fails prints its seed;
//! `OCTAVO_SEED=<seed>` runs that seed only.

#[cfg(not(shuttle))]
mod devices;
#[cfg(not(shuttle))]
mod fixture;
#[cfg(not(shuttle))]
mod lengths;
#[cfg(not(shuttle))]
mod ownership;
#[cfg(not(shuttle))]
mod rings;
#[cfg(shuttle)]
mod schedules;
#[cfg(not(shuttle))]
mod simulated;
#[cfg(not(shuttle))]
mod twin;
#[cfg(not(shuttle))]
mod waiting;
#[cfg(not(shuttle))]
mod watching;
