//! The end of a file: I/O moves exact bytes below it, reads give zeros past it, and only
//! `set_len_bytes` and `adopt_len_bytes` change the length.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use octavo_disk::{AlignedBytes, Op, OpenOptions, Ring, Store};

use crate::fixture::*;

/// Lengths around every boundary: sector, block, tail unit, several units.
const LENGTHS: [usize; 16] =
    [0, 1, 511, 512, 513, 1024, 4095, 4096, 4097, 4608, 8191, 8192, 8193, 12_288, 16_484, 69_999];

#[test]
fn reads_give_exact_bytes_up_to_the_end_and_zeros_past_it() {
    for (directory, ring) in rigs_everywhere(8) {
        for len in LENGTHS {
            let content = pattern(len as u64, len);
            let store = open(&file(directory.path(), &content));
            let whole = len.next_multiple_of(4096) + 8192;
            assert_eq!(read(&ring, &store, 0, whole), padded(&content, whole), "{len} bytes, {ring:?}");
            assert!(read(&ring, &store, whole as u64, 4096).iter().all(|&byte| byte == 0));
            let unit = len / 4096 * 4096;
            assert_eq!(read(&ring, &store, unit as u64, 4096), padded(&content[unit..], 4096));
        }
    }
}

/// Reads a unit of 4096 bytes on this thread, without a ring.
fn read_alone(store: &Store, offset: u64) -> Vec<u8> {
    let unit = AlignedBytes::new(4096);
    // SAFETY: `unit` outlives the call.
    unsafe { Ring::read_alone(store, offset, unit.io_buffer()) }.unwrap();
    unit.to_vec()
}

#[test]
fn a_read_without_a_ring_gives_what_a_ring_gives() {
    for (directory, ring) in rigs_everywhere(8) {
        for len in LENGTHS {
            let content = pattern(len as u64, len);
            let path = file(directory.path(), &content);
            let store = open(&path);
            let whole = len.next_multiple_of(4096) + 8192;
            let units = || (0..whole as u64).step_by(4096);
            let expected = padded(&content, whole);
            assert!(units().flat_map(|at| read_alone(&store, at)).eq(expected), "{len} bytes, {ring:?}");
            // Another program shortens the file, so calls return less than they should.
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len as u64 / 2).unwrap();
            for at in units() {
                assert!(read_alone(&store, at) == read(&ring, &store, at, 4096), "{at} of {len}, {ring:?}");
            }
        }
    }
    let memory = Store::memory("m", 5000);
    assert_eq!(read_alone(&memory, 4096), vec![0; 4096]);
}

#[test]
fn a_read_without_a_ring_that_fails_says_what_a_ring_says() {
    let (directory, ring) = rigs(8).remove(0);
    let store = open(&file(directory.path(), &[1; 8192]));
    let unit = AlignedBytes::new(4096);
    let offset = i64::MAX as u64 - 4095;
    // SAFETY: `unit` outlives both calls.
    let alone = unsafe { Ring::read_alone(&store, offset, unit.io_buffer()) }.unwrap_err();
    // SAFETY: as above.
    let by_ring = unsafe { ring.run(&store, Op::Read, offset, &[unit.io_buffer()]) }.unwrap_err();
    assert_eq!(alone.to_string(), by_ring.to_string());
}

#[test]
fn writes_are_cut_at_the_end_and_never_change_the_length() {
    for (directory, ring) in rigs_everywhere(8) {
        for len in LENGTHS {
            let path = file(directory.path(), &pattern(1, len));
            let store = open(&path);
            let whole = len.next_multiple_of(4096) + 8192;
            let new = pattern(2, whole);
            write(&ring, &store, 0, &new);
            write(&ring, &store, whole as u64, &new);
            assert_eq!(store.len_bytes(), len as u64);
            sync(&ring, &store).unwrap();
            assert!(fs::read(&path).unwrap() == new[..len], "{len} bytes, {ring:?}");
            // Writes only the tail unit.
            let unit = len / 4096 * 4096;
            let newer = pattern(3, 4096);
            write(&ring, &store, unit as u64, &newer);
            let expected = [&new[..unit], &newer[..len - unit]].concat();
            assert!(fs::read(&path).unwrap() == expected, "the tail of {len} bytes, {ring:?}");
            assert_eq!(read(&ring, &store, 0, whole), padded(&expected, whole));
        }
    }
}

#[test]
fn an_io_of_many_buffers_across_the_tail_completes_once() {
    for (directory, ring) in rigs(8) {
        for len in [5000usize, 9000, 12_000, 12_288] {
            let path = file(directory.path(), &vec![0; len]);
            let store = open(&path);
            let content = pattern(len as u64, 16_384);
            let memory = aligned(&content);
            // SAFETY: `memory` outlives the wait.
            unsafe { ring.push(&store, Op::Write, 0, &pieces(&memory, 4096), 1) };
            assert_eq!((successes(&ring, 1).len(), ring.in_flight()), (1, 0));
            assert!(fs::read(&path).unwrap() == content[..len]);
            let back = AlignedBytes::new(16_384);
            // SAFETY: `back` outlives the call.
            unsafe { ring.run(&store, Op::Read, 0, &pieces(&back, 4096)) }.unwrap();
            assert!(back[..] == padded(&content[..len], 16_384));
        }
    }
}

#[test]
fn a_length_that_grows_or_shrinks_keeps_what_it_covers_and_gains_zeros() {
    for (directory, ring) in rigs_everywhere(8) {
        for from in LENGTHS {
            for to in LENGTHS {
                let path = file(directory.path(), &vec![9; from]);
                let store = open(&path);
                let mut content = pattern(5, from.next_multiple_of(4096));
                write(&ring, &store, 0, &content);
                store.set_len_bytes(to as u64).unwrap();
                content.truncate(from);
                content.resize(to, 0);
                assert_eq!(store.len_bytes(), to as u64);
                let whole = 73_728;
                let found = read(&ring, &store, 0, whole);
                assert!(found == padded(&content, whole), "{from} to {to}, {ring:?}");
                // The new tail is written exactly.
                let newer = pattern(6, to.next_multiple_of(4096) + 4096);
                write(&ring, &store, 0, &newer);
                assert!(fs::read(&path).unwrap() == newer[..to], "{from} to {to}, {ring:?}");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn the_store_keeps_its_length_when_others_shorten_or_lengthen_the_file() {
    for (directory, ring) in rigs_everywhere(8) {
        for left in [0usize, 100, 512, 4096, 6000, 8192] {
            let content = pattern(3, 20_000);
            let path = file(directory.path(), &content);
            let store = open(&path);
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left as u64).unwrap();
            let expected = padded(&content[..left], 24_576);
            assert!(read(&ring, &store, 0, 24_576) == expected, "{left} bytes left, {ring:?}");

            fs::write(&path, vec![1; 40_000]).unwrap();
            assert!(read(&ring, &store, 0, 24_576) == padded(&[1; 20_000], 24_576));
            assert_eq!(store.len_bytes(), 20_000);
        }
    }
}

#[test]
fn changing_the_length_waits_for_io_that_its_own_caller_has_queued() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &[0; 10_000]);
        let store = open(&path);
        let content = pattern(4, 12_288);
        let memory = aligned(&content);
        // SAFETY: `memory` outlives the wait.
        unsafe { ring.push(&store, Op::Write, 0, &[memory.io_buffer()], 5) };
        // The write is neither submitted nor reaped here: the change of length drives it.
        store.set_len_bytes(5000).unwrap();
        assert_eq!(ring.in_flight(), 1, "the write is finished and not delivered");
        assert_eq!(ring.wait(&mut |token, result| assert!(token == 5 && result.is_ok()), None), 1);
        assert!(fs::read(&path).unwrap() == content[..5000]);
    }
}

/// Calls `change` 200 times with the store of a file of 20,000 bytes, and with its path, while
/// other threads write and read around the end of the file.
fn change_beside_writers(mut change: impl FnMut(&mut Random, &Store, &Path)) {
    let directory = directory();
    let path = file(directory.path(), &[0; 20_000]);
    let store = open(&path);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (thread, ring) in rings(4).into_iter().enumerate() {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                while !stop.load(Ordering::Relaxed) {
                    write(&ring, store, random.below(5) * 4096, &pattern(random.next_u64(), 8192));
                    read(&ring, store, random.below(5) * 4096, 8192);
                }
            });
        }
        let mut random = Random::new(9);
        for _ in 0..200 {
            change(&mut random, &store, &path);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_length_changes_while_other_threads_write_around_the_end() {
    change_beside_writers(|random, store, path| {
        let len = random.below(24_000);
        store.set_len_bytes(len).unwrap();
        let found = fs::metadata(path).unwrap().len();
        assert_eq!(found, len, "no write in flight lengthens the file again");
    });
}

#[test]
fn zeroing_and_discarding_leave_zeros_in_the_range_and_change_no_other_byte() {
    let directories = directories();
    let on_files = directories.iter().map(|directory| open(&file(directory.path(), &[0; 70_000])));
    for store in on_files.chain([Store::memory("memory", 70_000)]) {
        let ring = &rings(8)[0];
        for_seeds(0..60, |seed| {
            let mut random = Random::new(seed);
            let mut content = pattern(seed, 70_000usize.next_multiple_of(4096));
            write(ring, &store, 0, &content);
            content.truncate(70_000);
            let block = u64::from(store.block_bytes());
            let (offset, len) = (random.below(75_000 / block) * block, random.below(75_000 / block) * block);
            let op = if random.below(2) == 0 { Op::Zero } else { Op::Discard };
            clear(ring, &store, op, offset, len).unwrap();
            let end = ((offset + len) as usize).min(70_000);
            content[(offset as usize).min(end)..end].fill(0);
            let found = read(ring, &store, 0, 73_728);
            assert!(found == padded(&content, 73_728), "{store:?}: {len} at {offset}");
            assert_eq!(store.len_bytes(), 70_000);
        });
    }
}

#[test]
fn io_that_waits_at_the_gate_continues_after_the_change_of_length() {
    let directory = directory();
    let path = file(directory.path(), &[7; 10_000]);
    let store = open(&path);
    let ring = &rings(8)[0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for len in 5000..5100 {
                store.set_len_bytes(len).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for _ in 0..500 {
            assert!(read(ring, &store, 0, 4096) == [7; 4096]);
        }
    });
}

/// Sets the length of a file as another program does, and fills what it adds with `fill`.
fn change_outside(path: &std::path::Path, to: usize, fill: u8) {
    let mut content = fs::read(path).unwrap();
    content.resize(to, fill);
    let other = fs::OpenOptions::new().write(true).open(path).unwrap();
    other.set_len(to as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&other, &content, 0).unwrap();
}

#[test]
fn a_length_that_another_program_changed_is_adopted_with_the_bytes_that_it_covers() {
    for (directory, ring) in rigs_everywhere(8) {
        for from in LENGTHS {
            for to in LENGTHS {
                let path = file(directory.path(), &vec![9; from]);
                let store = open(&path);
                let mut content = pattern(5, from.next_multiple_of(4096));
                write(&ring, &store, 0, &content);
                content.truncate(from);
                change_outside(&path, to, 7);
                content.resize(to, 7);
                assert_eq!(store.len_bytes(), from as u64);
                assert_eq!(store.adopt_len_bytes().unwrap(), to as u64);
                assert_eq!(store.len_bytes(), to as u64);
                let whole = 73_728;
                assert!(read(&ring, &store, 0, whole) == padded(&content, whole), "{from} to {to}, {ring:?}");
                // The new tail is written exactly.
                let newer = pattern(6, to.next_multiple_of(4096) + 4096);
                write(&ring, &store, 0, &newer);
                assert!(fs::read(&path).unwrap() == newer[..to], "{from} to {to}, {ring:?}");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn a_read_only_store_adopts_a_length_and_stores_in_memory_keep_theirs() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &pattern(1, 5000));
        let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
        let store = Store::open(&path, &reading).unwrap();
        change_outside(&path, 9000, 3);
        assert_eq!(store.adopt_len_bytes().unwrap(), 9000);
        assert!(read(&ring, &store, 0, 12_288) == padded(&fs::read(&path).unwrap(), 12_288));
        for store in &stores(directory.path(), 5000) {
            assert_eq!(store.adopt_len_bytes().unwrap(), 5000, "{store:?}");
        }
    }
}

#[test]
fn adopting_a_length_waits_for_io_that_its_own_caller_has_queued() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &[0; 10_000]);
        let store = open(&path);
        let content = pattern(4, 12_288);
        let memory = aligned(&content);
        // SAFETY: `memory` outlives the wait.
        unsafe { ring.push(&store, Op::Write, 0, &[memory.io_buffer()], 5) };
        change_outside(&path, 30_000, 8);
        // The write is neither submitted nor reaped here. It was cut by the old length.
        assert_eq!(store.adopt_len_bytes().unwrap(), 30_000);
        assert_eq!(ring.in_flight(), 1, "the write is finished and not delivered");
        assert_eq!(successes(&ring, 1), [5]);
        let expected = [&content[..10_000], &[8; 20_000]].concat();
        assert!(fs::read(&path).unwrap() == expected);
        assert!(read(&ring, &store, 0, 32_768) == padded(&expected, 32_768));
    }
}

#[test]
fn lengths_are_adopted_while_other_threads_write_around_the_end() {
    change_beside_writers(|random, store, path| {
        // Only longer: a write in flight may lengthen a file that another program cuts.
        let len = store.len_bytes() + random.below(100);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        assert_eq!(store.adopt_len_bytes().unwrap(), len);
        assert_eq!(fs::metadata(path).unwrap().len(), len);
    });
}
