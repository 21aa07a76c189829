//! Reads and writes of several slices, of memory known by its address only, and of memory that an
//! owner keeps alive for a queue.

use crate::fixture::{PAGE, SET_BYTES, Scratch, bytes_at, disk, open, scene, sized, small, written_back};
use crate::watchdog::Watchdog;
use octavo::disk::{AlignedBytes, Store};
use octavo::{CacheMode, Completion, Error, Memory, Object, Op, PartitionConfig, Piece, Request};
use octavo_random::Random;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Lengths of pieces that make up `len` bytes: one, a few, or many, some of them empty.
fn cut(random: &mut Random, len: usize) -> Vec<usize> {
    let most = random.pick(&[len, 6000, 700, 30]).max(len / 100) as u64;
    let (mut left, mut lens) = (len, Vec::new());
    while left > 0 {
        let piece = random.below(most.min(left as u64) + 1) as usize;
        lens.push(piece);
        left -= piece;
    }
    lens
}

/// Splits bytes into pieces of these lengths.
fn split(mut bytes: &[u8], lens: &[usize]) -> Vec<Vec<u8>> {
    let take = |len: &usize| {
        let (piece, rest) = bytes.split_at(*len);
        bytes = rest;
        piece.to_vec()
    };
    lens.iter().map(take).collect()
}

fn pieces_of(memory: &mut [Vec<u8>]) -> Vec<Piece> {
    memory.iter_mut().map(|piece| Piece { start: piece.as_mut_ptr(), len: piece.len() }).collect()
}

/// Reads by one of the calls that read a range, chosen at random.
pub fn read_somehow(
    random: &mut Random,
    object: &Object,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let kind = random.below(5);
    if kind < 2 {
        return object.read_at(offset, bytes);
    }
    if kind == 2 {
        // SAFETY: the slice is ours.
        return unsafe { object.read_raw_at(offset, bytes.as_mut_ptr(), bytes.len()) };
    }
    let mut memory = split(bytes, &cut(random, bytes.len()));
    if kind == 3 {
        let mut slices: Vec<_> = memory.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
        object.read_vectored_at(offset, &mut slices)?;
    } else {
        // SAFETY: the pieces are ours.
        unsafe { object.read_raw_vectored_at(offset, &pieces_of(&mut memory))? };
    }
    bytes.copy_from_slice(&memory.concat());
    Ok(())
}

/// Writes by one of the calls that write a range, chosen at random.
pub fn write_somehow(random: &mut Random, object: &Object, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let kind = random.below(5);
    if kind < 2 {
        return object.write_at(offset, bytes);
    }
    if kind == 2 {
        // SAFETY: the slice is ours.
        return unsafe { object.write_raw_at(offset, bytes.as_ptr(), bytes.len()) };
    }
    let mut memory = split(bytes, &cut(random, bytes.len()));
    if kind == 3 {
        let slices: Vec<_> = memory.iter().map(|piece| IoSlice::new(piece)).collect();
        return object.write_vectored_at(offset, &slices);
    }
    // SAFETY: the pieces are ours.
    unsafe { object.write_raw_vectored_at(offset, &pieces_of(&mut memory)) }
}

/// Owners of memory, in pieces that lie anywhere.
struct Scattered(Vec<Vec<u8>>);

/// Memory for a request, with an owner of some type, chosen at random.
pub fn memory_with(random: &mut Random, bytes: Vec<u8>) -> Memory {
    match random.below(4) {
        0 => Memory::new(bytes),
        1 => Memory::new(bytes.into_boxed_slice()),
        2 => {
            let mut aligned = AlignedBytes::new(bytes.len());
            aligned.copy_from_slice(&bytes);
            Memory::new(aligned)
        }
        _ => {
            let lens = cut(random, bytes.len());
            let mut owner = Scattered(split(&bytes, &lens));
            let pieces = pieces_of(&mut owner.0);
            // SAFETY: the vectors in the owner keep the pieces, and nothing else uses them.
            unsafe { Memory::from_pieces(pieces, owner) }
        }
    }
}

/// The bytes of a memory that `memory_with` has made.
pub fn bytes_of(memory: Memory) -> Vec<u8> {
    let memory = match memory.into_owner::<Vec<u8>>() {
        Ok(bytes) => return bytes,
        Err(memory) => memory,
    };
    let memory = match memory.into_owner::<Box<[u8]>>() {
        Ok(bytes) => return bytes.into_vec(),
        Err(memory) => memory,
    };
    let memory = match memory.into_owner::<AlignedBytes>() {
        Ok(bytes) => return bytes.to_vec(),
        Err(memory) => memory,
    };
    memory.into_owner::<Scattered>().expect("one of four types").0.concat()
}

fn in_both_modes(check: impl Fn(PartitionConfig)) {
    check(sized(1 << 20));
    check(written_back(1 << 20));
}

#[test]
fn five_thousand_slices_and_none_at_all_are_read_and_written_whole() {
    in_both_modes(|partition| {
        let (_cache, _partition, object) = scene(small(1), partition, disk(1).store("disk", 60 * PAGE));
        let bytes = Random::new(5).bytes(50 * PAGE as usize);
        // Slices of 0 to 80 bytes: they end inside pages, and some are empty.
        let mut lens: Vec<usize> = (0..5000).map(|at| at * 7 % 81).collect();
        let total: usize = lens.iter().sum();
        lens.push(bytes.len() - total);
        let memory = split(&bytes, &lens);
        let slices: Vec<_> = memory.iter().map(|piece| IoSlice::new(piece)).collect();
        object.write_vectored_at(777, &slices).unwrap();
        assert!(bytes_at(&object, 777, 50 * PAGE) == bytes);
        object.sync().unwrap();
        object.advise(0, 60 * PAGE, octavo::Advice::DontNeed).unwrap();
        for resident in [false, true] {
            let mut memory = split(&vec![0xEE; bytes.len()], &lens);
            let mut slices: Vec<_> = memory.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            object.read_vectored_at(777, &mut slices).unwrap();
            assert!(memory.concat() == bytes, "resident: {resident}");
        }
        object.read_vectored_at(60 * PAGE, &mut []).unwrap();
        object.write_vectored_at(60 * PAGE, &[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap();
        assert!(matches!(object.read_vectored_at(60 * PAGE + 1, &mut []), Err(Error::PastEnd { .. })));
    });
}

#[test]
fn a_vectored_request_past_the_end_changes_nothing() {
    in_both_modes(|partition| {
        let (_cache, _partition, object) = scene(small(1), partition, disk(1).store("disk", 3 * PAGE));
        let (head, tail) = ([1; 4096], [2; 4097]);
        let slices = [IoSlice::new(&head), IoSlice::new(&tail)];
        let refused = object.write_vectored_at(PAGE, &slices).unwrap_err();
        assert!(matches!(refused, Error::PastEnd { len_bytes: 8193, .. }), "{refused}");
        assert!(bytes_at(&object, 0, 3 * PAGE).iter().all(|byte| *byte == 0));
        let huge = Piece { start: std::ptr::null_mut(), len: usize::MAX / 2 + 1 };
        // SAFETY: no byte is touched, because the object is shorter.
        let refused = unsafe { object.write_raw_vectored_at(0, &[huge, huge, huge]) };
        assert!(matches!(refused, Err(Error::PastEnd { .. })));
    });
}

/// The pages of one vectored read are fetched together: with one page an I/O, this would take 64.
#[test]
fn the_missing_pages_of_a_vectored_read_come_in_one_io() {
    let disk = disk(3);
    let (_cache, _partition, object) = scene(small(1), sized(1 << 20), disk.store("disk", 64 * PAGE));
    disk.hang();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = vec![[0; 1000]; 64];
            let mut slices: Vec<_> = memory.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            object.read_vectored_at(100, &mut slices).unwrap();
        });
        crate::fixture::until(|| disk.in_flight() > 0);
        assert_eq!(disk.in_flight(), 1);
        disk.answer();
    });
}

/// A page of which only a part were written would have two stamps.
#[test]
fn no_reader_sees_half_of_what_a_vectored_write_changes_in_one_page() {
    const ROUNDS: u32 = 4000;
    in_both_modes(|partition| {
        let (_cache, _partition, object) = scene(small(1), partition, Store::memory("m", 4 * PAGE));
        let is_over = AtomicBool::new(false);
        let parts = |bytes: &[u8]| split(bytes, &[0, 1000, 1, 0, 2999, 96]);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|reader| {
                    let (object, is_over, parts) = (&object, &is_over, &parts);
                    scope.spawn(move || {
                        let mut memory = parts(&[0; 4096]);
                        while !is_over.load(Relaxed) {
                            let bytes = if reader == 0 {
                                bytes_at(object, PAGE, PAGE)
                            } else {
                                let slices = memory.iter_mut().map(|piece| IoSliceMut::new(piece));
                                object.read_vectored_at(PAGE, &mut slices.collect::<Vec<_>>()).unwrap();
                                memory.concat()
                            };
                            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "reader {reader}");
                        }
                    })
                })
                .collect();
            for round in 0..ROUNDS {
                let memory = parts(&[round as u8; 4096]);
                let slices: Vec<_> = memory.iter().map(|piece| IoSlice::new(piece)).collect();
                object.write_vectored_at(PAGE, &slices).unwrap();
            }
            is_over.store(true, Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    });
}

/// The bytes of a raw write are copied once. If the store and the page got copies of their own, the
/// racing writer would make them differ.
#[test]
fn a_store_and_its_pages_agree_on_a_write_whose_memory_changed_meanwhile() {
    let scratch = Scratch::new("foreign-racing", 16 * PAGE);
    in_both_modes(|partition| {
        let mode = partition.cache_mode;
        let (_cache, _partition, object) = scene(small(1), partition, open(&scratch.0));
        let memory: Vec<AtomicU8> = (0..3 * PAGE).map(|_| AtomicU8::new(0)).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stamp = 0_u8;
                while !is_over.load(Relaxed) {
                    stamp = stamp.wrapping_add(1);
                    memory.iter().for_each(|byte| byte.store(stamp, Relaxed));
                }
            });
            let start = memory.as_ptr().cast::<u8>().cast_mut();
            for round in 0..300 {
                let offset = round * 991 % (12 * PAGE);
                let result = match round % 3 {
                    // SAFETY: other threads access the bytes atomically only.
                    0 => unsafe { object.write_raw_at(offset, start, memory.len()) },
                    // SAFETY: as above.
                    1 => unsafe { object.write_raw_at(offset, start, 100) },
                    _ => {
                        let half = Piece { start, len: 5000 };
                        // SAFETY: as above.
                        unsafe { object.write_raw_vectored_at(offset, &[half, half]) }
                    }
                };
                result.unwrap();
                if mode == CacheMode::Writeback {
                    object.sync().unwrap();
                }
                let read = bytes_at(&object, 0, 16 * PAGE);
                assert!(read == std::fs::read(&scratch.0).unwrap(), "{mode:?}, round {round}");
            }
            is_over.store(true, Relaxed);
        });
        object.close().unwrap();
    });
}

/// Bytes that say when they are freed.
struct Watched {
    bytes: Vec<u8>,
    is_freed: Arc<AtomicBool>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.is_freed.store(true, SeqCst);
    }
}

fn watched(is_freed: &Arc<AtomicBool>, len: usize) -> Memory {
    let mut owner = Watched { bytes: vec![0xEE; len], is_freed: is_freed.clone() };
    let piece = Piece { start: owner.bytes.as_mut_ptr(), len };
    // SAFETY: the vector in the owner keeps the piece, and nothing else uses it.
    unsafe { Memory::from_pieces([piece], owner) }
}

fn read_into(offset: u64, memory: Memory) -> Request {
    Request { user_data: offset, op: Op::ReadInto { offset, memory } }
}

#[test]
fn the_memory_of_a_request_lives_until_its_completion_returns_it() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "memory of requests");
    let disk = disk(7);
    let (cache, _partition, object) = scene(small(1), sized(4 * SET_BYTES), disk.store("disk", 16 * PAGE));
    object.write_at(0, &[7; 2 * PAGE as usize]).unwrap();
    object.advise(0, 16 * PAGE, octavo::Advice::DontNeed).unwrap();
    let is_freed = Arc::new(AtomicBool::new(false));
    let mut queue = cache.queue().unwrap();
    disk.hang();
    queue.submit(&object, [read_into(100, watched(&is_freed, 5000))]);
    assert!(queue.take_next().is_none() && !is_freed.load(SeqCst));
    disk.answer();
    let Completion { op, result, .. } = queue.wait_next().unwrap();
    result.unwrap();
    let Op::ReadInto { memory, .. } = op else { unreachable!() };
    assert!(!is_freed.load(SeqCst));
    let memory = memory.into_owner::<Vec<u8>>().expect_err("the owner is no vector");
    let owner = memory.into_owner::<Watched>().expect("the owner that was put in");
    assert!(owner.bytes.iter().all(|byte| *byte == 7));
    drop(owner);
    assert!(is_freed.load(SeqCst));
}

#[test]
fn a_queue_that_is_dropped_frees_the_memory_after_its_io_and_one_that_leaks_frees_none() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "memory of dropped queues");
    let disk = disk(8);
    let (cache, _partition, object) = scene(small(1), sized(4 * SET_BYTES), disk.store("disk", 64 * PAGE));
    let is_freed = Arc::new(AtomicBool::new(false));
    let mut queue = cache.queue().unwrap();
    disk.hang();
    queue.submit(&object, [read_into(0, watched(&is_freed, 4096))]);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || drop(queue));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropping.is_finished() && !is_freed.load(SeqCst));
        disk.answer();
        dropping.join().unwrap();
    });
    assert!(is_freed.load(SeqCst));
    let is_freed = Arc::new(AtomicBool::new(false));
    let mut queue = cache.queue().unwrap();
    disk.hang();
    queue.submit(&object, [read_into(20 * PAGE, watched(&is_freed, 4096))]);
    std::mem::forget(queue);
    disk.answer();
    // This read takes the completion of the leaked queue, which fills the leaked memory.
    object.read_at(20 * PAGE, &mut [0; 4096]).unwrap();
    assert!(!is_freed.load(SeqCst));
}

#[test]
fn requests_with_too_long_memory_are_refused_and_give_it_back() {
    let (cache, _partition, object) = scene(small(1), sized(1 << 20), Store::memory("m", PAGE));
    let mut queue = cache.queue().unwrap();
    let write = Op::WriteFrom { offset: 1, memory: Memory::new(vec![1; 4096]), durable: true };
    queue.submit(&object, [read_into(4000, Memory::new(vec![0; 97])), Request { op: write, user_data: 1 }]);
    let lens = std::iter::from_fn(|| queue.wait_next()).map(|completion| {
        assert!(matches!(completion.result, Err(Error::PastEnd { .. })));
        let (Op::ReadInto { memory, .. } | Op::WriteFrom { memory, .. }) = completion.op else {
            unreachable!()
        };
        memory.into_owner::<Vec<u8>>().expect("a vector").len()
    });
    assert_eq!(lens.collect::<Vec<_>>(), [97, 4096]);
    queue.submit(&object, [read_into(4096, Memory::new(Vec::new()))]);
    queue.wait_next().unwrap().result.unwrap();
    assert!(queue.wait_next().is_none());
}
