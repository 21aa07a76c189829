//! [`Space`]: the space of the lower file system that the unwritten bytes of a file will need.
//!
//! A program must learn from `write` that a file system is full, as it does without the mount. In
//! write-back mode the bytes reach the file system later, so their space is reserved first.
//!
//! Rules:
//! - **S1** A write that lengthens a file or may fill a hole reserves its space before the cache
//!   accepts a byte (`File::extend`). It fails as a write to the lower file would: ENOSPC, EDQUOT,
//!   or fewer bytes than asked for.
//! - **S2** Past the end of a file that has bytes, space is reserved in steps: an eighth of the
//!   file, 1 MiB at least and 16 MiB at most. If a step finds no room, the bytes of the write are
//!   enough. A hole gets exactly the pages of the write, so a file stays sparse.
//! - **S3** The *known* ranges of a file need no reservation: they were reserved here, or the file
//!   has data there. They are forgotten when the mount or another program cuts the file or punches
//!   holes. A program that punches a hole while another writes there may find out later, at fsync
//!   or close.
//! - **S4** The surplus of a step is given back when a handle is closed, when the file's length is
//!   cut, and before attributes are shown or times set: that changes the file's times, so it must
//!   not come later. A server that is killed leaves it to the next `truncate`. It is kept if
//!   another program has changed the file's length since.
//! - **S5** Ext4, XFS and tmpfs keep the promise of an allocation. Others do not, and some cannot
//!   allocate. Files there are written to the lower file system when a handle is closed, as NFS
//!   does, and `close` has the error. Where a server or another process has the file system, they
//!   are synced, too: only it knows whether there is space.
//! - **S6** What a file system of S5 has not got yet is subtracted from the free space that `df`
//!   shows. Reserved space is in the file system's own count.
//!
//! Not promised: space for the blocks that a file of XFS shares with its copies (`cp --reflink`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use rustix::io::Errno;

/// S2.
const STEP_BYTES_LEAST: u64 = 1 << 20;
const STEP_BYTES_MOST: u64 = 16 << 20;

/// The most known ranges of a file. If there are more, the oldest is forgotten.
const KNOWN_MAX: usize = 64;

/// Types of file systems (`statfs`).
const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;
const BTRFS: u64 = 0x9123_683E;
const FAT: u64 = 0x4D44;
const EXFAT: u64 = 0x2011_BAB0;
const F2FS: u64 = 0xF2F5_2010;
const BCACHEFS: u64 = 0xCA45_1A4E;
const OVERLAY: u64 = 0x794C_7630;
const RAMFS: u64 = 0x8584_58F6;

/// What a file system promises to the unwritten bytes of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Promise {
    /// There are no unwritten bytes.
    NotNeeded,
    /// Allocated space stays available (S1).
    Reserves,
    /// Only what was written has space (S5).
    AtClose,
    /// Only what was synced has space (S5).
    AtSync,
}

impl Promise {
    /// What a file system of this type promises.
    pub fn of_type(kind: u64) -> Promise {
        match kind {
            EXT | XFS | TMPFS => Promise::Reserves,
            BTRFS | FAT | EXFAT | F2FS | BCACHEFS | OVERLAY | RAMFS => Promise::AtClose,
            _ => Promise::AtSync,
        }
    }
}

/// How a file system gives space to a file.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub promise: Promise,
    /// The bytes of a block. The page that a file ends in may lack those past its end.
    pub block_bytes: u64,
}

impl Terms {
    /// Where nothing needs space.
    pub const NOTHING: Terms = Terms { promise: Promise::NotNeeded, block_bytes: 1 };
}

/// The lower file, as reservations see it.
pub trait Ground {
    /// Where the data that begins at this offset ends; the offset itself in a hole.
    fn data_end(&self, offset: u64) -> u64;

    /// Allocates a range.
    fn reserve(&self, range: Range<u64>) -> Result<(), Errno>;
}

impl Ground for octavo::disk::Store {
    fn data_end(&self, offset: u64) -> u64 {
        octavo::disk::Store::data_end(self, offset)
    }

    fn reserve(&self, range: Range<u64>) -> Result<(), Errno> {
        let reserved = octavo::disk::Store::reserve(self, range.start, range.end - range.start);
        reserved.map_err(|error| Errno::from_raw_os_error(error.errno()))
    }
}

/// The space of a file.
pub struct Space {
    promise: AtomicU8,
    block_bytes: AtomicU64,
    known: RwLock<Known>,
    /// Something may be reserved past the end (S4).
    has_surplus: AtomicBool,
}

/// S3.
#[derive(Default)]
struct Known {
    /// In the order in which they became known; none touches another.
    ranges: Vec<Range<u64>>,
    /// How far space was reserved past the end.
    reserved_to: u64,
}

impl Known {
    /// Where the known range ends that contains this offset.
    fn end_of(&self, offset: u64) -> Option<u64> {
        self.ranges.iter().find(|range| range.contains(&offset)).map(|range| range.end)
    }

    fn add(&mut self, mut range: Range<u64>) {
        self.ranges.retain(|known| {
            let touches = known.start <= range.end && range.start <= known.end;
            if touches {
                range = range.start.min(known.start)..range.end.max(known.end);
            }
            !touches
        });
        if self.ranges.len() == KNOWN_MAX {
            self.ranges.remove(0);
        }
        self.ranges.push(range);
    }

    /// Forgets what lies past a length.
    fn cut(&mut self, len: u64) {
        self.ranges.retain_mut(|known| {
            known.end = known.end.min(len);
            known.start < known.end
        });
    }
}

/// A file in which space is reserved.
struct File {
    len: u64,
    /// Where its last block ends.
    last: u64,
    page: u64,
}

impl Space {
    /// The space of a file about which nothing is known.
    pub fn new(terms: Terms) -> Space {
        Space {
            promise: AtomicU8::new(terms.promise as u8),
            block_bytes: AtomicU64::new(terms.block_bytes),
            known: RwLock::default(),
            has_surplus: AtomicBool::new(false),
        }
    }

    /// Holds what is known, which may be across calls to the lower file system.
    fn known(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the file system promises.
    pub fn promise(&self) -> Promise {
        // Relaxed: a number alone.
        match self.promise.load(Relaxed) {
            number if number == Promise::NotNeeded as u8 => Promise::NotNeeded,
            number if number == Promise::Reserves as u8 => Promise::Reserves,
            number if number == Promise::AtClose as u8 => Promise::AtClose,
            _ => Promise::AtSync,
        }
    }

    /// Notes the terms of the file system, now that the file can be written.
    pub fn terms_are(&self, terms: Terms) {
        self.block_bytes.store(terms.block_bytes, Relaxed);
        self.promise.store(terms.promise as u8, Relaxed);
    }

    /// Where the last block ends of a file of this length, in pages of `page` bytes.
    pub fn last(&self, len: u64, page: u64) -> u64 {
        len.next_multiple_of(self.block_bytes.load(Relaxed).clamp(1, page))
    }

    /// Whether a write of this range needs no reservation, as far as is known at once.
    pub fn has(&self, range: &Range<u64>) -> bool {
        if self.promise() != Promise::Reserves {
            return true;
        }
        // B4: another thread may hold it while it reserves space.
        let Ok(known) = self.known.try_read() else { return false };
        known.end_of(range.start).is_some_and(|end| range.end <= end)
    }

    /// Reserves the space of a write (S1, S2) of a file of this length, in pages of `page` bytes.
    /// Returns how many of its bytes have space: all, or fewer.
    ///
    /// # Errors
    /// ENOSPC and others, if the first byte has none.
    pub fn reserve(&self, write: Range<u64>, len: u64, page: u64, lower: &impl Ground) -> Result<u64, Errno> {
        let all = write.end - write.start;
        if self.promise() != Promise::Reserves || all == 0 {
            return Ok(all);
        }
        let mut known = self.known();
        let last = self.last(len, page);
        // A page inside the file is written back as a whole.
        let end = if write.end < len { write.end.next_multiple_of(page) } else { self.last(write.end, page) };
        let mut at = write.start - write.start % page;
        while at < end {
            if let Some(to) = known.end_of(at) {
                at = to;
                continue;
            }
            if at < last {
                // The block that the file ends in is there.
                let data = match lower.data_end(at) {
                    data if data >= len => last,
                    data => data - data % page,
                };
                if data > at {
                    known.add(at..data);
                    continue;
                }
            }
            match self.reserve_from(&mut known, at..end, &File { len, last, page }, lower) {
                Ok(to) => at = to,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.promise.store(Promise::AtClose as u8, Relaxed);
                    return Ok(all);
                }
                Err(errno) => {
                    let backed = if at < len { at - at % page } else { at };
                    return if backed > write.start { Ok(all.min(backed - write.start)) } else { Err(errno) };
                }
            }
        }
        Ok(all)
    }

    /// Reserves a range, or its beginning. Returns how far.
    fn reserve_from(
        &self,
        known: &mut Known,
        wanted: Range<u64>,
        file: &File,
        lower: &impl Ground,
    ) -> Result<u64, Errno> {
        let &File { len, last, page } = file;
        let at = wanted.start;
        if wanted.end > last {
            // First: a call that fails may have allocated a part.
            self.has_surplus.store(true, Relaxed);
        }
        if at >= last && len > 0 {
            let step = (len / 8).clamp(STEP_BYTES_LEAST, STEP_BYTES_MOST);
            let to = wanted.end.saturating_add(step).min(i64::MAX as u64);
            known.reserved_to = known.reserved_to.max(to);
            if lower.reserve(at..to).is_ok() {
                known.add(at..to);
                return Ok(wanted.end);
            }
        }
        known.reserved_to = known.reserved_to.max(wanted.end);
        let mut piece = wanted.end - at;
        loop {
            match lower.reserve(at..at + piece) {
                Ok(()) => {
                    known.add(at..at + piece);
                    return Ok(at + piece);
                }
                Err(Errno::NOSPC | Errno::DQUOT) if piece >= 2 * page => {
                    piece = (piece / 2).next_multiple_of(page);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Forgets what is known past a length, which was cut.
    pub fn cut(&self, len: u64) {
        let mut known = self.known();
        known.cut(len);
        known.reserved_to = 0;
        self.has_surplus.store(false, Relaxed);
    }

    /// Forgets all that is known (S3).
    pub fn forget(&self) {
        self.known().ranges.clear();
    }

    /// Whether something may be reserved past the end.
    pub fn has_surplus(&self) -> bool {
        // Relaxed: a hint. The thread that sets it closes the file later.
        self.has_surplus.load(Relaxed)
    }

    /// Takes note that the surplus is given back (S4) of a file whose last block ends at `last`.
    /// Returns how far it reaches, if there is one.
    pub fn take_surplus(&self, last: u64) -> Option<u64> {
        let mut known = self.known();
        let reserved_to = std::mem::take(&mut known.reserved_to);
        known.cut(last);
        (self.has_surplus.swap(false, Relaxed) && reserved_to > last).then_some(reserved_to)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const PAGE: u64 = 4096;
    const RESERVES: Terms = Terms { promise: Promise::Reserves, block_bytes: PAGE };

    /// A lower file with data in some ranges, and room for this number of bytes.
    struct Lower {
        data: Vec<Range<u64>>,
        room: Cell<u64>,
        reserved: RefCell<Vec<Range<u64>>>,
    }

    fn lower(data: &[Range<u64>], room: u64) -> Lower {
        Lower { data: data.to_vec(), room: Cell::new(room), reserved: RefCell::default() }
    }

    impl Ground for Lower {
        fn data_end(&self, offset: u64) -> u64 {
            self.data.iter().find(|range| range.contains(&offset)).map_or(offset, |range| range.end)
        }

        fn reserve(&self, range: Range<u64>) -> Result<(), Errno> {
            let len = range.end - range.start;
            if len > self.room.get() {
                return Err(Errno::NOSPC);
            }
            self.room.set(self.room.get() - len);
            self.reserved.borrow_mut().push(range);
            Ok(())
        }
    }

    #[test]
    fn a_file_that_grows_reserves_steps() {
        let space = Space::new(RESERVES);
        let lower = lower(&[], 1 << 40);
        assert_eq!(space.reserve(0..100, 0, PAGE, &lower), Ok(100));
        assert_eq!(*lower.reserved.borrow(), vec![0..PAGE], "a small file takes what it needs");
        assert_eq!(space.take_surplus(PAGE), None);
        // Its page is data by now, or reserved.
        assert_eq!(space.reserve(100..5000, 100, PAGE, &lower), Ok(4900));
        let to = 2 * PAGE + STEP_BYTES_LEAST;
        assert_eq!(lower.reserved.borrow().last(), Some(&(PAGE..to)));
        assert!(space.has(&(5000..to)) && !space.has(&(5000..to + 1)));
        assert_eq!(space.reserve(5000..to, 5000, PAGE, &lower), Ok(to - 5000));
        assert_eq!(lower.reserved.borrow().len(), 2);
        assert_eq!(space.take_surplus(2 * PAGE), Some(to));
        assert!(!space.has_surplus() && space.take_surplus(2 * PAGE).is_none());
        assert!(space.has(&(5000..2 * PAGE)) && !space.has(&(2 * PAGE..2 * PAGE + 1)));
        let large = 1 << 30;
        assert_eq!(space.reserve(large..large + 1, large, PAGE, &lower), Ok(1));
        assert_eq!(lower.reserved.borrow().last(), Some(&(large..large + PAGE + STEP_BYTES_MOST)));
    }

    #[test]
    fn a_full_file_system_takes_a_part_or_refuses() {
        let space = Space::new(RESERVES);
        let full = lower(std::slice::from_ref(&(0..PAGE)), 3 * PAGE);
        let written = space.reserve(PAGE..PAGE + (1 << 20), PAGE, PAGE, &full).unwrap();
        assert!(written > 0 && written <= 3 * PAGE, "{written}");
        let rest = lower(std::slice::from_ref(&(0..PAGE)), 0);
        let end = PAGE + written;
        assert_eq!(space.reserve(end..end + 1, end, PAGE, &rest), Err(Errno::NOSPC));
        assert!(space.has_surplus(), "a part may be allocated");
    }

    /// The blocks past the end, in the page that the file ends in, were taken for granted.
    #[test]
    fn blocks_that_are_smaller_than_pages_are_reserved_past_the_end() {
        let space = Space::new(Terms { block_bytes: 1024, ..RESERVES });
        let first = lower(std::slice::from_ref(&(0..5000)), 1 << 20);
        assert_eq!(space.reserve(5000..5100, 5000, PAGE, &first), Ok(100));
        assert!(first.reserved.borrow().is_empty(), "the last block is there");
        assert!(space.has(&(4096..5120)) && !space.has(&(4096..5121)));
        let full = lower(std::slice::from_ref(&(0..5000)), 0);
        assert_eq!(space.reserve(5100..6000, 5000, PAGE, &full), Ok(20));
        assert_eq!(space.reserve(5120..6000, 5000, PAGE, &full), Err(Errno::NOSPC));
        let hole = lower(&[0..1024, 8192..10_000], 0);
        let space = Space::new(Terms { block_bytes: 1024, ..RESERVES });
        assert_eq!(space.reserve(0..100, 10_000, PAGE, &hole), Err(Errno::NOSPC));
        assert_eq!(space.reserve(9000..9100, 10_000, PAGE, &hole), Ok(100));
        // A truncation frees the blocks of the page, too.
        let space = Space::new(Terms { block_bytes: 1024, ..RESERVES });
        assert_eq!(space.reserve(5000..8000, 5000, PAGE, &first), Ok(3000));
        assert!(space.has(&(5000..8000)));
        assert!(space.take_surplus(space.last(5000, PAGE)).is_some());
        assert!(space.has(&(4096..5120)) && !space.has(&(4096..5121)));
    }

    #[test]
    fn holes_get_the_pages_of_the_write_and_data_needs_nothing() {
        let space = Space::new(RESERVES);
        let len = 100 * PAGE;
        let lower = lower(&[0..10 * PAGE, 90 * PAGE..len], 2 * PAGE);
        assert_eq!(space.reserve(5..6, len, PAGE, &lower), Ok(1));
        assert_eq!(space.reserve(95 * PAGE..len, len, PAGE, &lower), Ok(5 * PAGE));
        assert!(lower.reserved.borrow().is_empty() && space.has(&(0..10 * PAGE)));
        let hole = 50 * PAGE;
        assert_eq!(space.reserve(hole + 1..hole + PAGE + 1, len, PAGE, &lower), Ok(PAGE));
        assert_eq!(*lower.reserved.borrow(), vec![hole..hole + 2 * PAGE]);
        assert_eq!(space.reserve(20 * PAGE..20 * PAGE + 1, len, PAGE, &lower), Err(Errno::NOSPC));
        // From data into a hole: what has space is written.
        assert_eq!(space.reserve(9 * PAGE..11 * PAGE, len, PAGE, &lower), Ok(PAGE));
        assert!(!space.has_surplus());
        space.forget();
        assert!(!space.has(&(0..1)));
    }

    #[test]
    fn file_systems_that_promise_nothing_are_written_at_close() {
        struct Refuses;
        impl Ground for Refuses {
            fn data_end(&self, offset: u64) -> u64 {
                offset
            }
            fn reserve(&self, _: Range<u64>) -> Result<(), Errno> {
                Err(Errno::OPNOTSUPP)
            }
        }
        let space = Space::new(Terms { promise: Promise::of_type(EXT), block_bytes: PAGE });
        assert_eq!((space.reserve(0..10, 0, PAGE, &Refuses), space.promise()), (Ok(10), Promise::AtClose));
        assert!(space.has(&(0..1 << 40)));
        assert_eq!(Promise::of_type(0x6969), Promise::AtSync, "NFS");
        assert_eq!(Promise::of_type(BTRFS), Promise::AtClose);
    }

    #[test]
    fn known_ranges_merge_are_cut_and_stay_few() {
        let mut known = Known::default();
        known.add(0..10);
        known.add(20..30);
        known.add(10..20);
        assert_eq!(known.ranges, vec![0..30]);
        known.cut(15);
        assert_eq!(known.ranges, vec![0..15]);
        (1..1000).for_each(|at| known.add(at * 100..at * 100 + 1));
        assert_eq!(known.ranges.len(), KNOWN_MAX);
        assert!(known.end_of(99_900).is_some() && known.end_of(0).is_none());
    }
}
