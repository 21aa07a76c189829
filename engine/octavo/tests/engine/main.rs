//! Integration tests of the engine: everything goes through its public interface. The models of
//! `schedules.rs`, beside this folder, take pages and fixtures from here.

#![cfg(not(shuttle))]

mod ages;
mod ahead;
mod auto;
mod backends;
mod basics;
mod batch;
mod clearing;
mod closing;
mod evacuation;
mod events;
mod extending;
mod failing;
mod fixture;
mod foreign;
mod forked;
mod hanging;
mod history;
mod holes;
mod kernel;
mod lanes;
mod latency;
mod lending;
mod numa;
mod numbers;
mod on_nodes;
mod outside;
mod owned_pins;
mod page_sizes;
mod pages;
mod planned;
mod polling;
mod pressure;
mod ranges;
mod recording;
mod regressions;
mod resident;
mod sizing;
mod tenants;
mod threads;
mod twin;
mod units;
mod watchdog;
