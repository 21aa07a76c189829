//! Whatever happened to a file of pages, a cache reads only bytes that its store has.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use octavo::{Cache, WarmPages};
use octavo_random::Random;

use super::{Served, image, memfd};
use crate::fixture::{Scratch, bytes_at, sized, small};

const PAGES: u64 = 24;

/// A file, its bytes, and a file of its pages.
fn evacuated(name: &str) -> (Scratch, Vec<u8>, Vec<u8>) {
    let (file, bytes) = image(name, PAGES);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    (0..PAGES).for_each(|page| _ = old.read(0, page));
    let (pages, _) = old.leave();
    let mut content = vec![0; pages.metadata().unwrap().len() as usize];
    pages.read_exact_at(&mut content, 0).unwrap();
    (file, bytes, content)
}

fn file_of(content: &[u8]) -> File {
    let file = memfd();
    file.write_all_at(content, 0).unwrap();
    file
}

/// Starts a cache with a damaged file. Returns how many pages came in, all of them right.
fn start(file: &Scratch, bytes: &[u8], content: &[u8]) -> u64 {
    let cache = Cache::new(small(1)).unwrap();
    let warm = WarmPages::open(file_of(content));
    if let Ok(warm) = &warm {
        cache.expect(warm);
    }
    let served = Served::within(cache, sized(2 << 20), &[file]);
    let restored = warm.ok().map(|warm| served.cache.restore(warm).unwrap()).unwrap_or_default();
    assert!(bytes_at(&served.objects[0], 0, bytes.len() as u64) == *bytes, "{restored:?}");
    restored.pages
}

fn number(content: &[u8], at: usize) -> usize {
    u64::from_le_bytes(content[at..at + 8].try_into().unwrap()) as usize
}

/// Where the chunks of a file lie: the head with the records, and the pages. Each thread that
/// copies pages writes chunks of its own.
fn chunks(content: &[u8]) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut at, mut chunks) = (4096, Vec::new());
    while at < number(content, 16) {
        let records = number(content, at + 8) & 0xffff_ffff;
        let head = at..at + 24 + 16 * records;
        let pages = head.end.next_multiple_of(4096);
        at = pages + 4096 * records;
        chunks.push((head, pages..at));
    }
    assert_eq!(at, number(content, 16), "the catalog follows the last chunk");
    chunks
}

#[test]
fn no_byte_of_a_header_a_record_or_the_catalog_may_change() {
    let (file, bytes, content) = evacuated("damage");
    assert_eq!(start(&file, &bytes, &content), PAGES, "undamaged");
    let header = 0..48;
    let catalog = number(&content, 16)..content.len();
    for at in header.chain(chunks(&content).into_iter().flat_map(|(head, _)| head)).chain(catalog) {
        let mut changed = content.clone();
        changed[at] ^= 1 << (at % 8);
        assert_eq!(start(&file, &bytes, &changed), 0, "byte {at}");
    }
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let (file, bytes, content) = evacuated("cut");
    let mut random = Random::new(1);
    for len in [0, 1, 47, 48, 4096, content.len() - 1] {
        assert_eq!(start(&file, &bytes, &content[..len]), 0, "{len} bytes");
    }
    for _ in 0..30 {
        let len = random.below(content.len() as u64) as usize;
        assert_eq!(start(&file, &bytes, &content[..len]), 0, "{len} bytes");
    }
}

/// Fewer pages than are compared: each of them is.
#[test]
fn a_page_that_differs_from_its_store_keeps_its_object_cold() {
    let (file, bytes, content) = evacuated("differs");
    let pages: Vec<usize> = chunks(&content).into_iter().flat_map(|(_, pages)| pages.step_by(4096)).collect();
    assert_eq!(pages.len() as u64, PAGES);
    for page in pages {
        let mut changed = content.clone();
        changed[page + 17] ^= 1;
        assert_eq!(start(&file, &bytes, &changed), 0, "page at {page}");
    }
}

#[test]
fn random_bytes_are_no_file_of_pages() {
    let (file, bytes, content) = evacuated("random");
    let mut random = Random::new(2);
    for _ in 0..20 {
        let noise = random.bytes(content.len());
        assert_eq!(start(&file, &bytes, &noise), 0);
        // The header is right, and nothing else.
        let mixed = [&content[..48], &noise[48..]].concat();
        assert_eq!(start(&file, &bytes, &mixed), 0);
    }
}
