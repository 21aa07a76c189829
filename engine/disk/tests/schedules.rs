//! Rings and the simulated disk under shuttle, which runs random schedules of a few threads. Built
//! with `--cfg shuttle`.

#![cfg(shuttle)]

use std::sync::Arc;

use octavo_disk::{AlignedBytes, IoError, Op, Ring, RingOptions, SimDisk, SimOptions, Store};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

fn both(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), 2000);
    shuttle::check_pct(test, 2000, 3);
}

fn ring() -> Arc<Ring> {
    Arc::new(Ring::new(&RingOptions::default()).unwrap())
}

/// Runs `act` on a thread that shares the ring.
fn beside<T: Send + 'static>(
    ring: &Arc<Ring>,
    act: impl FnOnce(&Ring) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let ring = ring.clone();
    thread::spawn(move || act(&ring))
}

#[test]
fn a_waiter_gets_the_io_that_another_thread_pushes() {
    both(|| {
        let ring = ring();
        let disk = SimDisk::new(SimOptions::default());
        let stores = [disk.store("data", 4096), Store::memory("memory", 4096)];
        let waiter = beside(&ring, |ring| {
            let mut delivered = 0;
            while delivered < 2 {
                delivered += ring.wait(&mut |_, result| result.unwrap(), None);
            }
        });
        let memory = [AlignedBytes::new(512), AlignedBytes::new(512)];
        for (store, bytes) in stores.iter().zip(&memory) {
            // SAFETY: `memory` outlives the join.
            unsafe { ring.push(store, Op::Read, 0, &[bytes.io_buffer()], 0) };
        }
        ring.submit();
        waiter.join().unwrap();
    });
}

/// Waits until another thread sets `flag` and then wakes the ring.
fn wait_for(ring: &Ring, flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        ring.wait(&mut |_, _| {}, None);
    }
}

#[test]
fn a_wake_reaches_the_waiter_although_a_reaper_runs() {
    both(|| {
        let (ring, flag) = (ring(), Arc::new(AtomicBool::new(false)));
        let seen = flag.clone();
        let waiter = beside(&ring, move |ring| wait_for(ring, &seen));
        let reaper = beside(&ring, |ring| ring.reap(&mut |_, _| {}));
        flag.store(true, Ordering::SeqCst);
        ring.wake();
        waiter.join().unwrap();
        reaper.join().unwrap();
    });
}

#[test]
fn a_wake_that_waiters_pass_on_reaches_all_of_them() {
    both(|| {
        let (ring, flag) = (ring(), Arc::new(AtomicBool::new(false)));
        let waiters = [flag.clone(), flag.clone()].map(|flag| {
            beside(&ring, move |ring| {
                wait_for(ring, &flag);
                ring.wake();
            })
        });
        flag.store(true, Ordering::SeqCst);
        ring.wake();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// Writes `len` bytes to the disk through a new ring, and waits for the completion.
fn write_through_own_ring(
    disk: &SimDisk,
    offset: u64,
    len: usize,
    token: u64,
    mut on_completion: impl FnMut(u64, Result<(), IoError>),
) {
    let (ring, store, memory) = (ring(), disk.store("data", 4096), AlignedBytes::new(len));
    // SAFETY: `memory` outlives the wait.
    unsafe { ring.push(&store, Op::Write, offset, &[memory.io_buffer()], token) };
    let mut done = 0;
    while done == 0 {
        done = ring.wait(&mut on_completion, None);
    }
}

#[test]
fn two_rings_share_a_disk_and_each_io_completes_on_its_own() {
    both(|| {
        let disk = SimDisk::new(SimOptions::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let threads = [0, 1].map(|token| {
            let (disk, seen) = (disk.clone(), seen.clone());
            thread::spawn(move || {
                write_through_own_ring(&disk, token * 512, 512, token, |delivered, result| {
                    result.unwrap();
                    assert_eq!(delivered, token);
                    seen.lock().unwrap().push(delivered);
                });
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(seen.lock().unwrap().len(), 2);
    });
}

#[test]
fn a_crash_completes_the_io_of_a_waiting_thread() {
    both(|| {
        let disk = SimDisk::new(SimOptions::default());
        let own = disk.clone();
        let worker = thread::spawn(move || write_through_own_ring(&own, 0, 1024, 1, |_, _| {}));
        disk.crash();
        worker.join().unwrap();
    });
}
