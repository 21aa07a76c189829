//! The probe on 64-bit Arm: NEON has no instruction that gathers a bit per byte, so each matching
//! byte is replaced by the bit of its place, and one addition across the vector collects the eight
//! bits in one byte.
//!
//! Every vector load stands for one relaxed atomic load per byte (see the parent module).

use std::arch::aarch64::{uint8x8_t, vaddv_u8, vand_u8, vceq_u8, vcreate_u8, vdup_n_u8};
use std::arch::asm;

/// The bit of each place: 1, 2, 4, ... 128 from the first byte on.
const BITS_OF_PLACES: u64 = 0x8040_2010_0804_0201;

/// # Safety
///
/// `N` bytes are valid for reads; other threads write them by atomic bytes only.
#[inline(always)]
pub(super) unsafe fn find_neon<const N: usize>(fingerprints: *const u8, wanted: u8) -> u32 {
    let mut ways = 0;
    for start in (0..N).step_by(8) {
        // SAFETY: `start + 8` is at most N, and N bytes are valid by contract.
        let bytes = unsafe { load_8(fingerprints.wrapping_add(start)) };
        ways |= equal_bytes(bytes, wanted) << start;
    }
    ways
}

#[inline(always)]
fn equal_bytes(bytes: uint8x8_t, wanted: u8) -> u32 {
    // SAFETY: NEON is part of 64-bit Arm, and nothing but registers is touched.
    let all_wanted = unsafe { vdup_n_u8(wanted) };
    // SAFETY: as above.
    let equal = unsafe { vceq_u8(bytes, all_wanted) };
    // SAFETY: as above.
    let bits = unsafe { vcreate_u8(BITS_OF_PLACES) };
    // SAFETY: as above.
    let bits_of_equal = unsafe { vand_u8(equal, bits) };
    // SAFETY: as above. The bits are different, so that their sum is their union and fits a byte.
    u32::from(unsafe { vaddv_u8(bits_of_equal) })
}

/// # Safety
///
/// 8 bytes are valid for reads; other threads write them by atomic bytes only.
#[inline(always)]
unsafe fn load_8(bytes: *const u8) -> uint8x8_t {
    let loaded;
    // SAFETY: reads the 8 bytes of the contract and writes one register.
    unsafe {
        asm!(
            "ldr {loaded:d}, [{bytes}]",
            loaded = out(vreg) loaded,
            bytes = in(reg) bytes,
            options(nostack, preserves_flags, readonly),
        );
    }
    loaded
}
