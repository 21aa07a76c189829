//! [`Survey`]: looks for the parts of a file that have no data, its [`Holes`]. Not here: which
//! stores can have any (`store.rs`), the pages of a cache that are newer than the file.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::sync::{Mutex, lock};

/// The least bytes of an extent of data. The data may be gone when the second call looks for their
/// end.
const STEP_BYTES: u64 = 4096;

/// The result of a survey of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// The parts of the range that have no data and read as zeros: ascending, disjoint, none empty.
    pub ranges: Vec<Range<u64>>,
    /// The end of the part of the range that was examined. Bytes before it that lie in no hole may
    /// be data; the survey has not examined bytes past it.
    pub end: u64,
}

/// A search for the holes of a range of a store
/// ([`Ring::push_survey`](crate::Ring::push_survey)). Holds the result once the I/O has completed.
#[derive(Debug)]
pub struct Survey {
    range: Range<u64>,
    extents_max: usize,
    found: Mutex<Holes>,
}

impl Survey {
    /// Creates a survey of a range. It ends after `extents_max` extents, holes and data in turn.
    ///
    /// # Panics
    /// If `extents_max` is 0.
    pub fn new(range: Range<u64>, extents_max: usize) -> Survey {
        assert!(extents_max > 0, "a survey looks for at least one extent");
        let found = Holes { ranges: Vec::new(), end: range.start };
        Survey { range, extents_max, found: Mutex::new(found) }
    }

    /// Takes the result.
    pub fn take(&self) -> Holes {
        std::mem::take(&mut lock(&self.found))
    }

    /// Reports the whole range as data.
    pub(crate) fn find_data(&self) {
        *lock(&self.found) = Holes { ranges: Vec::new(), end: self.range.end };
    }

    /// Looks for the holes of a regular file. A file system that cannot tell has none. Moves the
    /// position of the descriptor.
    pub(crate) fn find(&self, file: &File) {
        *lock(&self.found) = find(file, &self.range, self.extents_max);
    }
}

/// Each hole is the answer of one system call, so every byte of it had no data during that call.
fn find(file: &File, range: &Range<u64>, extents_max: usize) -> Holes {
    let mut holes = Holes { ranges: Vec::new(), end: range.start };
    let mut extents = 0;
    while holes.end < range.end && extents < extents_max {
        let at = holes.end;
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, range.end),
            // No data follows, or the file ends before `at`.
            Err(Errno::NXIO) => range.end,
            Err(_) => return Holes { end: range.end, ..holes },
        };
        holes.end = match data > at {
            true => {
                holes.ranges.push(at..data);
                data
            }
            false => seek(file, SeekFrom::Hole(at)).unwrap_or(range.end).max(at + STEP_BYTES).min(range.end),
        };
        extents += 1;
    }
    holes
}

#[cfg(all(test, not(shuttle)))]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one hole")]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn sparse() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[1; 8192], 1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 32 << 20).unwrap();
        file
    }

    #[test]
    fn a_sparse_file_has_holes_between_its_data() {
        let holes = find(&sparse(), &(0..64 << 20), 100);
        let expected = [0..1 << 20, (1 << 20) + 8192..32 << 20, (32 << 20) + 4096..64 << 20];
        assert_eq!(holes, Holes { ranges: expected.to_vec(), end: 64 << 20 });
    }

    #[test]
    fn a_survey_stays_in_its_range_and_within_its_extents() {
        let file = sparse();
        let holes = find(&file, &((1 << 20) + 4096..2 << 20), 100);
        assert_eq!(holes, Holes { ranges: vec![(1 << 20) + 8192..2 << 20], end: 2 << 20 });
        assert_eq!(find(&file, &(5..64 << 20), 1), Holes { ranges: vec![5..1 << 20], end: 1 << 20 });
        let data = find(&file, &((1 << 20) + 1..64 << 20), 1);
        assert_eq!(data, Holes { ranges: vec![], end: (1 << 20) + 8192 });
    }

    /// The bytes that the store has and the file has lost read as zeros.
    #[test]
    fn a_range_behind_the_end_of_the_file_is_a_hole() {
        let holes = find(&sparse(), &(63 << 20..100 << 20), 100);
        assert_eq!(holes, Holes { ranges: vec![63 << 20..100 << 20], end: 100 << 20 });
    }
}
