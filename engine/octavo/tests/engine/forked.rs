//! Forked children of a process with a cache. A child has the memory and the descriptors of its
//! parent, but none of its threads.

use crate::fixture::{PAGE, Scratch, is_alone, read_request, succeed_all};
use crate::kernel;
use crate::watchdog::Watchdog;
use octavo::disk::{Engine, OpenError, OpenOptions, Store};
use octavo::{
    Advice, Cache, CacheConfig, CacheMode, Completion, Error, Limits, Memory, Object, Op, Partition,
    PartitionConfig, PolicyName, Queue, Read, Request,
};
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const PAGES: u64 = 8192;

/// The first `RESIDENT` pages stay resident, other threads write the next `WRITTEN` pages during
/// the forks, and the pages above are filled and evicted.
const RESIDENT: u64 = 16;
const WRITTEN: u64 = 100;
const CHILDREN: u64 = 12;

fn open(file: &Scratch) -> Result<Store, OpenError> {
    Store::open(&file.0, &OpenOptions::default())
}

fn cache(engine: Engine) -> Cache {
    Cache::new(CacheConfig { memory_max_bytes: 16 << 20, engine, ..CacheConfig::default() }).unwrap()
}

fn partition(cache: &Cache) -> Partition {
    let config = PartitionConfig {
        cache_mode: CacheMode::Writeback,
        read_ahead_max_bytes: 64 << 10,
        ..PartitionConfig::new("p")
    };
    cache.partition(config).unwrap()
}

fn stamp(number: u64) -> [u8; PAGE as usize] {
    [(number % 251) as u8 + 1; PAGE as usize]
}

fn read(number: u64, page: u64) -> Request {
    read_request(number, page * PAGE, PAGE as usize)
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

/// Uses the parent's cache in a child in every way that is allowed or refused. The error is the
/// number of the first check that fails.
fn use_and_drop(
    cache: Cache,
    partition: Partition,
    [object, idle]: [Object; 2],
    mut queue: Queue,
    file: &Scratch,
) -> Result<(), u8> {
    let check = |number: u8, is_right: bool| if is_right { Ok(()) } else { Err(number) };
    let mut bytes = [0; PAGE as usize];
    for page in 0..RESIDENT {
        let hit = object.read_at(page * PAGE, &mut bytes);
        check(1, is_refused(hit.clone()) || hit.is_ok() && bytes == stamp(page))?;
    }
    let cold = 7000 * PAGE;
    check(2, is_refused(object.read_at(cold, &mut bytes)))?;
    check(3, is_refused(object.write_at(0, &bytes)))?;
    check(4, is_refused(object.write_at(cold, &bytes)))?;
    check(5, is_refused(object.sync()) && is_refused(object.sync_range(0, PAGE)))?;
    check(6, is_refused(object.discard(0, PAGE)) && is_refused(object.zero(0, PAGE)))?;
    check(7, is_refused(object.pin(cold).map(drop)))?;
    check(8, is_refused(object.pin_batch(&[cold], &mut Vec::new())))?;
    check(9, is_refused(object.read_batch(&mut [Read { offset: cold, buffer: &mut bytes }])))?;
    check(10, is_refused(object.advise(cold, PAGE, Advice::WillNeed)))?;
    check(11, is_refused(object.advise(0, PAGE, Advice::DontNeed)))?;
    check(12, is_refused(object.set_len_bytes(PAGE)) && is_refused(object.close()))?;
    check(13, object.stat().dirty_bytes == 0 && object.abandon() == 0)?;
    check(14, is_refused(partition.resize(1 << 20)) && is_refused(partition.sync()))?;
    check(15, is_refused(partition.evict()) && is_refused(partition.reclaim(1)))?;
    check(16, is_refused(partition.set_policy(PolicyName::Lru)) && partition.stat().hits == 0)?;
    check(17, is_refused(partition.open(Store::memory("m", PAGE), "m")))?;
    check(18, is_refused(cache.partition(PartitionConfig::new("q"))) && is_refused(cache.clean()))?;
    check(19, is_refused(cache.remove_partition("p")) && cache.partitions().is_empty())?;
    check(20, is_refused(partition.set_limits(Limits::default())) && is_refused(cache.queue()))?;
    cache.balance();
    cache.memory_is_short();
    queue.submit(&object, [read(100, 7000), read(101, 7001)]);
    let mut refused = 0;
    queue.wait(usize::MAX, |completion| refused += u8::from(is_refused(completion.result)));
    check(21, refused == 2 && queue.pending() == 0)?;
    check(24, is_refused(queue.poll_fd().map(drop)) && queue.as_raw_fd() > 0 && queue.take_next().is_none())?;
    check(25, is_refused(object.write_vectored_at(0, &[IoSlice::new(&bytes), IoSlice::new(b"more")])))?;
    let memory = Memory::new(vec![0; 8]);
    queue.submit(&object, [Request { user_data: 0, op: Op::ReadInto { offset: cold, memory } }]);
    let given_back = |completion: Completion| match completion.op {
        Op::ReadInto { memory, .. } => memory.into_owner::<Vec<u8>>().is_ok(),
        _ => false,
    };
    check(26, queue.wait_next().is_some_and(given_back) && queue.wait_next().is_none())?;
    // The parent still holds its lock on the file, because both processes share the file
    // description.
    check(22, matches!(open(file), Err(OpenError::Locked { .. })))?;
    drop((object, idle, queue, partition));
    drop(cache);
    check(23, matches!(open(file), Err(OpenError::Locked { .. })))
}

/// Runs `act` in a child and ends the child.
fn end_with(act: impl FnOnce() -> Result<(), u8>) -> ! {
    kernel::end_after(60);
    let ended = std::panic::catch_unwind(AssertUnwindSafe(act));
    kernel::exit(ended.map_or(99, |ended| ended.err().unwrap_or(0)))
}

/// Makes a new cache with a new store in a child.
fn make_another(engine: Engine) -> Result<(), u8> {
    let file = Scratch::new(&format!("fork-child-{engine:?}"), PAGES * PAGE);
    let cache = cache(engine);
    let object = partition(&cache).open(open(&file).map_err(|_| 50)?, "own").map_err(|_| 51)?;
    let mut bytes = vec![0; 64 * PAGE as usize];
    (0..64).try_for_each(|page| object.write_at(page * 2 * PAGE, &stamp(page))).map_err(|_| 52)?;
    object.sync().map_err(|_| 53)?;
    object.read_at(1000 * PAGE, &mut bytes).map_err(|_| 54)?;
    object.read_at(2 * PAGE, &mut bytes).map_err(|_| 55)?;
    if bytes[..PAGE as usize] != stamp(1) { Err(56) } else { object.close().map_err(|_| 57) }
}

/// The operations of other threads during the forks, so that locks of all kinds are held.
fn keep_busy(object: &Object, partition: &Partition, thread: u64) {
    let mut page = [0; PAGE as usize];
    for turn in 0..50 {
        let place = RESIDENT + WRITTEN + (turn * 977 + thread * 4001) % (6500 - WRITTEN);
        object.read_at(place * PAGE, &mut page).unwrap();
        object.write_at((RESIDENT + (turn + thread * 31) % WRITTEN) * PAGE, &stamp(turn)).unwrap();
        object.stat();
        partition.stat();
    }
    object.sync().unwrap();
}

/// The first call of a child that was not a hit used to wait for locks, threads and a ring of its
/// parent, and the end of the child would have released the parent's lock on the file.
#[test]
fn a_forked_child_is_refused_at_once_and_does_not_disturb_its_parent() {
    // A child cannot start threads if its parent was starting one at the fork (the standard library
    // holds a lock), and other tests start threads all the time.
    if !is_alone("forked::a_forked_child_is_refused_at_once_and_does_not_disturb_its_parent") {
        return;
    }
    for engine in [Engine::Auto, Engine::Blocking] {
        let watchdog = Watchdog::new(Duration::from_secs(120), "children that were forked");
        let file = Scratch::new(&format!("fork-{engine:?}"), PAGES * PAGE);
        let cache = cache(engine);
        let partition = partition(&cache);
        let object = partition.open(open(&file).unwrap(), "disk").unwrap();
        let idle = partition.open(Store::memory("idle", 1 << 20), "idle").unwrap();
        (0..RESIDENT).for_each(|page| object.write_at(page * PAGE, &stamp(page)).unwrap());
        let mut queue = cache.queue().unwrap();
        queue.poll_fd().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let busy = [0, 1, 2].map(|thread| {
            let (object, partition, over) = (object.clone(), partition.clone(), over.clone());
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    keep_busy(&object, &partition, thread);
                }
            })
        });
        for number in 0..CHILDREN {
            watchdog.feed(format!("{engine:?}: child {number}"));
            (0..RESIDENT).for_each(|page| object.read_at(page * PAGE, &mut [0; PAGE as usize]).unwrap());
            queue.submit(&object, (0..8).map(|at| read(at, 6600 + number * 8 + at)));
            let Some(child) = kernel::fork() else {
                end_with(|| use_and_drop(cache, partition, [object, idle], queue, &file));
            };
            let ended = kernel::wait_for(child);
            assert!(ended.success(), "{engine:?}: child {number}: {ended}");
            // The requests of the parent complete in the parent.
            succeed_all(&mut queue);
            object.write_at(number * PAGE, &stamp(number)).unwrap();
            object.sync().unwrap();
        }
        over.store(true, Relaxed);
        busy.into_iter().for_each(|thread| thread.join().unwrap());
        watchdog.feed(format!("{engine:?}: a child that makes a cache"));
        let Some(child) = kernel::fork() else { end_with(|| make_another(engine)) };
        let ended = kernel::wait_for(child);
        assert!(ended.success(), "{engine:?}: a child that makes a cache: {ended}");
        object.close().unwrap();
        drop((cache, partition, object, idle, queue));
        assert_holds(&file.0);
    }
}

/// Asserts that the file has the bytes that the parent wrote during the forks.
fn assert_holds(path: &Path) {
    let image = std::fs::read(path).unwrap();
    for page in 0..RESIDENT {
        assert_eq!(image[(page * PAGE) as usize..][..PAGE as usize], stamp(page), "page {page}");
    }
}
