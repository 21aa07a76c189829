//! What pages hold, and how a page is checked: every word depends on its page and its place.
//!
//! Word `i` of page `p` is `mix(p) ^ PLACES[i]`. The mix is a bijection and the places differ, so
//! that a page, a part of a page or two pages that were exchanged are all seen; and a check is one
//! pass of exclusive-or, which vectorises.

/// Bytes of a page in every suite.
pub const PAGE_BYTES: usize = 4096;

const WORDS: usize = PAGE_BYTES / 8;

/// One number per place in a page.
static PLACES: [u64; WORDS] = {
    let mut places = [0; WORDS];
    let mut place = 0;
    while place < WORDS {
        places[place] = mix(!(place as u64));
        place += 1;
    }
    places
};

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection.
pub const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Writes a whole page.
pub fn fill(page: u64, bytes: &mut [u8]) {
    let key = mix(page);
    for (word, place) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&PLACES) {
        *word = (key ^ place).to_le_bytes();
    }
}

/// Writes whole words from byte `skip` of a page on.
pub fn fill_part(page: u64, skip: usize, bytes: &mut [u8]) {
    let key = mix(page);
    for (word, place) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&PLACES[skip / 8..]) {
        *word = (key ^ place).to_le_bytes();
    }
}

/// Whether `bytes`, whole words from byte `skip` of a page on, are all as `fill` writes them.
pub fn is_right(page: u64, skip: usize, bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { is_right_avx2(page, skip, bytes) };
    }
    is_right_here(page, skip, bytes)
}

/// The same, compiled for wider vectors: every contestant pays for the check, and it should cost
/// little of what is measured.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn is_right_avx2(page: u64, skip: usize, bytes: &[u8]) -> bool {
    is_right_here(page, skip, bytes)
}

#[inline(always)]
fn is_right_here(page: u64, skip: usize, bytes: &[u8]) -> bool {
    let key = mix(page);
    let (words, rest) = bytes.as_chunks::<8>();
    let places = &PLACES[skip / 8..][..words.len()];
    // Without an early end: a right page is the usual case, and the loop vectorises.
    let wrong = words
        .iter()
        .zip(places)
        .fold(0, |wrong, (word, place)| wrong | (u64::from_le_bytes(*word) ^ key ^ place));
    wrong == 0 && rest.is_empty() && skip.is_multiple_of(8)
}

/// A stream of numbers for indices, the same in every run: SplitMix64.
pub fn random(seed: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |number: u64| mix(seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
}

/// A random number below `bound` from a random number (Lemire, multiplication and shift).
pub fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_in_one_bit_or_is_another_page_is_wrong() {
        let mut page = vec![0; PAGE_BYTES];
        fill(7, &mut page);
        assert!(is_right(7, 0, &page) && is_right_here(7, 0, &page));
        assert!(is_right(7, 256, &page[256..384]));
        assert!(!is_right(8, 0, &page));
        assert!(!is_right(7, 128, &page[256..384]));
        for at in [0, 1, 4095] {
            page[at] ^= 4;
            assert!(!is_right(7, 0, &page), "byte {at}");
            page[at] ^= 4;
        }
        assert!(!is_right(7, 0, &[0; PAGE_BYTES]));
        fill_part(9, 256, &mut page[256..384]);
        assert!(is_right(9, 256, &page[256..384]) && is_right(7, 384, &page[384..]));
    }

    #[test]
    fn random_numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut seen = [false; 10];
        random(3).take(1000).for_each(|number| seen[below(number, 10) as usize] = true);
        assert_eq!(seen, [true; 10]);
        assert_eq!(below(u64::MAX, 10), 9);
    }
}
