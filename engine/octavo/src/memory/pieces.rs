//! The callers' memory that requests fill or write from, by address and length alone.
//!
//! Such memory is *foreign*: a guest, another process, the kernel or a C library may access it at
//! any time, so no reference to it is ever made. The engine accesses it only by the copies of
//! `copy.rs`, and only until the request has ended:
//!
//! - **F1** A request's memory is [`Lent`] to its task. Only a thread that has the task, under the
//!   lock of its lane, or one of its letters (`flight/messages.rs`), copies to it or from it. No
//!   pointer into it reaches the kernel: I/O moves frames and bounce pages.
//! - **F2** A write takes each byte from the memory once, into a frame that it owns or into a
//!   bounce page. Everything later (the store, the frame, other readers) gets that copy. A writer
//!   that races with the request can therefore choose its bytes, and nothing else.
//! - **F3** The part of one page is copied while the page is owned or pinned, even if it lies in
//!   several pieces. Other readers and writers see all of it or nothing.
//!
//! Not here: memory that an owner keeps alive for a queue's request (`memory/owned.rs`).

use std::ptr::NonNull;

use super::copy;

/// A piece of memory: `len` bytes at `start`. Has the layout of `struct iovec`, so an array of one
/// can be read as an array of the other.
///
/// A piece is an address and a length. It keeps nothing alive and gives no access by itself; the
/// unsafe calls that take it do.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// The first byte; of any alignment. Ignored if `len` is 0.
    pub start: *mut u8,
    /// Length in bytes; may be 0.
    pub len: usize,
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());
const _: () = assert!(std::mem::offset_of!(Piece, start) == std::mem::offset_of!(libc::iovec, iov_base));
const _: () = assert!(std::mem::offset_of!(Piece, len) == std::mem::offset_of!(libc::iovec, iov_len));

// SAFETY: a piece is an address and a length; every use of the memory is `unsafe` by itself.
unsafe impl Send for Piece {}
// SAFETY: as above; sharing the address gives no access.
unsafe impl Sync for Piece {}

/// The pieces of one request, in order, without empty ones.
#[derive(Debug)]
pub(crate) struct PieceList(Box<[Placed]>);

/// A piece with its place in the request.
#[derive(Debug)]
struct Placed {
    /// Bytes of the request up to the piece's end.
    end: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: as for `Piece`.
unsafe impl Send for PieceList {}
// SAFETY: as for `Piece`.
unsafe impl Sync for PieceList {}

impl PieceList {
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> PieceList {
        let mut end = 0_usize;
        let pieces = pieces.into_iter().filter(|piece| piece.len > 0).map(|Piece { start, len }| {
            // No object is as long as the largest number, so an overflow ends as `Error::PastEnd`.
            end = end.saturating_add(len);
            Placed { end, start, len }
        });
        PieceList(pieces.collect())
    }

    /// The length of all pieces in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.last().map_or(0, |last| last.end)
    }

    /// Lends the memory to a task.
    ///
    /// # Safety
    /// The list stays where it is, and its memory valid, until the task has ended.
    pub unsafe fn lend(&self) -> Lent {
        match &*self.0 {
            [] => Lent::NONE,
            [one] => Lent::one_piece(one.start),
            _ => Lent { list: Some(NonNull::from_ref(self)), at: std::ptr::null_mut() },
        }
    }

    /// Passes each run of the `len` bytes from `at` on: its address, its distance from `at`, and
    /// its length.
    fn each_run(&self, at: usize, len: usize, mut visit: impl FnMut(*mut u8, usize, usize)) {
        let first = self.0.partition_point(|piece| piece.end <= at);
        let mut done = 0;
        for piece in &self.0[first..] {
            if done == len {
                return;
            }
            let skip = at + done - (piece.end - piece.len);
            let run = (piece.len - skip).min(len - done);
            visit(piece.start.wrapping_add(skip), done, run);
            done += run;
        }
        debug_assert_eq!(done, len, "a span lies inside its request");
    }
}

/// Memory that a caller has lent to a task, from one byte on (F1).
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    /// The list of the pieces, which lives as long as the task (`PieceList::lend`). `None` if the
    /// memory lies in one piece.
    list: Option<NonNull<PieceList>>,
    /// The first byte. With a list: its distance from the list's first byte, as an address. One
    /// field for both, because tasks are moved several times.
    at: *mut u8,
}

// SAFETY: the memory is lent for the task's life, whichever thread works on the task (F1).
unsafe impl Send for Lent {}

impl Lent {
    /// For tasks that copy nothing.
    pub const NONE: Lent = Lent::one_piece(std::ptr::null_mut());

    /// Memory in one piece.
    #[inline(always)]
    pub const fn one_piece(start: *mut u8) -> Lent {
        Lent { list: None, at: start }
    }

    /// Returns the memory from byte `skip` on.
    #[inline(always)]
    pub fn skip(self, skip: usize) -> Lent {
        Lent { at: self.at.wrapping_add(skip), ..self }
    }

    /// Returns the `len` bytes from byte `skip` on, without a list if they lie in one piece.
    #[inline(always)]
    pub fn part(self, skip: usize, len: usize) -> Lent {
        let part = self.skip(skip);
        match part.list {
            None => part,
            Some(list) => narrow(part, list, len),
        }
    }

    /// Returns the address, if the memory lies in one piece.
    #[inline(always)]
    pub fn one(self) -> Option<*mut u8> {
        self.list.is_none().then_some(self.at)
    }

    /// Copies `len` bytes of a page to the memory.
    ///
    /// # Safety
    /// As `copy::copy_out`. The memory has `len` bytes and belongs to a task that has not ended.
    #[inline(always)]
    pub unsafe fn copy_out(self, page: *const u8, len: usize) {
        match self.list {
            // SAFETY: the caller's promise.
            None => unsafe { copy::copy_out(page, self.at, len) },
            Some(list) => each_run(list, self.at, len, |start, done, run| {
                // SAFETY: the caller's promise; the run is a part of both.
                unsafe { copy::copy_out(page.wrapping_add(done), start, run) }
            }),
        }
    }

    /// Copies `len` bytes of the memory to a page (F2).
    ///
    /// # Safety
    /// As `copy::copy_in`. The memory has `len` bytes and belongs to a task that has not ended.
    #[inline(always)]
    pub unsafe fn copy_in(self, page: *mut u8, len: usize) {
        match self.list {
            // SAFETY: the caller's promise.
            None => unsafe { copy::copy_in(self.at, page, len) },
            Some(list) => each_run(list, self.at, len, |start, done, run| {
                // SAFETY: the caller's promise; the run is a part of both.
                unsafe { copy::copy_in(start, page.wrapping_add(done), run) }
            }),
        }
    }
}

#[inline(never)]
fn narrow(part: Lent, list: NonNull<PieceList>, len: usize) -> Lent {
    let (mut first, mut runs) = (std::ptr::null_mut(), 0);
    each_run(list, part.at, len, |start, _, _| {
        if runs == 0 {
            first = start;
        }
        runs += 1;
    });
    if runs > 1 { part } else { Lent::one_piece(first) }
}

#[inline(never)]
fn each_run(list: NonNull<PieceList>, at: *mut u8, len: usize, visit: impl FnMut(*mut u8, usize, usize)) {
    // SAFETY: the list lives until the task that has the `Lent` has ended (`PieceList::lend`), and
    // nothing changes it.
    unsafe { list.as_ref() }.each_run(at.addr(), len, visit);
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_random::Random;

    use super::*;

    /// Pieces of one array, in their order, with gaps between them.
    fn pieces_of(bytes: &mut [u8], lens: &[usize]) -> Vec<Piece> {
        let start = bytes.as_mut_ptr();
        let mut at = 0;
        let place = |len: &usize| {
            let piece = Piece { start: start.wrapping_add(at), len: *len };
            at += len + 1;
            piece
        };
        lens.iter().map(place).collect()
    }

    #[test]
    fn a_part_of_many_pieces_is_the_same_bytes_as_that_part_of_their_concatenation() {
        let mut random = Random::new(7);
        for _ in 0..if cfg!(miri) { 20 } else { 500 } {
            let lens: Vec<usize> = (0..random.below(9)).map(|_| random.below(6) as usize).collect();
            let total: usize = lens.iter().sum();
            let mut memory = vec![0xEE; total + lens.len() + 1];
            let pieces = pieces_of(&mut memory, &lens);
            let list = PieceList::new(pieces.iter().copied());
            assert_eq!(list.len_bytes(), total);
            let skip = random.below(total as u64 + 1) as usize;
            let len = random.below((total - skip) as u64 + 1) as usize;
            let page: Vec<u8> = (0..len as u8).collect();
            // SAFETY: the list outlives `part`.
            let part = unsafe { list.lend() }.part(skip, len);
            // SAFETY: both have `len` bytes, which no other thread accesses.
            unsafe { part.copy_out(page.as_ptr(), len) };
            let mut back = vec![0; len];
            // SAFETY: as above.
            unsafe { part.copy_in(back.as_mut_ptr(), len) };
            assert_eq!(back, page);
            let mut expected = vec![0xEE; memory.len()];
            let mut at = 0;
            let places = lens.iter().flat_map(|len| {
                let places = at..at + len;
                at += len + 1;
                places
            });
            places.skip(skip).zip(&page).for_each(|(place, byte)| expected[place] = *byte);
            assert_eq!(memory, expected, "{skip} and {len} of {lens:?}");
        }
    }

    #[test]
    fn a_part_inside_one_piece_is_an_address() {
        let mut memory = [0; 16];
        let start = memory.as_mut_ptr();
        let list = PieceList::new(pieces_of(&mut memory, &[4, 0, 5]));
        // SAFETY: the list outlives its parts.
        let lent = unsafe { list.lend() };
        assert_eq!(lent.part(1, 3).one(), Some(start.wrapping_add(1)));
        assert_eq!(lent.part(4, 5).one(), Some(start.wrapping_add(6)));
        assert!(lent.part(3, 2).one().is_none());
        assert!(lent.part(9, 0).one().is_some());
    }

    #[test]
    fn lengths_that_overflow_are_longer_than_any_object() {
        let piece = Piece { start: std::ptr::null_mut(), len: usize::MAX / 2 };
        assert_eq!(PieceList::new([piece; 3]).len_bytes(), usize::MAX);
    }
}
