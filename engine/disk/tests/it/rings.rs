//! Rings as queues: every I/O that is pushed is delivered exactly once, for any number of I/Os, any
//! store and any thread.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use octavo_disk::{
    AlignedBytes, Engine, IoBuffer, Op, OpenOptions, Ring, RingOptions, SimDisk, SimOptions, Store,
};

use crate::fixture::*;

#[test]
fn more_ios_than_the_ring_has_entries_all_complete() {
    let directory = directory();
    for ring in rings(4) {
        let path = file(directory.path(), &vec![0; 1000 * 4096 + 100]);
        let store = open(&path);
        let content = pattern(1, 1000 * 4096);
        let memory = aligned(&content);
        let mut tokens = HashSet::new();
        for index in 0..1000usize {
            let piece = IoBuffer { ptr: memory.io_buffer().ptr.wrapping_add(index * 4096), len: 4096 };
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(&store, Op::Write, index as u64 * 4096, &[piece], index as u64) };
        }
        assert_eq!(ring.in_flight(), 1000);
        while tokens.len() < 1000 {
            ring.wait(
                &mut |token, result| {
                    result.unwrap();
                    assert!(tokens.insert(token), "{token} is delivered once");
                },
                None,
            );
        }
        assert_eq!(ring.in_flight(), 0);
        assert_eq!(ring.reap(&mut |_, _| panic!("nothing is left")), 0);
        assert!(fs::read(&path).unwrap()[..content.len()] == content);
    }
}

#[test]
fn a_thread_that_only_reaps_gets_every_completion() {
    let directory = directory();
    for ring in rings(2) {
        let store = open(&file(directory.path(), &pattern(1, 65_536)));
        let memory: Vec<AlignedBytes> = (0..300).map(|_| AlignedBytes::new(4096)).collect();
        for (token, bytes) in memory.iter().enumerate() {
            // SAFETY: `memory` outlives the reaps.
            unsafe {
                ring.push(&store, Op::Read, token as u64 % 16 * 4096, &[bytes.io_buffer()], token as u64)
            };
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
    let directory = directory();
    for ring in rings(1) {
        let store = open(&file(directory.path(), &pattern(1, 6000)));
        let memory: Vec<AlignedBytes> = (0..200).map(|_| AlignedBytes::new(8192)).collect();
        for (token, bytes) in memory.iter().enumerate() {
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], token as u64) };
        }
        let mut delivered = 0;
        while delivered < 200 {
            delivered += ring.wait(&mut |_, result| result.unwrap(), None);
        }
        assert!(memory.iter().all(|bytes| bytes[..] == padded(&pattern(1, 6000), 8192)));
    }
}

#[test]
fn more_buffers_than_one_system_call_takes_are_all_moved() {
    let directory = directory();
    for ring in rings(8) {
        let content = pattern(2, 2500 * 512);
        let path = file(directory.path(), &content);
        let store = open(&path);
        if store.block_bytes() != 512 {
            eprintln!("skipped: {} has blocks of {} bytes", store.name(), store.block_bytes());
            return;
        }
        let memory = AlignedBytes::new(2500 * 4096);
        let start = memory.io_buffer().ptr;
        let pieces: Vec<IoBuffer> =
            (0..2500).map(|index| IoBuffer { ptr: start.wrapping_add(index * 4096), len: 512 }).collect();
        // SAFETY: `memory` outlives the wait.
        unsafe { ring.push(&store, Op::Read, 0, &pieces, 0) };
        let mut delivered = 0;
        while delivered == 0 {
            delivered = ring.wait(&mut |_, result| result.unwrap(), None);
        }
        let found: Vec<u8> = memory.chunks(4096).flat_map(|page| &page[..512]).copied().collect();
        assert!(found == content);
    }
}

#[test]
fn one_ring_serves_files_memory_and_simulated_disks_together() {
    let directory = directory();
    let disk = SimDisk::new(SimOptions::default());
    for ring in rings(4) {
        let stores = [
            open(&file(directory.path(), &[0; 40_000])),
            Store::memory("memory", 40_000),
            disk.store(ring.engine_name(), 40_000),
        ];
        let contents: Vec<AlignedBytes> = (0..30).map(|salt| aligned(&pattern(salt, 4096))).collect();
        for (index, bytes) in contents.iter().enumerate() {
            let offset = (index / 3) as u64 * 4096;
            // SAFETY: `contents` outlives the waits.
            unsafe { ring.push(&stores[index % 3], Op::Write, offset, &[bytes.io_buffer()], index as u64) };
        }
        let mut tokens = HashSet::new();
        while tokens.len() < 30 {
            ring.wait(
                &mut |token, result| {
                    result.unwrap();
                    assert!(tokens.insert(token));
                },
                None,
            );
        }
        for (index, bytes) in contents.iter().enumerate() {
            let offset = (index / 3) as u64 * 4096;
            let expected = &bytes[..4096.min(40_000 - offset as usize)];
            assert!(read(&ring, &stores[index % 3], offset, 4096) == padded(expected, 4096), "{index}");
        }
    }
}

#[test]
fn a_callback_may_use_the_ring_and_close_the_store() {
    let directory = directory();
    for ring in rings(4) {
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
    let directory = directory();
    for ring in rings(4) {
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
    let directory = directory();
    for ring in rings(4) {
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
        for index in 0..256usize {
            let piece = IoBuffer { ptr: memory.io_buffer().ptr.wrapping_add(index * 4096), len: 4096 };
            // SAFETY: `memory` outlives the ring.
            unsafe { ring.push(&store, Op::Write, index as u64 * 4096, &[piece], 0) };
        }
        drop(ring);
        assert!(fs::read(&path).unwrap() == memory[..]);
    }
}

#[test]
fn an_error_names_the_store_the_operation_and_the_range() {
    let directory = directory();
    for ring in rings(4) {
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
    let directory = directory();
    for ring in rings(8) {
        let store = open(&file(directory.path(), &pattern(4, 256 * 4096)));
        let memory_store = Store::memory("memory", 1 << 20);
        let tokens = Mutex::new(HashSet::new());
        let memory: Vec<AlignedBytes> = (0..2000).map(|_| AlignedBytes::new(4096)).collect();
        std::thread::scope(|scope| {
            for (thread, share) in memory.chunks(500).enumerate() {
                let (ring, store, memory_store, tokens) = (&ring, &store, &memory_store, &tokens);
                scope.spawn(move || {
                    for (index, bytes) in share.iter().enumerate() {
                        let token = thread * 500 + index;
                        let store = if token.is_multiple_of(7) { memory_store } else { store };
                        // SAFETY: `memory` outlives the ring's I/O, which is waited for below.
                        unsafe {
                            ring.push(
                                store,
                                Op::Read,
                                (token % 256) as u64 * 4096,
                                &[bytes.io_buffer()],
                                token as u64,
                            )
                        };
                        if index % 10 == 0 {
                            ring.submit();
                        }
                        if index % 16 == 0 {
                            ring.reap(&mut |token, result| {
                                result.unwrap();
                                assert!(tokens.lock().unwrap().insert(token));
                            });
                        }
                    }
                    ring.submit();
                });
            }
        });
        while tokens.lock().unwrap().len() < 2000 {
            ring.wait(
                &mut |token, result| {
                    result.unwrap();
                    assert!(tokens.lock().unwrap().insert(token));
                },
                None,
            );
        }
        let content = pattern(4, 256 * 4096);
        for (token, bytes) in memory.iter().enumerate().filter(|(token, _)| token % 7 != 0) {
            assert!(bytes[..] == content[token % 256 * 4096..][..4096]);
        }
    }
}

#[test]
fn a_submitter_that_ends_leaves_its_io_to_others() {
    let directory = directory();
    for ring in rings(64) {
        let path = file(directory.path(), &vec![0; 64 * 4096 + 77]);
        let store = open(&path);
        let content = pattern(8, 65 * 4096);
        let memory = aligned(&content);
        std::thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                for index in 0..65usize {
                    let piece =
                        IoBuffer { ptr: memory.io_buffer().ptr.wrapping_add(index * 4096), len: 4096 };
                    // SAFETY: `memory` outlives the waits.
                    unsafe { ring.push(&store, Op::Write, index as u64 * 4096, &[piece], 0) };
                }
                ring.submit();
            });
            submitter.join().unwrap();
        });
        let mut delivered = 0;
        while delivered < 65 {
            delivered += ring.wait(&mut |_, result| result.unwrap(), None);
        }
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
