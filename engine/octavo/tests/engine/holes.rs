//! Holes: a byte that a read would show is never reported as missing, whatever the cache and the
//! store know of it. Also zeroing that the store must do without writing zeros.

use crate::fixture::{
    PAGE, Scratch, bytes_at, complete_all, disk, open, request, scene, sized, small, written_back,
};
use octavo::disk::{Backend, Holes, IoRequest, SimFaults, Store};
use octavo::{Advice, Cache, CacheMode, Error, Object, Op, PartitionConfig};
use octavo_random::{Random, for_seeds};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LEN: u64 = 200 * PAGE + 1000;

fn by_queue(cache: &Cache, object: &Object, offset: u64, len: u64, extents_max: usize) -> Holes {
    let mut queue = cache.queue().unwrap();
    queue.submit(object, [request(Op::Holes { offset, len, extents_max, found: Holes::default() })]);
    let [completion] = complete_all(&mut queue).try_into().unwrap();
    completion.result.unwrap();
    let Op::Holes { found, .. } = completion.op else { unreachable!() };
    found
}

/// Checks an answer against the bytes that reads would show.
fn check(found: &Holes, bytes: &[u8], offset: u64, len: u64, extents_max: usize) {
    assert!(offset < found.end && found.end <= offset + len, "{found:?} of {len} bytes at {offset}");
    assert!(found.ranges.len() <= extents_max);
    let mut at = offset;
    for hole in &found.ranges {
        assert!(at <= hole.start && hole.start < hole.end && hole.end <= found.end, "{found:?}");
        let wrong = bytes[hole.start as usize..hole.end as usize].iter().position(|byte| *byte != 0);
        assert_eq!(wrong, None, "{hole:?} is no hole");
        at = hole.end;
    }
}

/// Returns all holes of an object, found in many calls.
fn all(object: &Object, bytes: &[u8], extents_max: usize) -> Vec<std::ops::Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < object.len_bytes() {
        let len = object.len_bytes() - at;
        let found = object.holes(at, len, extents_max).unwrap();
        check(&found, bytes, at, len, extents_max);
        ranges.extend(found.ranges);
        at = found.end;
    }
    ranges
}

fn random_operations_agree(mode: CacheMode, seed: u64) {
    let file = Scratch::new(&format!("holes-{mode:?}-{seed}"), LEN);
    let partition = PartitionConfig { cache_mode: mode, dirty_max_bytes: Some(40 * PAGE), ..sized(1 << 20) };
    let (cache, _, object) = scene(small(seed), partition, open(&file.0));
    let mut random = Random::new(seed);
    let mut twin = vec![0_u8; LEN as usize];
    let mut is_touched = vec![false; LEN.div_ceil(PAGE) as usize];
    for _ in 0..300 {
        let most = if random.one_in(4) { 30 * PAGE } else { 2 * PAGE };
        let len = 1 + random.below(most);
        let offset = random.below(LEN - len);
        let range = offset as usize..(offset + len) as usize;
        match random.below(8) {
            0..3 => {
                let byte = 1 + random.below(255) as u8;
                object.write_at(offset, &vec![byte; len as usize]).unwrap();
                twin[range].fill(byte);
            }
            3 => {
                object.discard(offset, len).unwrap();
                twin[range].fill(0);
            }
            4 => {
                object.zero(offset, len).unwrap();
                twin[range].fill(0);
            }
            5 => object.sync_range(offset, len).unwrap(),
            6 => object.advise(offset, len, Advice::DontNeed).unwrap(),
            _ => _ = bytes_at(&object, offset, len),
        }
        // Reads and syncs mark pages too, which only weakens the check.
        is_touched[(offset / PAGE) as usize..(offset + len).div_ceil(PAGE) as usize].fill(true);
        let (at, extents_max) = (random.below(LEN), 1 + random.below(5) as usize);
        let len = 1 + random.below(LEN - at);
        check(&object.holes(at, len, extents_max).unwrap(), &twin, at, len, extents_max);
        check(&by_queue(&cache, &object, at, len, extents_max), &twin, at, len, extents_max);
    }
    let holes = all(&object, &twin, 3);
    for (page, _) in is_touched.iter().enumerate().filter(|(_, is_touched)| !**is_touched) {
        let start = page as u64 * PAGE;
        assert!(
            holes.iter().any(|hole| hole.contains(&start)),
            "page {page} was never written, and is no hole"
        );
    }
    assert!(bytes_at(&object, 0, LEN) == twin);
    object.discard(0, LEN).unwrap();
    // A part of a block cannot be freed.
    let expected = std::iter::once(0..200 * PAGE).collect();
    assert_eq!(object.holes(0, 200 * PAGE, 10).unwrap(), Holes { ranges: expected, end: 200 * PAGE });
}

#[test]
fn holes_agree_with_the_bytes_after_random_operations() {
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        for_seeds(0..6, |seed| random_operations_agree(mode, seed));
    }
}

/// A write-back that ends between the looks at the pages and at the file makes a hole into data.
#[test]
fn an_acknowledged_write_is_in_no_hole_while_it_is_written_back() {
    const PAGES: u64 = 1500;
    let file = Scratch::new("holes-race", PAGES * PAGE);
    let partition = PartitionConfig { dirty_max_bytes: Some(1 << 20), ..written_back(3 << 20) };
    let (cache, _, object) = scene(small(1), partition, open(&file.0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                object.sync().unwrap();
            }
        });
        let is_hole = |found: &Holes, at: u64| found.ranges.iter().any(|hole| hole.contains(&at));
        let numbers = (0..PAGES).map(|number| number * 7 % PAGES * PAGE);
        for (number, at) in numbers.enumerate() {
            object.write_at(at + 100, &[1; 50]).unwrap();
            let found = match number % 3 {
                0 => by_queue(&cache, &object, at, PAGE, 1),
                1 => object.holes(at, PAGE, 4).unwrap(),
                _ => object.holes(at - at % (64 * PAGE), 64 * PAGE, 200).unwrap_or_default(),
            };
            if is_hole(&found, at + 100) {
                is_over.store(true, Relaxed);
                panic!("page {} is dirty, and in a hole: {found:?}", at / PAGE);
            }
        }
        is_over.store(true, Relaxed);
    });
}

#[test]
fn a_store_that_is_no_file_has_no_holes() {
    let (cache, _, object) = scene(small(1), sized(1 << 20), Store::memory("memory", LEN));
    let expected = Holes { ranges: Vec::new(), end: LEN };
    assert_eq!(object.holes(0, LEN, 1).unwrap(), expected);
    assert_eq!(by_queue(&cache, &object, 0, LEN, 1), expected);
    assert!(matches!(object.holes(1, LEN, 1), Err(Error::PastEnd { .. })));
}

fn zero_fast(cache: &Cache, object: &Object, offset: u64, len: u64, free: bool) -> Option<i32> {
    let mut queue = cache.queue().unwrap();
    queue.submit(object, [request(Op::ZeroFast { offset, len, free, durable: false })]);
    let [completion] = complete_all(&mut queue).try_into().unwrap();
    match completion.result {
        Ok(()) => None,
        Err(Error::Io { source, .. }) => Some(source.errno()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn fast_zeroing_succeeds_where_the_store_can_and_fails_unchanged_where_not() {
    let disk = disk(3);
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        for (free, refuses) in [(false, false), (true, false), (false, true), (true, true)] {
            let partition = PartitionConfig { cache_mode: mode, ..sized(1 << 20) };
            let name = format!("{mode:?}-{free}-{refuses}");
            disk.set_faults(SimFaults::default());
            let (cache, _, object) = scene(small(1), partition, disk.store(&name, LEN));
            object.write_at(0, &vec![7; LEN as usize]).unwrap();
            let mut expected = vec![7; LEN as usize];
            let (offset, len) = (PAGE - 10, 20 * PAGE);
            disk.set_faults(SimFaults {
                p_unsupported: f64::from(u8::from(refuses)),
                ..SimFaults::default()
            });
            let refused = zero_fast(&cache, &object, offset, len, free);
            assert_eq!(refused, refuses.then_some(libc::EOPNOTSUPP));
            if !refuses {
                expected[offset as usize..(offset + len) as usize].fill(0);
            }
            assert!(bytes_at(&object, 0, LEN) == expected, "{name}");
            // A range without a whole page is zeroed in the cache.
            assert_eq!(zero_fast(&cache, &object, 100 * PAGE + 1, 100, free), None);
            expected[100 * PAGE as usize + 1..][..100].fill(0);
            assert!(bytes_at(&object, 0, LEN) == expected, "{name}");
        }
    }
}

/// Answers everything, and supports neither zeroing nor discarding.
struct Plain;

impl Backend for Plain {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(LEN)
    }

    fn submit(&self, mut request: IoRequest) {
        let len = request.len_bytes();
        if request.op() == octavo::disk::Op::Read {
            request.copy_in(0, &vec![1; len]);
        }
        request.complete(Ok(len));
    }
}

#[test]
fn a_back_end_without_a_zeroing_call_refuses_fast_zeroing() {
    let store = Store::from_backend("plain", Plain).unwrap();
    let (cache, _, object) = scene(small(1), written_back(1 << 20), store);
    for free in [false, true] {
        assert_eq!(zero_fast(&cache, &object, 0, 8 * PAGE, free), Some(libc::EOPNOTSUPP));
    }
    assert_eq!(bytes_at(&object, 0, 3), [1; 3]);
    object.zero(0, 8 * PAGE).unwrap();
}

#[test]
fn a_file_is_zeroed_fast_and_becomes_a_hole() {
    let file = Scratch::of("holes-fast", &vec![5; LEN as usize]);
    let (cache, _, object) = scene(small(1), written_back(1 << 20), open(&file.0));
    assert_eq!(object.holes(0, LEN, 9).unwrap(), Holes { ranges: Vec::new(), end: LEN });
    assert_eq!(zero_fast(&cache, &object, 4 * PAGE, 8 * PAGE, true), None);
    let hole = std::iter::once(4 * PAGE..12 * PAGE).collect();
    assert_eq!(object.holes(0, LEN, 9).unwrap(), Holes { ranges: hole, end: LEN });
}
