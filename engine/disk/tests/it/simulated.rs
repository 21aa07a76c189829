//! The simulated disk: its faults are those of real disks (D1 to D7), and a run repeats from its
//! seed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_disk::{AlignedBytes, Engine, Op, Ring, RingOptions, SimDisk, SimFaults, SimOptions, Store};

use crate::fixture::*;

fn ring() -> Ring {
    Ring::new(&RingOptions { entries: 8, engine: Engine::Blocking }).unwrap()
}

fn disk(seed: u64, faults: SimFaults) -> SimDisk {
    SimDisk::new(SimOptions { seed, faults, ..SimOptions::default() })
}

/// A new disk with one file, and a ring to reach it.
fn file_on(seed: u64, faults: SimFaults, len_bytes: u64) -> (Ring, SimDisk, Store) {
    let disk = disk(seed, faults);
    let store = disk.store("data", len_bytes);
    (ring(), disk, store)
}

/// Returns for each sector of `found` whether it equals `new`. Panics if it equals neither `new`
/// nor `old`.
fn sectors_new(found: &[u8], old: &[u8], new: &[u8]) -> Vec<bool> {
    let sectors = found.chunks(512).zip(old.chunks(512)).zip(new.chunks(512));
    sectors
        .map(|((found, old), new)| {
            assert!(found == old || found == new, "a sector has bytes that were never written");
            found == new
        })
        .collect()
}

#[test]
fn synced_writes_survive_a_crash_and_unsynced_writes_survive_in_any_part() {
    let (mut some_kept, mut some_lost, mut some_torn) = (false, false, false);
    for_seeds(0..50, |seed| {
        let (ring, disk, store) = file_on(seed, SimFaults::default(), 8192);
        let (first, second) = (pattern(seed, 8192), pattern(seed + 1000, 8192));
        write(&ring, &store, 0, &first);
        sync(&ring, &store).unwrap();
        write(&ring, &store, 0, &second);
        disk.crash();
        sectors_new(&disk.image("data"), &first, &second);
        let reopened = disk.store("data", 0);
        assert_eq!(reopened.len_bytes(), 8192);
        let found = read(&ring, &reopened, 0, 8192);
        assert!(found == disk.image("data"), "reads return the bytes that the crash left");
    });
    for seed in 0..50 {
        let (ring, disk, store) = file_on(seed, SimFaults::default(), 4096);
        write(&ring, &store, 0, &[1; 4096]);
        disk.crash();
        let kept = sectors_new(&disk.image("data"), &[0; 4096], &[1; 4096]);
        some_kept |= kept.contains(&true);
        some_lost |= kept.contains(&false);
        some_torn |= kept.contains(&true) && kept.contains(&false);
    }
    assert!(some_kept && some_lost && some_torn);
}

#[test]
fn a_crash_fails_the_io_in_flight_and_all_io_of_old_handles() {
    for_seeds(0..20, |seed| {
        let (ring, disk, store) = file_on(seed, SimFaults::default(), 65_536);
        let memory = aligned(&pattern(seed, 65_536));
        let read_memory = AlignedBytes::new(4096);
        // SAFETY: both memories outlive the wait.
        unsafe { ring.push(&store, Op::Write, 0, &[memory.io_buffer()], 1) };
        // SAFETY: as above.
        unsafe { ring.push(&store, Op::Read, 0, &[read_memory.io_buffer()], 2) };
        // SAFETY: a sync has no memory.
        unsafe { ring.push(&store, Op::Sync, 0, &[], 3) };
        disk.crash();
        for (_, result) in outcomes(&ring, 3) {
            assert!(result.unwrap_err().to_string().contains("crash"));
        }
        sectors_new(&disk.image("data"), &[0; 65_536], &memory);
        let error = transfer(&ring, &store, Op::Read, 0, &read_memory).unwrap_err();
        assert!(error.to_string().contains("data") && error.to_string().contains("crashed"), "{error}");
        assert!(store.set_len_bytes(1).is_err() && clear(&ring, &store, Op::Zero, 0, 512).is_err());
        assert_eq!(read(&ring, &disk.store("data", 0), 0, 65_536), disk.image("data"));
    });
}

#[test]
fn a_sync_covers_every_write_that_completed_before_it_was_pushed() {
    for_seeds(0..100, |seed| {
        let (ring, disk, store) = file_on(seed, SimFaults::default(), 65_536);
        let mut random = Random::new(seed);
        let mut completed: HashMap<u64, u8> = HashMap::new();
        for round in 1..=20u8 {
            let page = random.below(16);
            write(&ring, &store, page * 4096, &[round; 4096]);
            completed.insert(page, round);
        }
        let later = aligned(&[200; 4096]);
        // SAFETY: a sync has no memory; `later` outlives the wait.
        unsafe { ring.push(&store, Op::Sync, 0, &[], 1) };
        // SAFETY: as above.
        unsafe { ring.push(&store, Op::Write, 0, &[later.io_buffer()], 2) };
        let mut synced = false;
        while !synced {
            ring.wait(&mut |token, result| synced |= token == 1 && result.is_ok(), None);
        }
        disk.crash();
        let image = disk.image("data");
        for (page, round) in completed {
            for sector in image[page as usize * 4096..][..4096].chunks(512) {
                assert!(sector == [round; 512] || (page == 0 && sector == [200; 512]), "page {page}");
            }
        }
        ring.reap(&mut |_, _| {});
    });
}

#[test]
fn a_sync_after_a_failed_sync_brings_back_no_lost_sector() {
    let (mut any_lost, mut any_kept) = (false, false);
    for seed in 0..30 {
        let faults = SimFaults { p_sync_error: 1.0, ..SimFaults::default() };
        let (ring, disk, store) = file_on(seed, faults, 4096);
        write(&ring, &store, 0, &[1; 4096]);
        assert_eq!(sync(&ring, &store).unwrap_err().errno(), libc::EIO);
        disk.set_faults(SimFaults::default());
        sync(&ring, &store).unwrap();
        let before = disk.image("data");
        disk.crash();
        assert!(disk.image("data") == before, "a successful sync makes the surviving sectors durable");
        let kept = sectors_new(&before, &[0; 4096], &[1; 4096]);
        any_lost |= kept.contains(&false);
        any_kept |= kept.contains(&true);
    }
    assert!(any_lost && any_kept);
}

#[test]
fn faults_fail_io_with_their_error_and_a_torn_write_leaves_any_sectors() {
    let cases = [
        (SimFaults { p_read_error: 1.0, ..SimFaults::default() }, Op::Read, libc::EIO),
        (SimFaults { p_write_error: 1.0, ..SimFaults::default() }, Op::Write, libc::EIO),
        (SimFaults { p_no_space: 1.0, ..SimFaults::default() }, Op::Write, libc::ENOSPC),
        (SimFaults { p_sync_error: 1.0, ..SimFaults::default() }, Op::Sync, libc::EIO),
    ];
    for (faults, op, errno) in cases {
        let (ring, disk, store) = file_on(1, faults, 4096);
        let error = transfer(&ring, &store, op, 0, &AlignedBytes::new(4096)).unwrap_err();
        assert_eq!((error.op(), error.errno()), (op, errno));
        assert_eq!(disk.counters().errors, 1);
    }
    // A clearing fails with the error of its last means, which is to write zeros.
    for (faults, errno) in [
        (SimFaults { p_write_error: 1.0, p_unsupported: 1.0, ..SimFaults::default() }, libc::EIO),
        (SimFaults { p_no_space: 1.0, ..SimFaults::default() }, libc::ENOSPC),
    ] {
        let (ring, disk, store) = file_on(1, faults, 4096);
        let error = clear(&ring, &store, Op::Discard, 0, 4096).unwrap_err();
        assert_eq!((error.op(), error.errno()), (Op::Discard, errno));
        assert_eq!((disk.counters().errors, disk.counters().writes), (3, 1));
    }
    let mut torn = 0;
    for seed in 0..30 {
        for p_torn in [0.0, 1.0] {
            let faults = SimFaults { p_write_error: 1.0, p_torn, ..SimFaults::default() };
            let (ring, disk, store) = file_on(seed, faults, 4096);
            transfer(&ring, &store, Op::Write, 0, &aligned(&[1; 4096])).unwrap_err();
            let new = sectors_new(&disk.image("data"), &[0; 4096], &[1; 4096]);
            assert!(p_torn == 1.0 || !new.contains(&true), "without tearing a failed write changes nothing");
            torn += usize::from(new.contains(&true) && new.contains(&false));
        }
    }
    assert!(torn > 0);
}

#[test]
fn a_read_beside_a_write_sees_old_or_new_sectors_and_a_later_read_no_older_ones() {
    let mut mixed = false;
    for seed in 0..200 {
        let (ring, _disk, store) = file_on(seed, SimFaults::default(), 4096);
        let new = aligned(&[1; 4096]);
        let [first, second] = [AlignedBytes::new(4096), AlignedBytes::new(4096)];
        // SAFETY: all memory outlives the waits.
        unsafe { ring.push(&store, Op::Write, 0, &[new.io_buffer()], 1) };
        // SAFETY: as above.
        unsafe { ring.push(&store, Op::Read, 0, &[first.io_buffer()], 2) };
        let mut done = Vec::new();
        while !done.contains(&2) {
            ring.wait(&mut |token, _| done.push(token), None);
        }
        // SAFETY: as above.
        unsafe { ring.push(&store, Op::Read, 0, &[second.io_buffer()], 3) };
        while done.len() < 3 {
            ring.wait(&mut |token, _| done.push(token), None);
        }
        let first = sectors_new(&first, &[0; 4096], &new);
        let second = sectors_new(&second, &[0; 4096], &new);
        assert!(first.iter().zip(&second).all(|(first, second)| second >= first), "seed {seed}");
        mixed |= first.contains(&true) && first.contains(&false);
    }
    assert!(mixed);
}

#[test]
fn without_reordering_io_completes_in_the_order_in_which_it_was_pushed() {
    let ring = ring();
    let disk = SimDisk::new(SimOptions { reorder: false, ..SimOptions::default() });
    let store = disk.store("data", 1 << 20);
    let memory = pages(100, 4096);
    for (bytes, token) in memory.iter().zip(0..) {
        // SAFETY: `memory` outlives the waits.
        unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], token) };
    }
    assert!(successes(&ring, 100).is_sorted());
}

/// Runs random I/O with every fault and some crashes. Returns the completions in their order, the
/// hash of the disk's events, and its final content.
fn history(seed: u64) -> (Vec<(u64, bool)>, u64, Vec<u8>) {
    let faults = SimFaults {
        p_read_error: 0.05,
        p_write_error: 0.05,
        p_no_space: 0.05,
        p_unsupported: 0.3,
        p_sync_error: 0.1,
        p_torn: 0.5,
        p_short: 0.3,
    };
    let (ring, disk, mut store) = file_on(seed, faults, 65_536);
    let mut random = Random::new(seed);
    let mut delivered = Vec::new();
    for round in 0..30 {
        let memory: Vec<AlignedBytes> = (0..10).map(|_| aligned(&pattern(random.next_u64(), 8192))).collect();
        for (index, bytes) in memory.iter().enumerate() {
            let op = [Op::Read, Op::Write, Op::Write, Op::Sync, Op::Zero][random.below(5) as usize];
            let token = round * 100 + index as u64;
            if op == Op::Zero {
                ring.push_clear(&store, op, random.below(16) * 4096, 8192, token);
                continue;
            }
            // SAFETY: `memory` outlives the wait below.
            unsafe { ring.push(&store, op, random.below(16) * 4096, &[bytes.io_buffer()], token) };
        }
        if random.below(5) == 0 {
            disk.crash();
            store = disk.store("data", 0);
        }
        let outcomes = outcomes(&ring, ring.in_flight());
        delivered.extend(outcomes.into_iter().map(|(token, result)| (token, result.is_ok())));
        let _ = store.set_len_bytes(60_000 + random.below(8192));
    }
    (delivered, disk.history_digest(), disk.image("data"))
}

#[test]
fn equal_seeds_give_equal_runs_and_different_seeds_different_runs() {
    for_seeds(0..10, |seed| {
        let once = history(seed);
        assert!(once == history(seed));
        assert_ne!(once.1, history(seed + 1).1);
    });
}

#[test]
fn io_of_several_rings_on_one_disk_completes_on_its_own_ring() {
    let disk = disk(7, SimFaults { p_short: 0.3, ..SimFaults::default() });
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (disk, done) = (disk.clone(), &done);
            scope.spawn(move || {
                let (ring, store) = (ring(), disk.store("data", 1 << 20));
                for round in 0..200 {
                    let content = pattern(thread * 1000 + round, 4096);
                    write(&ring, &store, thread * 4096, &content);
                    assert!(read(&ring, &store, thread * 4096, 4096) == content);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 800);
    let counters = disk.counters();
    assert_eq!((counters.reads, counters.writes), (800, 800));
    assert_eq!((counters.bytes_read, counters.bytes_written), (800 * 4096, 800 * 4096));
}

#[test]
fn a_crash_keeps_or_reverts_an_unsynced_change_of_length() {
    let mut lengths = Vec::new();
    for seed in 0..30 {
        let (ring, disk, store) = file_on(seed, SimFaults::default(), 10_000);
        store.set_len_bytes(5000).unwrap();
        disk.crash();
        lengths.push(disk.image("data").len());
        let store = disk.store("data", 0);
        store.set_len_bytes(7000).unwrap();
        sync(&ring, &store).unwrap();
        disk.crash();
        assert_eq!(disk.image("data").len(), 7000, "a synced change survives");
    }
    assert!(lengths.contains(&5000) && lengths.contains(&10_000));
}
