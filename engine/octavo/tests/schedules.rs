//! Four threads and one or two sets under shuttle, in random schedules and in schedules with few
//! preemptions (PCT). The same races with one step of the slot's protocol left out must fail. Built
//! with `--cfg shuttle`.

#![cfg(shuttle)]

#[path = "engine/fixture.rs"]
#[expect(dead_code, reason = "most of it is for the tests without shuttle")]
mod fixture;
#[path = "engine/pages.rs"]
mod pages;

use crate::fixture::{PAGE, read_request, request, write_request};
use crate::pages::Shared;
use octavo::disk::{SimDisk, SimOptions, Store};
use octavo::numa::{NumaMode, Replication, TopologySource, sit};
use octavo::{
    Advice, Cache, CacheConfig, CacheMode, Error, Object, Op, Partition, PartitionConfig, PolicyName,
    Request, WAYS,
};
use octavo_table::broken::{Step, set};
use shuttle::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

/// A few pages more than one set has ways, so that some reads miss.
const PAGES: u64 = WAYS as u64 + 3;

/// Schedules of the whole protocol share this lock; those with a broken step hold it exclusively,
/// because the switch applies to the whole process.
static SWITCH: RwLock<()> = RwLock::new(());

fn explore(iterations: usize, race: impl Fn() + Copy + Send + Sync + 'static) {
    shuttle::check_random(race, iterations);
    shuttle::check_pct(race, iterations, 3);
}

fn holds(iterations: usize, race: impl Fn() + Copy + Send + Sync + 'static) {
    let _whole = SWITCH.read().unwrap_or_else(PoisonError::into_inner);
    explore(iterations, race);
}

fn holds_in_both_modes(race: fn(CacheMode)) {
    let _whole = SWITCH.read().unwrap_or_else(PoisonError::into_inner);
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        explore(1500, move || race(mode));
    }
}

/// Asserts that the race fails when `step` is left out.
fn fails_without(step: Step, race: fn()) {
    let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
    set(Some(step));
    let result = catch_unwind(AssertUnwindSafe(|| explore(20_000, race)));
    set(None);
    assert!(result.is_err(), "nobody notices that {step:?}");
}

/// Asserts that a number that returns is noticed to be that of another object if `step` is left
/// out.
fn fails_when_broken(step: octavo::broken::Step) {
    let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
    octavo::broken::set(Some(step));
    let race = || a_number_that_returns(CacheMode::Writeback, true);
    let result = catch_unwind(AssertUnwindSafe(|| explore(20_000, race)));
    octavo::broken::set(None);
    assert!(result.is_err(), "nobody notices that {step:?}");
}

/// A full cache of one set, which may grow to two, and the object that all threads share.
struct Scene {
    /// `None` for a store in memory, which the calling thread reads itself (`flight/alone.rs`).
    disk: Option<SimDisk>,
    cache: Cache,
    partition: Partition,
    shared: Shared,
}

/// The size of a partition. Shuttle's atomics are many times larger than real ones.
fn bytes_of(segments: u64) -> u64 {
    segments * (PAGE * WAYS as u64 + (28 << 10)) + (20 << 10)
}

/// A cache that may grow to `segments_max` segments, with this share of buffers.
fn config(segments_max: u64, buffers_bytes: u64) -> CacheConfig {
    CacheConfig {
        memory_max_bytes: buffers_bytes + bytes_of(segments_max),
        segment_bytes: PAGE * WAYS as u64,
        buffers_max_bytes: Some(buffers_bytes),
        background: false,
        seed: Some(1),
        ..CacheConfig::default()
    }
}

impl Scene {
    fn new(cache_mode: CacheMode) -> Arc<Scene> {
        Scene::with(config(2, 256 << 10), 1, cache_mode, WAYS as u64)
    }

    fn in_memory(cache_mode: CacheMode) -> Arc<Scene> {
        let store = Store::memory("disk", PAGES * PAGE);
        Scene::over(store, None, config(2, 256 << 10), 1, cache_mode, WAYS as u64)
    }

    /// A scene of `segments` segments that has the first pages of the object.
    fn with(config: CacheConfig, segments: u64, cache_mode: CacheMode, pages: u64) -> Arc<Scene> {
        let disk = SimDisk::new(SimOptions { latency_ticks: 1..=3, ..SimOptions::default() });
        let store = disk.store("disk", PAGES * PAGE);
        Scene::over(store, Some(disk), config, segments, cache_mode, pages)
    }

    fn over(
        store: Store,
        disk: Option<SimDisk>,
        config: CacheConfig,
        segments: u64,
        cache_mode: CacheMode,
        pages: u64,
    ) -> Arc<Scene> {
        let cache = Cache::new(config).unwrap();
        let config = PartitionConfig {
            cache_mode,
            policy: PolicyName::Fifo,
            max_bytes: Some(bytes_of(segments)),
            ..PartitionConfig::new("p")
        };
        let partition = cache.partition(config).unwrap();
        let object = partition.open(store, "object").unwrap();
        object.advise(0, pages * PAGE, Advice::WillNeed).unwrap();
        Arc::new(Scene { disk, cache, partition, shared: Shared::new(object, 1, PAGES, false) })
    }

    /// Runs a thread on each of three nodes.
    fn on_three_nodes(self: &Arc<Scene>, run: impl Fn(&Scene, u32) + Copy + Send + 'static) {
        let threads = [0, 1, 2].map(|node| {
            let scene = self.clone();
            thread::spawn(move || {
                sit(node);
                run(&scene, node);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn race(self: &Arc<Scene>, threads: [fn(&Scene); 4]) {
        let threads = threads.map(|run| {
            let scene = self.clone();
            thread::spawn(move || run(&scene))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Every acknowledged write is readable, and on the disk after a sync.
        (0..PAGES).for_each(|number| self.shared.read(number));
        self.shared.object.sync().unwrap();
        assert_eq!(self.partition.stat().dirty_bytes, 0);
        let Some(disk) = &self.disk else {
            // What is read from now on comes from the store.
            self.shared.object.advise(0, PAGES * PAGE, Advice::DontNeed).unwrap();
            return (0..PAGES).for_each(|number| self.shared.read(number));
        };
        let image = disk.image("disk");
        for (number, page) in image.chunks(PAGE as usize).enumerate() {
            self.shared.check(number as u64, self.shared.floor(number as u64), page);
            let mut read = vec![0xEE; PAGE as usize];
            self.shared.object.read_at(number as u64 * PAGE, &mut read).unwrap();
            assert!(read == page, "page {number} is not what the disk has after a sync");
        }
    }
}

/// The oldest page of the set, which is evicted next.
const OLD: u64 = 0;
/// Pages that are not resident.
const NEW: u64 = WAYS as u64;

fn fills_evictions_writes_and_a_sync(mode: CacheMode) {
    Scene::new(mode).race([
        |scene| {
            scene.shared.write(OLD);
            scene.shared.read(NEW);
        },
        |scene| {
            scene.shared.read(OLD);
            scene.shared.read(NEW);
            scene.shared.read(OLD);
        },
        |scene| {
            scene.shared.write(NEW + 1);
            scene.shared.object.sync().unwrap();
        },
        |scene| {
            scene.shared.read(NEW + 2);
            scene.cache.clean().unwrap();
        },
    ]);
}

/// Reads that miss one page, without a lane, beside the same read on another thread, a write, a
/// pin, an eviction and a resize.
fn reads_alone(mode: CacheMode) {
    Scene::in_memory(mode).race([
        |scene| {
            scene.shared.read(NEW);
            scene.shared.read(NEW + 1);
            scene.shared.read(OLD);
        },
        |scene| {
            scene.shared.write(NEW);
            scene.shared.read(NEW + 1);
            scene.shared.pin(NEW + 2);
        },
        |scene| {
            scene.shared.read(NEW);
            scene.shared.object.advise(NEW * PAGE, 2 * PAGE, Advice::DontNeed).unwrap();
            scene.shared.read(NEW + 2);
        },
        |scene| {
            scene.partition.resize(bytes_of(2)).unwrap();
            scene.shared.read(NEW + 1);
            scene.partition.resize(bytes_of(1)).unwrap();
        },
    ]);
}

/// An object is closed while two threads read and write it. The thread that drops the last handle
/// opens another object, with the only number that there is, and must find none of the old pages.
fn a_number_that_returns(mode: CacheMode, in_memory: bool) {
    const OBJECT_PAGES: u64 = 3;
    let disk = SimDisk::new(SimOptions { latency_ticks: 1..=3, ..SimOptions::default() });
    let store = move |name: &str| {
        if in_memory {
            Store::memory(name, OBJECT_PAGES * PAGE)
        } else {
            disk.store(name, OBJECT_PAGES * PAGE)
        }
    };
    let cache = Cache::new(config(2, 256 << 10)).unwrap();
    let config = PartitionConfig {
        cache_mode: mode,
        policy: PolicyName::Fifo,
        max_bytes: Some(bytes_of(1)),
        ..PartitionConfig::new("p")
    };
    let partition = cache.partition(config).unwrap();
    partition.limit_numbers(1);
    let old = partition.open(store("old"), "old").unwrap();
    old.write_at(0, &[1; (OBJECT_PAGES * PAGE) as usize]).unwrap();
    old.sync().unwrap();
    old.advise(PAGE, 2 * PAGE, Advice::DontNeed).unwrap();
    fn is_closed(error: &Error) -> bool {
        matches!(error, Error::Closed { .. } | Error::PastEnd { .. })
    }
    fn read(old: &Object, page: u64) {
        let mut bytes = [0xEE; PAGE as usize];
        match old.read_at(page * PAGE, &mut bytes) {
            Ok(()) => assert!(bytes == [1; PAGE as usize], "a page of another object"),
            Err(error) => assert!(is_closed(&error), "{error}"),
        }
    }
    let uses: [fn(&Object); 3] = [
        |old| {
            read(old, 1);
            read(old, 0);
        },
        |old| {
            let written = old.write_at(2 * PAGE, &[1; PAGE as usize]);
            written.unwrap_or_else(|error| assert!(is_closed(&error), "{error}"));
            read(old, 1);
        },
        |old| old.close().unwrap(),
    ];
    let open = move |partition: &Partition| {
        let new = partition.open(store("new"), "new").ok()?;
        for page in 0..OBJECT_PAGES {
            let mut bytes = [0xEE; PAGE as usize];
            new.read_at(page * PAGE, &mut bytes).unwrap();
            assert!(bytes == [0; PAGE as usize], "a page of the object before");
        }
        Some(new)
    };
    let open = Arc::new(open);
    let threads = uses.map(|use_it| {
        let (partition, old, open) = (partition.clone(), old.clone(), open.clone());
        thread::spawn(move || {
            use_it(&old);
            drop(old);
            open(&partition)
        })
    });
    drop(old);
    let opened = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
    assert!(opened.len() <= 1, "two objects have one number");
    assert!(opened.len() == 1 || open(&partition).is_some(), "the number is lost");
}

/// The same reads while their range is discarded.
fn reads_alone_of_a_range_that_is_cleared(mode: CacheMode) {
    let mut scene = Scene::in_memory(mode);
    Arc::get_mut(&mut scene).expect("no thread has it yet").shared.discards = true;
    scene.race([
        |scene| {
            scene.shared.read(NEW);
            scene.shared.read(NEW + 1);
        },
        |scene| {
            scene.shared.write(NEW);
            scene.shared.read(NEW);
        },
        |scene| scene.shared.object.discard(NEW * PAGE, 2 * PAGE).unwrap(),
        |scene| scene.shared.read(NEW + 1),
    ]);
}

fn hits_while_their_page_leaves() {
    let hits = |scene: &Scene| (0..3).for_each(|_| scene.shared.read(OLD));
    Scene::new(CacheMode::Writeback).race([
        hits,
        hits,
        |scene| scene.shared.write(NEW),
        |scene| scene.shared.write(OLD),
    ]);
}

fn pins_writes_and_a_resize(mode: CacheMode) {
    Scene::new(mode).race([
        |scene| {
            scene.shared.write(OLD);
            scene.shared.write(OLD);
        },
        |scene| {
            scene.shared.pin(OLD);
            scene.shared.read(NEW);
        },
        |scene| {
            scene.partition.resize(bytes_of(2)).unwrap();
            scene.partition.resize(bytes_of(1)).unwrap();
        },
        |scene| {
            scene.shared.read(OLD);
            scene.shared.object.sync().unwrap();
        },
    ]);
}

/// One page is written again and again while it is written back. The syncs look at this page alone,
/// so that few steps separate them from the writes.
fn writes_beside_write_backs(mode: CacheMode) {
    let sync = |scene: &Scene| scene.shared.object.sync_range(OLD * PAGE, PAGE).unwrap();
    Scene::new(mode).race([
        |scene| (0..3).for_each(|_| scene.shared.write(OLD)),
        sync,
        sync,
        |scene| scene.shared.read(OLD),
    ]);
}

/// An object is abandoned while two threads sync it. A drain once took an object that a mount was
/// abandoning for one whose sync had failed, and the server that ended reported lost bytes.
fn syncs_beside_an_abandon(mode: CacheMode) {
    let scene = Scene::new(mode);
    scene.shared.write(OLD);
    let abandoning = scene.shared.object.clone();
    let abandoning = thread::spawn(move || _ = abandoning.abandon());
    let syncing = [0, 1].map(|_| {
        let object = scene.shared.object.clone();
        thread::spawn(move || match object.sync() {
            Ok(()) | Err(Error::Closed { .. }) => {}
            Err(error) => panic!("{error}"),
        })
    });
    abandoning.join().unwrap();
    syncing.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(matches!(scene.shared.object.sync(), Err(Error::Closed { .. })));
}

/// The requests of a queue are in flight, and its thread does not return to it before the others
/// have finished.
fn a_queue_that_is_left_alone(mode: CacheMode) {
    Scene::new(mode).race([
        |scene| {
            let mut queue = scene.cache.queue().unwrap();
            let read = |page: u64| read_request(page, page * PAGE, PAGE as usize);
            queue.submit(&scene.shared.object, [read(NEW), read(OLD), read(NEW + 1)]);
            queue.submit(&scene.shared.object, [request(Op::Sync)]);
            queue.wait(1, |completion| completion.result.unwrap());
        },
        |scene| scene.shared.read(NEW),
        |scene| scene.shared.write(NEW + 1),
        |scene| {
            scene.shared.object.advise(0, PAGES * PAGE, Advice::DontNeed).unwrap();
            scene.shared.object.sync().unwrap();
        },
    ]);
}

/// Pins while segments leave, give back their frames and join again, until both are gone.
fn pins_and_segments_that_come_and_go() {
    let scene = Scene::with(config(3, 256 << 10), 2, CacheMode::Writeback, 6);
    let pin_all = |scene: &Scene| (0..6).for_each(|page| scene.shared.pin(page));
    scene.race([
        pin_all,
        pin_all,
        |scene| {
            scene.partition.resize(bytes_of(1)).unwrap();
            scene.partition.resize(bytes_of(2)).unwrap();
            scene.partition.resize(bytes_of(1)).unwrap();
        },
        |scene| {
            scene.shared.write(0);
            scene.cache.balance();
        },
    ]);
    scene.partition.resize(1).unwrap();
    assert_eq!(scene.partition.pinned_bytes(), 0);
}

/// Submits requests, and takes their completions in an event loop. A wake-up that does not make the
/// descriptor readable would leave the loop asleep for ever.
fn in_an_event_loop(scene: &Scene, requests: impl IntoIterator<Item = Request>) {
    let mut queue = scene.cache.queue().unwrap();
    queue.poll_fd().unwrap();
    queue.submit(&scene.shared.object, requests);
    loop {
        while let Some(completion) = queue.take_next() {
            completion.result.unwrap();
        }
        if queue.pending() == 0 {
            return;
        }
        // Always lets others run: a loop may find its descriptor readable because of news that
        // only another thread can take.
        thread::yield_now();
        while !queue.is_readable() {
            thread::yield_now();
        }
    }
}

/// Two event loops, a blocking call and a queue that is left alone for a while want the same pages.
fn event_loops(mode: CacheMode) {
    fn read(page: u64) -> Request {
        read_request(page, page * PAGE, PAGE as usize)
    }
    Scene::new(mode).race([
        |scene| in_an_event_loop(scene, [read(NEW), read(NEW + 1), request(Op::Sync)]),
        |scene| in_an_event_loop(scene, [read(NEW + 1), read(NEW + 2), read(NEW)]),
        |scene| {
            scene.shared.read(NEW + 1);
            scene.shared.write(NEW + 2);
        },
        |scene| {
            let mut queue = scene.cache.queue().unwrap();
            queue.submit(&scene.shared.object, [read(NEW), read(NEW + 2)]);
            scene.shared.read(OLD);
            queue.wait(1, |completion| completion.result.unwrap());
        },
    ]);
}

/// Overlapping discards and zeroes, writes, a sync and a resize. The thread that submitted two of
/// them does something else.
fn clearings(mode: CacheMode) {
    let mut scene = Scene::new(mode);
    Arc::get_mut(&mut scene).expect("no thread has it yet").shared.discards = true;
    scene.race([
        |scene| {
            let mut queue = scene.cache.queue().unwrap();
            let discard = Op::Discard { offset: 0, len: 3 * PAGE, durable: true };
            let zero = Op::Zero { offset: PAGE, len: (NEW + 1) * PAGE, durable: false };
            scene.shared.write(OLD);
            queue.submit(&scene.shared.object, [discard, zero].map(request));
            scene.shared.read(OLD);
            queue.wait(2, |completion| completion.result.unwrap());
        },
        |scene| {
            scene.shared.write(OLD + 1);
            scene.shared.write(NEW);
        },
        |scene| {
            scene.shared.pin(OLD + 1);
            scene.shared.object.zero(2 * PAGE, 2 * PAGE).unwrap();
            scene.shared.object.sync().unwrap();
        },
        |scene| {
            scene.partition.resize(bytes_of(2)).unwrap();
            scene.shared.read(OLD + 1);
        },
    ]);
}

/// Three nodes with one worker each. Threads of all three read and write in batches while pages are
/// evicted.
fn three_nodes_by_message() {
    let topology = TopologySource::Emulated { nodes: 3, cores: 1 };
    let config = CacheConfig { topology, numa: NumaMode::Message, ..config(4, 512 << 10) };
    let scene = Scene::with(config, 3, CacheMode::Writeback, 4);
    scene.on_three_nodes(|scene, node| {
        let (shared, mut queue) = (&scene.shared, scene.cache.queue().unwrap());
        // One page that only this thread writes, and pages that all threads read.
        let own = 4 + u64::from(node);
        let (version, bytes) = shared.next(own);
        queue.submit(&shared.object, [write_request(own, own * PAGE, bytes, false)]);
        let floors: Vec<u64> = (0..7).map(|page| shared.floor(page)).collect();
        let read = |page: u64| read_request(page, page * PAGE, PAGE as usize);
        queue.submit(&shared.object, (0..7).filter(|page| *page != own).map(read));
        while queue.pending() > 0 {
            queue.wait(1, |completion| {
                completion.result.unwrap();
                match completion.op {
                    Op::Read { buffer, .. } => {
                        let page = completion.user_data;
                        shared.check(page, floors[page as usize], &buffer);
                    }
                    _ => shared.replied(own, version),
                }
            });
        }
    });
    (0..7).for_each(|page| scene.shared.read(page));
}

/// Three nodes that copy each other's pages while pages are written, evicted, filled again and
/// moved.
fn three_nodes_with_twins(mode: CacheMode, resizes: bool) {
    const SHARED: u64 = 3;
    let config = CacheConfig {
        topology: TopologySource::Emulated { nodes: 3, cores: 1 },
        numa: NumaMode::Replicate,
        // Each remote write moves the main of its page to the writing node.
        replication: Replication { switch_writes: 1, ..Replication::default() },
        ..config(6, 384 << 10)
    };
    let scene = Scene::with(config, 3, mode, SHARED);
    scene.on_three_nodes(move |Scene { shared, partition, .. }, node| {
        // Each thread writes a page that all threads read.
        for turn in 0..2 {
            (0..SHARED).for_each(|page| shared.read(page));
            shared.write(u64::from(node));
            if resizes && node == 0 {
                partition.resize(bytes_of(if turn == 0 { 6 } else { 3 })).unwrap();
            } else if node == 1 {
                shared.object.advise(0, 2 * PAGE, Advice::DontNeed).unwrap();
            }
        }
        (0..SHARED).for_each(|page| shared.read(page));
    });
    (0..SHARED).for_each(|page| scene.shared.read(page));
}

#[test]
fn three_nodes_with_copies_of_each_others_pages_agree_in_every_schedule() {
    holds(80, || three_nodes_with_twins(CacheMode::Writeback, false));
    holds(50, || three_nodes_with_twins(CacheMode::Writethrough, false));
    holds(40, || three_nodes_with_twins(CacheMode::Writeback, true));
}

#[test]
fn a_write_that_does_not_invalidate_its_twins_is_noticed_t5() {
    fails_without(Step::NoOvertake, || three_nodes_with_twins(CacheMode::Writeback, false));
}

#[test]
fn publishing_a_copy_that_a_write_overtook_is_noticed_t4() {
    fails_without(Step::PublishOvertaken, || three_nodes_with_twins(CacheMode::Writeback, false));
}

#[test]
fn a_main_that_leaves_its_bits_behind_is_noticed_t10() {
    fails_without(Step::SwitchWithoutBits, || three_nodes_with_twins(CacheMode::Writeback, false));
}

#[test]
fn three_nodes_that_send_to_each_other_agree_in_every_schedule() {
    holds(400, three_nodes_by_message);
}

#[test]
fn fills_evictions_writes_and_syncs_agree_in_every_schedule() {
    holds_in_both_modes(fills_evictions_writes_and_a_sync);
    holds(1500, hits_while_their_page_leaves);
}

#[test]
fn a_number_that_returns_names_no_page_of_an_earlier_object_in_any_schedule() {
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        holds(600, move || a_number_that_returns(mode, true));
        holds(600, move || a_number_that_returns(mode, false));
    }
}

#[test]
fn a_page_that_is_claimed_after_its_object_was_closed_is_noticed_n2() {
    fails_when_broken(octavo::broken::Step::ClaimAfterClose);
}

#[test]
fn a_number_that_returns_before_its_last_handle_is_noticed_n3() {
    fails_when_broken(octavo::broken::Step::ReturnAtClose);
}

#[test]
fn reads_that_miss_without_a_lane_agree_in_every_schedule() {
    holds(400, || reads_alone(CacheMode::Writeback));
    holds(400, || reads_alone(CacheMode::Writethrough));
    holds(400, || reads_alone_of_a_range_that_is_cleared(CacheMode::Writeback));
    holds(400, || reads_alone_of_a_range_that_is_cleared(CacheMode::Writethrough));
}

#[test]
fn a_task_that_a_read_without_a_lane_does_not_wake_is_noticed_p12() {
    fails_without(Step::WaitWithoutSwap, || reads_alone(CacheMode::Writeback));
}

#[test]
fn pins_writes_and_resizes_agree_in_every_schedule() {
    holds_in_both_modes(pins_writes_and_a_resize);
}

#[test]
fn pins_and_segments_that_come_and_go_agree_in_every_schedule() {
    holds(300, pins_and_segments_that_come_and_go);
}

#[test]
fn giving_back_the_frame_of_a_snapshot_is_noticed_r5() {
    fails_without(Step::GiveBackSnapshots, pins_and_segments_that_come_and_go);
}

#[test]
fn no_call_waits_for_a_thread_that_left_its_queue_alone_in_any_schedule() {
    holds_in_both_modes(a_queue_that_is_left_alone);
}

#[test]
fn event_loops_that_depend_on_each_other_all_finish_in_every_schedule() {
    holds(600, || event_loops(CacheMode::Writeback));
    holds(600, || event_loops(CacheMode::Writethrough));
}

#[test]
fn clearings_agree_with_overlapping_operations_in_every_schedule() {
    holds_in_both_modes(clearings);
}

#[test]
fn writes_beside_write_backs_agree_in_every_schedule() {
    holds_in_both_modes(writes_beside_write_backs);
}

#[test]
fn syncs_find_an_object_that_is_abandoned_closed_in_every_schedule() {
    holds_in_both_modes(syncs_beside_an_abandon);
}

#[test]
fn a_read_that_does_not_check_the_word_again_is_noticed_p3() {
    fails_without(Step::NoRecheck, hits_while_their_page_leaves);
}

#[test]
fn a_write_back_that_marks_newer_bytes_clean_is_noticed_p11() {
    fails_without(Step::WritebackIgnoresVersion, || writes_beside_write_backs(CacheMode::Writeback));
}

#[test]
fn a_write_under_a_pin_is_noticed_p6() {
    fails_without(Step::WriteIgnoresPins, || pins_writes_and_a_resize(CacheMode::Writeback));
}

#[test]
fn a_wait_that_does_not_confirm_the_busy_state_is_noticed_p12() {
    fails_without(Step::WaitWithoutSwap, || fills_evictions_writes_and_a_sync(CacheMode::Writeback));
}
