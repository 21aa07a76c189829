//! Rings and the simulated disk under shuttle, which runs random schedules of a few threads. Built
//! with `--cfg shuttle`.

use std::sync::Arc;

use octavo_disk::{AlignedBytes, Op, Ring, RingOptions, SimDisk, SimOptions, Store};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

fn both(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), 2000);
    shuttle::check_pct(test, 2000, 3);
}

#[test]
fn a_waiter_gets_the_io_that_another_thread_pushes() {
    both(|| {
        let ring = Arc::new(Ring::new(&RingOptions::default()).unwrap());
        let disk = SimDisk::new(SimOptions::default());
        let stores = [disk.store("data", 4096), Store::memory("memory", 4096)];
        let waiter = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut delivered = 0;
                while delivered < 2 {
                    delivered += ring.wait(&mut |_, result| result.unwrap(), None);
                }
            })
        };
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
        let ring = Arc::new(Ring::new(&RingOptions::default()).unwrap());
        let flag = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (ring, flag) = (ring.clone(), flag.clone());
            thread::spawn(move || wait_for(&ring, &flag))
        };
        let reaper = {
            let ring = ring.clone();
            thread::spawn(move || ring.reap(&mut |_, _| {}))
        };
        flag.store(true, Ordering::SeqCst);
        ring.wake();
        waiter.join().unwrap();
        reaper.join().unwrap();
    });
}

#[test]
fn a_wake_that_waiters_pass_on_reaches_all_of_them() {
    both(|| {
        let ring = Arc::new(Ring::new(&RingOptions::default()).unwrap());
        let flag = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (ring, flag) = (ring.clone(), flag.clone());
                thread::spawn(move || {
                    wait_for(&ring, &flag);
                    ring.wake();
                })
            })
            .collect();
        flag.store(true, Ordering::SeqCst);
        ring.wake();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn two_rings_share_a_disk_and_each_io_completes_on_its_own() {
    both(|| {
        let disk = SimDisk::new(SimOptions::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..2u64)
            .map(|token| {
                let (disk, seen) = (disk.clone(), seen.clone());
                thread::spawn(move || {
                    let ring = Ring::new(&RingOptions::default()).unwrap();
                    let store = disk.store("data", 4096);
                    let memory = AlignedBytes::new(512);
                    // SAFETY: `memory` outlives the wait.
                    unsafe { ring.push(&store, Op::Write, token * 512, &[memory.io_buffer()], token) };
                    let mut done = 0;
                    while done == 0 {
                        done = ring.wait(
                            &mut |delivered, result| {
                                result.unwrap();
                                assert_eq!(delivered, token);
                                seen.lock().unwrap().push(delivered);
                            },
                            None,
                        );
                    }
                })
            })
            .collect();
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
        let worker = {
            let disk = disk.clone();
            thread::spawn(move || {
                let ring = Ring::new(&RingOptions::default()).unwrap();
                let store = disk.store("data", 4096);
                let memory = AlignedBytes::new(1024);
                // SAFETY: `memory` outlives the wait.
                unsafe { ring.push(&store, Op::Write, 0, &[memory.io_buffer()], 1) };
                let mut done = 0;
                while done == 0 {
                    done = ring.wait(&mut |_, _| {}, None);
                }
            })
        };
        disk.crash();
        worker.join().unwrap();
    });
}
