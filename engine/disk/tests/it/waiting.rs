//! Sleeping and waking: a wait ends for a completion, a wake or its timeout, whichever thread
//! causes it, and uses no CPU meanwhile. A sleep is measured by counting: a thread that polls or
//! spins leaves the state `S` or adds to its voluntary context switches, however slow the machine.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use octavo_disk::{AlignedBytes, Op, Ring, Store};

use crate::fixture::*;

/// A pause in which another thread usually falls asleep. No assertion depends on its length.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the numbers of this process's threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the number of the calling thread.
fn this_thread() -> String {
    let link = fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns whether a thread of this process sleeps, and how often it has fallen asleep so far. None
/// if the thread has ended.
fn naps(thread: &str) -> Option<(bool, u64)> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("State:")?.starts_with('S'), field("voluntary_ctxt_switches:")?.parse().ok()?))
}

/// Returns how often a thread has fallen asleep, once it sleeps without waking up for a pause.
fn wait_until_asleep(thread: &str) -> u64 {
    for _ in 0..1000 {
        let before = naps(thread).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        if before.0 && naps(thread) == Some(before) {
            return before.1;
        }
    }
    panic!("thread {thread} does not stay asleep for 20 ms");
}

fn is_readable(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd` is read and written.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

#[test]
fn a_wait_with_nothing_in_flight_sleeps_without_cpu_until_it_is_woken() {
    for ring in rings(8) {
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let waiter = scope.spawn(|| {
                let sender = sender;
                sender.send(this_thread()).unwrap();
                assert_eq!(ring.wait(&mut |_, _| panic!("nothing was pushed"), None), 0);
            });
            let waiter_thread = receiver.recv().unwrap();
            let naps_before = wait_until_asleep(&waiter_thread);
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(naps(&waiter_thread), Some((true, naps_before)), "it woke up, {ring:?}");
            assert!(!waiter.is_finished(), "{ring:?}");
            ring.wake();
            waiter.join().unwrap();
        });
    }
}

#[test]
fn a_wait_with_a_timeout_sleeps_in_one_piece_and_ends_without_completions() {
    for ring in rings(8) {
        let thread = this_thread();
        let naps_before = naps(&thread).unwrap().1;
        assert_eq!(ring.wait(&mut |_, _| panic!(), Some(Duration::from_millis(300))), 0);
        let slept = naps(&thread).unwrap().1 - naps_before;
        // One nap, and at most two more for contended locks. A wait that polls every 20 ms takes
        // 15; one that spins takes none.
        assert!((1..=3).contains(&slept), "{slept} naps in one wait, {ring:?}");
        assert_eq!(ring.wait(&mut |_, _| panic!(), Some(Duration::ZERO)), 0);
    }
}

#[test]
fn a_wake_sent_before_the_wait_ends_that_wait_and_no_other() {
    for ring in rings(8) {
        ring.wake();
        ring.wake();
        assert_eq!(ring.reap(&mut |_, _| panic!()), 0, "a reap takes no wake (R5)");
        assert_eq!(ring.wait(&mut |_, _| panic!(), None), 0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ring.wait(&mut |_, _| panic!(), None));
            std::thread::sleep(PAUSE);
            assert!(!waiter.is_finished(), "one wait takes all wakes sent before it, {ring:?}");
            ring.wake();
            waiter.join().unwrap();
        });
    }
}

#[test]
fn one_wake_ends_every_wait_that_has_begun() {
    for ring in rings(8) {
        std::thread::scope(|scope| {
            let waiters: Vec<_> =
                (0..4).map(|_| scope.spawn(|| ring.wait(&mut |_, _| panic!(), None))).collect();
            std::thread::sleep(PAUSE);
            ring.wake();
            // Waits that began after the wake may still sleep; further wakes end those.
            while !waiters.iter().all(|waiter| waiter.is_finished()) {
                std::thread::sleep(PAUSE);
                ring.wake();
            }
        });
    }
}

#[test]
fn wakes_race_with_reaps_of_other_threads_and_none_is_lost() {
    for ring in rings(8) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // This thread consumes the NOP of a wake as often as it can (R4).
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    ring.reap(&mut |_, _| panic!());
                    std::thread::yield_now();
                }
            });
            let (sender, receiver) = mpsc::channel();
            let waiter = scope.spawn(|| {
                let sender = sender;
                for round in 0..2000 {
                    ring.wait(&mut |_, _| panic!(), None);
                    sender.send(round).unwrap();
                }
            });
            for round in 0..2000 {
                ring.wake();
                assert_eq!(receiver.recv().unwrap(), round);
            }
            waiter.join().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn another_thread_delivers_while_the_owner_sleeps_elsewhere() {
    for (directory, ring) in rigs(8) {
        let store = open(&file(directory.path(), &pattern(1, 4096)));
        let memory = AlignedBytes::new(4096);
        let (to_owner, from_reaper) = mpsc::channel::<u64>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let from_reaper = from_reaper;
                // SAFETY: `memory` outlives the scope.
                unsafe { ring.push(&store, Op::Read, 0, &[memory.io_buffer()], 11) };
                ring.submit();
                // The owner sleeps in a futex, and not in the ring.
                assert_eq!(from_reaper.recv().unwrap(), 11);
            });
            let mut found = None;
            while found.is_none() {
                ring.reap(&mut |token, result| {
                    result.unwrap();
                    found = Some(token);
                });
                std::thread::sleep(Duration::from_millis(1));
            }
            to_owner.send(found.unwrap()).unwrap();
        });
        assert!(memory[..] == pattern(1, 4096));
    }
}

/// U6: the kernel posts completions in their submitter's context, and this submitter never enters
/// the kernel again.
#[test]
fn another_thread_delivers_while_the_owner_computes() {
    for (directory, ring) in rigs_everywhere(8) {
        for by_wait in [false, true] {
            let store = open(&file(directory.path(), &pattern(3, 64 << 10)));
            let pages = pages(8, 4096);
            let delivered = AtomicBool::new(false);
            let submitted = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (number, page) in pages.iter().enumerate() {
                        // SAFETY: the pages outlive the scope, which ends after all completions.
                        unsafe { ring.push(&store, Op::Read, number as u64 * 4096, &[page.io_buffer()], 0) };
                    }
                    ring.submit();
                    submitted.store(true, Ordering::Release);
                    while !delivered.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                });
                while !submitted.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let mut count = 0;
                let mut on_completion = |_, result: Result<(), _>| {
                    result.unwrap();
                    count += 1;
                };
                while ring.in_flight() > 0 {
                    if by_wait {
                        ring.wait(&mut on_completion, None);
                    } else {
                        ring.nudge();
                        ring.reap(&mut on_completion);
                    }
                }
                assert_eq!(count, pages.len(), "{ring:?}");
                delivered.store(true, Ordering::Release);
            });
        }
    }
}

#[test]
fn a_thread_that_already_waits_gets_the_io_that_another_thread_pushes() {
    for (directory, ring) in rigs(8) {
        for store in &stores(directory.path(), 8192) {
            let memory = AlignedBytes::new(4096);
            let delivered = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut on_completion = |token, result: Result<(), _>| {
                            result.unwrap();
                            assert_eq!(token, 3);
                            delivered.fetch_add(1, Ordering::SeqCst);
                        };
                        while delivered.load(Ordering::SeqCst) == 0 {
                            ring.wait(&mut on_completion, None);
                        }
                        ring.wake();
                    });
                }
                std::thread::sleep(PAUSE);
                // SAFETY: `memory` outlives the scope.
                unsafe { ring.push(store, Op::Read, 0, &[memory.io_buffer()], 3) };
                ring.submit();
            });
            assert_eq!(delivered.load(Ordering::SeqCst), 1, "{store:?}, {ring:?}");
            // Takes the wake of the last thread, for which no thread waited.
            ring.wait(&mut |_, _| panic!(), Some(Duration::ZERO));
        }
    }
}

#[test]
fn a_leader_that_leaves_makes_another_waiter_watch_the_kernel() {
    for (directory, ring) in rigs(8) {
        let store = open(&file(directory.path(), &pattern(1, 4096)));
        let memory = AlignedBytes::new(4096);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (ring, sender) = (&ring, sender.clone());
                scope.spawn(move || {
                    let delivered = ring.wait(&mut |_, result| result.unwrap(), None);
                    sender.send(delivered).unwrap();
                });
            }
            std::thread::sleep(PAUSE);
            for _ in 0..2 {
                // SAFETY: `memory` outlives the scope, and one read at a time uses it.
                unsafe { ring.push(&store, Op::Read, 0, &[memory.io_buffer()], 3) };
                ring.submit();
                assert_eq!(receiver.recv().unwrap(), 1, "{ring:?}");
            }
        });
    }
}

#[test]
fn the_descriptor_polls_readable_for_completions_and_wakes_and_not_otherwise() {
    for (directory, ring) in rigs(8) {
        let store = open(&file(directory.path(), &[0; 4096]));
        let memory_store = Store::memory("memory", 4096);
        let memory = AlignedBytes::new(4096);
        let fd = ring.poll_fd().unwrap();
        assert!(!is_readable(fd, 0));
        for store in [&store, &memory_store] {
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(store, Op::Read, 0, &[memory.io_buffer()], 1) };
            ring.submit();
            let mut delivered = 0;
            while delivered == 0 {
                assert!(is_readable(fd, -1));
                delivered = ring.wait(&mut |_, result| result.unwrap(), Some(Duration::ZERO));
            }
            settle(&ring);
            assert!(!is_readable(fd, 0), "{store:?}, {ring:?}");
        }
        ring.wake();
        assert!(is_readable(fd, -1));
        ring.reap(&mut |_, _| panic!());
        assert!(is_readable(fd, -1), "a reap takes no wake");
        ring.wait(&mut |_, _| panic!(), Some(Duration::ZERO));
        settle(&ring);
        assert!(!is_readable(fd, 0), "{ring:?}");
    }
}

/// Takes the event of a descriptor that is readable without news.
fn settle(ring: &Ring) {
    ring.wait(&mut |_, _| panic!("nothing is in flight"), Some(Duration::ZERO));
}

/// In a process of its own, because other tests of this process start threads that are busy.
#[test]
fn the_threads_of_an_idle_process_never_poll() {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "waiting::a_child_that_idles", "--ignored", "--nocapture"])
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "runs as a child of `the_threads_of_an_idle_process_never_poll`"]
fn a_child_that_idles() {
    let directory = directory();
    let store = open(&file(directory.path(), &[0; 65_536]));
    let rings = rings(8);
    for ring in &rings {
        read(ring, &store, 0, 65_536);
    }
    let others: Vec<_> = threads().into_iter().filter(|thread| *thread != this_thread()).collect();
    assert!(others.len() > 1, "the pool has no thread");
    let naps_before: Vec<u64> = others.iter().map(|thread| wait_until_asleep(thread)).collect();
    std::thread::sleep(Duration::from_secs(1));
    for (thread, before) in others.iter().zip(naps_before) {
        // None if the thread has ended. A thread wakes up once at most: when it has idled for 5 s.
        let Some((_, after)) = naps(thread) else { continue };
        assert!(after - before <= 1, "thread {thread} woke up {} times in a second", after - before);
    }
}
