//! `memory_max` limits the resident memory of the process, as the kernel counts it. This is the
//! test of the library alone.
//!
//! Heap buffers used to fragment in glibc's arenas: a program of 14,400 short-lived threads, eight
//! at a time, had 449 MiB resident with a cache of 64 MiB, and 894 MiB once it had freed one large
//! vector.
//!
//! `cargo xtask resident` runs this at full length: `OCTAVO_RESIDENT_THREADS` is the number of
//! threads (default 2,400).

use crate::fixture::{is_alone, scene, succeed_all};
use octavo::disk::Store;
use octavo::{CacheConfig, Op, PartitionConfig, Request};

const MEMORY_MAX: u64 = 64 << 20;

/// Resident bytes that the process may have beside: code, stacks, the store in memory.
const BESIDE: u64 = 16 << 20;

const FILE: u64 = 8 << 20;
const THREADS_AT_A_TIME: u64 = 8;

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line \"Rss:\"");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn threads_that_borrow_buffers_and_end_do_not_grow_the_process() {
    // Alone, because the memory of other tests does not count.
    if !is_alone("resident::threads_that_borrow_buffers_and_end_do_not_grow_the_process") {
        return;
    }
    let threads = match std::env::var("OCTAVO_RESIDENT_THREADS") {
        Ok(number) => number.parse().expect("a number of threads"),
        Err(_) => 2_400,
    };
    // As in ordinary programs: after this, glibc serves blocks of up to 20 MiB from its arenas.
    drop(vec![1_u8; 20 << 20]);
    let config = CacheConfig { memory_max_bytes: MEMORY_MAX, ..CacheConfig::default() };
    let (cache, _, object) = scene(config, PartitionConfig::new("p"), Store::memory("file", FILE));
    let mut most = 0;
    for round in 0..threads / THREADS_AT_A_TIME {
        std::thread::scope(|scope| {
            for number in 0..THREADS_AT_A_TIME {
                let (cache, object) = (&cache, &object);
                scope.spawn(move || {
                    let mut queue = cache.queue().unwrap();
                    let request = |read: u64| {
                        let len = (32 << 10) + (round * 7 + number * 3 + read) % 8 * (32 << 10);
                        let buffer = cache.buffer(len as usize).expect("the reserve has room for these");
                        let offset = (round * 31 + number * 5 + read) * (64 << 10) % (FILE - len);
                        Request { user_data: read, op: Op::Read { offset, len: len as usize, buffer } }
                    };
                    queue.submit(object, (0..4).map(request));
                    succeed_all(&mut queue);
                });
            }
        });
        if round % 8 == 0 {
            most = most.max(resident());
        }
    }
    let bound = MEMORY_MAX + FILE + BESIDE;
    println!("{threads} threads: at most {} KiB resident of {} KiB allowed", most >> 10, bound >> 10);
    assert!(most <= bound, "{most} bytes were resident, {bound} are allowed");
}
