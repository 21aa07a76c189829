//! Atomic words as operands of instructions. The compiler loads an atomic word to a register before
//! it uses it, and computes the word's address before that. This file saves a hit these
//! instructions: it compares and masks with words in memory.
//!
//! The assembly means what the twin says in Rust. The twin is what the model checkers, miri and
//! other architectures run. A single aligned load is atomic, and x86-64 keeps loads in order, so a
//! load is an acquire if the compiler keeps later accesses behind it. Not here: the protocol that
//! orders these loads (P13 of `slot`).

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
pub(crate) use twin::{both_have_at, equals, equals_at, masked};
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
pub(crate) use x86_64::{both_have_at, equals, equals_at, masked};

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod x86_64 {
    use std::arch::asm;

    use std::sync::atomic::AtomicU32;

    use crate::sync::atomic::AtomicU64;

    /// Returns whether word `index` is `value`. Relaxed.
    ///
    /// # Safety
    /// There are more than `index` words.
    #[inline(always)]
    pub(crate) unsafe fn equals(words: *const AtomicU64, index: usize, value: u64) -> bool {
        // SAFETY: reads a word that is valid and atomic.
        unsafe {
            asm!(
                "cmp {value}, qword ptr [{words} + 8*{index}]",
                "jne {other}",
                value = in(reg) value,
                words = in(reg) words,
                index = in(reg) index,
                other = label { return false },
                options(nostack, readonly),
            );
        }
        true
    }

    /// Returns whether the word is `value`. Relaxed. It lies `AT` bytes from `base`.
    #[inline(always)]
    pub(crate) fn equals_at<const AT: usize, T>(base: &T, word: &AtomicU64, value: u64) -> bool {
        debug_assert_eq!(std::ptr::from_ref(base).addr() + AT, word.as_ptr().addr());
        // SAFETY: reads a word that is valid and atomic.
        unsafe {
            asm!(
                "cmp {value}, qword ptr [{base} + {at}]",
                "jne {other}",
                value = in(reg) value,
                base = in(reg) base,
                at = const AT,
                other = label { return false },
                options(nostack, readonly),
            );
        }
        true
    }

    /// Returns whether bit `bit` is set in the word and in `others`. Relaxed. The word lies
    /// `AT + MORE` bytes from `base`.
    #[inline(always)]
    pub(crate) fn both_have_at<const AT: usize, const MORE: usize, T>(
        base: &T,
        word: &AtomicU32,
        others: u32,
        bit: u32,
    ) -> bool {
        debug_assert_eq!(std::ptr::from_ref(base).addr() + AT + MORE, word.as_ptr().addr());
        // SAFETY: reads a word that is valid and atomic. `bt` takes the bit modulo 32.
        unsafe {
            asm!(
                "and {others:e}, dword ptr [{base} + {at} + {more}]",
                "bt {others:e}, {bit:e}",
                "jnc {clear}",
                others = inout(reg) others => _,
                base = in(reg) base,
                at = const AT,
                more = const MORE,
                bit = in(reg) bit,
                clear = label { return false },
                options(nostack, readonly),
            );
        }
        true
    }

    /// Returns the bits of `value` from `shift` on that are set in the word `mask`. Acquire.
    ///
    /// # Safety
    /// `BMI2` only on a processor with BMI2.
    #[inline(always)]
    pub(crate) unsafe fn masked<const BMI2: bool>(value: u64, shift: u32, mask: &AtomicU64) -> u64 {
        if !BMI2 {
            return super::twin::shifted(value, shift, mask);
        }
        let masked;
        // SAFETY: reads a word that is valid and atomic; BMI2 is the caller's promise. May write
        // memory for all that the compiler knows, which makes it an acquire.
        unsafe {
            asm!(
                "shrx {masked}, {value}, {shift}",
                "and {masked}, qword ptr [{mask}]",
                value = in(reg) value,
                shift = in(reg) u64::from(shift),
                mask = in(reg) mask.as_ptr(),
                masked = out(reg) masked,
                options(nostack),
            );
        }
        masked
    }
}

/// The twin: the same in plain Rust.
mod twin {
    // Not a model checker's type: the words are hints.
    #[cfg(any(test, miri, loom, shuttle, not(target_arch = "x86_64")))]
    use std::sync::atomic::AtomicU32;

    use crate::sync::atomic::{AtomicU64, Ordering};

    #[cfg(any(miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(crate) unsafe fn equals(words: *const AtomicU64, index: usize, value: u64) -> bool {
        // SAFETY: the caller's promise.
        let word = unsafe { &*words.wrapping_add(index) };
        is_equal(word, value)
    }

    #[cfg(any(miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(crate) fn equals_at<const AT: usize, T>(_: &T, word: &AtomicU64, value: u64) -> bool {
        is_equal(word, value)
    }

    #[cfg(any(miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(crate) fn both_have_at<const AT: usize, const MORE: usize, T>(
        _: &T,
        word: &AtomicU32,
        others: u32,
        bit: u32,
    ) -> bool {
        have_bit(word, others, bit)
    }

    #[cfg(any(test, miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(super) fn is_equal(word: &AtomicU64, value: u64) -> bool {
        word.load(Ordering::Relaxed) == value
    }

    #[cfg(any(test, miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(super) fn have_bit(word: &AtomicU32, others: u32, bit: u32) -> bool {
        word.load(Ordering::Relaxed) & others & 1 << bit != 0
    }

    #[cfg(any(miri, loom, shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(crate) unsafe fn masked<const BMI2: bool>(value: u64, shift: u32, mask: &AtomicU64) -> u64 {
        shifted(value, shift, mask)
    }

    #[inline(always)]
    pub(super) fn shifted(value: u64, shift: u32, mask: &AtomicU64) -> u64 {
        // Acquire: the word's reader names its partner.
        value >> shift & mask.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use octavo_random::Random;

    use super::*;
    use crate::sync::atomic::{AtomicU32, AtomicU64};

    #[test]
    fn the_assembly_agrees_with_its_twin() {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let has_bmi2 = is_x86_feature_detected!("bmi2");
        let mut random = Random::new(1);
        for _ in 0..if cfg!(miri) { 20 } else { 10_000 } {
            let (value, others) = (random.next_u64(), random.next_u64());
            let words = [AtomicU64::new(others), AtomicU64::new(value)];
            for value in [value, others, value ^ 1, value ^ 1 << 63] {
                let expected = twin::is_equal(&words[1], value);
                // SAFETY: there are two.
                assert_eq!(unsafe { equals(words.as_ptr(), 1, value) }, expected);
                assert_eq!(equals_at::<8, _>(&words, &words[1], value), expected);
            }
            let words = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(value as u32)];
            for bit in 0..32 {
                let (word, others) = (&words[2], others as u32);
                let expected = twin::have_bit(word, others, bit);
                assert_eq!(both_have_at::<4, 4, _>(&words, word, others, bit), expected);
            }
            let mask = AtomicU64::new((1 << (others % 23)) - 1);
            for shift in 0..8 {
                let expected = twin::shifted(value, shift, &mask);
                // SAFETY: relies on nothing.
                assert_eq!(unsafe { masked::<false>(value, shift, &mask) }, expected);
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                if has_bmi2 {
                    // SAFETY: checked.
                    assert_eq!(unsafe { masked::<true>(value, shift, &mask) }, expected);
                }
            }
        }
    }
}
