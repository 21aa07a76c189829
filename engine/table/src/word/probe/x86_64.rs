//! The probe on x86-64: SSE2 for any number of ways, AVX2 and AVX-512 for 32.
//!
//! The two wide variants are written entirely in assembly, so that they can be inlined into
//! functions that are compiled for every x86-64. Every vector load stands for one relaxed atomic
//! load per byte (see the parent module).

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, _mm_cmpeq_epi8, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8, _mm_set1_epi16,
    _mm_setzero_si128,
};

use crate::sync::atomic::AtomicU32;
use crate::word::tag::Tag;

/// # Safety
///
/// `N` bytes are valid for reads; other threads write them by atomic bytes only.
#[inline(always)]
pub(super) unsafe fn find_sse2<const N: usize>(fingerprints: *const u8, wanted: u8) -> u32 {
    if N == 8 {
        // SAFETY: 8 valid bytes by contract.
        let bytes = unsafe { load_8(fingerprints) };
        return equal_bytes(bytes, wanted) & 0xFF;
    }
    // SAFETY: at least 16 valid bytes by contract.
    let bytes = unsafe { load_16(fingerprints) };
    let ways = equal_bytes(bytes, wanted);
    if N == 16 {
        return ways;
    }
    // SAFETY: 32 valid bytes by contract.
    let bytes = unsafe { load_16(fingerprints.wrapping_add(16)) };
    ways | equal_bytes(bytes, wanted) << 16
}

#[inline(always)]
fn equal_bytes(bytes: __m128i, wanted: u8) -> u32 {
    // SAFETY: SSE2 is part of x86-64, and nothing but registers is touched.
    let all_wanted = unsafe { _mm_set1_epi8(wanted as i8) };
    // SAFETY: as above.
    let equal = unsafe { _mm_cmpeq_epi8(bytes, all_wanted) };
    // SAFETY: as above.
    (unsafe { _mm_movemask_epi8(equal) }) as u32
}

/// Sixteen bytes that lie within a line.
#[repr(align(16))]
struct Sixteen(#[expect(dead_code, reason = "only assembly reads it")] [u8; 16]);

/// The byte of a tag that is its fingerprint, sixteen times.
static FINGERPRINT_BYTE: Sixteen = Sixteen([(Tag::FINGERPRINT_SHIFT / 8) as u8; 16]);

const _: () = assert!(Tag::FINGERPRINT_SHIFT.is_multiple_of(8) && Tag::FINGERPRINT_BITS == 8);

/// # Safety
///
/// The processor has AVX. 16 bytes are valid for reads; other threads write them by atomic bytes
/// only.
#[inline(always)]
pub(super) unsafe fn find_16_of_tag(fingerprints: *const u8, tag: Tag) -> u32 {
    let ways;
    // SAFETY: reads the 16 bytes of the contract and writes the named registers. Vectors of 128
    // bits leave no upper halves behind that `vzeroupper` would have to clear.
    unsafe {
        asm!(
            "vmovq {found}, {tag}",
            "vpshufb {found}, {found}, xmmword ptr [rip + {spread}]",
            "vpcmpeqb {found}, {found}, xmmword ptr [{fingerprints}]",
            "vpmovmskb {ways:e}, {found}",
            tag = in(reg) tag.0,
            spread = sym FINGERPRINT_BYTE,
            fingerprints = in(reg) fingerprints,
            found = out(xmm_reg) _,
            ways = lateout(reg) ways,
            options(nostack, preserves_flags, readonly),
        );
    }
    ways
}

/// Returns whether one of the words has `wanted` in its lower sixteen bits.
///
/// # Safety
///
/// Other threads write the words by atomic words only.
#[inline(always)]
pub(super) unsafe fn has_lower_half(words: &[[AtomicU32; 4]], wanted: u16) -> bool {
    // SAFETY: SSE2 is part of x86-64, and nothing but registers is touched.
    let all_wanted = unsafe { _mm_set1_epi16(wanted as i16) };
    let equal_in = |four: &[AtomicU32; 4]| {
        // SAFETY: 16 valid bytes.
        let halves = unsafe { load_16(four.as_ptr().cast()) };
        // SAFETY: as above.
        unsafe { _mm_cmpeq_epi16(halves, all_wanted) }
    };
    // SAFETY: as above.
    let or = |one: __m128i, other: __m128i| unsafe { _mm_or_si128(one, other) };
    // Four vectors per step: a step of one would take twice as many instructions.
    let (sixteens, rest) = words.as_chunks::<4>();
    // SAFETY: as above.
    let mut equal = unsafe { _mm_setzero_si128() };
    for [a, b, c, d] in sixteens {
        equal = or(equal, or(or(equal_in(a), equal_in(b)), or(equal_in(c), equal_in(d))));
    }
    for four in rest {
        equal = or(equal, equal_in(four));
    }
    // The mask has two bits for each lower half and two for each upper half. SAFETY: as at the
    // start.
    (unsafe { _mm_movemask_epi8(equal) }) & 0x3333 != 0
}

/// Eight bytes, and eight zeroes above them.
///
/// # Safety
///
/// 8 bytes are valid for reads; other threads write them by atomic bytes only.
#[inline(always)]
unsafe fn load_8(bytes: *const u8) -> __m128i {
    let loaded;
    // SAFETY: reads the 8 bytes of the contract and writes one register.
    unsafe {
        asm!(
            "movq {loaded}, qword ptr [{bytes}]",
            loaded = out(xmm_reg) loaded,
            bytes = in(reg) bytes,
            options(nostack, preserves_flags, readonly),
        );
    }
    loaded
}

/// # Safety
///
/// 16 bytes are valid for reads; other threads write them by atomic bytes only.
#[inline(always)]
unsafe fn load_16(bytes: *const u8) -> __m128i {
    let loaded;
    // SAFETY: reads the 16 bytes of the contract and writes one register.
    unsafe {
        asm!(
            "movdqu {loaded}, xmmword ptr [{bytes}]",
            loaded = out(xmm_reg) loaded,
            bytes = in(reg) bytes,
            options(nostack, preserves_flags, readonly),
        );
    }
    loaded
}

/// # Safety
///
/// The processor has AVX2. 32 bytes are valid for reads; other threads write them by atomic bytes
/// only.
#[inline(always)]
pub(super) unsafe fn find_32_avx2(fingerprints: *const u8, wanted: u8) -> u32 {
    let ways;
    // SAFETY: reads the 32 bytes of the contract. `vzeroupper` clears the upper halves of all
    // sixteen registers, so that they do not slow down the caller's SSE code; all sixteen are
    // declared as overwritten.
    unsafe {
        asm!(
            "vmovd xmm0, {wanted:e}",
            "vpbroadcastb ymm0, xmm0",
            "vpcmpeqb ymm0, ymm0, ymmword ptr [{fingerprints}]",
            "vpmovmskb {ways:e}, ymm0",
            "vzeroupper",
            wanted = in(reg) u32::from(wanted),
            fingerprints = in(reg) fingerprints,
            ways = lateout(reg) ways,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, preserves_flags, readonly),
        );
    }
    ways
}

/// # Safety
///
/// The processor has AVX-512 BW and VL. 32 bytes are valid for reads; other threads write them by
/// atomic bytes only.
#[inline(always)]
pub(super) unsafe fn find_32_avx512(fingerprints: *const u8, wanted: u8) -> u32 {
    let ways;
    // SAFETY: reads the 32 bytes of the contract and writes the named registers. SSE code does not
    // use registers from 16 up, so they need no `vzeroupper`.
    unsafe {
        asm!(
            "vpbroadcastb ymm16, {wanted:e}",
            "vpcmpeqb k1, ymm16, ymmword ptr [{fingerprints}]",
            "kmovd {ways:e}, k1",
            wanted = in(reg) u32::from(wanted),
            fingerprints = in(reg) fingerprints,
            ways = lateout(reg) ways,
            out("xmm16") _, out("k1") _,
            options(nostack, preserves_flags, readonly),
        );
    }
    ways
}
