//! [`Target`]: what carries the I/O of a store that is not a file: memory, a simulated disk, or a
//! back end that a user wrote.
//!
//! Files are no target. io_uring takes the I/O of many pushes in one system call, and knows files
//! by slots of a table that each ring has for itself. Both need the ring's own engine
//! (`engine.rs`), to which a file is a descriptor and not code to call. Not here: the targets
//! (`memory.rs`, `sim.rs`, `backend.rs`).

use crate::error::IoError;
use crate::identity::Identity;
use crate::io::Io;
use crate::io::single::Single;
use crate::io::sink::Sink;
use crate::sim::{SimDisk, SimStore};
use crate::sync::Arc;

pub(crate) trait Target: Send + Sync {
    fn len_bytes(&self) -> u64;

    fn block_bytes(&self) -> u32;

    fn fill_bytes(&self) -> u32 {
        0
    }

    fn read_only(&self) -> bool {
        false
    }

    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Changes the length, with no I/O in flight.
    fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError>;

    /// Asks what is behind the store how long it is.
    fn present_len_bytes(&self) -> Result<u64, IoError> {
        Ok(self.len_bytes())
    }

    /// Makes the present length of what is behind the store its length, with no I/O in flight.
    fn adopt_len_bytes(&self) -> Result<u64, IoError> {
        Ok(self.len_bytes())
    }

    /// The simulated disk that must be stepped for I/O to progress.
    fn disk(&self) -> Option<&SimDisk> {
        None
    }

    /// Starts an I/O, which is valid. Its completion goes to `ring`, which has the `shard` of
    /// gates. Called with no lock of this crate held.
    fn submit(&self, io: Io, ring: Arc<dyn Sink>, shard: u8);

    /// Executes an I/O, which is valid. Returns when it has completed.
    fn run(&self, io: Io, shard: u8) -> Result<(), IoError>;
}

impl Target for SimStore {
    fn len_bytes(&self) -> u64 {
        SimStore::len_bytes(self)
    }

    fn block_bytes(&self) -> u32 {
        SimStore::block_bytes(self)
    }

    fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        SimStore::set_len_bytes(self, len_bytes)
    }

    fn disk(&self) -> Option<&SimDisk> {
        Some(&self.disk)
    }

    fn submit(&self, io: Io, ring: Arc<dyn Sink>, _: u8) {
        self.push(ring.clone(), io);
        ring.sim_moves();
    }

    fn run(&self, io: Io, _: u8) -> Result<(), IoError> {
        Single::run(|ring| self.push(ring, io), || self.disk.step())
    }
}
