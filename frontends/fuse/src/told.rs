//! [`Told`]: which failures of a file's write-backs programs have been told. The kernel does the
//! same for its own files (`errseq_t`).
//!
//! Rules:
//! - **E1** Each handle that was open when a file began to fail gets the error once, at fsync or
//!   close. A retry that succeeds meanwhile does not take that back. A close does not count as
//!   having got it: a child process closes the copies of its descriptors, and nobody looks at what
//!   these closes return.
//! - **E2** If no handle has got it, the first one that is opened afterwards gets it in the same
//!   way, unless a retry has succeeded. `open` itself succeeds.
//! - **E3** A file stays in the table, with its unwritten bytes, while it fails, and while nobody
//!   has got its error (`files.rs`, F7).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use octavo::ObjectFaults;
use rustix::io::Errno;

use crate::errors::errno_of;
use crate::lock::lock;

/// Which failures of a file programs have been told, by their number.
#[derive(Default)]
pub struct Told(Mutex<u64>);

impl Told {
    /// Returns the number of the last failure that a new handle need not be told.
    pub fn open(&self, faults: &ObjectFaults) -> u64 {
        let mut told = lock(&self.0);
        let is_owed = faults.is_failing && faults.count > *told;
        *told = faults.count.max(*told);
        if is_owed { faults.count - 1 } else { faults.count }
    }

    /// Returns whether the next handle is to be told of a failure (E2).
    pub fn owes(&self, faults: &ObjectFaults) -> bool {
        faults.is_failing && faults.count > *lock(&self.0)
    }

    /// Tells the fsync of a handle, which has seen failures up to `seen`, of later ones.
    ///
    /// # Errors
    /// That of the last failure.
    pub fn tell(&self, seen: &AtomicU64, faults: &ObjectFaults) -> Result<(), Errno> {
        // SeqCst: two fsyncs of one handle tell once.
        self.tell_after(seen.fetch_max(faults.count, SeqCst), faults)
    }

    /// Tells the close of a handle, which has seen failures up to `seen`, of later ones. A later
    /// fsync or close is told too (E1).
    ///
    /// # Errors
    /// That of the last failure.
    pub fn tell_at_close(&self, seen: &AtomicU64, faults: &ObjectFaults) -> Result<(), Errno> {
        self.tell_after(seen.load(SeqCst), faults)
    }

    fn tell_after(&self, seen: u64, faults: &ObjectFaults) -> Result<(), Errno> {
        if seen >= faults.count {
            return Ok(());
        }
        let mut told = lock(&self.0);
        *told = faults.count.max(*told);
        // Without an error, the bytes were cut off since.
        faults.last.as_ref().map_or(Ok(()), |error| Err(errno_of(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(count: u64, is_failing: bool) -> ObjectFaults {
        ObjectFaults { count, last: Some(octavo::Error::Closed { object: "a".into() }), is_failing }
    }

    #[test]
    fn each_handle_that_was_open_is_told_once() {
        let told = Told::default();
        let handles = [(); 2].map(|()| AtomicU64::new(told.open(&faults(0, false))));
        // A handle gets its error even after a retry has succeeded.
        assert_eq!(told.tell(&handles[0], &faults(1, true)), Err(Errno::IO));
        assert_eq!(told.tell(&handles[0], &faults(1, true)), Ok(()));
        assert_eq!(told.tell(&handles[1], &faults(1, false)), Err(Errno::IO));
        assert_eq!(told.tell(&handles[1], &faults(1, false)), Ok(()));
        // Later ones are not.
        let later = AtomicU64::new(told.open(&faults(1, true)));
        assert_eq!(told.tell(&later, &faults(1, true)), Ok(()));
        assert_eq!(told.tell(&later, &faults(2, true)), Err(Errno::IO));
    }

    /// The close of a child's copy took the error away from the program that wrote.
    #[test]
    fn a_close_does_not_keep_the_error_from_a_later_sync() {
        let told = Told::default();
        let handle = AtomicU64::new(told.open(&faults(0, false)));
        assert_eq!(told.tell_at_close(&handle, &faults(1, true)), Err(Errno::IO));
        assert_eq!(told.tell_at_close(&handle, &faults(1, true)), Err(Errno::IO));
        assert_eq!(told.tell(&handle, &faults(1, true)), Err(Errno::IO));
        assert_eq!(told.tell_at_close(&handle, &faults(1, true)), Ok(()));
    }

    #[test]
    fn the_first_handle_after_an_unseen_failure_is_told() {
        let told = Told::default();
        assert!(told.owes(&faults(1, true)) && !told.owes(&faults(1, false)));
        let first = AtomicU64::new(told.open(&faults(1, true)));
        let second = AtomicU64::new(told.open(&faults(1, true)));
        assert!(!told.owes(&faults(1, true)));
        assert_eq!(told.tell(&second, &faults(1, true)), Ok(()));
        assert_eq!(told.tell(&first, &faults(1, true)), Err(Errno::IO));
    }

    #[test]
    fn a_retry_that_succeeds_clears_a_failure_for_later_handles() {
        let told = Told::default();
        let later = AtomicU64::new(told.open(&faults(3, false)));
        assert_eq!(told.tell(&later, &faults(3, false)), Ok(()));
    }
}
