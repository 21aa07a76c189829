//! Copies between frames and callers' memory, while other threads use the frames too.
//!
//! A reader copies a page out of its frame without a lock, and learns afterwards, from the
//! slot's version, whether a writer was active (slot rules P3 and following). So a copy may read
//! bytes that another thread is overwriting, and such readers may read the bytes that a writer
//! copies in. To the language a plain copy would be a data race. These copies guarantee:
//!
//! * Each byte of a frame is read or written at least once, as if by one relaxed atomic access
//!   of one byte, and possibly twice, in any order. A copy that raced has torn bytes; the
//!   caller's protocol discards it.
//! * A copy orders nothing. A reader that validates puts an acquire fence between the copy and
//!   its second look at the version; a writer puts a release fence between its first and the
//!   copy. The processors keep to this as for any access: no non-temporal store is used, and the
//!   stores of `rep movs` come before every later store.
//!
//! A caller's memory may be foreign (`pieces.rs`): parties that Rust does not know of, such as a
//! guest, another process or the kernel, may access it meanwhile. Each of its bytes is then read
//! or written as if by a volatile access, at least once and possibly twice. Racing accesses decide
//! only which bytes are copied.
//!
//! Inline assembly is opaque to the compiler and means what is said above. The twin says the
//! same in Rust, byte by byte, and is what miri and other architectures run. Not here: versions,
//! frames, and which thread may access which.
//!
//! # What was measured
//!
//! Random reads of 1 GiB of huge pages into a buffer in the first-level cache, one thread of a
//! virtual Sapphire Rapids, medians of 150 interleaved runs, relative to glibc 2.36's `memcpy`
//! in the same run: a page of 4 KiB 1.00 (294 ns; 0.99 to 1.04 beside other loads), 128 bytes
//! 1.00 (22 ns), where an inlined copy of eight 16-byte words takes 1.35. In runs of 40, loops
//! of AVX-512, AVX2 and SSE2 took 1.08, 1.39 and 1.60 for a page; up to 2 KiB the AVX-512 loop
//! was the fastest or equal.
//!
//! Prefetching the page's own lines ahead of its copy made the copy 4 to 19 % slower (the
//! hardware streams within a page). Prefetching the first 1 KiB of the *next* page helps: 0.78
//! of the time of a page, 0.73 when two pages ahead; 512 bytes or 2 KiB help less, and a whole
//! page costs more than it gains.

mod width;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
use by_bytes as native;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
use x86_64 as native;

pub use self::width::Width;

/// Most bytes that are worth a prefetch before a copy: by the time they are copied, the hardware
/// has detected the stream.
pub const PREFETCH_BYTES_MAX: usize = 1024;

/// Up to this many bytes a copy is inline and has no loop.
pub const INLINE_BYTES: usize = 128;

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
const _: () = assert!(INLINE_BYTES == x86_64::BLOCK_BYTES);

/// The cache line, in bytes, of every processor that this runs on. A wrong guess costs
/// prefetches, never correctness.
const LINE_BYTES: usize = 64;

/// Chooses how to copy on this processor. Copies of more than `INLINE_BYTES` choose on their
/// own; shorter ones only read the choice.
pub fn choose() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    x86_64::choose();
}

/// Copies `len` bytes out of a frame that other threads may be overwriting.
///
/// # Safety
///
/// * `len` bytes are valid for reads at `frame`, whose provenance is that of shared mutable
///   memory, and for writes at `dst`; the two do not overlap.
/// * Other threads may write the bytes at `frame` meanwhile, but only by `copy_in`, `zero_in`,
///   atomic bytes or the kernel.
/// * No other Rust code accesses the bytes at `dst`, except by atomic bytes if they are foreign.
///   They are initialised afterwards.
#[inline(always)]
pub unsafe fn copy_out(frame: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { native::copy_out(Width::Unknown, frame, dst, len) }
}

/// Returns the width of this processor's vectors.
pub fn width() -> Width {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    return x86_64::chosen_width();
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    Width::Unknown
}

/// Whether `copy_out_inline` may be told the width that `width` returned: on x86-64 it then relies
/// on AVX2.
pub fn is_inline() -> bool {
    cfg!(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))) || width() != Width::Unknown
}

/// `copy_out` for callers that know the width of the processor's vectors, and call `close` after
/// their last copy.
///
/// # Safety
///
/// As `copy_out`, and the processor has vectors of this width.
#[inline(always)]
pub unsafe fn copy_out_known(width: Width, frame: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { native::copy_out(width, frame, dst, len) }
}

/// Ends a run of `copy_out_known`. Forgetting it slows down other code.
///
/// # Safety
///
/// The processor has vectors of this width.
#[inline(always)]
pub unsafe fn close(width: Width) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    // SAFETY: passed on.
    unsafe {
        x86_64::close(width);
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    let _ = width;
}

/// `copy_out` of at most `INLINE_BYTES`, without a call or a loop, where `is_inline`.
///
/// # Safety
///
/// As `copy_out_known`, `len` is at most `INLINE_BYTES`, and `width` is what `width` returned,
/// where `is_inline`.
#[inline(always)]
pub unsafe fn copy_out_inline(width: Width, frame: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(len <= INLINE_BYTES);
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    // SAFETY: the caller's promise. Saves a comparison.
    unsafe {
        std::hint::assert_unchecked(width != Width::Unknown);
    }
    // SAFETY: passed on.
    unsafe { native::copy_inline::<false>(width, frame, dst, len) }
}

/// Copies `len` bytes into a frame that other threads may be reading.
///
/// # Safety
///
/// * `len` bytes are valid for reads at `src` and for writes at `frame`, whose provenance is
///   that of shared mutable memory; the two do not overlap.
/// * Other threads may read the bytes at `frame` meanwhile, but only by `copy_out`, atomic bytes
///   or the kernel; no other thread writes them, by the slot's protocol.
/// * No other Rust code writes the bytes at `src`, except by atomic bytes if they are foreign.
#[inline(always)]
pub unsafe fn copy_in(src: *const u8, frame: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { native::copy_in(Width::Unknown, src, frame, len) }
}

/// Copies `len` bytes from a frame that other threads may be overwriting into one that other
/// threads may be reading.
///
/// # Safety
///
/// As for `copy_out`'s source and for `copy_in`'s destination.
pub unsafe fn copy_between(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { native::copy_between(Width::Unknown, from, to, len) }
}

/// Writes `len` zeros into a frame that other threads may be reading, as after the end of a
/// file.
///
/// # Safety
///
/// As for `copy_in`, without a source.
pub unsafe fn zero_in(frame: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { native::zero_in(frame, len) }
}

/// Prefetches the first lines of a range that will soon be copied: at most `PREFETCH_BYTES_MAX`
/// bytes. Any address is allowed, even one that is not mapped.
#[inline(always)]
pub fn prefetch_frame(frame: *const u8, len: usize) {
    prefetch(frame, len.min(PREFETCH_BYTES_MAX));
}

/// Prefetches all lines of a range that a device or another processor has just written. All of
/// them lie in that processor's cache or in memory, and a copy by `rep movs` fetches such lines
/// nearly one after the other. Worth 3 % of a blocking read of a disk, and nothing if many reads
/// complete together.
#[inline(always)]
pub fn prefetch(frame: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    for offset in (0..len).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, which accesses nothing that the program could see and
        // never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(frame.wrapping_add(offset).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    let _ = (frame, len, LINE_BYTES);
}

/// Prefetches the first and the last line of a range of at most `INLINE_BYTES`, which are nearly
/// always all of it. They are read once: kept out of the second-level cache (by the non-temporal
/// hint), they leave it to fingerprints and tags, which is worth a tenth of a batch. For pages
/// it is a loss, because the hardware's streams end in the second-level cache.
#[inline(always)]
pub fn prefetch_ends(frame: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    for line in [frame, frame.wrapping_add(len.wrapping_sub(1))] {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        // SAFETY: as in `prefetch_frame`.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(line.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    let _ = (frame, len);
}

/// The twin: the same copies in plain Rust, which are never wide.
#[cfg(any(test, miri, loom, shuttle, not(target_arch = "x86_64")))]
mod by_bytes {
    use super::Width;
    // Not a model checker's types: frames are memory, not variables of a model.
    use std::sync::atomic::{AtomicU8, Ordering};

    /// # Safety
    ///
    /// As for `super::copy_out`.
    #[cfg(any(miri, loom, shuttle, not(target_arch = "x86_64")))]
    pub(super) unsafe fn copy_inline<const OPEN: bool>(
        width: Width,
        frame: *const u8,
        dst: *mut u8,
        len: usize,
    ) {
        // SAFETY: passed on.
        unsafe { copy_out(width, frame, dst, len) };
    }

    /// Lets other threads of the model checker run before a copy and in its middle: to the
    /// checker a copy would be one step.
    #[inline(always)]
    fn give_others_a_turn(_offset: usize, _len: usize) {
        #[cfg(shuttle)]
        if _offset == 0 || _offset == _len / 2 {
            crate::sync::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    /// # Safety
    ///
    /// As for `super::copy_out`.
    pub(super) unsafe fn copy_out(_width: Width, frame: *const u8, dst: *mut u8, len: usize) {
        for offset in 0..len {
            give_others_a_turn(offset, len);
            // SAFETY: a valid byte by contract, which is accessed atomically only; bytes are
            // always aligned.
            let from = unsafe { AtomicU8::from_ptr(frame.wrapping_add(offset).cast_mut()) };
            // Relaxed: the slot's version says whether the byte is valid.
            let byte = from.load(Ordering::Relaxed);
            // SAFETY: a valid byte by contract. Volatile, because it may be foreign.
            unsafe { dst.wrapping_add(offset).write_volatile(byte) };
        }
    }

    /// # Safety
    ///
    /// As for `super::copy_in`.
    pub(super) unsafe fn copy_in(_width: Width, src: *const u8, frame: *mut u8, len: usize) {
        for offset in 0..len {
            give_others_a_turn(offset, len);
            // SAFETY: a valid byte by contract. Volatile, because it may be foreign.
            let byte = unsafe { src.wrapping_add(offset).read_volatile() };
            // SAFETY: a valid byte by contract, which is accessed atomically only.
            let to = unsafe { AtomicU8::from_ptr(frame.wrapping_add(offset)) };
            // Relaxed: the slot's version says when the byte is valid.
            to.store(byte, Ordering::Relaxed);
        }
    }

    /// # Safety
    ///
    /// As for `super::copy_between`.
    pub(super) unsafe fn copy_between(_width: Width, from: *const u8, to: *mut u8, len: usize) {
        for offset in 0..len {
            give_others_a_turn(offset, len);
            // SAFETY: a valid byte by contract, which is accessed atomically only.
            let from = unsafe { AtomicU8::from_ptr(from.wrapping_add(offset).cast_mut()) };
            // SAFETY: as above.
            let to = unsafe { AtomicU8::from_ptr(to.wrapping_add(offset)) };
            // Relaxed: as in `copy_out` and `copy_in`.
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// # Safety
    ///
    /// As for `super::zero_in`.
    pub(super) unsafe fn zero_in(frame: *mut u8, len: usize) {
        for offset in 0..len {
            // SAFETY: a valid byte by contract, which is accessed atomically only.
            let to = unsafe { AtomicU8::from_ptr(frame.wrapping_add(offset)) };
            // Relaxed: as in `copy_in`.
            to.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::ops::RangeInclusive;

    use octavo_random::Random;

    use super::*;

    /// The largest page.
    const LEN_MAX: usize = 1 << 20;

    /// Guard bytes on both sides of every copy, which must not change.
    const GUARD_BYTES: usize = 192;
    const GUARD: u8 = 0xA5;

    /// Bytes that repeat with no period of a register or a block, and never equal a guard.
    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|index| ((index * 7 + index / 251 + seed) % 161) as u8).collect()
    }

    type Copy<'a> = &'a dyn Fn(*const u8, *mut u8, usize);

    /// The variants under test, each with the lengths that it supports. The twin comes first.
    fn each_copy(mut check: impl FnMut(&str, RangeInclusive<usize>, Copy<'_>)) {
        let all = || 0..=LEN_MAX;
        // SAFETY: `check` passes valid, separate ranges that are its own; so for all below.
        check("copy_out by bytes", all(), &|src, dst, len| unsafe {
            by_bytes::copy_out(Width::Unknown, src, dst, len)
        });
        // SAFETY: as above.
        check("copy_in by bytes", all(), &|src, dst, len| unsafe {
            by_bytes::copy_in(Width::Unknown, src, dst, len)
        });
        // SAFETY: as above.
        check("between, by bytes", all(), &|src, dst, len| unsafe {
            by_bytes::copy_between(Width::Unknown, src, dst, len)
        });
        // SAFETY: as above.
        check("copy_between", all(), &|src, dst, len| unsafe { copy_between(src, dst, len) });
        // SAFETY: as above.
        check("copy_out", all(), &|src, dst, len| unsafe { copy_out(src, dst, len) });
        if is_inline() {
            // SAFETY: as above; the lengths and the width are as the function wants them.
            check("copy_out_inline", 0..=INLINE_BYTES, &|src, dst, len| unsafe {
                copy_out_inline(width(), src, dst, len)
            });
        }
        // SAFETY: as above.
        check("copy_in", all(), &|src, dst, len| unsafe { copy_in(src, dst, len) });
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
        {
            use x86_64::{CopyKind, copy_64_to_128, copy_64_to_128_avx2, copy_64_to_128_avx512, copy_long};
            // SAFETY: as above; the lengths are as the function wants them.
            check("a block", 64..=128, &|src, dst, len| unsafe { copy_64_to_128(src, dst, len) });
            if CopyKind::Avx2.is_supported() {
                // SAFETY: as above, and the processor has AVX.
                check("a block by AVX2", 64..=128, &|src, dst, len| unsafe {
                    copy_64_to_128_avx2(src, dst, len);
                });
            }
            if CopyKind::Avx512.is_supported() {
                // SAFETY: as above, and the processor has AVX-512.
                check("a block by AVX-512", 64..=128, &|src, dst, len| unsafe {
                    copy_64_to_128_avx512(src, dst, len);
                });
            }
            for kind in CopyKind::ALL.into_iter().filter(|kind| kind.is_supported()) {
                let name = format!("{kind:?}");
                // SAFETY: as above; the lengths and the kind are as the function wants them.
                check(&name, 129..=LEN_MAX, &|src, dst, len| unsafe { copy_long(kind, src, dst, len) });
            }
        }
    }

    /// Source and destination in buffers that begin `from` and `to` bytes behind the start of a
    /// line.
    struct Field {
        src: Vec<u8>,
        dst: Vec<u8>,
    }

    impl Field {
        fn new(len_max: usize) -> Self {
            let bytes = len_max + 2 * GUARD_BYTES + 2 * LINE_BYTES;
            Self { src: vec![0; bytes], dst: vec![0; bytes] }
        }

        fn start(buffer: &[u8], misalignment: usize) -> usize {
            let to_line = buffer.as_ptr().align_offset(LINE_BYTES);
            // Miri may refuse to compute it.
            let to_line = if to_line < LINE_BYTES { to_line } else { 0 };
            to_line + GUARD_BYTES + misalignment
        }

        fn check(&mut self, name: &str, copy: Copy<'_>, len: usize, from: usize, to: usize) {
            let (from_start, to_start) = (Self::start(&self.src, from), Self::start(&self.dst, to));
            let expected = pattern(len, from * 31 + to);
            self.src[from_start..][..len].copy_from_slice(&expected);
            let around = to_start - GUARD_BYTES..to_start + len + GUARD_BYTES;
            let around = around.start..around.end.min(self.dst.len());
            self.dst[around.clone()].fill(GUARD);
            copy(
                self.src.as_mut_ptr().wrapping_add(from_start),
                self.dst.as_mut_ptr().wrapping_add(to_start),
                len,
            );
            assert!(
                self.dst[to_start..][..len] == expected,
                "{name}: {len} bytes, {from} to {to}: wrong bytes"
            );
            let (before, after) = (&self.dst[around.start..to_start], &self.dst[to_start + len..around.end]);
            let untouched = before.iter().chain(after).all(|&byte| byte == GUARD);
            assert!(untouched, "{name}: {len} bytes, {from} to {to}: wrote outside");
        }
    }

    #[test]
    fn every_short_length_is_copied_whole_and_nothing_beside_it() {
        let (step, misalignments) =
            if cfg!(miri) { (29, vec![0, 3]) } else { (1, vec![0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 33, 63]) };
        let mut field = Field::new(300);
        each_copy(|name, lens, copy| {
            for len in (*lens.start()..=300.min(*lens.end())).step_by(step) {
                for &from in &misalignments {
                    for &to in &misalignments {
                        field.check(name, copy, len, from, to);
                    }
                }
            }
        });
    }

    #[test]
    fn random_lengths_up_to_the_largest_page_are_copied_whole_and_nothing_beside_them() {
        let rounds = if cfg!(miri) { 1 } else { 300 };
        let mut field = Field::new(LEN_MAX);
        each_copy(|name, lens, copy| {
            let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
            for _ in 0..rounds {
                // Half of the lengths are below 8 KiB, where the variants change.
                let below = if random.next_u64() & 1 == 0 { 8192 } else { LEN_MAX + 1 };
                let len = if cfg!(miri) { 5000 } else { random.next_u64() as usize % below };
                let (from, to) = (random.next_u64() as usize % 64, random.next_u64() as usize % 64);
                field.check(name, copy, len.clamp(*lens.start(), *lens.end()), from, to);
            }
            if !cfg!(miri) {
                for len in [4095, 4096, 4097, 8192, 16384, 65535, 65536] {
                    field.check(name, copy, len.min(*lens.end()), 0, 0);
                }
            }
        });
    }

    #[test]
    fn zeroes_are_written_where_they_belong_and_nowhere_else() {
        let lens: Vec<usize> =
            if cfg!(miri) { vec![0, 1, 100] } else { (0..300).chain([4095, 4096, 5000]).collect() };
        let mut field = Field::new(lens[lens.len() - 1]);
        for len in lens {
            for to in if cfg!(miri) { vec![3] } else { vec![0, 1, 7, 63] } {
                // SAFETY: `check` passes a valid range that is its own.
                let zero = |_: *const u8, dst: *mut u8, len: usize| unsafe { zero_in(dst, len) };
                // SAFETY: as above.
                let twin = |_: *const u8, dst: *mut u8, len: usize| unsafe { by_bytes::zero_in(dst, len) };
                for zero in [&zero as Copy<'_>, &twin] {
                    let start = Field::start(&field.dst, to);
                    field.dst.fill(GUARD);
                    zero(field.src.as_ptr(), field.dst.as_mut_ptr().wrapping_add(start), len);
                    let expected = (0..field.dst.len())
                        .map(|index| if (start..start + len).contains(&index) { 0 } else { GUARD });
                    assert!(field.dst.iter().copied().eq(expected), "{len} bytes at {to}");
                }
            }
        }
    }

    /// A fault would kill the process and fail the whole test program.
    #[test]
    fn prefetching_any_address_neither_faults_nor_changes_memory() {
        let frame: Vec<u8> = (0..4096).map(|index| index as u8).collect();
        let before = frame.clone();
        let unmapped = [std::ptr::null(), std::ptr::without_provenance(usize::MAX)];
        let inside = [frame.as_ptr(), frame.as_ptr().wrapping_add(4095), frame.as_ptr().wrapping_sub(1)];
        let mut prefetches = 0;
        for start in unmapped.into_iter().chain(inside) {
            for len in [0, 1, 64, 4096, 65536] {
                prefetch_frame(start, len);
                prefetches += 1;
            }
        }
        assert_eq!((prefetches, &frame), (25, &before));
    }

    /// While a writer is active, each byte copied is an old or a new one: nothing is torn below
    /// a byte, nothing invented.
    #[test]
    fn a_copy_that_races_with_a_writer_has_only_bytes_that_were_there() {
        use std::cell::UnsafeCell;
        use std::sync::atomic::{AtomicBool, Ordering};
        struct Frame(UnsafeCell<[u8; 4096]>);
        // SAFETY: the test accesses it only by the functions under test, which allow concurrent
        // access.
        unsafe impl Sync for Frame {}
        impl Frame {
            fn start(&self) -> *mut u8 {
                self.0.get().cast()
            }
        }

        let frame = Frame(UnsafeCell::new([0x11; 4096]));
        let done = AtomicBool::new(false);
        let lens: &[usize] = if cfg!(miri) { &[100] } else { &[1, 8, 31, 64, 128, 129, 500, 4096] };
        let rounds = if cfg!(miri) { 3 } else { 2_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let values = [[0x22u8; 4096], [0x11; 4096]];
                // Relaxed: only ends the loop, which the reader does after a bounded number of
                // rounds.
                while !done.load(Ordering::Relaxed) {
                    for value in &values {
                        // SAFETY: both have 4096 bytes; this is the only writer, readers use
                        // `copy_out`.
                        unsafe { copy_in(value.as_ptr(), frame.start(), 4096) };
                    }
                }
            });
            let mut copied = [0u8; 4096];
            for &len in lens {
                for _ in 0..rounds {
                    // SAFETY: both have 4096 bytes; `copied` is ours, the writer uses `copy_in`.
                    unsafe { copy_out(frame.start(), copied.as_mut_ptr(), len) };
                    assert!(copied[..len].iter().all(|&byte| byte == 0x11 || byte == 0x22));
                }
            }
            // Relaxed: see above.
            done.store(true, Ordering::Relaxed);
        });
    }
}
