//! Queues in event loops of their callers: the descriptor, completions taken one at a time, and
//! callbacks that panic.

use crate::fixture::{
    PAGE, SET_BYTES, Scratch, disk, open, read_request, request, scene, sized, small, until, write_request,
};
use crate::watchdog::Watchdog;
use octavo::disk::{Engine, SimDisk, SimOptions, Store};
use octavo::{
    Advice, Cache, CacheConfig, Completion, Error, Interest, Object, Op, Partition, Queue, Request,
};
use octavo_random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the queue's descriptor becomes readable within this time.
fn is_readable_within(queue: &Queue, time: Duration) -> bool {
    let timeout = Timespec::try_from(time).unwrap();
    loop {
        match poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.unwrap() > 0,
        }
    }
}

fn is_readable(queue: &Queue) -> bool {
    is_readable_within(queue, Duration::ZERO)
}

fn sleep(queue: &Queue) {
    assert!(is_readable_within(queue, 2 * PATIENCE));
}

fn read(page: u64) -> Request {
    read_request(page, page * PAGE, PAGE as usize)
}

/// A scene whose 64 pages have bytes of their own, and are not resident.
fn cold(config: CacheConfig, store: Store) -> (Cache, Partition, Object) {
    let (cache, partition, object) = scene(config, sized(4 * SET_BYTES), store);
    (0..64).for_each(|page| object.write_at(page * PAGE, &[page as u8; PAGE as usize]).unwrap());
    object.advise(0, 64 * PAGE, Advice::DontNeed).unwrap();
    object.advise(0, 0, Advice::Random).unwrap();
    (cache, partition, object)
}

fn check(completion: Completion) {
    completion.result.unwrap();
    let Op::Read { buffer, .. } = completion.op else { panic!("only reads were submitted") };
    assert!(buffer.iter().all(|byte| *byte == completion.user_data as u8), "page {}", completion.user_data);
}

/// The stores that a queue meets, each with an engine for files.
fn each_store(name: &str, mut act: impl FnMut(&str, CacheConfig, Store)) {
    act("memory", small(1), Store::memory("m", 64 * PAGE));
    for engine in [Engine::Auto, Engine::Blocking] {
        let scratch = Scratch::new(&format!("{name}-{engine:?}"), 64 * PAGE);
        act(&format!("a file, {engine:?}"), CacheConfig { engine, ..small(1) }, open(&scratch.0));
    }
    act("a simulated disk", small(1), disk(1).store("disk", 64 * PAGE));
}

#[test]
fn a_descriptor_is_readable_until_everything_is_taken() {
    let watchdog = Watchdog::new(PATIENCE, "a queue's descriptor");
    each_store("polling-readable", |what, config, store| {
        watchdog.feed(what);
        let (cache, _partition, object) = cold(config, store);
        let mut queue = cache.queue().unwrap();
        queue.poll_fd().unwrap();
        assert!(!is_readable(&queue), "{what}: nothing was submitted");
        for round in ["misses", "hits"] {
            queue.submit(&object, (0..4).map(read));
            for left in (0..4).rev() {
                sleep(&queue);
                let taken = loop {
                    match queue.take_next() {
                        Some(completion) => break completion,
                        None => sleep(&queue),
                    }
                };
                check(taken);
                assert_eq!(queue.pending(), left, "{what}, {round}");
            }
            assert!(queue.take_next().is_none());
            assert!(!is_readable(&queue), "{what}, {round}: everything was taken");
        }
        // Refused requests are completions, too.
        queue.submit(&object, [read(64)]);
        assert!(is_readable(&queue), "{what}");
        assert!(queue.take_next().unwrap().result.is_err());
        let (cache, ..) = scene(small(1), sized(2 * SET_BYTES), Store::memory("m", PAGE));
        let mut other = cache.queue().unwrap();
        other.poll_fd().unwrap();
        other.submit(&object, [read(0)]);
        assert!(is_readable(&other), "{what}: the object of another cache");
        assert!(matches!(other.wait_next().unwrap().result, Err(Error::Config(_))));
    });
}

#[test]
fn ten_thousand_requests_pass_through_a_poll_loop_and_none_is_lost() {
    const REQUESTS: u64 = 10_000;
    let watchdog = Watchdog::new(PATIENCE, "ten thousand requests");
    each_store("polling-many", |what, config, store| {
        watchdog.feed(what);
        let (cache, _partition, object) = cold(config, store);
        let mut queue = cache.queue().unwrap();
        let mut random = Random::new(9);
        let (mut submitted, mut ended) = (0, 0);
        let mut is_taken_by_wait = false;
        while ended < REQUESTS {
            while queue.pending() < 16 && submitted < REQUESTS {
                let count = (1 + random.below(8)).min(REQUESTS - submitted);
                queue.submit(&object, (0..count).map(|_| read(random.below(64))));
                submitted += count;
            }
            is_taken_by_wait = !is_taken_by_wait;
            match is_taken_by_wait {
                true => ended += queue.wait(0, check) as u64,
                false => std::iter::from_fn(|| queue.take_next()).for_each(|completion| {
                    check(completion);
                    ended += 1;
                }),
            }
            assert_eq!(queue.pending() as u64, submitted - ended, "{what}");
            if queue.pending() > 0 {
                sleep(&queue);
            }
        }
        assert!(queue.wait_next().is_none());
    });
}

/// Both threads sleep in `epoll`, edge-triggered as async runtimes use it, and each needs pages
/// that the other one fetches, evicts or writes.
#[test]
fn two_event_loops_whose_misses_depend_on_each_other_both_finish() {
    const ROUNDS: u64 = 1500;
    let watchdog = Watchdog::new(PATIENCE, "two event loops");
    each_store("polling-two", |what, config, store| {
        watchdog.feed(what);
        // One set: the pages do not fit, and each miss evicts or waits.
        let (cache, partition, object) = cold(config, store);
        partition.resize(SET_BYTES + (24 << 10)).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (cache, object) = (&cache, &object);
                scope.spawn(move || event_loop(cache, object, seed, ROUNDS));
            }
        });
    });
}

fn event_loop(cache: &Cache, object: &Object, seed: u64, rounds: u64) {
    let mut random = Random::new(seed);
    let mut queue = cache.queue().unwrap();
    queue.poll_fd().unwrap();
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&outer, &queue, epoll::EventData::new_u64(0), flags).unwrap();
    let mut events = Vec::with_capacity(1);
    for _ in 0..rounds {
        let requests: Vec<Request> = (0..1 + random.below(6))
            .map(|_| {
                let page = random.below(24);
                match random.one_in(4) {
                    true => write_request(page, page * PAGE, vec![page as u8; PAGE as usize], false),
                    false => read(page),
                }
            })
            .collect();
        queue.submit(object, requests);
        loop {
            while let Some(completion) = queue.take_next() {
                match completion.op {
                    Op::Read { .. } => check(completion),
                    _ => completion.result.unwrap(),
                }
            }
            if queue.pending() == 0 {
                break;
            }
            events.clear();
            let _ = epoll::wait(&outer, rustix::buffer::spare_capacity(&mut events), None);
        }
    }
}

/// The pages of the sleeper are in flight on the lane of a queue that no thread returns to.
#[test]
fn an_event_loop_takes_the_page_it_waits_for_from_a_queue_that_was_left_alone() {
    let watchdog = Watchdog::new(PATIENCE, "a queue left alone");
    let scratch = Scratch::new("polling-alone", 64 * PAGE);
    for (what, store) in [("a file", open(&scratch.0)), ("a disk", disk(5).store("disk", 64 * PAGE))] {
        let (cache, _partition, object) = cold(small(1), store);
        for round in 0..20 {
            watchdog.feed(format!("{what}, round {round}"));
            object.advise(0, 64 * PAGE, Advice::DontNeed).unwrap();
            let [mut left, mut queue] = [(), ()].map(|()| cache.queue().unwrap());
            queue.poll_fd().unwrap();
            left.submit(&object, (0..8).map(read));
            queue.submit(&object, (4..12).map(read));
            while queue.pending() > 0 {
                sleep(&queue);
                queue.wait(0, check);
            }
            while let Some(completion) = left.wait_next() {
                check(completion);
            }
        }
    }
}

/// A queue is left alone after the other one has gone to sleep.
#[test]
fn an_event_loop_learns_of_a_queue_that_is_left_alone_later() {
    let _watchdog = Watchdog::new(PATIENCE, "a queue left alone later");
    let disk = disk(6);
    let (cache, _partition, object) = cold(small(1), disk.store("disk", 64 * PAGE));
    let mut queue = cache.queue().unwrap();
    queue.poll_fd().unwrap();
    let mut left = cache.queue().unwrap();
    let socket = std::os::unix::net::UnixStream::pair().unwrap();
    disk.hang();
    left.submit(&object, [read(1)]);
    std::thread::scope(|scope| {
        // Attends its lane for a while, and leaves it with its I/O in flight.
        let waits = scope.spawn(|| {
            let interest = Interest { readable: true, writable: false };
            left.wait_or(socket.0.as_fd(), interest, Some(Duration::from_millis(50)), check);
        });
        queue.submit(&object, [read(1)]);
        queue.wait(0, check);
        waits.join().unwrap();
        disk.answer();
        while queue.pending() > 0 {
            sleep(&queue);
            queue.wait(0, check);
        }
    });
}

#[test]
fn a_sleeping_owner_learns_that_another_thread_has_taken_its_completions() {
    let watchdog = Watchdog::new(PATIENCE, "completions taken by others");
    for round in 0..30 {
        watchdog.feed(format!("round {round}"));
        let disk = SimDisk::new(SimOptions { seed: round, ..SimOptions::default() });
        let (cache, _partition, object) = cold(small(round), disk.store("disk", 64 * PAGE));
        let mut queue = cache.queue().unwrap();
        queue.poll_fd().unwrap();
        disk.hang();
        queue.submit(&object, [read(1), read(9)]);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| object.read_at(PAGE, &mut [0; 8]).unwrap());
            disk.answer();
            reader.join().unwrap();
        });
        while queue.pending() > 0 {
            sleep(&queue);
            queue.wait(0, check);
        }
    }
}

/// The page of the sleeper arrives on a lane that its own thread attends, so the sleeper's only
/// news is the wake-up for its page.
#[test]
fn a_sleeping_owner_learns_that_a_blocking_call_has_brought_its_page() {
    let watchdog = Watchdog::new(PATIENCE, "pages brought by others");
    for round in 0..10 {
        watchdog.feed(format!("round {round}"));
        let disk = disk(round);
        let (cache, _partition, object) = cold(small(round), disk.store("disk", 64 * PAGE));
        let mut queue = cache.queue().unwrap();
        queue.poll_fd().unwrap();
        disk.hang();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| object.read_at(PAGE, &mut [0; 8]).unwrap());
            until(|| disk.in_flight() == 1);
            queue.submit(&object, [read(1)]);
            assert!(queue.take_next().is_none());
            disk.answer();
            reader.join().unwrap();
        });
        assert!(is_readable(&queue));
        check(queue.take_next().unwrap());
    }
}

/// Such a request has no I/O in flight when its submission ends: it is the owner's turn.
#[test]
fn a_descriptor_is_readable_while_a_request_needs_its_owner() {
    let (cache, _partition, object) = cold(small(1), Store::memory("m", 64 * PAGE));
    let mut queue = cache.queue().unwrap();
    queue.poll_fd().unwrap();
    for page in 0..3 {
        queue.submit(&object, [write_request(page, page * PAGE, Vec::new(), true)]);
        while queue.pending() > 0 {
            assert!(is_readable(&queue));
            queue.wait(0, |completion| completion.result.unwrap());
        }
    }
}

#[test]
fn a_completion_may_submit_the_next_request() {
    each_store("polling-next", |what, config, store| {
        let (cache, _partition, object) = cold(config, store);
        let mut queue = cache.queue().unwrap();
        queue.submit(&object, (0..3).map(read));
        let (mut next, mut ended) = (3, 0);
        while let Some(completion) = queue.wait_next() {
            check(completion);
            ended += 1;
            if next < 500 {
                queue.submit(&object, [read(next % 64)]);
                next += 1;
            }
        }
        assert_eq!((ended, queue.pending()), (500, 0), "{what}");
    });
}

#[test]
fn a_callback_that_panics_loses_its_own_completion_only() {
    each_store("polling-panics", |what, config, store| {
        let (cache, _partition, object) = cold(config, store);
        let mut queue = cache.queue().unwrap();
        queue.poll_fd().unwrap();
        queue.submit(&object, (0..6).map(read));
        queue.submit(&object, [request(Op::Sync), read(64)]);
        let mut seen = 0;
        for call in 0..3 {
            let panics = catch_unwind(AssertUnwindSafe(|| {
                let pair = std::os::unix::net::UnixStream::pair().unwrap();
                let on_completion = |_: Completion| {
                    seen += 1;
                    panic!("a callback that fails");
                };
                match call {
                    1 => _ = queue.wait_or(pair.0.as_fd(), Interest::default(), None, on_completion),
                    _ => _ = queue.wait(8 - call, on_completion),
                }
            }));
            assert!(panics.is_err());
            assert_eq!(queue.pending(), 7 - call, "{what}");
            assert!(is_readable(&queue), "{what}: {} completions are at hand", queue.pending());
        }
        assert_eq!(seen, 3);
        queue.submit(&object, [read(7)]);
        assert_eq!(queue.wait(usize::MAX, |_| ()), 6, "{what}");
        assert_eq!((queue.pending(), queue.wait(1, |_| ())), (0, 0));
    });
}

/// A dropped queue leaves nothing behind: no lane in another queue's descriptor, no waiter.
#[test]
fn queues_with_descriptors_come_and_go() {
    let watchdog = Watchdog::new(PATIENCE, "queues that come and go");
    let scratch = Scratch::new("polling-go", 64 * PAGE);
    let (cache, _partition, object) = cold(small(1), open(&scratch.0));
    let used_bytes = cache.stat().buffers_used_bytes;
    let mut random = Random::new(3);
    let mut queues: Vec<Queue> = Vec::new();
    for round in 0..400 {
        watchdog.feed(format!("round {round}"));
        if queues.len() < 6 {
            let queue = cache.queue().unwrap();
            queue.poll_fd().unwrap();
            queues.push(queue);
        }
        let at = random.below(queues.len() as u64) as usize;
        let page = random.below(8) * 8;
        match random.below(4) {
            0 => drop(queues.swap_remove(at)),
            1 => object.advise(0, 64 * PAGE, Advice::DontNeed).unwrap(),
            2 => queues[at].submit(&object, (page..page + 8).map(read)),
            _ => _ = queues[at].wait(0, check),
        }
    }
    queues.clear();
    until(|| cache.stat().buffers_used_bytes <= used_bytes);
}
