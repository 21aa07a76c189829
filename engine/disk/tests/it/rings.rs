//! Rings as queues: every I/O that is pushed is delivered exactly once, for any number of I/Os, any
//! store and any thread.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use octavo_disk::{AlignedBytes, Engine, Op, OpenOptions, Ring, RingOptions, Store};

use crate::fixture::*;

/// Pushes a write of each page of `memory` to the same place of the store. Its token is its number.
///
/// # Safety
/// `memory` lives until the ring has delivered all of them.
unsafe fn push_pages(ring: &Ring, store: &Store, memory: &AlignedBytes) {
    for (piece, token) in pieces(memory, 4096).into_iter().zip(0..) {
        // SAFETY: the caller promises it.
        unsafe { ring.push(store, Op::Write, token * 4096, &[piece], token) };
    }
}

/// Asserts that each I/O was delivered once.
fn assert_each_once(mut tokens: Vec<u64>, count: u64) {
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..count));
}

#[test]
fn more_ios_than_the_ring_has_entries_all_complete() {
    for (directory, ring) in rigs(4) {
        let path = file(directory.path(), &vec![0; 1000 * 4096 + 100]);
        let store = open(&path);
        let content = pattern(1, 1000 * 4096);
        let memory = aligned(&content);
        // SAFETY: `memory` outlives the waits.
        unsafe { push_pages(&ring, &store, &memory) };
        assert_eq!(ring.in_flight(), 1000);
        assert_each_once(successes(&ring, 1000), 1000);
        assert_eq!(ring.in_flight(), 0);
        assert_eq!(ring.reap(&mut |_, _| panic!("nothing is left")), 0);
        assert!(fs::read(&path).unwrap()[..content.len()] == content);
    }
}

#[test]
fn a_thread_that_only_reaps_gets_every_completion() {
    for (directory, ring) in rigs(2) {
        let store = open(&file(directory.path(), &pattern(1, 65_536)));
        let memory = pages(300, 4096);
        for (bytes, token) in memory.iter().zip(0..) {
            // SAFETY: `memory` outlives the reaps.
            unsafe { ring.push(&store, Op::Read, token % 16 * 4096, &[bytes.io_buffer()], token) };
        }
        ring.submit();
        let mut delivered = 0;
        while delivered < 300 {
            delivered += ring.reap(&mut |_, result| result.unwrap());
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_io_across_the_tail_of_a_full_ring_completes_once() {
    for (directory, ring) in rigs(1) {
        let store = open(&file(directory.path(), &pattern(1, 6000)));
        let memory = pages(200, 8192);
        for (bytes, token) in memory.iter().zip(0..) {
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], token) };
        }
        assert_each_once(successes(&ring, 200), 200);
        assert!(memory.iter().all(|bytes| bytes[..] == padded(&pattern(1, 6000), 8192)));
    }
}

#[test]
fn more_buffers_than_one_system_call_takes_are_all_moved() {
    for (directory, ring) in rigs(8) {
        let content = pattern(2, 2500 * 512);
        let path = file(directory.path(), &content);
        let store = open(&path);
        if store.block_bytes() != 512 {
            eprintln!("skipped: {} has blocks of {} bytes", store.name(), store.block_bytes());
            return;
        }
        let memory = AlignedBytes::new(2500 * 4096);
        // SAFETY: `memory` outlives the wait.
        unsafe { ring.push(&store, Op::Read, 0, &pieces(&memory, 512), 0) };
        successes(&ring, 1);
        let found: Vec<u8> = memory.chunks(4096).flat_map(|page| &page[..512]).copied().collect();
        assert!(found == content);
    }
}

#[test]
fn one_ring_serves_files_memory_and_simulated_disks_together() {
    for (directory, ring) in rigs(4) {
        let stores = stores(directory.path(), 40_000);
        let contents: Vec<AlignedBytes> = (0..30).map(|salt| aligned(&pattern(salt, 4096))).collect();
        for (index, bytes) in contents.iter().enumerate() {
            let offset = (index / 3) as u64 * 4096;
            // SAFETY: `contents` outlives the waits.
            unsafe { ring.push(&stores[index % 3], Op::Write, offset, &[bytes.io_buffer()], index as u64) };
        }
        assert_each_once(successes(&ring, 30), 30);
        for (index, bytes) in contents.iter().enumerate() {
            let offset = (index / 3) as u64 * 4096;
            let expected = &bytes[..4096.min(40_000 - offset as usize)];
            assert!(read(&ring, &stores[index % 3], offset, 4096) == padded(expected, 4096), "{index}");
        }
    }
}

#[test]
fn a_callback_may_use_the_ring_and_close_the_store() {
    for (directory, ring) in rigs(4) {
        let path = file(directory.path(), &pattern(1, 8192));
        let mut store = Some(open(&path));
        let memory = AlignedBytes::new(4096);
        // SAFETY: `memory` outlives the waits, and the second read begins after the first is
        // delivered.
        unsafe { ring.push(store.as_ref().unwrap(), Op::Read, 0, &[memory.io_buffer()], 1) };
        let mut done = false;
        while !done {
            ring.wait(
                &mut |token, result| {
                    result.unwrap();
                    store = None;
                    if token == 1 {
                        // The store closed with its last handle, so it can be opened again at once.
                        let again = open(&path);
                        // SAFETY: as above.
                        unsafe { ring.push(&again, Op::Read, 4096, &[memory.io_buffer()], 2) };
                        ring.submit();
                    } else {
                        done = true;
                    }
                },
                None,
            );
        }
        assert!(memory[..] == pattern(1, 8192)[4096..]);
    }
}

#[test]
fn a_store_that_closes_and_opens_again_is_never_mistaken_for_another() {
    for (directory, ring) in rigs(4) {
        let paths: Vec<_> = (0..100).map(|salt| file(directory.path(), &pattern(salt, 4096))).collect();
        // More stores than a ring registers.
        let all: Vec<Store> = paths.iter().map(|path| open(path)).collect();
        for (salt, store) in all.iter().enumerate() {
            assert!(read(&ring, store, 0, 4096) == pattern(salt as u64, 4096));
        }
        drop(all);
        let mut random = Random::new(1);
        for _ in 0..300 {
            let salt = random.below(100);
            let store = open(&paths[salt as usize]);
            assert!(read(&ring, &store, 0, 4096) == pattern(salt, 4096), "file {salt}, {ring:?}");
        }
    }
}

/// Returns whether this process has the file open, by a descriptor or in a ring's table of
/// registered files.
fn has_open(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    fs::read_dir("/proc/self/fd").unwrap().flatten().any(|fd| {
        let info = format!("/proc/self/fdinfo/{}", fd.file_name().display());
        fs::read_link(fd.path()).is_ok_and(|link| link.to_string_lossy().contains(name))
            || fs::read_to_string(info).is_ok_and(|info| info.contains(name))
    })
}

#[test]
fn a_store_that_closes_leaves_no_descriptor_and_no_registered_file() {
    for (directory, ring) in rigs(4) {
        let path = file(directory.path(), &[1; 4096]);
        let renamed = path.with_file_name(format!("closed-by-{}", ring.engine_name()));
        fs::rename(&path, &renamed).unwrap();
        let store = open(&renamed);
        read(&ring, &store, 0, 4096);
        assert!(has_open(&renamed));
        drop(store);
        assert!(!has_open(&renamed), "{ring:?}");
    }
}

#[test]
fn dropping_a_ring_waits_for_its_io() {
    let directory = directory();
    for engine in [Engine::Blocking, Engine::Auto] {
        let path = file(directory.path(), &vec![0; 1 << 20]);
        let store = open(&path);
        let memory = aligned(&pattern(3, 1 << 20));
        let ring = Ring::new(&RingOptions { entries: 4, engine }).unwrap();
        // SAFETY: `memory` outlives the ring.
        unsafe { push_pages(&ring, &store, &memory) };
        drop(ring);
        assert!(fs::read(&path).unwrap() == memory[..]);
    }
}

#[test]
fn an_error_names_the_store_the_operation_and_the_range() {
    for (directory, ring) in rigs(4) {
        let path = file(directory.path(), &[0; 8192]);
        let store = Store::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let error = transfer(&ring, &store, Op::Write, 4096, &AlignedBytes::new(4096)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(text.contains("write of 4096 bytes at 4096"), "{text}");
        assert_eq!(error.errno(), libc::EROFS);
        assert!(store.set_len_bytes(1).is_err());
        for (op, word) in [(Op::Zero, "zeroing"), (Op::Discard, "discard")] {
            let error = clear(&ring, &store, op, 4096, 4096).unwrap_err();
            assert_eq!(error.errno(), libc::EROFS);
            assert!(error.to_string().contains(&format!("{word} of 4096 bytes at 4096")), "{error}");
        }
        let error = transfer(&ring, &store, Op::Read, u64::MAX - 511, &AlignedBytes::new(4096)).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
    }
}

#[test]
fn many_threads_push_and_reap_one_ring_and_nothing_is_lost_or_doubled() {
    for (directory, ring) in rigs(8) {
        let store = open(&file(directory.path(), &pattern(4, 256 * 4096)));
        let memory_store = Store::memory("memory", 1 << 20);
        let tokens = Mutex::new(Vec::new());
        let memory = pages(2000, 4096);
        std::thread::scope(|scope| {
            for (share, thread) in memory.chunks(500).zip(0..) {
                let (ring, store, memory_store, tokens) = (&ring, &store, &memory_store, &tokens);
                scope.spawn(move || {
                    for (bytes, index) in share.iter().zip(0..) {
                        let token: u64 = thread * 500 + index;
                        let store = if token.is_multiple_of(7) { memory_store } else { store };
                        let offset = token % 256 * 4096;
                        // SAFETY: `memory` outlives the ring's I/O, which is waited for below.
                        unsafe { ring.push(store, Op::Read, offset, &[bytes.io_buffer()], token) };
                        if index % 10 == 0 {
                            ring.submit();
                        }
                        if index % 16 == 0 {
                            ring.reap(&mut |token, result| {
                                result.unwrap();
                                tokens.lock().unwrap().push(token);
                            });
                        }
                    }
                    ring.submit();
                });
            }
        });
        let mut tokens = tokens.into_inner().unwrap();
        tokens.extend(successes(&ring, 2000 - tokens.len()));
        assert_each_once(tokens, 2000);
        let content = pattern(4, 256 * 4096);
        for (token, bytes) in memory.iter().enumerate().filter(|(token, _)| token % 7 != 0) {
            assert!(bytes[..] == content[token % 256 * 4096..][..4096]);
        }
    }
}

#[test]
fn a_submitter_that_ends_leaves_its_io_to_others() {
    for (directory, ring) in rigs(64) {
        let path = file(directory.path(), &vec![0; 64 * 4096 + 77]);
        let store = open(&path);
        let content = pattern(8, 65 * 4096);
        let memory = aligned(&content);
        std::thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                // SAFETY: `memory` outlives the waits.
                unsafe { push_pages(&ring, &store, &memory) };
                ring.submit();
            });
            submitter.join().unwrap();
        });
        successes(&ring, 65);
        assert!(fs::read(&path).unwrap() == content[..64 * 4096 + 77]);
    }
}

#[test]
fn options_out_of_range_are_refused() {
    for entries in [0, 32_769] {
        let error = Ring::new(&RingOptions { entries, engine: Engine::Auto }).unwrap_err();
        assert!(error.to_string().contains(&entries.to_string()));
    }
}
