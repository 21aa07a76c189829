//! [`Faults`]: what the disk of a test refuses.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// What the disk of a test refuses.
#[derive(Default)]
pub(super) struct Faults {
    /// There is no room for more.
    pub full: AtomicBool,
    /// So many reads fail.
    pub reads: AtomicU32,
    /// So many writes end in the middle.
    pub writes: AtomicU32,
}

impl Faults {
    pub fn before_reserve(&self) -> io::Result<()> {
        if self.full.load(SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    pub fn before_read(&self) -> io::Result<()> {
        Faults::take(&self.reads)
    }

    pub fn before_write(&self) -> io::Result<()> {
        Faults::take(&self.writes)
    }

    fn take(left: &AtomicU32) -> io::Result<()> {
        match left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(io::Error::other("a fault of the test")),
            Err(_) => Ok(()),
        }
    }
}
