//! What rings and engines pass each other: [`FileIo`], an I/O of a file, and [`Harvest`]. Not here:
//! the engines (`uring.rs`, `pool.rs`).

use std::time::Duration;

use crate::error::IoError;
use crate::io::Io;
use crate::io::sink::Sink;
use crate::store::file::FileStore;
use crate::store::{Kind, Store};

/// The interval at which waiting threads nudge the kernel (`uring.rs`, U6). It bounds the delay of
/// completions whose submitter is computing on a processor without timer ticks.
pub(crate) const NUDGE_INTERVAL: Duration = Duration::from_millis(20);

/// An I/O of a file, inside the file's gate, which keeps the file open.
pub(crate) struct FileIo {
    pub(crate) io: Io,
    pub(crate) store: Store,
    /// The shard of the gate that the I/O has entered (`gate.rs`, L1).
    shard: u8,
}

impl FileIo {
    /// Enters the gate of `store`, which is a file, and cuts the I/O (`gate.rs`, L1).
    pub(crate) fn begin(mut io: Io, store: &Store, shard: u8) -> FileIo {
        let file = file_of(store);
        file.enter(shard, io.op);
        file.cut(&mut io);
        FileIo { io, store: store.inside_gate(), shard }
    }

    /// Creates an I/O for tests of queues, which never execute it.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn without_gate(io: Io, store: &Store) -> FileIo {
        FileIo { io, store: store.clone(), shard: 0 }
    }

    /// Leaves the gate (`gate.rs`, L1): the last part is finished. Returns the token, the result,
    /// and the store, which must not be dropped under a ring's lock (`inbox.rs`, R2).
    pub(crate) fn finish(self) -> (u64, Result<(), IoError>, Store) {
        let FileIo { io, store, shard } = self;
        file_of(&store).leave(shard, io.op);
        (io.token, io.result(store.name()), store)
    }

    /// Executes the I/O on this thread, by plain system calls, and completes it.
    pub(crate) fn execute(mut self, sink: &dyn Sink) {
        file_of(&self.store).execute(&mut self.io, None);
        let (token, result, store) = self.finish();
        // Before the completion: its receiver may close the store and open it again.
        drop(store);
        sink.complete(token, result, None);
    }
}

/// Returns the file behind a store.
pub(crate) fn file_of(store: &Store) -> &FileStore {
    let Kind::File(file) = store.kind() else { unreachable!("only I/O of files reaches an engine") };
    file
}

/// What one look at the kernel's completion queue found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Harvest {
    /// The NOP was among the completions (`inbox.rs`, R4).
    pub(crate) nop: bool,
    /// The look queued continued or delayed I/O, which must be submitted.
    pub(crate) queued: bool,
}
