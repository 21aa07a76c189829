//! Operations on ranges of many pages: a plain model says what each page must hold afterwards, and
//! which pages are resident. Short ranges are looked up page by page, long ones by a walk over the
//! table.

use crate::fixture::{
    PAGE, bytes_at, complete_all, disk, read_request, scene, small, write_request, written_back,
};
use octavo::disk::Store;
use octavo::{Advice, CacheConfig, CacheMode, Error, Object, Partition, PartitionConfig, Read};
use octavo_random::Random;

/// Pages of the object. All of them fit into the cache.
const PAGES: u64 = 200;
/// The object's last page is not whole.
const LEN: u64 = PAGES * PAGE - 1000;

/// What every byte and page must be.
struct Model {
    bytes: Vec<u8>,
    resident: Vec<bool>,
    /// The page may have bytes that the store has not.
    dirty: Vec<bool>,
}

impl Model {
    fn new() -> Model {
        Model {
            bytes: vec![0; LEN as usize],
            resident: vec![false; PAGES as usize],
            dirty: vec![false; PAGES as usize],
        }
    }

    /// The numbers of the pages that a range touches.
    fn touched(offset: u64, len: u64) -> std::ops::Range<usize> {
        match len {
            0 => 0..0,
            _ => (offset / PAGE) as usize..(offset + len).div_ceil(PAGE) as usize,
        }
    }

    /// The numbers of the pages of which a range contains all bytes.
    fn whole(offset: u64, len: u64) -> std::ops::Range<usize> {
        let end = if offset + len == LEN { PAGES } else { (offset + len) / PAGE };
        offset.div_ceil(PAGE) as usize..(end as usize).max(offset.div_ceil(PAGE) as usize)
    }

    fn touch(&mut self, offset: u64, len: u64, is_write: bool) {
        for page in Model::touched(offset, len) {
            self.resident[page] = true;
            self.dirty[page] |= is_write;
        }
    }

    fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().filter(|dirty| **dirty).count() as u64 * PAGE
    }

    fn resident_bytes(&self, offset: u64, len: u64) -> u64 {
        let in_page = |page: usize| {
            let start = page as u64 * PAGE;
            (start + PAGE).min(offset + len) - start.max(offset)
        };
        Model::touched(offset, len).filter(|page| self.resident[*page]).map(in_page).sum()
    }
}

/// A range of any kind: a few bytes, a few pages, most of the object, or all of it.
fn range(random: &mut Random) -> (u64, u64) {
    let longest = [0, 100, 3 * PAGE, 20 * PAGE, LEN][random.below(5) as usize];
    let offset = random.below(LEN);
    let len = if longest == 0 { 0 } else { random.below(longest) };
    match random.below(8) {
        0 => (0, LEN),
        1 => (offset / PAGE * PAGE, (len / PAGE * PAGE).min(LEN - offset / PAGE * PAGE)),
        _ => (offset, len.min(LEN - offset)),
    }
}

fn step(random: &mut Random, model: &mut Model, object: &Object) {
    let (offset, len) = range(random);
    let bytes = offset as usize..(offset + len) as usize;
    match random.below(7) {
        0 => {
            assert!(bytes_at(object, offset, len) == model.bytes[bytes]);
            model.touch(offset, len, false);
        }
        1 => {
            let written = vec![random.below(256) as u8; len as usize];
            object.write_at(offset, &written).unwrap();
            model.bytes[bytes].copy_from_slice(&written);
            model.touch(offset, len, true);
        }
        2 => {
            object.advise(offset, len, Advice::DontNeed).unwrap();
            for page in Model::whole(offset, len) {
                (model.resident[page], model.dirty[page]) = (false, false);
            }
        }
        3 => {
            object.advise(offset, len, Advice::WillNeed).unwrap();
            model.touch(offset, len, false);
        }
        4 => {
            object.sync_range(offset, len).unwrap();
            Model::touched(offset, len).for_each(|page| model.dirty[page] = false);
        }
        clearing => {
            if clearing == 5 {
                object.discard(offset, len).unwrap()
            } else {
                object.zero(offset, len).unwrap()
            }
            model.bytes[bytes].fill(0);
            let whole = Model::whole(offset, len);
            for page in Model::touched(offset, len) {
                let is_whole = whole.contains(&page);
                (model.resident[page], model.dirty[page]) = (!is_whole, !is_whole);
            }
        }
    }
    assert_eq!(object.resident_bytes(offset, len).unwrap(), model.resident_bytes(offset, len));
}

/// Runs random operations in a cache with this much memory, which holds the whole object.
fn agrees(seed: u64, memory: u64) {
    let mut random = Random::new(seed);
    let config = CacheConfig { memory_max_bytes: memory, segment_bytes: 128 << 10, ..small(seed) };
    let partition = PartitionConfig { dirty_max_bytes: Some(memory), ..written_back(memory / 4 * 3) };
    // Nothing is read ahead, so that the model knows which pages are resident.
    let (_cache, partition, object) = scene(config, partition, disk(seed).store("object", LEN));
    object.advise(0, 0, Advice::Random).unwrap();
    let mut model = Model::new();
    for number in 0..300 {
        step(&mut random, &mut model, &object);
        check(&partition, &object, &model, || format!("seed {seed}, step {number}"));
    }
    assert!(bytes_at(&object, 0, LEN) == model.bytes, "seed {seed}");
}

fn check(partition: &Partition, object: &Object, model: &Model, at: impl Fn() -> String) {
    for page in 0..PAGES {
        assert_eq!(object.is_resident(page * PAGE), model.resident[page as usize], "page {page}, {}", at());
    }
    assert_eq!(object.resident_bytes(0, LEN).unwrap(), model.resident_bytes(0, LEN), "{}", at());
    assert_eq!(partition.stat().dirty_bytes, model.dirty_bytes(), "{}", at());
}

#[test]
fn operations_on_ranges_agree_with_a_plain_model() {
    for seed in 0..6 {
        // The object is most of the cache: long ranges are walked.
        agrees(seed, 3 << 20);
        // It is a small part: every range is looked up.
        agrees(seed, 16 << 20);
    }
}

/// An object with some pages resident, through whose reads the counters are seen.
fn counted() -> (octavo::Cache, Partition, Object, Vec<u8>) {
    let config = CacheConfig { memory_max_bytes: 32 << 20, background: false, ..CacheConfig::default() };
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 % 251) as u8).collect();
    let partition = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("p") };
    let (cache, partition, object) = scene(config, partition, Store::memory("m", LEN));
    object.advise(0, 0, Advice::Random).unwrap();
    object.write_at(0, &bytes).unwrap();
    object.sync().unwrap();
    (cache, partition, object, bytes)
}

/// The hits, misses, requests and bytes of reads so far.
fn reads(partition: &Partition) -> [u64; 4] {
    let stat = partition.stat();
    [stat.hits, stat.misses, stat.requests_read, stat.read_bytes]
}

#[test]
fn each_page_of_a_long_read_counts_once_wherever_it_misses() {
    const FIRST: u64 = 3;
    // More pages than are served together.
    const COUNT: u64 = 90;
    let (offset, len) = (FIRST * PAGE + 10, (COUNT * PAGE - 20) as usize);
    for absent in [vec![], vec![0], vec![1], vec![40, 41, 70], vec![COUNT - 1], (0..COUNT).collect()] {
        let (cache, partition, object, bytes) = counted();
        let wanted = &bytes[offset as usize..][..len];
        let mut queue = cache.queue().unwrap();
        for way in 0..3 {
            for page in &absent {
                object.advise((FIRST + page) * PAGE, PAGE, Advice::DontNeed).unwrap();
            }
            let before = reads(&partition);
            match way {
                0 => assert!(bytes_at(&object, offset, len as u64) == wanted),
                1 => {
                    queue.submit(&object, [read_request(1, offset, len)]);
                    let octavo::Op::Read { buffer, .. } = complete_all(&mut queue).remove(0).op else {
                        panic!()
                    };
                    assert!(&buffer[..len] == wanted);
                }
                _ => {
                    let (mut buffer, mut byte) = (vec![0; len], [0]);
                    let long = Read { offset, buffer: &mut buffer };
                    object.read_batch(&mut [long, Read { offset: 0, buffer: &mut byte }]).unwrap();
                    assert!(buffer == wanted && byte[0] == bytes[0]);
                }
            }
            let misses = absent.len() as u64;
            // The batch has a read of one page more.
            let more = u64::from(way == 2);
            let expected = [COUNT - misses + more, misses, 1 + more, len as u64 + more];
            let found = std::array::from_fn(|count| reads(&partition)[count] - before[count]);
            assert_eq!(expected, found, "way {way}, absent {absent:?}");
        }
    }
}

#[test]
fn a_long_read_of_a_queue_sees_the_writes_that_ended_before_it() {
    let (cache, _, object, mut bytes) = counted();
    let mut queue = cache.queue().unwrap();
    for page in 0..40 {
        let written = vec![page as u8; 3 * PAGE as usize];
        let offset = page * PAGE + 7;
        queue.submit(&object, [write_request(1, offset, written.clone(), false)]);
        complete_all(&mut queue);
        bytes[offset as usize..][..written.len()].copy_from_slice(&written);
        queue.submit(&object, [read_request(2, 0, LEN as usize)]);
        let octavo::Op::Read { buffer, .. } = complete_all(&mut queue).remove(0).op else { panic!() };
        assert!(buffer[..LEN as usize] == bytes, "page {page}");
    }
}

#[test]
fn resident_bytes_refuses_ranges_past_the_end_and_closed_objects() {
    let (_cache, _, object, _) = counted();
    assert_eq!(object.resident_bytes(0, LEN).unwrap(), LEN);
    assert_eq!(object.resident_bytes(LEN, 0).unwrap(), 0);
    assert_eq!(object.resident_bytes(PAGE - 1, 2).unwrap(), 2);
    assert!(matches!(object.resident_bytes(1, LEN), Err(Error::PastEnd { .. })));
    assert!(matches!(object.resident_bytes(u64::MAX, 2), Err(Error::PastEnd { .. })));
    object.close().unwrap();
    assert!(matches!(object.resident_bytes(0, 1), Err(Error::Closed { .. })));
}
