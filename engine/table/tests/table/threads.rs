//! The toy cache under real threads, with the memory ordering of the machine.

use std::time::{Duration, Instant};

use octavo_table::{Mixer, PolicyKind, Shape};

use crate::cache::Cache;
use octavo_random::{Random, for_seeds};

/// Ends the process when a thread panics: the others would wait for ever for a page that the thread
/// owned.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn hammer<const W: usize>(shape: Shape, policy: PolicyKind, pages: usize, seed: u64) {
    let cache = Cache::<W>::new(shape, policy, 1, pages, Mixer::new(seed));
    let (length, operations) =
        if cfg!(miri) { (Duration::ZERO, 12) } else { (Duration::from_millis(400), 500) };
    let end = Instant::now() + length;
    std::thread::scope(|scope| {
        for thread in 0..if cfg!(miri) { 2 } else { 4 } {
            let cache = &cache;
            scope.spawn(move || {
                let _abort = AbortOnPanic;
                let mut random = Random::new(seed << 8 | thread);
                loop {
                    cache.run(&mut random, operations);
                    if Instant::now() >= end {
                        break;
                    }
                }
            });
        }
    });
    cache.check_quiet();
}

#[test]
fn four_threads_lose_no_page_and_no_write_in_sets_that_overflow() {
    let shape = Shape { segments_max: 3, sets_per_segment: 2 };
    for_seeds(1..2, |seed| {
        hammer::<8>(shape, PolicyKind::Lru, 40, seed);
        hammer::<16>(shape, PolicyKind::NrLfu, 80, seed);
    });
}

#[test]
fn four_threads_lose_no_page_and_no_write_when_they_contend_for_few_pages() {
    let shape = Shape { segments_max: 2, sets_per_segment: 1 };
    for_seeds(2..3, |seed| {
        hammer::<8>(shape, PolicyKind::Clock, 3, seed);
        hammer::<32>(shape, PolicyKind::Fifo, 9, seed);
    });
}
