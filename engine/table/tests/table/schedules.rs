//! The toy cache under shuttle: four threads, random schedules and schedules with few preemptions
//! (PCT).

use octavo_table::{Mixer, PolicyKind, Shape};
use shuttle::sync::Arc;

use crate::cache::Cache;
use octavo_random::Random;

const THREADS: u64 = 4;

/// Three segments of two sets of two ways, twelve slots for ten pages: sets are full, segments join
/// and leave.
const SMALL: Shape = Shape { segments_max: 3, sets_per_segment: 2 };
/// Two segments of one set of two ways: all threads contend for the same slots.
const TINY: Shape = Shape { segments_max: 2, sets_per_segment: 1 };

fn four_threads(shape: Shape, pages: usize, policy: PolicyKind, operations: usize) {
    use shuttle::rand::Rng;
    let seed = shuttle::rand::thread_rng().r#gen::<u64>();
    let cache = Arc::new(Cache::<2>::new(shape, policy, 1, pages, Mixer::new(seed)));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let cache = Arc::clone(&cache);
            shuttle::thread::spawn(move || cache.run(&mut Random::new(seed ^ thread), operations))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    cache.check_quiet();
}

#[test]
fn four_threads_lose_no_page_no_write_and_no_waiter_under_random_schedules() {
    shuttle::check_random(|| four_threads(SMALL, 10, PolicyKind::Lru, 12), 8_000);
    shuttle::check_random(|| four_threads(TINY, 3, PolicyKind::Clock, 12), 8_000);
}

#[test]
fn four_threads_lose_no_page_no_write_and_no_waiter_under_schedules_of_few_preemptions() {
    shuttle::check_pct(|| four_threads(SMALL, 10, PolicyKind::NrLfu, 12), 8_000, 4);
    shuttle::check_pct(|| four_threads(TINY, 3, PolicyKind::Fifo, 12), 8_000, 3);
}
