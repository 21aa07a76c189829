//! Octavo for C: the functions and types of `octavo.h`, which is made from this crate. What a C
//! programmer needs is in the header, so the comments of public items speak to C programmers.
//!
//! - Handles (`octavo_cache`, ...) are opaque. A function takes a null handle for an invalid
//!   argument; freeing a null handle does nothing.
//! - No panic leaves a function (`call.rs`). A panic becomes `OCTAVO_EPANIC`.
//! - Structs that a caller fills begin with their size (`versioned.rs`), so that later versions can
//!   have more members. Zero in any other member means the default.
//!
//! Not here: anything that a Rust program would miss in the engine itself.

#![warn(missing_debug_implementations)]
#![allow(non_camel_case_types, reason = "they are the names of the header")]

pub mod backend;
pub mod cache;
mod call;
pub mod error;
pub mod logging;
pub mod object;
pub mod partition;
pub mod pin;
pub mod queue;
pub mod stat;
mod versioned;
