//! Evacuation: a cache's clean pages leave for a file, and another process's cache takes them in.
//! A server can thus be restarted or replaced, and its successor is as warm as it was.
//!
//! Pages travel, not tables: a successor with another layout, another policy or less memory takes
//! in what it can, by the steps that every page takes (P1, P2). No byte of the file can break a
//! table.
//!
//! The old cache ([`Cache::evacuate`](crate::Cache::evacuate), `leave.rs`):
//!
//! - **E1** Syncs each object and closes its whole range: no page comes in any more.
//! - **E2** Walks over the sets. Under the set's lock it removes each clean page that is not in use
//!   (P9), copies its frame, which no thread can claim before the lock is released, and returns the
//!   frame's memory. It writes the copies to the file when it has a chunk of them, without a lock.
//!   Up to four threads do so, each with segments and a chunk of its own. So the file and the
//!   frames together take no more memory than the frames did, plus the chunks: two MiB.
//! - **E3** Writes back and drops all other pages, syncs the object, notes the store's stamp, and
//!   closes the object. A page that was written after E1 was dirty or busy in E2, so the file does
//!   not have it; one that left in E2 could not be written again. So the file has the bytes that
//!   the store has.
//! - **E4** Writes the catalog, and last the header that says that the file is complete.
//!
//! The new cache ([`Cache::restore`](crate::Cache::restore), `enter.rs`):
//!
//! - **E5** Partitions and objects get their old secrets and numbers when they are created and
//!   opened ([`Cache::expect`](crate::Cache::expect)), so that pages fall into the same sets.
//! - **E6** Marks the file as used, so that no other process trusts what is left of it.
//! - **E7** Closes the ranges of the objects, and compares them with the catalog: identity, length
//!   and stamp. Checks all records of a partition, and compares a sample of pages with the stores.
//! - **E8** If nothing has accessed the partition yet, claims a slot for each page with the history
//!   that the page had, reads the page into its frame, and publishes it. Returns the memory of each
//!   chunk of the file. Threads share the work as in E2.
//!
//! Not here: which process gets the file, and how (the program's matter).

mod catalog;
mod chunk;
mod enter;
mod header;
mod leave;
mod warm;
mod workers;

pub use enter::{Cold, Restored};
pub use leave::{Evacuated, Refused};
pub use warm::WarmPages;
