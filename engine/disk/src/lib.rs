//! Backing stores of the cache, and the rings that carry I/O to them.
//!
//! A [`Store`] is a range of bytes that survives the cache: a file or a block device, memory, or a
//! file of a [`SimDisk`]. A [`Ring`] carries reads, writes and syncs to any number of stores:
//! through io_uring, or through a bounded pool of threads where the kernel refuses that. One thread
//! submits, any thread may take completions.
//!
//! What callers may rely on, whatever the store and the engine:
//!
//! * A completion says that all bytes were moved, or why not. Short transfers and interruptions end
//!   here.
//! * A read past the end of a store gives zeros; a write is cut at the end and never changes the
//!   length.
//! * Buffers belong to the ring from `push` until the completion with the same token was delivered.
//!
//! What is not here: pages, caching, retry policies above a single I/O, and any protocol.
//!
//! | file | is |
//! |---|---|
//! | `ring.rs`, `inbox.rs`, `registry.rs` | rings: the front; completions and waiting; all rings of the process |
//! | `engine.rs`, `uring.rs`, `pool.rs` | how rings reach the kernel: io_uring, or a pool of threads |
//! | `io.rs`, `buffer.rs` | one I/O: how it is cut in parts, how its parts continue; the memory it moves |
//! | `store.rs`, `file.rs`, `clear.rs`, `gate.rs`, `lock.rs` | stores; files and their tails; clearing a range; length changes; ownership |
//! | `watch.rs` | what others do to the files and devices of stores |
//! | `memory.rs`, `sim/` | stores for tests and tools |
//! | `sys.rs`, `sync.rs`, `error.rs` | system calls; std or shuttle; errors |
//! | `process.rs` | what a child of `fork` leaves alone, and what it makes anew |

mod buffer;
mod clear;
mod engine;
mod error;
mod file;
mod gate;
mod inbox;
mod io;
mod lock;
mod memory;
#[cfg(not(shuttle))]
mod pool;
mod process;
#[cfg(not(shuttle))]
mod registry;
mod ring;
mod sim;
mod store;
mod sync;
mod sys;
#[cfg(not(shuttle))]
mod uring;
#[cfg(not(shuttle))]
mod watch;

pub use buffer::{AlignedBytes, IoBuffer};
pub use error::{IoError, OpenError};
pub use io::Op;
pub use process::Process;
pub use ring::{Engine, Ring, RingOptions};
pub use sim::{SimCounters, SimDisk, SimFaults, SimOptions};
pub use store::{OpenOptions, Store};
#[cfg(not(shuttle))]
pub use watch::{Change, Noticed, Watch};
