//! Futures that are dropped: what becomes of their work, and of others' beside them.
//!
//! `OCTAVO_DROPS` sets the number of drops of the test of many (default: 20,000).

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use octavo::{CacheMode, Memory, Op};
use octavo_async::{AsyncObject, DriverConfig};
use octavo_random::Random;

use crate::fixture::{
    Counted, PAGE, Scene, block_on, descriptors, is_alone, nothing_is_left, number, poll_once, scene, until,
    waker, watch,
};

/// Two tasks with one object, over a store that hangs.
fn hung(requests_max: usize) -> Scene {
    let config = DriverConfig { requests_max, ..DriverConfig::default() };
    let scene = scene(1024, CacheMode::Writethrough, config);
    scene.late.hold(true);
    scene
}

#[test]
fn a_dropped_call_that_waited_never_runs() {
    let _watch = watch(60);
    let Scene { object, driver, late, .. } = hung(1);
    let mut first = Box::pin(object.read_bytes_at(0, 1));
    assert!(poll_once(first.as_mut()).is_pending());
    until(|| driver.stat().running == 1);
    let mut write = Box::pin(object.write_bytes_at(8 * PAGE, Bytes::from(vec![7; 4096])));
    assert!(poll_once(write.as_mut()).is_pending());
    drop(write);
    assert_eq!(driver.stat().waiting, 0);
    late.hold(false);
    block_on(first).unwrap();
    block_on(object.sync()).unwrap();
    assert_eq!(late.image()[8 * PAGE as usize], 0);
    assert_eq!(block_on(object.read_bytes_at(8 * PAGE, 1)).unwrap(), "\0");
}

/// Without A7 the second write may come first, and the dropped one replaces its bytes.
#[test]
fn a_write_after_a_dropped_write_comes_after_it() {
    let _watch = watch(60);
    let Scene { object, driver, late, .. } = hung(100);
    let mut old = Box::pin(object.write_bytes_at(100, Bytes::from(vec![1; 6000])));
    assert!(poll_once(old.as_mut()).is_pending());
    until(|| driver.stat().running == 1);
    drop(old);
    assert_eq!(driver.stat().orphans, 1);
    let mut beside = Box::pin(object.write_bytes_at(6100, Bytes::from(vec![3; 100])));
    let mut new = Box::pin(object.write_bytes_at(6099, Bytes::from(vec![2; 1])));
    assert!(poll_once(beside.as_mut()).is_pending());
    assert!(poll_once(new.as_mut()).is_pending());
    until(|| driver.stat().running == 1 && driver.stat().waiting == 1);
    late.hold(false);
    block_on(new).unwrap();
    block_on(beside).unwrap();
    assert_eq!(driver.stat().orphans, 0);
    assert_eq!(&block_on(object.read_bytes_at(6098, 3)).unwrap()[..], [1, 2, 3]);
}

/// A client that retries against a hung store must not fill the memory.
#[test]
fn retries_against_a_hung_store_leave_nothing() {
    let _watch = watch(60);
    let Scene { object, driver, late, .. } = hung(4);
    let (unpark, waker) = waker();
    for turn in 0..5000_u64 {
        let offset = turn % 100 * 8 * PAGE;
        let mut read = Box::pin(object.read_bytes_at(offset, 100));
        let mut write = Box::pin(object.write_bytes_at(offset, Bytes::from_static(b"octavo")));
        let context = &mut Context::from_waker(&waker);
        assert!(read.as_mut().poll(context).is_pending());
        assert!(write.as_mut().poll(context).is_pending());
        if turn < 4 {
            until(|| driver.stat().running + driver.stat().orphans > turn as usize);
        }
    }
    let stat = driver.stat();
    assert_eq!((stat.running, stat.waiting, stat.ended), (0, 0, 0));
    assert!((1..=4).contains(&stat.orphans), "{stat:?}");
    drop(waker);
    assert_eq!(Arc::strong_count(&unpark), 1, "a waker of a dropped call is alive");
    late.hold(false);
    until(|| driver.stat().orphans == 0);
    block_on(object.read_bytes_at(500 * PAGE, 1)).unwrap();
}

/// Opening a second handle for the same object through another driver is allowed.
#[test]
fn the_object_outlives_its_async_handles() {
    let _watch = watch(60);
    let Scene { object, driver, late, .. } = hung(4);
    let blocking = object.object().clone();
    let mut read = Box::pin(object.read_bytes_at(0, 100));
    assert!(poll_once(read.as_mut()).is_pending());
    until(|| driver.stat().running == 1);
    drop(read);
    drop(object);
    late.hold(false);
    drop(driver);
    blocking.write_at(0, b"octavo").unwrap();
    blocking.close().unwrap();
}

type Call = Pin<Box<dyn Future<Output = ()>>>;

/// One of the calls, with memory that counts itself.
fn any_call(object: &AsyncObject, random: &mut Random) -> Call {
    let (object, len) = (object.clone(), 1 + random.below(9000) as usize);
    let offset = random.below(1024 * PAGE - len as u64);
    let kind = random.below(10);
    Box::pin(async move {
        let bytes = || Bytes::from_owner(Counted::new(vec![7; len]));
        let is_right = |read: &[u8]| read.len() == len && read.iter().all(|byte| [0, 7].contains(byte));
        match kind {
            0..3 => assert!(is_right(&object.read_bytes_at(offset, len).await.unwrap())),
            3 => assert!(is_right(&object.view_at(offset, len).await.unwrap())),
            4 => {
                let memory = Memory::new(Counted::new(vec![0; len]));
                object.run(Op::ReadInto { offset, memory }).await.1.unwrap();
            }
            5..8 => object.write_bytes_at(offset, bytes()).await.unwrap(),
            8 => object.zero(offset, len as u64).await.unwrap(),
            _ => object.sync_range(offset, len).await.unwrap(),
        }
    })
}

/// Each thread has calls in all stages, and polls, drops or awaits one of them at a time.
#[test]
fn many_calls_that_are_dropped_at_random_points_leave_nothing() {
    if !is_alone("dropped::many_calls_that_are_dropped_at_random_points_leave_nothing") {
        return;
    }
    let (seed, drops) = (number("OCTAVO_SEED").unwrap_or(1), number("OCTAVO_DROPS").unwrap_or(20_000));
    let _watch = watch(60 + drops / 500);
    let before = descriptors();
    let config = DriverConfig { requests_max: 32, ..DriverConfig::default() };
    for (number, mode) in [CacheMode::Writeback, CacheMode::Writethrough].into_iter().enumerate() {
        let scene = scene(1024, mode, config.clone());
        let charged = scene.cache.stat().buffers_used_bytes;
        let storm = |mut random: Random| {
            let mut calls: Vec<Call> = Vec::new();
            let mut ended = 0;
            let mut left = drops / 4;
            while left > 0 {
                if calls.len() < 100 {
                    calls.push(any_call(&scene.object, &mut random));
                }
                let at = random.below(calls.len() as u64) as usize;
                if random.one_in(3) {
                    drop(calls.swap_remove(at));
                    left -= 1;
                } else if random.one_in(16) {
                    // Meanwhile others begin to run.
                    block_on(calls.swap_remove(at));
                    ended += 1;
                } else if poll_once(calls[at].as_mut()).is_ready() {
                    drop(calls.swap_remove(at));
                    ended += 1;
                }
            }
            calls.into_iter().for_each(block_on);
            ended
        };
        let storm = &storm;
        let ended: u64 = std::thread::scope(|scope| {
            let run = |thread: u64| scope.spawn(move || storm(Random::new(seed ^ thread << 32)));
            [2 * number as u64, 2 * number as u64 + 1]
                .map(run)
                .map(|thread| thread.join().unwrap())
                .iter()
                .sum()
        });
        println!("{} calls dropped, {ended} ended", drops / 2);
        assert!(ended > drops / 100);
        nothing_is_left(scene, charged);
    }
    until(|| descriptors() == before);
}
