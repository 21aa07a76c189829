//! Sleeping and waking: a wait ends for what it waits for, by whichever thread, and costs nothing
//! meanwhile.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use octavo_disk::{AlignedBytes, Op, Ring, SimDisk, SimOptions, Store};

use crate::fixture::*;

/// Long enough that a thread which was told to sleep sleeps; no assertion depends on it but the
/// CPU's.
const PAUSE: Duration = Duration::from_millis(50);

fn thread_cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills one `rusage`.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) }, 0);
    // SAFETY: filled by the call above.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
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
            let waiter = scope.spawn(|| {
                let before = thread_cpu();
                assert_eq!(ring.wait(&mut |_, _| panic!("nothing was pushed"), None), 0);
                thread_cpu() - before
            });
            std::thread::sleep(Duration::from_millis(400));
            assert!(!waiter.is_finished(), "{ring:?}");
            ring.wake();
            let cpu = waiter.join().unwrap();
            assert!(cpu < Duration::from_millis(40), "{cpu:?} of CPU in a sleep, {ring:?}");
        });
    }
}

#[test]
fn a_wait_with_a_timeout_ends_without_cpu_and_without_completions() {
    for ring in rings(8) {
        let before = thread_cpu();
        assert_eq!(ring.wait(&mut |_, _| panic!(), Some(Duration::from_millis(300))), 0);
        let cpu = thread_cpu() - before;
        assert!(cpu < Duration::from_millis(40), "{cpu:?} of CPU in a sleep, {ring:?}");
        assert_eq!(ring.wait(&mut |_, _| panic!(), Some(Duration::ZERO)), 0);
    }
}

#[test]
fn a_wake_before_the_wait_is_kept_for_it_and_taken_once() {
    for ring in rings(8) {
        ring.wake();
        ring.wake();
        assert_eq!(ring.reap(&mut |_, _| panic!()), 0, "a reap does not take it (R5)");
        assert_eq!(ring.wait(&mut |_, _| panic!(), None), 0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ring.wait(&mut |_, _| panic!(), None));
            std::thread::sleep(PAUSE);
            assert!(!waiter.is_finished(), "both wakes were taken at once, {ring:?}");
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
            // Only waits that began after the wake may still sleep; more wakes end them.
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
            // Consumes the entry that a wake posts, as often as it can (R4).
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
    let directory = directory();
    for ring in rings(8) {
        let store = open(&file(directory.path(), &pattern(1, 4096)));
        let memory = AlignedBytes::new(4096);
        let (to_owner, from_reaper) = mpsc::channel::<u64>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let from_reaper = from_reaper;
                // SAFETY: `memory` outlives the scope.
                unsafe { ring.push(&store, Op::Read, 0, &[memory.io_buffer()], 11) };
                ring.submit();
                // Sleeps in a futex, not in the ring.
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

/// U6: the kernel posts completions in their submitter's context, and this one never enters the
/// kernel again.
#[test]
fn another_thread_delivers_while_the_owner_computes() {
    for ring in rings(8) {
        for (directory, by_wait) in
            directories().iter().flat_map(|directory| [(directory, false), (directory, true)])
        {
            let store = open(&file(directory.path(), &pattern(3, 64 << 10)));
            let pages: Vec<_> = (0..8).map(|_| AlignedBytes::new(4096)).collect();
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
fn what_one_thread_pushes_another_that_already_waits_gets() {
    let directory = directory();
    for ring in rings(8) {
        let file_store = open(&file(directory.path(), &pattern(1, 8192)));
        let disk = SimDisk::new(SimOptions::default());
        let stores = [file_store, Store::memory("memory", 8192), disk.store("data", 8192)];
        for store in &stores {
            let memory = AlignedBytes::new(4096);
            let delivered = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while delivered.load(Ordering::SeqCst) == 0 {
                            ring.wait(
                                &mut |token, result| {
                                    result.unwrap();
                                    assert_eq!(token, 3);
                                    delivered.fetch_add(1, Ordering::SeqCst);
                                },
                                None,
                            );
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
            // What the last of them sent to nobody.
            ring.wait(&mut |_, _| panic!(), Some(Duration::ZERO));
        }
    }
}

#[test]
fn a_leader_that_leaves_makes_another_waiter_watch_the_kernel() {
    let directory = directory();
    for ring in rings(8) {
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
    let directory = directory();
    for ring in rings(8) {
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

/// A descriptor may be readable once more than there is news.
fn settle(ring: &Ring) {
    ring.wait(&mut |_, _| panic!("nothing is in flight"), Some(Duration::ZERO));
}

#[test]
fn an_idle_pool_uses_no_cpu() {
    fn process_cpu() -> Duration {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills one `rusage`.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) }, 0);
        // SAFETY: filled by the call above.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
        time(usage.ru_utime) + time(usage.ru_stime)
    }
    // Other tests of this process burn CPU, so that a child of its own is measured.
    let before = process_cpu();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "waiting::a_child_that_idles", "--ignored", "--nocapture"])
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let cpu = process_cpu() - before;
    assert!(cpu < Duration::from_millis(300), "{cpu:?} of CPU in a second of idling");
}

#[test]
#[ignore = "is run by `an_idle_pool_uses_no_cpu`"]
fn a_child_that_idles() {
    let directory = directory();
    let store = open(&file(directory.path(), &[0; 65_536]));
    for ring in rings(8) {
        read(&ring, &store, 0, 65_536);
    }
    std::thread::sleep(Duration::from_secs(1));
}
