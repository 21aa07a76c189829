//! The subcommands that need no server: `simulate`, `mrc`, `plan`, `trace` and `bench`.
//!
//! `inputs` holds the options and the output that they share; `reading` the options that say how a
//! trace is read; `replay` is what `simulate` does with a recording when nothing else is asked for.

pub mod bench;
mod day;
mod fit;
mod inputs;
pub mod mrc;
pub mod plan;
mod reading;
mod replay;
pub mod simulate;
pub mod trace;
