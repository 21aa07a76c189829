//! Backing stores of the cache, and the rings that carry I/O to them.
//!
//! A [`Store`] is a range of bytes that outlives the cache: a file, a block device, memory, a file
//! of a [`SimDisk`], or a [`Backend`] that a user wrote. A [`Ring`] carries reads, writes and syncs
//! to any number of stores: through io_uring or, if the kernel refuses that, through a bounded pool
//! of threads. One thread submits, and any thread may take the completions.
//!
//! Three promises hold for every store and every engine:
//!
//! * A completion means that all bytes were moved, or it carries an error. Short transfers and
//!   interruptions are retried below this interface.
//! * A read past the end of a store returns zeros. A write is cut at the end and never changes the
//!   length.
//! * Buffers belong to the ring from `push` until the completion with the same token is delivered.
//!
//! Not here: pages, caching, retry policies above a single I/O, and any protocol.
//!
//! Each line of this table imports only from the lines below it:
//!
//! | file | idea |
//! |---|---|
//! | `watch.rs` | [`Watch`]: notices what other programs do to the files and devices of stores |
//! | `ring.rs`, `ring/inbox.rs` | [`Ring`]: the interface; completions and waiting |
//! | `engine.rs`, `engine/` | how rings reach the kernel: io_uring, or a pool of threads |
//! | `store.rs` | [`Store`]: the handle of a file or of another target |
//! | `store/file.rs` | files and devices, and their tails |
//! | `store/open.rs`, `lock.rs`, `sys.rs` | what can be opened; ownership; system calls on files |
//! | `store/memory.rs`, `backend.rs` | stores in memory; stores that users write |
//! | `store/request.rs` | [`Backend`] and [`IoRequest`]: the life of an I/O in a user's store |
//! | `store/target.rs`, `gate.rs` | what carries I/O if the store is no file; length changes |
//! | `store/change.rs` | the changes that a watch reports |
//! | `sim.rs`, `sim/` | [`SimDisk`]: a simulated disk that reorders, fails, tears and crashes |
//! | `io.rs` | one I/O: how it is cut into parts, and how its parts continue |
//! | `io/buffer.rs`, `method.rs` | the memory of an I/O; the methods of clearing a range |
//! | `io/survey.rs` | [`Survey`]: looks for the [`Holes`] of a file |
//! | `io/sink.rs`, `single.rs` | a ring, as all files above see it; a wait for one I/O |
//! | `process.rs`, `error.rs` | children of `fork`; errors |
//! | `identity.rs`, `op.rs`, `sync.rs` | identities; operations; std or shuttle |

#![warn(missing_debug_implementations)]

mod engine;
mod error;
mod identity;
mod io;
mod op;
mod process;
mod ring;
mod sim;
mod store;
mod sync;
mod watch;

pub use engine::{Engine, RingOptions};
pub use error::{IoError, OpenError};
pub use identity::Identity;
pub use io::buffer::{AlignedBytes, IoBuffer};
pub use io::survey::{Holes, Survey};
pub use op::Op;
pub use process::Process;
pub use ring::Ring;
pub use sim::{SimCounters, SimDisk, SimFaults, SimOptions};
pub use store::Store;
pub use store::change::{Change, Noticed};
pub use store::keep::WeakStore;
pub use store::open::OpenOptions;
pub use store::request::{Backend, IoRequest};
pub use watch::Watch;
