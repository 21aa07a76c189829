//! Each call by itself.

use std::sync::Arc;

use bytes::Bytes;
use octavo::{Advice, CacheMode, Error, Memory, Op};
use octavo_async::{AsyncObject, DriverConfig};

use crate::fixture::{PAGE, Scene, block_on, poll_once, scene, until, watch};

fn written_back() -> Scene {
    scene(1024, CacheMode::Writeback, DriverConfig::default())
}

#[test]
fn futures_may_be_sent_to_other_threads() {
    fn is_send<T: Send>(_: T) {}
    fn all(object: &AsyncObject) {
        is_send(object.read_at(0, &mut []));
        is_send(object.read_bytes_at(0, 0));
        is_send(object.view_at(0, 0));
        is_send(object.write_at(0, &[]));
        is_send(object.sync());
        is_send(object.run(Op::Sync));
        is_send(object.reader());
    }
    all(&written_back().object);
}

#[test]
fn every_call_does_what_the_blocking_one_does() {
    let _watch = watch(60);
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let Scene { object, late, driver: _driver, .. } = scene(1024, mode, DriverConfig::default());
        block_on(async {
            let mut bytes = vec![1; 10_000];
            object.read_at(4000, &mut bytes).await.unwrap();
            assert_eq!(bytes, [0; 10_000]);
            object.write_at(4000, &[7; 10_000]).await.unwrap();
            object.write_at(4000, b"octavo").await.unwrap();
            assert_eq!(object.read_bytes_at(4000, 7).await.unwrap(), "octavo\x07");
            object.write_bytes_at(100, Bytes::from_static(b"folio")).await.unwrap();
            assert_eq!(object.view_at(100, 5).await.unwrap(), "folio");
            object.sync().await.unwrap();
            assert_eq!(&late.image()[100..105], b"folio");
            object.write_durable_at(8192, Bytes::from_static(b"quarto")).await.unwrap();
            assert_eq!(&late.image()[8192..8198], b"quarto");
            object.zero(8192, 3).await.unwrap();
            assert_eq!(object.read_bytes_at(8192, 6).await.unwrap(), "\0\0\0rto");
            object.sync_range(8192, 6).await.unwrap();
            assert_eq!(&late.image()[8192..8198], b"\0\0\0rto");
            object.discard(0, 8192).await.unwrap();
            assert_eq!(object.read_bytes_at(100, 5).await.unwrap(), "\0\0\0\0\0");
            object.advise(1 << 20, 64 << 10, Advice::WillNeed).await.unwrap();
            assert!(object.object().is_resident(1 << 20));
            object.advise(0, 0, Advice::Random).await.unwrap();
            let memory = Memory::new(vec![1; 6]);
            let (op, result) = object.run(Op::ReadInto { offset: 8192, memory }).await;
            result.unwrap();
            let Some(Op::ReadInto { memory, .. }) = op else { unreachable!() };
            assert_eq!(memory.into_owner::<Vec<u8>>().unwrap(), b"\0\0\0rto");
        });
    }
}

#[test]
fn errors_are_those_of_the_engine() {
    let Scene { object, driver: _driver, .. } = written_back();
    block_on(async {
        let past = |result: Result<(), Error>| matches!(result, Err(Error::PastEnd { .. }));
        let end = 1024 * PAGE;
        assert!(past(object.read_at(end - 1, &mut [0; 2]).await));
        assert!(past(object.read_bytes_at(0, usize::MAX).await.map(drop)));
        assert!(past(object.view_at(end, 1).await.map(drop)));
        assert!(past(object.view_at(end - 1, 2).await.map(drop)));
        assert!(past(object.write_at(end - 1, &[0; 2]).await));
        assert!(past(object.discard(end, 1).await));
        let refused = object.advise(0, PAGE, Advice::DontNeed).await;
        assert!(matches!(refused, Err(Error::Config(_))), "it would wait for the store");
        object.object().close().unwrap();
        assert!(matches!(object.read_bytes_at(0, 1).await, Err(Error::Closed { .. })));
        assert!(matches!(object.sync().await, Err(Error::Closed { .. })));
    });
}

#[test]
fn a_hit_is_ready_at_the_first_poll_and_never_asks_the_driver() {
    let Scene { object, driver, .. } = written_back();
    block_on(object.write_at(0, &[7; 8192])).unwrap();
    until(|| driver.stat().running == 0);
    let before = driver.stat();
    let mut bytes = [0; 6];
    for _ in 0..100 {
        assert!(poll_once(std::pin::pin!(object.read_at(5000, &mut bytes))).is_ready());
    }
    assert!(poll_once(std::pin::pin!(object.view_at(5000, 6))).is_ready());
    assert!(poll_once(std::pin::pin!(object.write_at(5000, b"octavo"))).is_ready());
    let mut after = driver.stat();
    // The driver may lie down only now, after the first write. Once it sleeps, nothing wakes it.
    assert!(after.sleeps - before.sleeps <= 1, "{before:?} {after:?}");
    after.sleeps = before.sleeps;
    assert_eq!(after, before);
}

/// A task that only hits would never return to its executor.
#[test]
fn a_task_that_only_hits_yields() {
    let Scene { object, driver: _driver, .. } = written_back();
    block_on(object.read_at(0, &mut [0])).unwrap();
    let count = std::cell::Cell::new(0);
    let mut reads = std::pin::pin!(async {
        loop {
            object.read_at(0, &mut [0]).await.unwrap();
            count.set(count.get() + 1);
        }
    });
    for _ in 0..10 {
        assert!(poll_once(reads.as_mut()).is_pending());
    }
    let hits = count.get();
    assert!((1000..2000).contains(&hits), "{hits} hits in ten polls");
}

#[test]
fn a_view_is_the_page_itself_while_it_lives() {
    let Scene { object, partition, driver: _driver, .. } = written_back();
    block_on(async {
        let page = object.view_at(3 * PAGE, PAGE as usize).await.unwrap();
        assert_eq!(partition.pinned_bytes(), PAGE);
        let part = page.slice(10..20);
        drop(page);
        object.write_at(3 * PAGE, &[7; 4096]).await.unwrap();
        assert_eq!(part, [0; 10][..], "a snapshot");
        assert_eq!(partition.pinned_bytes(), PAGE);
        drop(part);
        assert_eq!(partition.pinned_bytes(), 0);
        // Bytes of two pages are a copy.
        let _copy = object.view_at(3 * PAGE + 4000, 200).await.unwrap();
        assert_eq!(partition.pinned_bytes(), 0);
    });
}

#[test]
fn a_read_longer_than_the_memory_for_reads_is_several_requests() {
    let _watch = watch(60);
    let config = DriverConfig { requests_max: 2, reads_max_bytes: 8192 };
    let Scene { object, late, driver: _driver, .. } = scene(1024, CacheMode::Writethrough, config);
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    block_on(async {
        object.write_bytes_at(5000, bytes.clone().into()).await.unwrap();
        let reads: Vec<_> = (0..20).map(|_| object.read_bytes_at(5000, bytes.len())).collect();
        for read in reads {
            assert_eq!(read.await.unwrap(), bytes);
        }
    });
    assert_eq!(&late.image()[5000..105_000], bytes);
}

/// What runs ends, what waits is refused, and nobody waits for ever.
#[test]
fn a_dropped_driver_ends_all_calls() {
    let _watch = watch(60);
    let config = DriverConfig { requests_max: 4, ..DriverConfig::default() };
    let Scene { object, driver, late, .. } = scene(1024, CacheMode::Writethrough, config);
    late.hold(true);
    let object = Arc::new(object);
    let mut calls: Vec<_> = (0..20_u64)
        .map(|page| {
            let object = object.clone();
            Box::pin(async move { object.read_bytes_at(page * 8 * PAGE, 10).await })
        })
        .collect();
    calls.iter_mut().for_each(|call| assert!(poll_once(call.as_mut()).is_pending()));
    until(|| driver.stat().running == 4);
    let dropping = std::thread::spawn(move || drop(driver));
    // The calls that wait are refused while the store still hangs.
    let waiting = calls.split_off(4);
    for call in waiting {
        assert!(matches!(block_on(call), Err(Error::Closed { .. })));
    }
    late.hold(false);
    dropping.join().unwrap();
    for call in calls {
        assert_eq!(block_on(call).unwrap(), [0; 10][..]);
    }
    assert!(matches!(block_on(object.sync()), Err(Error::Closed { .. })));
    assert_eq!(block_on(object.read_bytes_at(0, 10)).unwrap(), [0; 10][..], "a hit needs no driver");
}
