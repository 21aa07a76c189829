//! The content of pages, and the check of that content: every word depends on its page and on its
//! position in the page.
//!
//! Word `i` of page `p` is `mix(p) ^ PLACES[i]`. `mix` is a bijection and all places differ, so the
//! check finds wrong pages, shifted parts of pages, and pages that were swapped. The check is one
//! pass of exclusive-ors over the page, which the compiler vectorises.

use std::fs::File;
use std::io::Write;

use octavo::disk::AlignedBytes;
use octavo_random::mix;

use crate::error::Error;

/// Bytes of a page, in every suite.
pub const PAGE_BYTES: usize = 4096;

const WORDS: usize = PAGE_BYTES / 8;

/// One number for each word of a page.
static PLACES: [u64; WORDS] = {
    let mut places = [0; WORDS];
    let mut place = 0;
    while place < WORDS {
        places[place] = mix(!(place as u64));
        place += 1;
    }
    places
};

/// Writes the content of `page`, a whole page.
pub fn fill(page: u64, bytes: &mut [u8]) {
    fill_part(page, 0, bytes);
}

/// Writes the content of `page` from byte `skip` on. Both `skip` and the length are whole words.
pub fn fill_part(page: u64, skip: usize, bytes: &mut [u8]) {
    let key = mix(page);
    for (word, place) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&PLACES[skip / 8..]) {
        *word = (key ^ place).to_le_bytes();
    }
}

/// Writes the content of consecutive whole pages, from page `first` on.
pub fn fill_run(first: u64, bytes: &mut [u8]) {
    for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
        fill(page, bytes);
    }
}

/// Writes all pages of a file.
pub fn write_file(mut file: &File, len_bytes: u64, progress: &mut dyn FnMut(u64)) -> std::io::Result<()> {
    const RUN_BYTES: usize = 1 << 20;
    let mut bytes = AlignedBytes::new(RUN_BYTES);
    for first in (0..len_bytes).step_by(RUN_BYTES) {
        if first % (64 << 20) == 0 {
            progress(first);
        }
        fill_run(first / PAGE_BYTES as u64, &mut bytes);
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

/// Returns whether `bytes` are the content of `page` from byte `skip` on. `skip` and the length of
/// `bytes` are whole words.
pub fn is_right(page: u64, skip: usize, bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { is_right_avx2(page, skip, bytes) };
    }
    is_right_here(page, skip, bytes)
}

/// Like [`is_right`], but returns an error that names the page and the contestant `reader`.
pub fn check(page: u64, skip: usize, bytes: &[u8], reader: &str) -> Result<(), Error> {
    match is_right(page, skip, bytes) {
        true => Ok(()),
        false => Err(Error::new(format!("wrong bytes in page {page}, {reader}"))),
    }
}

/// [`is_right_here`] compiled for wider vectors. Every contestant runs the check, so it must take
/// only a small part of the measured time.
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
    // No early exit: nearly every page is right, and the loop vectorises.
    let wrong = words
        .iter()
        .zip(places)
        .fold(0, |wrong, (word, place)| wrong | (u64::from_le_bytes(*word) ^ key ^ place));
    wrong == 0 && rest.is_empty() && skip.is_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_with_one_wrong_bit_and_another_page_are_wrong() {
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
}
