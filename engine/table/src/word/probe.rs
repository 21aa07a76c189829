//! The probe finds the ways of a set that have a given fingerprint. For misses, it also tells
//! whether a ghost has a given print.
//!
//! The fingerprints of a set, one byte of each way's tag, lie side by side. The probe compares all
//! of them with one byte and returns a bit per way; the caller then compares the whole tags of the
//! few ways that match. The probe is the first step of every lookup.
//!
//! The file protects one property: the comparison is sound while other threads replace
//! fingerprints. A probe reads each byte either before or after such a store, independently of the
//! other bytes, and orders nothing. The result is a hint: a wrong bit costs a comparison of tags,
//! and a page whose bit is missing is found when the thread looks again under the set's lock.
//!
//! Not here: tags, states, which ghost matched, what to do with the answer, and the probe under the
//! model checkers. The model checkers' atomics are not bytes in memory, so the table then compares
//! way by way.
//!
//! # How a vector may read bytes that others write
//!
//! Rust has atomic bytes but no atomic vectors, and an atomic word that overlaps another thread's
//! atomic byte is a data race as well (accesses of different sizes). The vector loads are therefore
//! inline assembly, which Rust may treat as one relaxed atomic load per byte; the machines' vector
//! loads guarantee at least that. Assembly was also faster than two atomic words that are moved
//! into a vector: 1.0 against 1.6 ns per probe of 16 ways, 1.4 against 2.3 ns of 32 (medians of 301
//! interleaved runs on Sapphire Rapids, sets in the first-level cache).
//!
//! # Which variant
//!
//! For eight and sixteen ways, one SSE2 comparison does on every x86-64. Hits of sixteen ways use
//! `find_16_of_tag` where the processor has AVX: the same comparison, in fewer instructions.
//! AVX-512 needs fewer still (0.8 ns), but its mask register has a longer latency (6.6 against 5.4
//! ns in a chain of dependent probes), and a lookup is such a chain. Only for 32 ways does the
//! instruction set matter more (AVX-512 0.8 ns, AVX2 1.2 ns, two SSE2 comparisons 1.4 ns). There
//! the choice is a branch that is always predicted, with no measurable cost.

#[cfg(not(any(loom, shuttle)))]
use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::{AtomicU32, Ordering};

#[cfg(all(target_arch = "aarch64", not(any(miri, loom, shuttle))))]
mod aarch64;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
mod x86_64;

/// An instruction set that a probe can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// One byte after the other. Every machine has it.
    Scalar,
    /// 16 ways at once. Every x86-64 has it.
    Sse2,
    /// 32 ways at once.
    Avx2,
    /// AVX-512 BW and VL: 32 ways at once, without a need for `vzeroupper`.
    Avx512,
    /// Eight ways at once. Every 64-bit Arm has it.
    Neon,
}

impl ProbeKind {
    /// All kinds, the best last.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Sse2, Self::Avx2, Self::Avx512, Self::Neon];

    /// Returns the best kind that this machine supports.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rfind(|kind| kind.is_supported()).unwrap_or(Self::Scalar)
    }

    /// Returns whether this machine supports the kind. Under miri and the model checkers only
    /// `Scalar` is supported.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
            Self::Sse2 => true,
            #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
            Self::Avx512 => is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl"),
            #[cfg(all(target_arch = "aarch64", not(any(miri, loom, shuttle))))]
            Self::Neon => true,
            #[allow(unreachable_patterns, reason = "which kinds are left depends on the architecture")]
            _ => false,
        }
    }
}

/// Returns the ways whose fingerprint is `wanted`, among `N` in memory: bit *w* for way *w*. `N` is
/// 8, 16 or 32.
///
/// The choice of the kind costs nothing if it is known at compile time, and otherwise one
/// predictable branch. No alignment is needed. A set's fingerprints are aligned to 8 bytes for 8
/// ways and to 16 for more, so that no load crosses a line.
///
/// # Safety
///
/// * `kind` is one that this machine supports (`ProbeKind::is_supported`).
/// * `N` bytes from `fingerprints` are valid for reads and for the provenance of shared mutable
///   memory.
/// * Threads that write these bytes at the same time use atomic stores of single bytes.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub unsafe fn find<const N: usize>(kind: ProbeKind, fingerprints: *const u8, wanted: u8) -> u32 {
    const { assert!(N == 8 || N == 16 || N == 32, "ways are 8, 16 or 32") };
    match kind {
        // SAFETY: passed on, and SSE2 is part of x86-64.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        ProbeKind::Avx512 if N == 32 => unsafe { x86_64::find_32_avx512(fingerprints, wanted) },
        // SAFETY: passed on.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        ProbeKind::Avx2 if N == 32 => unsafe { x86_64::find_32_avx2(fingerprints, wanted) },
        // SAFETY: passed on; SSE2 is part of x86-64.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        ProbeKind::Sse2 | ProbeKind::Avx2 | ProbeKind::Avx512 => unsafe {
            x86_64::find_sse2::<N>(fingerprints, wanted)
        },
        // SAFETY: passed on.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        ProbeKind::Neon => unsafe { aarch64::find_neon::<N>(fingerprints, wanted) },
        _ => {
            // SAFETY: N bytes are valid by contract, and all accesses to them are atomic; an atomic
            // byte is laid out as a byte.
            let fingerprints = unsafe { std::slice::from_raw_parts(fingerprints.cast::<AtomicU8>(), N) };
            find_each(fingerprints, wanted)
        }
    }
}

/// [`find`] for the fingerprint of a tag and 16 ways, with the fewest instructions: the tag goes to
/// a vector whole, and one shuffle spreads its fingerprint.
///
/// # Safety
/// As `find`, and the processor has AVX.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
#[inline(always)]
pub(crate) unsafe fn find_16_of_tag(fingerprints: *const u8, tag: crate::word::tag::Tag) -> u32 {
    // SAFETY: passed on.
    unsafe { x86_64::find_16_of_tag(fingerprints, tag) }
}

/// The reference implementation of [`find`]: byte by byte, for at most 32 bytes.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub fn find_each(fingerprints: &[AtomicU8], wanted: u8) -> u32 {
    debug_assert!(fingerprints.len() <= u32::BITS as usize);
    let mut ways = 0;
    for (way, fingerprint) in fingerprints.iter().enumerate() {
        // Relaxed: a hint; the caller trusts only the tag and the state word of the way.
        ways |= u32::from(fingerprint.load(Ordering::Relaxed) == wanted) << way;
    }
    ways
}

/// Returns whether one of these words has `wanted` in its lower half. Threads that write the words
/// at the same time use atomic stores of whole words.
#[inline(always)]
pub fn has_lower_half(words: &[AtomicU32], wanted: u16) -> bool {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    {
        let (fours, rest) = words.as_chunks::<4>();
        // SAFETY: SSE2 is part of x86-64; the chunks keep the words valid, and their type makes all
        // accesses to them atomic.
        unsafe { x86_64::has_lower_half(fours, wanted) || has_lower_half_each(rest, wanted) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    has_lower_half_each(words, wanted)
}

/// The reference implementation of [`has_lower_half`]: word by word.
#[inline]
fn has_lower_half_each(words: &[AtomicU32], wanted: u16) -> bool {
    // Relaxed: a caller that needs an order holds a lock.
    words.iter().any(|word| word.load(Ordering::Relaxed) as u16 == wanted)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    use crate::word::tag::Tag;
    use octavo_random::Random;

    #[test]
    fn a_lower_half_is_found_at_every_place_and_an_upper_half_is_not() {
        for count in 0..70usize {
            let words: Vec<AtomicU32> =
                (0..count).map(|at| AtomicU32::new((7 << 16) | (at as u32 + 100))).collect();
            for wanted in (0..count as u16).map(|at| at + 100) {
                assert!(
                    has_lower_half(&words, wanted) && has_lower_half_each(&words, wanted),
                    "{wanted} of {count}"
                );
            }
            assert!(
                [7, 99, 100 + count as u16, 0, u16::MAX]
                    .iter()
                    .all(|wanted| !has_lower_half(&words, *wanted))
            );
        }
    }

    fn supported() -> impl Iterator<Item = ProbeKind> {
        ProbeKind::ALL.into_iter().filter(|kind| kind.is_supported())
    }

    fn find_in<const N: usize>(kind: ProbeKind, fingerprints: &[AtomicU8; N], wanted: u8) -> u32 {
        assert!(kind.is_supported());
        // SAFETY: the reference keeps N bytes valid, their type makes all accesses to them atomic,
        // and the kind was checked.
        unsafe { find::<N>(kind, fingerprints.as_ptr().cast(), wanted) }
    }

    /// The expected answer, computed without any code under test.
    fn expected(bytes: &[u8], wanted: u8) -> u32 {
        (0..bytes.len()).filter(|&way| bytes[way] == wanted).map(|way| 1 << way).sum()
    }

    /// Checks every variant, at offsets in the middle of a line and across two lines. The
    /// surrounding bytes are `wanted`.
    fn check<const N: usize>(bytes: [u8; N], wanted: u8) {
        #[repr(align(64))]
        struct Lines([AtomicU8; 128]);
        let lines = Lines(std::array::from_fn(|_| AtomicU8::new(wanted)));
        for start in if cfg!(miri) { vec![0, 3] } else { vec![0, N, 64 - N, 64, 3, 64 - N / 2] } {
            let place: &[AtomicU8; N] = lines.0[start..][..N].try_into().expect("N of them");
            for (atomic, byte) in place.iter().zip(bytes) {
                atomic.store(byte, Ordering::Relaxed);
            }
            assert_eq!(find_each(place, wanted), expected(&bytes, wanted), "twin, {bytes:?}, {wanted}");
            for kind in supported() {
                let found = find_in(kind, place, wanted);
                assert_eq!(found, expected(&bytes, wanted), "{kind:?} of {bytes:?}, {wanted}");
            }
            place.iter().for_each(|atomic| atomic.store(wanted, Ordering::Relaxed));
        }
    }

    fn agree_on_ways<const N: usize>() {
        let rounds = if cfg!(miri) { 5 } else { 2_000 };
        let mut random = Random::new(N as u64);
        for _ in 0..rounds {
            let bytes = std::array::from_fn(|_| random.next_u64() as u8);
            check::<N>(bytes, random.next_u64() as u8);
            check::<N>(bytes, bytes[random.next_u64() as usize % N]);
            // Few values, so that many ways match.
            check::<N>(bytes.map(|byte| byte & 1), 1);
            // Values next to the wanted byte reveal errors of borrow, sign and saturation.
            let wanted = random.next_u64() as u8;
            check::<N>(bytes.map(|byte| wanted.wrapping_add((byte % 3).wrapping_sub(1))), wanted);
        }
        for wanted in [0, 1, 0x7F, 0x80, 0x81, 0xFE, 0xFF] {
            check::<N>([wanted; N], wanted);
            for way in 0..N {
                for other in [0, 1, 0x7F, 0x80, 0x81, 0xFE, 0xFF, wanted ^ 0x80, wanted ^ 1] {
                    if cfg!(miri) && (way % 7 != 0 || wanted != 0x80) {
                        continue;
                    }
                    let one_match = std::array::from_fn(|index| if index == way { wanted } else { other });
                    let one_miss = std::array::from_fn(|index| if index == way { other } else { wanted });
                    check::<N>(one_match, wanted);
                    check::<N>(one_miss, wanted);
                }
            }
        }
    }

    #[test]
    fn every_variant_agrees_with_the_twin_on_8_16_and_32_ways() {
        agree_on_ways::<8>();
        agree_on_ways::<16>();
        agree_on_ways::<32>();
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn the_probe_for_a_tag_finds_the_ways_with_its_fingerprint() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        let mut random = Random::new(16);
        for _ in 0..2_000 {
            let bytes: [u8; 16] = std::array::from_fn(|_| random.next_u64() as u8 & 0x83);
            let (fingerprints, tag) = (bytes.map(AtomicU8::new), Tag(random.next_u64()));
            let same = Tag(tag.0 & !(0x7C << Tag::FINGERPRINT_SHIFT));
            for tag in [tag, same] {
                // SAFETY: 16 bytes, and AVX was checked.
                let found = unsafe { find_16_of_tag(fingerprints.as_ptr().cast(), tag) };
                assert_eq!(found, expected(&bytes, tag.fingerprint()), "{bytes:?}, {tag:x?}");
            }
        }
    }

    #[test]
    fn the_detected_kind_is_supported_and_is_the_best() {
        assert!(ProbeKind::detect().is_supported());
        assert_eq!(Some(ProbeKind::detect()), supported().last());
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        assert_ne!(ProbeKind::detect(), ProbeKind::Scalar);
    }

    #[test]
    fn a_probe_sees_unchanged_bytes_while_their_neighbours_change() {
        let rounds = if cfg!(miri) { 20 } else { 200_000 };
        let fingerprints: [AtomicU8; 16] = std::array::from_fn(|way| AtomicU8::new(u8::from(way % 2 == 0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    // The odd ways change, and never to 1.
                    fingerprints[(round * 2 + 1) % 16].store((round % 200 + 2) as u8, Ordering::Relaxed);
                }
            });
            for kind in supported() {
                for _ in 0..rounds / 4 {
                    assert_eq!(find_in(kind, &fingerprints, 1), 0x5555, "{kind:?}");
                }
            }
        });
    }
}
