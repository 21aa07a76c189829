//! Rings and the simulated disk under shuttle, which runs random schedules of a few threads. Built
//! with `--cfg shuttle`.

#![cfg(shuttle)]

use std::sync::Arc;

use octavo_disk::{
    AlignedBytes, Backend, IoError, IoRequest, Op, Ring, RingOptions, SimDisk, SimOptions, Store,
};
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

/// A back end whose requests wait until a thread takes them.
struct Shelf(Arc<Mutex<Vec<IoRequest>>>);

impl Backend for Shelf {
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(4096)
    }

    fn submit(&self, request: IoRequest) {
        self.0.lock().unwrap().push(request);
    }
}

fn shelf() -> (Store, Arc<Mutex<Vec<IoRequest>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    (Store::from_backend("shelf", Shelf(requests.clone())).unwrap(), requests)
}

/// Answers `count` requests, with at most `most` bytes each.
fn serve(requests: &Mutex<Vec<IoRequest>>, count: usize, most: usize) {
    let mut answered = 0;
    while answered < count {
        let taken = requests.lock().unwrap().pop();
        let Some(mut request) = taken else {
            thread::yield_now();
            continue;
        };
        let len = request.len_bytes().min(most);
        request.copy_in(0, &vec![7; len]);
        request.complete(Ok(len));
        answered += 1;
    }
}

/// B3, R3, R4: both threads of the back end answer in part, while one thread waits and one reaps.
#[test]
fn answers_from_other_threads_reach_a_waiter_and_a_reaper_once_each() {
    both(|| {
        let (ring, (store, requests)) = (ring(), shelf());
        let servers = [0, 1].map(|_| {
            let requests = requests.clone();
            thread::spawn(move || serve(&requests, 2, 512))
        });
        let delivered = Arc::new(Mutex::new(Vec::new()));
        let memory = [AlignedBytes::new(1024), AlignedBytes::new(1024)];
        for (bytes, token) in memory.iter().zip(0..) {
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(&store, Op::Read, token * 1024, &[bytes.io_buffer()], token) };
        }
        let seen = delivered.clone();
        let reaper = beside(&ring, move |ring| {
            ring.reap(&mut |token, _| seen.lock().unwrap().push(token));
            ring.wake();
        });
        while delivered.lock().unwrap().len() < 2 {
            ring.wait(
                &mut |token, result| delivered.lock().unwrap().push(result.map(|()| token).unwrap()),
                None,
            );
        }
        reaper.join().unwrap();
        servers.into_iter().for_each(|server| server.join().unwrap());
        let mut delivered = delivered.lock().unwrap().clone();
        delivered.sort_unstable();
        assert_eq!(delivered, [0, 1]);
        assert!(memory.iter().all(|bytes| bytes[..] == [7; 1024]));
    });
}

/// B1, L3: a thread adopts the length while another answers a read, and one more read enters.
#[test]
fn an_adopted_length_waits_for_answers_from_another_thread() {
    both(|| {
        let (store, requests) = shelf();
        let server = thread::spawn(move || serve(&requests, 3, 512));
        let adopting = store.clone();
        let other = thread::spawn(move || assert_eq!(adopting.adopt_len_bytes().unwrap(), 4096));
        for len in [1024, 512] {
            let bytes = AlignedBytes::new(len);
            // SAFETY: `bytes` outlives the call.
            unsafe { ring().run(&store, Op::Read, 0, &[bytes.io_buffer()]) }.unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7));
        }
        other.join().unwrap();
        server.join().unwrap();
    });
}
