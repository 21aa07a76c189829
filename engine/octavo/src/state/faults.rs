//! [`Faults`]: the failures of an object's write-backs and syncs, as those who report errors to
//! programs need them. The kernel keeps the same per file (`errseq_t`): a count that each reader
//! compares with the one it has seen.

use crate::error::Error;

/// The failures of an object's write-backs and syncs.
#[derive(Clone, Debug, Default)]
pub struct ObjectFaults {
    /// How often the object has begun to fail. Retries that fail again do not count, until all
    /// dirty pages were written in the meantime. Each failed sync of the store counts.
    pub count: u64,
    /// The latest error, even if a retry has succeeded since.
    pub last: Option<Error>,
    /// Whether dirty pages could not be written yet, or a sync of the store has failed.
    pub is_failing: bool,
}

/// What an object remembers of them.
#[derive(Default)]
pub struct Faults {
    count: u64,
    last: Option<Error>,
    /// The last error of a page that could not be written back. `None` again once all pages were
    /// written.
    refusal: Option<Error>,
}

impl Faults {
    /// Notes that the store has refused a page.
    pub fn refused(&mut self, error: &Error) {
        if self.refusal.is_none() {
            self.count += 1;
        }
        self.refusal = Some(error.clone());
        self.last = Some(error.clone());
    }

    /// Notes that a sync of the store has failed.
    pub fn sync_failed(&mut self, error: &Error) {
        self.count += 1;
        self.last = Some(error.clone());
    }

    /// Notes that all pages were written.
    pub fn written(&mut self) {
        self.refusal = None;
    }

    /// The error of the pages that could not be written yet.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// What there is to report, of an object whose store has failed a sync or not.
    pub fn report(&self, has_failed: bool) -> ObjectFaults {
        let is_failing = has_failed || self.refusal.is_some();
        ObjectFaults { count: self.count, last: self.last.clone(), is_failing }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_once_until_all_pages_were_written() {
        let error = Error::Closed { object: "a".into() };
        let mut faults = Faults::default();
        faults.refused(&error);
        faults.refused(&error);
        let report = faults.report(false);
        assert!(report.count == 1 && report.is_failing && report.last.is_some());
        faults.written();
        let report = faults.report(false);
        assert!(report.count == 1 && !report.is_failing && report.last.is_some());
        faults.refused(&error);
        faults.sync_failed(&error);
        assert!(faults.report(true).count == 3 && faults.report(true).is_failing);
    }
}
