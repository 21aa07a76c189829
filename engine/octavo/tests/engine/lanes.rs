//! More concurrent calls than lanes with rings: each call proceeds, whatever the others wait for.

use crate::fixture::{PAGE, batch_at, disk, read_request, sized, until};
use crate::numa;
use crate::watchdog::Watchdog;
use octavo::disk::SimDisk;
use octavo::numa::NumaMode;
use octavo::{
    Advice, Cache, CacheConfig, CacheMode, Error, Limits, Object, Partition, PartitionConfig, Queue,
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The divisor of the buffer share that lanes of blocking calls may take, and the stack of a
/// thread.
const LANES_SHARE: u64 = 8;
const STACK_BYTES: usize = 64 << 10;

fn cache(mode: NumaMode) -> Cache {
    let nodes = if mode == NumaMode::Off { 1 } else { 2 };
    Cache::new(CacheConfig { background: false, seed: Some(11), ..numa::config(mode, nodes, 1) }).unwrap()
}

fn partition(cache: &Cache, name: &str, cache_mode: CacheMode) -> Partition {
    cache.partition(PartitionConfig { name: name.to_owned(), cache_mode, ..sized(12 << 20) }).unwrap()
}

/// The bytes of a page: its number, repeated.
fn stamp(page: u64) -> [u8; 4096] {
    [(page % 251) as u8 + 1; 4096]
}

/// Runs `call` on `threads` threads. The disk hangs until all of them have begun their calls and
/// `requests` requests are in flight.
fn all_at_once(
    disk: &SimDisk,
    threads: u64,
    requests: usize,
    call: impl Fn(u64) -> Result<(), Error> + Sync,
) {
    let begun = AtomicUsize::new(0);
    disk.hang();
    std::thread::scope(|scope| {
        let (call, begun) = (&call, &begun);
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let act = move || {
                    begun.fetch_add(1, SeqCst);
                    call(thread)
                };
                std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, act).unwrap()
            })
            .collect();
        until(|| begun.load(SeqCst) as u64 == threads && disk.in_flight() >= requests);
        disk.answer();
        let results: Vec<_> = started.into_iter().map(|thread| thread.join().unwrap()).collect();
        let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(refused.is_empty(), "{} of {threads} calls: {}", refused.len(), refused[0]);
    });
}

/// Every thread that had made one call used to keep a ring, which soon used up the memory for
/// rings: of 256 threads that read one page each, 108 were refused.
#[test]
fn two_thousand_threads_read_write_and_sync_at_once() {
    const THREADS: u64 = 2000;
    let watchdog = Watchdog::new(Duration::from_secs(120), "two thousand threads");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let (disk, cache) = (disk(1), cache(NumaMode::Off));
        let object = partition(&cache, "p", mode).open(disk.store("disk", THREADS * PAGE), "disk").unwrap();
        watchdog.feed(format!("cold reads, {mode:?}"));
        all_at_once(&disk, THREADS, 1000, |thread| object.read_at(thread * PAGE, &mut [0; 512]));
        watchdog.feed(format!("writes and syncs, {mode:?}"));
        // One object has this many bounce pages.
        all_at_once(&disk, THREADS, 60, |thread| {
            object.write_at(thread * PAGE, &stamp(thread))?;
            object.sync_range(thread * PAGE, PAGE)
        });
        let image = disk.image("disk");
        assert!((0..THREADS).all(|page| image[(page * PAGE) as usize..][..4096] == stamp(page)));
        // The threads have ended: only the lanes of the cache still hold buffers.
        let stat = cache.stat();
        let bounce_pages = stat.buffers_max_bytes / 8;
        let lanes = stat.buffers_used_bytes - bounce_pages;
        assert_eq!((lanes, stat.queues), (stat.rings * Queue::CHARGED_BYTES, 0), "{stat:?}");
        assert!(lanes <= stat.buffers_max_bytes / LANES_SHARE, "{lanes} bytes of lanes: {stat:?}");
    }
}

/// Calls every verb.
fn all_verbs(object: &Object, partition: &Partition) -> Result<(), Error> {
    let page = |number: u64| number * PAGE;
    object.write_at(page(1), &stamp(1))?;
    object.write_at(page(2) + 100, &[7; 5000])?;
    let mut bytes = vec![0; 40 * 4096];
    object.read_at(page(1), &mut bytes)?;
    assert_eq!((&bytes[..4096], bytes[4096 + 100]), (&stamp(1)[..], 7));
    let parts: Vec<_> = (0..8).map(|number| (page(50 + 3 * number), 64)).collect();
    batch_at(object, &parts).0?;
    object.advise(page(80), page(20), Advice::WillNeed)?;
    assert!(object.pin(page(100))?.is_some());
    let mut pins = Vec::new();
    object.pin_batch(&[page(102), page(104)], &mut pins)?;
    drop(pins);
    object.sync()?;
    object.discard(page(1), page(1))?;
    object.zero(page(2), page(2))?;
    object.advise(0, page(10), Advice::DontNeed)?;
    object.set_len_bytes(page(120))?;
    object.read_at(page(1), &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == 0));
    partition.resize(4 << 20)?;
    partition.resize(8 << 20)?;
    partition.evict()?;
    partition.sync()?;
    object.close()
}

/// If a call had to wait for a lane, it would wait for the store of another object.
#[test]
fn calls_that_wait_for_a_hung_store_leave_lanes_to_other_objects() {
    const THREADS: u64 = 300;
    let watchdog = Watchdog::new(Duration::from_secs(120), "a hung store and other tenants");
    let modes = [NumaMode::Off, NumaMode::Partition, NumaMode::Message, NumaMode::Replicate];
    for (numa, mode) in
        modes.iter().flat_map(|numa| [(*numa, CacheMode::Writethrough), (*numa, CacheMode::Writeback)])
    {
        watchdog.feed(format!("{numa:?}, {mode:?}"));
        let (dead, alive, cache) = (disk(2), disk(3), cache(numa));
        let (first, second) = (partition(&cache, "first", mode), partition(&cache, "second", mode));
        let stuck = first.open(dead.store("stuck", THREADS * PAGE), "stuck").unwrap();
        dead.hang();
        std::thread::scope(|scope| {
            let stuck = &stuck;
            for thread in 0..THREADS {
                let act = move || match thread % 3 {
                    0 => stuck.write_at(thread * PAGE + 8, &[1; 64]).unwrap(),
                    _ => stuck.read_at(thread * PAGE, &mut [0; 64]).unwrap(),
                };
                std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, act).unwrap();
            }
            until(|| dead.in_flight() as u64 >= THREADS / 2);
            let object = second.open(alive.store("alive", 200 * PAGE), "alive").unwrap();
            all_verbs(&object, &second).unwrap();
            assert!(dead.in_flight() as u64 >= THREADS / 2);
            dead.answer();
        });
        stuck.sync().unwrap();
    }
}

/// Queues take their rings from the buffer share, and so did the threads of blocking calls.
#[test]
fn queues_that_use_up_the_buffer_share_do_not_stop_blocking_calls() {
    let cache = cache(NumaMode::Off);
    let disk = disk(4);
    let partition = partition(&cache, "p", CacheMode::Writethrough);
    let mut queues = Vec::new();
    let refused = loop {
        match cache.queue() {
            Ok(queue) => queues.push(queue),
            Err(error) => break error,
        }
    };
    assert!(queues.len() as u64 > (2 << 20) / Queue::CHARGED_BYTES, "{} queues", queues.len());
    let said = refused.to_string();
    let left = said.split("only ").nth(1).and_then(|rest| rest.split(" of ").next()).unwrap();
    let free = format!("only {left} of buffers_max = 4 MiB are free");
    let expected =
        format!("an I/O ring for this queue needs 24 KiB, but {free}: buffers_max must be at least ");
    assert!(said.starts_with(&expected), "{said}");
    let object = partition.open(disk.store("disk", 300 * PAGE), "disk").unwrap();
    all_at_once(&disk, 100, 100, |thread| object.read_at((150 + thread) * PAGE, &mut [0; 64]));
    all_verbs(&object, &partition).unwrap();
    // A resize, which may need I/O.
    let other = cache.partition(PartitionConfig { name: "q".to_owned(), ..sized(4 << 20) }).unwrap();
    other.set_limits(Limits { max_bytes: 3 << 20, ..Limits::default() }).unwrap();
    drop(queues);
    let mut queue = cache.queue().unwrap();
    let object = other.open(disk.store("disk", 300 * PAGE), "again").unwrap();
    queue.submit(&object, [read_request(0, 0, 4096)]);
    queue.wait(1, |completion| completion.result.unwrap());
}

/// Objects keep everything that their calls need, even after the cache was dropped.
#[test]
fn an_object_outlives_its_cache() {
    let disk = disk(5);
    let cache = cache(NumaMode::Message);
    let partition = partition(&cache, "p", CacheMode::Writeback);
    let object = partition.open(disk.store("disk", 200 * PAGE), "disk").unwrap();
    object.read_at(0, &mut [0; 64]).unwrap();
    drop(cache);
    all_verbs(&object, &partition).unwrap();
}
