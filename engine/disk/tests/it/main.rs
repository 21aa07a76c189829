//! Tests of the public interface, in one binary. A random test that fails prints its seed;
//! `OCTAVO_SEED=<seed>` runs that seed only.

#![cfg(not(shuttle))]

mod backends;
mod devices;
mod fixture;
mod lengths;
mod opening;
mod ownership;
mod rings;
mod simulated;
mod twin;
mod unruly;
mod waiting;
mod watching;
