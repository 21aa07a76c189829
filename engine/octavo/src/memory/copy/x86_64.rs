//! The copies on x86-64: one for both directions, with atomic meaning at both ends, which is
//! more than each direction needs.
//!
//! Lengths up to 128 bytes are inline and have no loop. Longer copies are a loop of the widest
//! vectors that the processor has, chosen once, or `rep movs`.
//!
//! Not here: what the copies mean to other threads (`copy.rs`).

use std::arch::asm;
use std::arch::x86_64::__cpuid;
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) use self::{copy as copy_out, copy as copy_in, copy as copy_between};
use super::width::Width;

/// Bytes that every loop below copies per iteration; the last block is copied separately.
pub(super) const BLOCK_BYTES: usize = 128;

/// From this length on `rep movs`, if used at all, is no slower than the best loop.
const STRING_BYTES_MIN: usize = 4096;

// `copy` divides the lengths at 16, 32 and 64; from 64 to a block is two runs of 64.
const _: () = assert!(BLOCK_BYTES == 2 * 64 && STRING_BYTES_MIN > BLOCK_BYTES);

/// How to copy 64 bytes and more. The kinds with AVX-512 come last, so that one comparison
/// identifies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CopyKind {
    /// Every x86-64.
    Sse2 = 1,
    Avx2 = 2,
    /// AVX2, and `rep movs` for pages.
    Avx2String = 3,
    Avx512 = 4,
    /// AVX-512, and `rep movs` for pages.
    Avx512String = 5,
}

impl CopyKind {
    pub(super) const ALL: [Self; 5] =
        [Self::Sse2, Self::Avx2, Self::Avx2String, Self::Avx512, Self::Avx512String];

    /// The last kind of `ALL` that the machine supports and that is known to be fast there.
    fn detect() -> Self {
        Self::ALL.into_iter().rfind(|kind| kind.is_supported()).unwrap_or(Self::Sse2)
    }

    pub(super) fn is_supported(self) -> bool {
        match self {
            Self::Sse2 => true,
            // Everything that `Width::Avx2` implies. Nearly every processor with the first has all.
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
            }
            Self::Avx512 => is_x86_feature_detected!("avx512f") && Self::Avx2.is_supported(),
            Self::Avx2String => Self::Avx2.is_supported() && strings_are_fast(),
            Self::Avx512String => Self::Avx512.is_supported() && strings_are_fast(),
        }
    }
}

/// Whether `rep movs` is fast: on Intel's processors with ERMS. AMD's later processors have the
/// flag too, but some are slow when the low twelve bits of the addresses are close, as those of
/// pages are. The loops are good everywhere.
fn strings_are_fast() -> bool {
    let vendor = __cpuid(0);
    let is_intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
    is_intel && is_x86_feature_detected!("ermsb")
}

/// The choice, made by the first copy that needs it: a `CopyKind`, or 0 before.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

fn chosen() -> CopyKind {
    // Relaxed: the byte is self-contained, and a thread that does not see it computes the same.
    match CHOSEN.load(Ordering::Relaxed) {
        1 => CopyKind::Sse2,
        2 => CopyKind::Avx2,
        3 => CopyKind::Avx2String,
        4 => CopyKind::Avx512,
        5 => CopyKind::Avx512String,
        _ => choose(),
    }
}

/// Whether the choice was made and has AVX-512, for copies so short that each comparison counts.
#[inline(always)]
fn avx512_is_chosen() -> bool {
    // Relaxed: as in `chosen`.
    CHOSEN.load(Ordering::Relaxed) >= CopyKind::Avx512 as u8
}

/// The width of the vectors that were chosen.
pub(super) fn chosen_width() -> Width {
    match chosen() {
        CopyKind::Sse2 => Width::Unknown,
        CopyKind::Avx2 | CopyKind::Avx2String => Width::Avx2,
        CopyKind::Avx512 | CopyKind::Avx512String => Width::Avx512,
    }
}

#[cold]
#[inline(never)]
pub(super) fn choose() -> CopyKind {
    let kind = CopyKind::detect();
    // Relaxed: as in `chosen`.
    CHOSEN.store(kind as u8, Ordering::Relaxed);
    kind
}

/// # Safety
///
/// `len` bytes are valid for reads at `src` and for writes at `dst`, and do not overlap; other
/// threads access them only as `copy_out` and `copy_in` say. The same holds for every function
/// below, with the lengths that it names.
#[inline(always)]
pub(super) unsafe fn copy(width: Width, src: *const u8, dst: *mut u8, len: usize) {
    match len {
        // SAFETY: passed on.
        0..=BLOCK_BYTES => unsafe { copy_inline::<true>(width, src, dst, len) },
        // SAFETY: as above; the processor supports what was chosen.
        _ => unsafe { copy_long_chosen(src, dst, len) },
    }
}

/// # Safety
///
/// As for `copy`; at most `BLOCK_BYTES` bytes. The processor has vectors of this width. With
/// `OPEN`, the caller calls `close` after its last copy.
#[inline(always)]
pub(super) unsafe fn copy_inline<const OPEN: bool>(width: Width, src: *const u8, dst: *mut u8, len: usize) {
    // Two runs of registers that overlap in the middle: one from the start and one to the end.
    // Both are loaded before either is stored.
    match len {
        // SAFETY: passed on, for each of the lengths; the processor supports what was chosen.
        64.. if width == Width::Avx512 || width == Width::Unknown && avx512_is_chosen() => unsafe {
            copy_64_to_128_avx512(src, dst, len);
        },
        // SAFETY: as above.
        64.. if width == Width::Avx2 && OPEN => unsafe { copy_64_to_128_avx2_open(src, dst, len) },
        // SAFETY: as above.
        64.. if width == Width::Avx2 => unsafe { copy_64_to_128_avx2(src, dst, len) },
        // SAFETY: as above.
        64.. => unsafe { copy_64_to_128(src, dst, len) },
        // SAFETY: as above.
        0..16 => unsafe { copy_below_16(src, dst, len) },
        // SAFETY: as above.
        16..32 => unsafe { copy_16_to_32(src, dst, len) },
        // SAFETY: as above.
        32..64 => unsafe { copy_32_to_64(src, dst, len) },
    }
}

#[inline(always)]
pub(super) unsafe fn copy_64_to_128(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: 64 bytes from the start and 64 to the end, of at least 64.
    unsafe {
        asm!(
            "movups {a}, xmmword ptr [{src}]",
            "movups {b}, xmmword ptr [{src} + 16]",
            "movups {c}, xmmword ptr [{src} + 32]",
            "movups {d}, xmmword ptr [{src} + 48]",
            "movups {e}, xmmword ptr [{src_end} - 64]",
            "movups {f}, xmmword ptr [{src_end} - 48]",
            "movups {g}, xmmword ptr [{src_end} - 32]",
            "movups {h}, xmmword ptr [{src_end} - 16]",
            "movups xmmword ptr [{dst}], {a}",
            "movups xmmword ptr [{dst} + 16], {b}",
            "movups xmmword ptr [{dst} + 32], {c}",
            "movups xmmword ptr [{dst} + 48], {d}",
            "movups xmmword ptr [{dst_end} - 64], {e}",
            "movups xmmword ptr [{dst_end} - 48], {f}",
            "movups xmmword ptr [{dst_end} - 32], {g}",
            "movups xmmword ptr [{dst_end} - 16], {h}",
            src = in(reg) src, src_end = in(reg) src.wrapping_add(len),
            dst = in(reg) dst, dst_end = in(reg) dst.wrapping_add(len),
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Eight instructions instead of sixteen.
///
/// # Safety
///
/// As for `copy`; and the processor has AVX. The upper halves of the registers are in use
/// afterwards: `close` clears them, so that they do not slow down SSE code.
#[inline(always)]
unsafe fn copy_64_to_128_avx2_open(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: 64 bytes from the start and 64 to the end, of at least 64.
    unsafe {
        asm!(
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymm1, ymmword ptr [{src} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + {len} - 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + {len} - 32]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "vmovdqu ymmword ptr [{dst} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + {len} - 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + {len} - 32], ymm3",
            src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
///
/// As for `copy`; and the processor has AVX.
#[inline(always)]
pub(super) unsafe fn copy_64_to_128_avx2(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { copy_64_to_128_avx2_open(src, dst, len) };
    // SAFETY: as above.
    unsafe { close(Width::Avx2) };
}

/// Clears the upper halves of the registers that copies of this width leave in use.
///
/// # Safety
///
/// The processor has vectors of this width.
#[inline(always)]
pub(super) unsafe fn close(width: Width) {
    if width == Width::Avx2 {
        // SAFETY: changes no lower half. All sixteen registers are declared as overwritten, in case
        // the caller's function uses upper halves.
        unsafe {
            asm!(
                "vzeroupper",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}

/// Four instructions instead of sixteen: the fewer there are, the more of the *next* copies the
/// processor has started while it waits for memory.
///
/// # Safety
///
/// As for `copy`; and the processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn copy_64_to_128_avx512(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: 64 bytes from the start and 64 to the end, of at least 64. The registers from 16 up
    // are not seen by SSE code and need no `vzeroupper`.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, zmmword ptr [{src}]",
            "vmovdqu64 zmm17, zmmword ptr [{src} + {len} - 64]",
            "vmovdqu64 zmmword ptr [{dst}], zmm16",
            "vmovdqu64 zmmword ptr [{dst} + {len} - 64], zmm17",
            src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
            out("xmm16") _, out("xmm17") _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn copy_32_to_64(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: 32 bytes from the start and 32 to the end, of at least 32.
    unsafe {
        asm!(
            "movups {a}, xmmword ptr [{src}]",
            "movups {b}, xmmword ptr [{src} + 16]",
            "movups {c}, xmmword ptr [{src} + {len} - 32]",
            "movups {d}, xmmword ptr [{src} + {len} - 16]",
            "movups xmmword ptr [{dst}], {a}",
            "movups xmmword ptr [{dst} + 16], {b}",
            "movups xmmword ptr [{dst} + {len} - 32], {c}",
            "movups xmmword ptr [{dst} + {len} - 16], {d}",
            src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn copy_16_to_32(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: 16 bytes from the start and 16 to the end, of at least 16.
    unsafe {
        asm!(
            "movups {a}, xmmword ptr [{src}]",
            "movups {b}, xmmword ptr [{src} + {len} - 16]",
            "movups xmmword ptr [{dst}], {a}",
            "movups xmmword ptr [{dst} + {len} - 16], {b}",
            src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
            a = out(xmm_reg) _, b = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
unsafe fn copy_below_16(src: *const u8, dst: *mut u8, len: usize) {
    match len {
        // SAFETY: 8 bytes from the start and 8 to the end, of at least 8.
        8.. => unsafe {
            asm!(
                "mov {a}, qword ptr [{src}]",
                "mov {b}, qword ptr [{src} + {len} - 8]",
                "mov qword ptr [{dst}], {a}",
                "mov qword ptr [{dst} + {len} - 8], {b}",
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: 4 bytes from the start and 4 to the end, of at least 4.
        4.. => unsafe {
            asm!(
                "mov {a:e}, dword ptr [{src}]",
                "mov {b:e}, dword ptr [{src} + {len} - 4]",
                "mov dword ptr [{dst}], {a:e}",
                "mov dword ptr [{dst} + {len} - 4], {b:e}",
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: 2 bytes from the start and 2 to the end, of at least 2.
        2.. => unsafe {
            asm!(
                "movzx {a:e}, word ptr [{src}]",
                "movzx {b:e}, word ptr [{src} + {len} - 2]",
                "mov word ptr [{dst}], {a:x}",
                "mov word ptr [{dst} + {len} - 2], {b:x}",
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        // SAFETY: one byte.
        1 => unsafe {
            asm!(
                "movzx {a:e}, byte ptr [{src}]",
                "mov byte ptr [{dst}], {a:l}",
                src = in(reg) src, dst = in(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags),
            );
        },
        0 => {}
    }
}

/// Not inline: a call costs nothing beside so long a copy, and callers stay small.
///
/// # Safety
///
/// As for `copy`; more than `BLOCK_BYTES` bytes.
#[inline(never)]
unsafe fn copy_long_chosen(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: passed on; the processor supports what was chosen.
    unsafe { copy_long(chosen(), src, dst, len) }
}

/// # Safety
///
/// As for `copy`; more than `BLOCK_BYTES` bytes, and a kind that the processor supports.
#[inline(always)]
pub(super) unsafe fn copy_long(kind: CopyKind, src: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(len > BLOCK_BYTES);
    match kind {
        // SAFETY: passed on.
        CopyKind::Avx512String | CopyKind::Avx2String if len >= STRING_BYTES_MIN => unsafe {
            copy_string(src, dst, len);
        },
        // SAFETY: passed on; the kind has AVX-512.
        CopyKind::Avx512String | CopyKind::Avx512 => unsafe { copy_long_avx512(src, dst, len) },
        // SAFETY: passed on; the kind has AVX2.
        CopyKind::Avx2String | CopyKind::Avx2 => unsafe { copy_long_avx2(src, dst, len) },
        // SAFETY: passed on.
        CopyKind::Sse2 => unsafe { copy_long_sse2(src, dst, len) },
    }
}

#[inline(always)]
unsafe fn copy_string(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the bytes of the contract; the direction flag is clear on entry to every assembly
    // block.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
            options(nostack, preserves_flags),
        );
    }
}

// The loops copy whole blocks while more than one is left, at most `len / BLOCK_BYTES` of them, and
// then the last block, which may overlap the one before.

#[inline(always)]
unsafe fn copy_long_avx512(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the bytes of the contract, as `rest` counts down to the last block. The registers
    // from 16 up are not seen by SSE code and need no `vzeroupper`.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm16, zmmword ptr [{src}]",
            "vmovdqu64 zmm17, zmmword ptr [{src} + 64]",
            "vmovdqu64 zmmword ptr [{dst}], zmm16",
            "vmovdqu64 zmmword ptr [{dst} + 64], zmm17",
            "sub {src}, -128",
            "sub {dst}, -128",
            "sub {rest}, 128",
            "ja 2b",
            "vmovdqu64 zmm16, zmmword ptr [{src} + {rest}]",
            "vmovdqu64 zmm17, zmmword ptr [{src} + {rest} + 64]",
            "vmovdqu64 zmmword ptr [{dst} + {rest}], zmm16",
            "vmovdqu64 zmmword ptr [{dst} + {rest} + 64], zmm17",
            src = inout(reg) src => _, dst = inout(reg) dst => _, rest = inout(reg) len - BLOCK_BYTES => _,
            out("xmm16") _, out("xmm17") _,
            options(nostack),
        );
    }
}

#[inline(always)]
unsafe fn copy_long_avx2(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the bytes of the contract, as `rest` counts down to the last block. `vzeroupper`
    // clears the upper halves of all sixteen registers, which are declared as overwritten.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymm1, ymmword ptr [{src} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + 96]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "vmovdqu ymmword ptr [{dst} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + 96], ymm3",
            "sub {src}, -128",
            "sub {dst}, -128",
            "sub {rest}, 128",
            "ja 2b",
            "vmovdqu ymm0, ymmword ptr [{src} + {rest}]",
            "vmovdqu ymm1, ymmword ptr [{src} + {rest} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + {rest} + 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + {rest} + 96]",
            "vmovdqu ymmword ptr [{dst} + {rest}], ymm0",
            "vmovdqu ymmword ptr [{dst} + {rest} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + {rest} + 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + {rest} + 96], ymm3",
            "vzeroupper",
            src = inout(reg) src => _, dst = inout(reg) dst => _, rest = inout(reg) len - BLOCK_BYTES => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

#[inline(always)]
unsafe fn copy_long_sse2(src: *const u8, dst: *mut u8, len: usize) {
    let mut offset = 0;
    while len - offset > BLOCK_BYTES {
        // SAFETY: a whole block within the bytes of the contract.
        unsafe { copy_64_to_128(src.wrapping_add(offset), dst.wrapping_add(offset), BLOCK_BYTES) };
        offset += BLOCK_BYTES;
    }
    let last = len - BLOCK_BYTES;
    // SAFETY: the last block of the bytes of the contract.
    unsafe { copy_64_to_128(src.wrapping_add(last), dst.wrapping_add(last), BLOCK_BYTES) };
}

/// # Safety
///
/// As for `super::zero_in`.
pub(super) unsafe fn zero_in(dst: *mut u8, len: usize) {
    // SAFETY: the bytes of the contract; the direction flag is clear on entry to every assembly
    // block.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") len => _, inout("rdi") dst => _, in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}
