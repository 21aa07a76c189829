//! The crate as its users see it: over a store that answers late, in any order, or not at all.
#![cfg(not(shuttle))]

mod calls;
mod dropped;
mod fixture;
mod forked;
mod quiet;
mod reader;
mod twin;
