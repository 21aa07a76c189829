//! The search for a victim among sixteen ways on x86-64: all ways at once, with SSE2.
//!
//! A page's worth consists of two numbers of sixteen bits: the page with the least first number is
//! evicted, among equals the one with the least second number, and among those the lowest way. Both
//! numbers together order pages exactly as `worth` does, which a test checks for all histories and
//! ages.
//!
//! A set's bits are loaded and stored as vectors. Hits may write the bits of single ways at the
//! same time, so the loads and stores are inline assembly, each of which stands for one relaxed
//! atomic access per way (see `word/probe.rs`).
//!
//! Not here: the definitions of the orders, and sets of another number of ways (`octavo.rs`).

use std::arch::asm;
use std::arch::x86_64::*;

use super::worth::{AGE_MAX, HALF_LIFE, LOG2_256, USES_MAX};
use crate::policy::lead::{BUCKETS, Order};
use crate::sync::atomic::AtomicU16;

pub(super) const WAYS: usize = 16;

/// Sixteen numbers of sixteen bits: those of ways 0 to 7, and of 8 to 15.
type Numbers = [__m128i; 2];

/// Sixteen numbers of eight bits.
type Bytes = __m128i;

/// What is known of the pages of a set: the lower byte of their bits, their uses and their ages.
struct Pages {
    low: Bytes,
    uses: Bytes,
    age: Bytes,
}

/// Returns the way that an order evicts. Limits the ages of all ways to `AGE_MAX`.
#[inline(always)]
pub(super) fn least(
    order: Order,
    meta: &[AtomicU16; WAYS],
    clock: u16,
    candidates: u32,
    density: impl Fn(usize) -> u16,
) -> usize {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { least_sse2(order, meta, clock, candidates, density) }
}

#[target_feature(enable = "sse2")]
#[inline]
fn least_sse2(
    order: Order,
    meta: &[AtomicU16; WAYS],
    clock: u16,
    candidates: u32,
    density: impl Fn(usize) -> u16,
) -> usize {
    let pages = aged(meta, clock);
    // A bit per way becomes sixteen bits per way.
    let all = _mm_set1_epi16(candidates as i16);
    let bits = [_mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128), {
        _mm_setr_epi16(0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, i16::MIN)
    }];
    let candidates = bits.map(|bits| _mm_cmpeq_epi16(_mm_and_si128(all, bits), bits));
    let (first, second) = match order {
        // The ages decide here, not the youths, and both numbers fit into sixteen bits.
        Order::Lfu => {
            let is_old = _mm_cmpeq_epi8(pages.age, _mm_set1_epi8(AGE_MAX as i8));
            let both = interleaved(pages.age, _mm_andnot_si128(is_old, pages.uses));
            return lowest_way(with_least(both, candidates));
        }
        Order::Density => (densities(&pages, density), youth(&pages)),
        Order::Rate => (rates(&pages), youth(&pages)),
        Order::Lrfu => (lrfu(&pages), youth(&pages)),
        Order::Recency => recencies(&pages),
    };
    lowest_way(with_least(second, with_least(first, candidates)))
}

/// Loads the bits of all ways and limits their ages.
#[target_feature(enable = "sse2")]
#[inline]
fn aged(meta: &[AtomicU16; WAYS], clock: u16) -> Pages {
    let (first, last) = meta.split_at(WAYS / 2);
    // SAFETY: eight ways each.
    let bits = [unsafe { load(first) }, unsafe { load(last) }];
    let lower = _mm_set1_epi16(0xFF);
    let low = _mm_packus_epi16(_mm_and_si128(bits[0], lower), _mm_and_si128(bits[1], lower));
    let then = _mm_packus_epi16(_mm_srli_epi16::<8>(bits[0]), _mm_srli_epi16::<8>(bits[1]));
    let clock = _mm_set1_epi8(clock as i8);
    let age = _mm_min_epu8(_mm_sub_epi8(clock, then), _mm_set1_epi8(AGE_MAX as i8));
    let [first_bits, last_bits] = interleaved(low, _mm_sub_epi8(clock, age));
    // SAFETY: eight ways each.
    unsafe { store(first, first_bits) };
    // SAFETY: as above.
    unsafe { store(last, last_bits) };
    let uses = _mm_and_si128(_mm_srli_epi16::<2>(low), _mm_set1_epi8(USES_MAX as i8));
    Pages { low, uses, age }
}

/// Returns the first numbers of `Order::Density`.
#[target_feature(enable = "sse2")]
#[inline]
fn densities(pages: &Pages, density: impl Fn(usize) -> u16) -> Numbers {
    // 1. The class: the number of limits below the uses, and the last interval (`FIRST_CELL`).
    let above = |limit| _mm_cmpgt_epi8(pages.uses, _mm_set1_epi8(limit));
    let by_uses = [1, 2, 3, 5, 8, 15, 31].map(above);
    let by_uses = by_uses.into_iter().fold(_mm_setzero_si128(), |sum, above| _mm_sub_epi8(sum, above));
    let twice = _mm_add_epi8(by_uses, by_uses);
    let interval = _mm_and_si128(pages.low, _mm_set1_epi8(3));
    let class = wide(_mm_add_epi8(_mm_add_epi8(twice, twice), interval));
    // 2. The bucket: a float's exponent and the upper two bits of its fraction (`BUCKET`).
    let one = _mm_set1_epi16(1);
    let odd = wide(pages.age).map(|age| _mm_add_epi16(_mm_add_epi16(age, age), one));
    let bucket = packed(floats(odd).map(|odd| _mm_srli_epi32::<21>(_mm_castps_si128(odd))));
    // 3. The density of the cell. Numbers are compared with their signs.
    const ZERO_EXPONENT: i16 = (1.0f32.to_bits() >> 21) as i16;
    let cell = |half: usize| {
        let bucket = _mm_sub_epi16(bucket[half], _mm_set1_epi16(ZERO_EXPONENT));
        _mm_add_epi16(_mm_mullo_epi16(class[half], _mm_set1_epi16(BUCKETS as i16)), bucket)
    };
    looked_up([cell(0), cell(1)], density).map(|density| _mm_xor_si128(density, _mm_set1_epi16(i16::MIN)))
}

/// Returns the first numbers of `Order::Rate`: quotients of floats, whose error is too small to
/// reach the next integer.
#[target_feature(enable = "sse2")]
#[inline]
fn rates(pages: &Pages) -> Numbers {
    let (uses_256, age_1) = (interleaved(_mm_setzero_si128(), pages.uses), wide(later(pages.age)));
    let (uses_256, age_1) = (floats(uses_256), floats(age_1));
    let rate = |at: usize| _mm_cvttps_epi32(_mm_div_ps(uses_256[at], age_1[at]));
    let rates = packed([rate(0), rate(1), rate(2), rate(3)]);
    let is_old = _mm_cmpeq_epi8(_mm_max_epu8(pages.age, _mm_set1_epi8(WAYS as i8 / 8)), pages.age);
    let is_due = _mm_and_si128(is_old, _mm_cmpeq_epi8(pages.uses, _mm_set1_epi8(1)));
    let is_due = interleaved(is_due, is_due);
    [_mm_andnot_si128(is_due[0], rates[0]), _mm_andnot_si128(is_due[1], rates[1])]
}

/// Returns the first numbers of `Order::Lrfu`, divided by their common factor.
#[target_feature(enable = "sse2")]
#[inline]
fn lrfu(pages: &Pages) -> Numbers {
    const FACTOR: u32 = HALF_LIFE * WAYS as u32;
    const _: () = assert!(256 / FACTOR == 2 && 256 % FACTOR == 0);
    let logs = looked_up(wide(pages.uses), |uses| LOG2_256[uses & USES_MAX as usize] as u16);
    let youth = youth(pages);
    let sum = |half: usize| _mm_add_epi16(logs[half], _mm_add_epi16(youth[half], youth[half]));
    [sum(0), sum(1)]
}

/// Returns both numbers of `Order::Recency`: the upper bits of the worth; its lower eight bits, and
/// the youth.
#[target_feature(enable = "sse2")]
#[inline]
fn recencies(pages: &Pages) -> (Numbers, Numbers) {
    // 1. `SQRT_256`, and `PER_TICK` in two halves. The errors of these floats are too small to
    //   reach the next integer.
    let roots = floats(wide(pages.uses)).map(|uses| {
        let root = _mm_mul_ps(_mm_sqrt_ps(uses), _mm_set1_ps(256.0));
        _mm_cvttps_epi32(root)
    });
    let per_tick = floats(wide(later(pages.age))).map(|age_1| {
        let rounded_down = _mm_cvttps_epi32(_mm_div_ps(_mm_set1_ps(((1 << 24) - 1) as f32), age_1));
        _mm_add_epi32(rounded_down, _mm_set1_epi32(1))
    });
    let roots = packed(roots);
    let upper = packed(per_tick.map(|per_tick| _mm_srli_epi32::<16>(per_tick)));
    let lower = packed(per_tick.map(|per_tick| _mm_srai_epi32::<16>(_mm_slli_epi32::<16>(per_tick))));
    // 2. The product without its lower sixteen bits. It has up to 20 bits.
    let byte = _mm_set1_epi16(0xFF);
    let product = |half: usize| {
        let (root, from_lower) = (roots[half], _mm_mulhi_epu16(roots[half], lower[half]));
        let (low, high) = (_mm_mullo_epi16(root, upper[half]), _mm_mulhi_epu16(root, upper[half]));
        let low_byte = _mm_add_epi16(_mm_and_si128(low, byte), _mm_and_si128(from_lower, byte));
        let rest = _mm_or_si128(_mm_slli_epi16::<8>(high), _mm_srli_epi16::<8>(low));
        let carried = _mm_add_epi16(_mm_srli_epi16::<8>(from_lower), _mm_srli_epi16::<8>(low_byte));
        (_mm_add_epi16(rest, carried), _mm_slli_epi16::<8>(low_byte))
    };
    let (youth, (first, last)) = (youth(pages), (product(0), product(1)));
    // Numbers are compared with their signs.
    let sign = _mm_set1_epi16(i16::MIN);
    let second = |low, half: usize| _mm_xor_si128(_mm_or_si128(low, youth[half]), sign);
    ([first.0, last.0], [second(first.1, 0), second(last.1, 1)])
}

/// Returns the second numbers of all orders but `Order::Lfu` and `Order::Recency`.
#[target_feature(enable = "sse2")]
#[inline]
fn youth(pages: &Pages) -> Numbers {
    wide(_mm_xor_si128(pages.age, _mm_set1_epi8(-1)))
}

/// Returns those of the ways `among` that have the least number.
#[target_feature(enable = "sse2")]
#[inline]
fn with_least(numbers: Numbers, among: Numbers) -> Numbers {
    let highest = _mm_set1_epi16(i16::MAX);
    let number = |half: usize| {
        _mm_or_si128(_mm_and_si128(among[half], numbers[half]), _mm_andnot_si128(among[half], highest))
    };
    let least = _mm_min_epi16(number(0), number(1));
    let least = _mm_min_epi16(least, _mm_shuffle_epi32::<0b01_00_11_10>(least));
    let least = _mm_min_epi16(least, _mm_shuffle_epi32::<0b10_11_00_01>(least));
    let least = _mm_min_epi16(least, _mm_shufflelo_epi16::<0b10_11_00_01>(least));
    let least = _mm_shuffle_epi32::<0>(least);
    let has_it = |half: usize| _mm_and_si128(_mm_cmpeq_epi16(numbers[half], least), among[half]);
    [has_it(0), has_it(1)]
}

#[target_feature(enable = "sse2")]
#[inline]
fn lowest_way(ways: Numbers) -> usize {
    _mm_movemask_epi8(_mm_packs_epi16(ways[0], ways[1])).trailing_zeros() as usize
}

#[target_feature(enable = "sse2")]
#[inline]
fn later(age: Bytes) -> Bytes {
    _mm_add_epi8(age, _mm_set1_epi8(1))
}

#[target_feature(enable = "sse2")]
#[inline]
fn wide(bytes: Bytes) -> Numbers {
    interleaved(bytes, _mm_setzero_si128())
}

#[target_feature(enable = "sse2")]
#[inline]
fn interleaved(lower: Bytes, upper: Bytes) -> Numbers {
    [_mm_unpacklo_epi8(lower, upper), _mm_unpackhi_epi8(lower, upper)]
}

#[target_feature(enable = "sse2")]
#[inline]
fn floats(numbers: Numbers) -> [__m128; 4] {
    let zero = _mm_setzero_si128();
    let four = |numbers: __m128i| [_mm_unpacklo_epi16(numbers, zero), _mm_unpackhi_epi16(numbers, zero)];
    let ([a, b], [c, d]) = (four(numbers[0]), four(numbers[1]));
    [a, b, c, d].map(|four| _mm_cvtepi32_ps(four))
}

/// The reverse of widening: the numbers fit into sixteen bits, with their signs.
#[target_feature(enable = "sse2")]
#[inline]
fn packed(fours: [__m128i; 4]) -> Numbers {
    [_mm_packs_epi32(fours[0], fours[1]), _mm_packs_epi32(fours[2], fours[3])]
}

#[inline(always)]
fn looked_up(numbers: Numbers, look_up: impl Fn(usize) -> u16) -> Numbers {
    numbers.map(|numbers| {
        // SAFETY: a vector has the size of eight numbers, and every pattern of bits is valid.
        let numbers: [u16; 8] = unsafe { std::mem::transmute(numbers) };
        let found = numbers.map(|number| look_up(number as usize));
        // SAFETY: as above.
        unsafe { std::mem::transmute(found) }
    })
}

/// # Safety
///
/// There are eight ways.
#[inline(always)]
unsafe fn load(ways: &[AtomicU16]) -> __m128i {
    debug_assert_eq!(ways.len(), 8);
    let loaded;
    // SAFETY: reads the 16 bytes of the contract and writes one register.
    unsafe {
        asm!(
            "movdqu {loaded}, xmmword ptr [{ways}]",
            loaded = out(xmm_reg) loaded,
            ways = in(reg) ways.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    }
    loaded
}

/// # Safety
///
/// There are eight ways.
#[inline(always)]
unsafe fn store(ways: &[AtomicU16], bits: __m128i) {
    debug_assert_eq!(ways.len(), 8);
    // SAFETY: writes the 16 bytes of the contract, which are atomics.
    unsafe {
        asm!(
            "movdqu xmmword ptr [{ways}], {bits}",
            bits = in(xmm_reg) bits,
            ways = in(reg) ways.as_ptr(),
            options(nostack, preserves_flags),
        );
    }
}
