//! Integration tests of the engine: everything goes through its public interface.

#[cfg(not(shuttle))]
mod ahead;
#[cfg(not(shuttle))]
mod auto;
#[cfg(not(shuttle))]
mod basics;
#[cfg(not(shuttle))]
mod batch;
#[cfg(not(shuttle))]
mod clearing;
#[cfg(not(shuttle))]
mod failing;
#[cfg(not(shuttle))]
mod fixture;
#[cfg(not(shuttle))]
mod forked;
#[cfg(not(shuttle))]
mod hanging;
#[cfg(not(shuttle))]
mod history;
#[cfg(not(shuttle))]
mod kernel;
#[cfg(not(shuttle))]
mod lanes;
#[cfg(not(shuttle))]
mod numa;
#[cfg(not(shuttle))]
mod on_nodes;
mod pages;
#[cfg(not(shuttle))]
mod pressure;
#[cfg(not(shuttle))]
mod recording;
#[cfg(not(shuttle))]
mod regressions;
#[cfg(not(shuttle))]
mod resident;
#[cfg(shuttle)]
mod schedules;
#[cfg(not(shuttle))]
mod tenants;
#[cfg(not(shuttle))]
mod threads;
#[cfg(not(shuttle))]
mod twin;
#[cfg(not(shuttle))]
mod watchdog;
