//! An idle driver sleeps, and many tasks share a few wake-ups. Counted, not timed.

use std::time::Duration;

use octavo::{CacheMode, Error};
use octavo_async::{Driver, DriverConfig};

use crate::fixture::{PAGE, Scene, block_on, is_alone, poll_once, scene, until, watch};

/// How often each thread of this process has given up its processor.
fn switches(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == thread)
    };
    let status = |task: std::path::PathBuf| std::fs::read_to_string(task.join("status")).unwrap();
    let count = |status: String| -> u64 {
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
    };
    tasks.filter(named).map(status).map(count).sum()
}

#[test]
fn an_idle_driver_stays_asleep() {
    if !is_alone("quiet::an_idle_driver_stays_asleep") {
        return;
    }
    let Scene { object, driver, .. } = scene(1024, CacheMode::Writeback, DriverConfig::default());
    block_on(object.read_at(0, &mut [0; 8192])).unwrap();
    until(|| driver.stat().running == 0);
    std::thread::sleep(Duration::from_millis(50));
    let before = (driver.stat().sleeps, switches("octavo-async"));
    let mut hits = 0;
    for _ in 0..1000 {
        block_on(object.read_at(100, &mut [0; 100])).unwrap();
        hits += 1;
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((driver.stat().sleeps, switches("octavo-async")), before, "after {hits} hits");
}

#[test]
fn calls_that_come_together_share_a_wake_up() {
    let _watch = watch(60);
    let config = DriverConfig { requests_max: 4, ..DriverConfig::default() };
    let Scene { object, driver, late, .. } = scene(8192, CacheMode::Writethrough, config);
    late.hold(true);
    let mut calls: Vec<_> = (0..500).map(|n| Box::pin(object.read_bytes_at(n * 8 * PAGE, 10))).collect();
    calls.iter_mut().for_each(|call| assert!(poll_once(call.as_mut()).is_pending()));
    until(|| driver.stat().running == 4);
    std::thread::sleep(Duration::from_millis(20));
    let asleep = driver.stat();
    assert_eq!((asleep.running, asleep.waiting), (4, 496));
    // The limit is reached: further calls wake nobody.
    let more: Vec<_> = (500..900)
        .map(|n| {
            let mut call = Box::pin(object.read_bytes_at(n * 8 * PAGE, 10));
            assert!(poll_once(call.as_mut()).is_pending());
            call
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(driver.stat().sleeps, asleep.sleeps);
    late.hold(false);
    calls.into_iter().chain(more).for_each(|call| assert_eq!(block_on(call).unwrap(), [0; 10][..]));
}

#[test]
fn all_memory_is_given_back() {
    let Scene { object, driver, cache, .. } = scene(64, CacheMode::Writeback, DriverConfig::default());
    let with_one = cache.stat().buffers_used_bytes;
    assert!(matches!(Driver::new(&cache), Err(Error::NoMemory { .. })), "a second one has no room");
    assert_eq!(cache.stat().buffers_used_bytes, with_one);
    drop(driver);
    let freed = with_one - cache.stat().buffers_used_bytes;
    assert!(freed >= 1 << 20, "the driver gave back {freed} bytes");
    assert!(matches!(block_on(object.sync()), Err(Error::Closed { .. })));
}
