//! Many threads on one small partition. Every page contains its own number and version, so that
//! every read can be checked: no torn page, no page of another place, and no version older than one
//! that the same thread has seen.

use crate::fixture::{
    Scratch, batch_at, bytes_at, disk, open, read_request, scene, sized, small, write_request,
};
use crate::pages::{PAGE, Shared};
use crate::watchdog::Watchdog;
use octavo::disk::{Engine, Store};
use octavo::{Advice, CacheConfig, CacheMode, Op, Partition, PartitionConfig, PolicyName, Queue, WAYS};
use octavo_random::Random;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGES: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that does random operations until the time is over.
struct Worker<'a> {
    me: u64,
    threads: u64,
    shared: &'a Shared,
    partition: &'a Partition,
    queue: Queue,
    random: Random,
    /// The floors of reads in the queue, by number.
    floors: Vec<u64>,
}

impl Worker<'_> {
    fn any_page(&mut self) -> u64 {
        self.random.below(PAGES)
    }

    fn own_page(&mut self) -> u64 {
        self.random.below(PAGES / self.threads) * self.threads + self.me
    }

    fn step(&mut self) {
        let shared = self.shared;
        let object = &shared.object;
        match self.random.below(100) {
            0..40 => shared.read(self.any_page()),
            40..65 => shared.write(self.own_page()),
            65..72 => self.read_batch(),
            72..82 => self.queue_up(),
            82..88 => shared.pin(self.any_page()),
            88..92 => object.sync().unwrap(),
            92..94 => {
                let number = self.any_page();
                let advice = self.random.pick(&[Advice::WillNeed, Advice::DontNeed]);
                object.advise(number * PAGE as u64, 5.min(PAGES - number) * PAGE as u64, advice).unwrap();
            }
            94..96 => _ = self.partition.resize(bytes_of(1 + self.random.below(4))).unwrap(),
            96..98 if shared.discards => {
                let number = self.own_page();
                match self.random.below(2) {
                    0 => object.discard(number * PAGE as u64, PAGE as u64).unwrap(),
                    _ => object.zero(number * PAGE as u64, PAGE as u64).unwrap(),
                }
            }
            _ => _ = self.partition.stat(),
        }
    }

    fn read_batch(&mut self) {
        let numbers: Vec<u64> = (0..8).map(|_| self.any_page()).collect();
        let floors: Vec<u64> = numbers.iter().map(|number| self.shared.floor(*number)).collect();
        let ranges: Vec<_> = numbers.iter().map(|number| (number * PAGE as u64, PAGE)).collect();
        let (result, read) = batch_at(&self.shared.object, &ranges);
        result.unwrap();
        for ((number, floor), bytes) in numbers.iter().zip(floors).zip(&read) {
            self.shared.check(*number, floor, bytes);
        }
    }

    /// Submits a few requests, at times without waiting for them.
    fn queue_up(&mut self) {
        let mut requests = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            let number = self.any_page();
            self.floors.push(self.shared.floor(number));
            requests.push(read_request(self.floors.len() as u64 - 1, number * PAGE as u64, PAGE));
        }
        // One write of a page at a time, so that versions say which came later.
        if self.queue.pending() == 0 {
            let number = self.own_page();
            let (version, bytes) = self.shared.next(number);
            let durable = self.random.one_in(4);
            requests.push(write_request(version << 32, number * PAGE as u64, bytes, durable));
            self.queue.submit(&self.shared.object, requests);
            self.wait(usize::MAX);
        } else {
            self.queue.submit(&self.shared.object, requests);
        }
        if self.random.one_in(2) {
            self.wait(2);
        }
    }

    fn wait(&mut self, min: usize) {
        let (shared, floors) = (self.shared, &self.floors);
        self.queue.wait(min, |completion| {
            completion.result.unwrap();
            match completion.op {
                Op::Read { offset, buffer, .. } => {
                    shared.check(offset / PAGE as u64, floors[completion.user_data as usize], &buffer);
                }
                Op::Write { offset, .. } => {
                    shared.replied(offset / PAGE as u64, completion.user_data >> 32);
                }
                _ => {}
            }
        });
    }
}

fn hammer(what: &str, threads: u64, time: Duration, config: CacheConfig, mode: CacheMode, store: Store) {
    let policy = PolicyName::ALL[threads as usize % PolicyName::ALL.len()];
    let partition = PartitionConfig { cache_mode: mode, policy, ..sized(bytes_of(2)) };
    let (cache, partition, object) = scene(config, partition, store);
    let shared = Shared::new(object, 7, PAGES, threads.is_multiple_of(2));
    let watchdog = Watchdog::new(PATIENCE, what);
    let until = Instant::now() + time;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for me in 0..threads {
            let queue = cache.queue().unwrap();
            let (shared, partition, watchdog, stop) = (&shared, &partition, watchdog.clone(), &stop);
            scope.spawn(move || {
                let random = Random::new(me);
                let mut worker = Worker { me, threads, shared, partition, queue, random, floors: Vec::new() };
                let mut steps = 0u64;
                while !stop.load(Relaxed) {
                    worker.step();
                    steps += 1;
                    if steps.is_multiple_of(64) {
                        watchdog.feed(format!("thread {me} did {steps} steps"));
                        stop.fetch_or(Instant::now() >= until, Relaxed);
                    }
                }
                // Some threads leave with requests in flight.
                if me % 2 == 0 {
                    worker.wait(usize::MAX);
                }
            });
        }
    });
    let Shared { object, .. } = &shared;
    object.sync().unwrap();
    let all = bytes_at(object, 0, PAGES * PAGE as u64);
    all.chunks(PAGE).enumerate().for_each(|(number, bytes)| {
        shared.check(number as u64, shared.floor(number as u64), bytes);
    });
    assert_eq!(partition.stat().dirty_bytes, 0, "{what}");
    let stat = cache.stat();
    assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
    object.close().unwrap();
    assert_eq!(partition.stat().resident_bytes, 0, "{what}");
}

/// Returns the bytes that a partition with this number of segments is charged.
fn bytes_of(segments: u64) -> u64 {
    segments * (PAGE * WAYS + 1024) as u64 + (16 << 10)
}

fn tiny(engine: Engine, buffers_bytes: u64, background: bool) -> CacheConfig {
    let memory_max_bytes = buffers_bytes + (1 << 20);
    CacheConfig { memory_max_bytes, buffers_max_bytes: Some(buffers_bytes), engine, background, ..small(3) }
}

fn file(name: &str) -> Store {
    // The open store is all that is needed.
    open(&Scratch::new(name, PAGES * PAGE as u64).0)
}

#[test]
fn no_thread_reads_a_torn_page_a_foreign_page_or_an_older_version() {
    let time = Duration::from_millis(900);
    let len = PAGES * PAGE as u64;
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        // Each thread has two rings of 24 KiB, for its calls and for its queue. A handful of bounce
        // pages remains.
        for (threads, buffers) in [(4, 300 << 10), (5, 1 << 20), (8, 600 << 10)] {
            let stores = [
                ("memory", true, Store::memory("m", len)),
                ("simulated", false, disk(0).store("s", len)),
                ("file", true, file(&format!("hammered-{threads}"))),
            ];
            for (kind, background, store) in stores {
                let what = format!("{threads} threads, {mode:?}, {kind}");
                hammer(&what, threads, time, tiny(Engine::Auto, buffers, background), mode, store);
            }
        }
        let store = file("blocking");
        let config = tiny(Engine::Blocking, 1 << 20, true);
        hammer("the blocking engine", 4, time, config, mode, store);
    }
}

#[test]
fn sixteen_threads_share_a_cache_of_one_set() {
    let watchdog = Watchdog::new(PATIENCE, "sixteen threads");
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let config = PartitionConfig { cache_mode: mode, ..sized(bytes_of(1)) };
        let (_cache, _, object) = scene(tiny(Engine::Auto, 600 << 10, true), config, file("sixteen"));
        let shared = Shared::new(object, 1, PAGES, false);
        std::thread::scope(|scope| {
            for me in 0..16 {
                let (shared, watchdog) = (&shared, watchdog.clone());
                scope.spawn(move || {
                    for round in 0..200 {
                        let number = (me * 3 + round % 3) % PAGES;
                        shared.write(number);
                        shared.read((round * 7 + me) % PAGES);
                        watchdog.feed(format!("thread {me}, round {round}"));
                    }
                });
            }
        });
        shared.object.close().unwrap();
    }
}

/// Every thread has a queue with misses in flight that it does not wait for, and reads pages that
/// other threads have in flight.
#[test]
fn no_call_waits_for_a_thread_that_left_its_queue_alone() {
    let watchdog = Watchdog::new(PATIENCE, "queues that nobody waits on");
    let stores: [(&str, Store); 3] = [
        ("simulated", disk(0).store("s", PAGES * PAGE as u64)),
        ("memory", Store::memory("m", PAGES * PAGE as u64)),
        ("file", file("left")),
    ];
    for (kind, store) in stores {
        let (cache, _, object) = scene(tiny(Engine::Auto, 400 << 10, false), sized(200 << 10), store);
        for round in 0..100 {
            watchdog.feed(format!("{kind}, round {round}"));
            object.advise(0, PAGES * PAGE as u64, Advice::DontNeed).unwrap();
            let mut queues: Vec<Queue> = (0..2).map(|_| cache.queue().unwrap()).collect();
            let barrier = std::sync::Barrier::new(queues.len());
            std::thread::scope(|scope| {
                for (me, queue) in queues.iter_mut().enumerate() {
                    let (object, barrier) = (&object, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let offset = |n: u64| (n + me as u64 * 5) % PAGES * PAGE as u64;
                        queue.submit(object, (0..10).map(|n| read_request(n, offset(n), PAGE)));
                        object.read_at(round % PAGES * PAGE as u64, &mut [0]).unwrap();
                        object.write_at((round + 3) % PAGES * PAGE as u64, &[1; 100]).unwrap();
                    });
                }
            });
            // The queues are dropped with requests in flight.
        }
        object.close().unwrap();
    }
}
