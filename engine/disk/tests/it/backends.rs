//! Stores that users write: each I/O completes exactly once, whatever the back end answers, and
//! from any thread (B1 to B6).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use octavo_disk::{AlignedBytes, Backend, Identity, IoRequest, Op, OpenError, Ring, Store};

use crate::fixture::*;

/// A back end that passes each request to a function.
struct Scripted<F> {
    len_bytes: AtomicU64,
    submit: F,
}

impl<F: Fn(IoRequest) + Send + Sync + 'static> Backend for Scripted<F> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes.load(Ordering::SeqCst))
    }

    fn submit(&self, request: IoRequest) {
        (self.submit)(request);
    }
}

fn scripted(len: usize, submit: impl Fn(IoRequest) + Send + Sync + 'static) -> Store {
    Store::from_backend("scripted", Scripted { len_bytes: AtomicU64::new(len as u64), submit }).unwrap()
}

/// Returns a store whose requests come out of the receiver.
fn queued(len: usize) -> (Store, Receiver<IoRequest>) {
    let (sender, receiver) = channel();
    (scripted(len, move |request| _ = sender.send(request)), receiver)
}

fn read_in(mut request: IoRequest, byte: u8) {
    let len = request.len_bytes();
    request.copy_in(0, &vec![byte; len]);
    request.complete(Ok(len));
}

#[test]
fn requests_complete_in_any_order_from_any_thread() {
    for ring in rings(4) {
        let (store, requests) = queued(1 << 20);
        let memory = pages(64, 4096);
        for (bytes, token) in memory.iter().zip(0..) {
            // SAFETY: `memory` outlives the waits.
            unsafe { ring.push(&store, Op::Read, token * 4096, &[bytes.io_buffer()], token) };
        }
        let mut taken: Vec<IoRequest> = (0..64).map(|_| requests.recv().unwrap()).collect();
        std::thread::scope(|scope| {
            let mut random = Random::new(5);
            for _ in 0..4 {
                let share: Vec<IoRequest> =
                    (0..16).map(|_| taken.swap_remove(random.below(taken.len() as u64) as usize)).collect();
                scope.spawn(|| {
                    for request in share {
                        let byte = (request.offset() / 4096) as u8;
                        read_in(request, byte);
                    }
                });
            }
            let mut tokens = successes(&ring, 64);
            tokens.sort_unstable();
            assert!(tokens.into_iter().eq(0..64), "{ring:?}");
        });
        assert!(memory.iter().zip(0..).all(|(bytes, byte)| bytes[..] == [byte; 4096]));
    }
}

#[test]
fn a_request_that_is_dropped_fails_and_the_error_names_the_store() {
    for ring in rings(4) {
        let store = scripted(8192, drop);
        let error = transfer(&ring, &store, Op::Write, 4096, &AlignedBytes::new(4096)).unwrap_err();
        assert_eq!((error.errno(), error.op(), error.offset()), (libc::EIO, Op::Write, 4096));
        let text = error.to_string();
        assert!(text.contains("scripted: write of 4096 bytes at 4096: the back end dropped"), "{text}");
        assert!(sync(&ring, &store).is_err());
    }
}

#[test]
fn a_panic_of_the_back_end_fails_its_request_and_no_other() {
    let calls = AtomicUsize::new(0);
    let store = scripted(8192, move |request| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => panic!("a bug of the back end"),
        _ => read_in(request, 3),
    });
    for ring in rings(4).into_iter().take(1) {
        assert!(transfer(&ring, &store, Op::Read, 0, &AlignedBytes::new(4096)).is_err());
        assert!(read(&ring, &store, 0, 4096) == [3; 4096]);
    }
}

#[test]
fn an_answer_of_more_bytes_than_asked_is_an_error() {
    for ring in rings(4) {
        let store = scripted(8192, |request| {
            let len = request.len_bytes();
            request.complete(Ok(len + 1));
        });
        for op in [Op::Read, Op::Write] {
            let error = transfer(&ring, &store, op, 0, &AlignedBytes::new(4096)).unwrap_err();
            assert_eq!(error.errno(), libc::EIO);
            assert!(error.to_string().contains("more bytes than the request has"), "{error}");
        }
        // The length of a sync is 0, and its answer is not a length.
        sync(&ring, &store).unwrap();
    }
}

#[test]
fn errors_that_may_pass_are_tried_again_and_others_reach_the_caller_with_their_text() {
    let kind = Arc::new(Mutex::new((io::ErrorKind::Interrupted, 0)));
    let script = kind.clone();
    let store = scripted(8192, move |request| {
        let (kind, left) = &mut *script.lock().unwrap();
        if *left == 0 {
            return read_in(request, 9);
        }
        *left -= 1;
        request.complete(Err(io::Error::new(*kind, "the volume is away")));
    });
    let mut cases = Vec::new();
    for kind in [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock] {
        cases.extend([(kind, 63, None), (kind, 64, Some((libc::EAGAIN, "gave up after 64 attempts")))]);
    }
    for (kind, errno) in [
        (io::ErrorKind::StorageFull, libc::ENOSPC),
        (io::ErrorKind::ConnectionReset, libc::ECONNRESET),
        (io::ErrorKind::Other, libc::EIO),
    ] {
        cases.push((kind, 1, Some((errno, "the volume is away"))));
    }
    for ring in rings(4) {
        for (error_kind, times, expected) in cases.clone() {
            *kind.lock().unwrap() = (error_kind, times);
            let result = transfer(&ring, &store, Op::Read, 0, &AlignedBytes::new(4096));
            let found = result.map_err(|error| (error.errno(), error.to_string()));
            match expected {
                None => found.unwrap(),
                Some((errno, text)) => {
                    let found = found.unwrap_err();
                    assert!(found.0 == errno && found.1.contains(text), "{found:?}");
                }
            }
        }
    }
}

/// Answers in this call, with one block at a time, and notes how deep calls nest.
#[test]
fn short_answers_inside_of_submit_do_not_deepen_the_stack() {
    let depths = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (inside, deepest) = (depths.clone(), depths.clone());
    let store = scripted(4 << 20, move |mut request| {
        let depth = inside.0.fetch_add(1, Ordering::SeqCst) + 1;
        inside.1.fetch_max(depth, Ordering::SeqCst);
        if request.op() == Op::Read {
            request.copy_in(0, &[4; 512]);
        }
        request.complete(Ok(512));
        inside.0.fetch_sub(1, Ordering::SeqCst);
    });
    for ring in rings(4) {
        assert!(read(&ring, &store, 0, 4 << 20).iter().all(|&byte| byte == 4));
        clear(&ring, &store, Op::Discard, 0, 4 << 20).unwrap();
        let bytes = AlignedBytes::new(1 << 20);
        // SAFETY: `bytes` outlives the call.
        unsafe { ring.run(&store, Op::Read, 0, &[bytes.io_buffer()]) }.unwrap();
        assert!(bytes.iter().all(|&byte| byte == 4));
    }
    assert_eq!(deepest.1.load(Ordering::SeqCst), 1);
}

/// B4: the inner store's I/O must not wait until the outer `submit` has returned.
#[test]
fn a_back_end_may_wait_for_a_store_with_short_answers_inside_of_submit() {
    let inner = scripted(1 << 20, |mut request| {
        request.copy_in(0, &[6; 512]);
        request.complete(Ok(512));
    });
    for ring in rings(4) {
        let (inner, other) = (inner.clone(), rings(4).pop().unwrap());
        let store = scripted(1 << 20, move |request| {
            let bytes = read(&other, &inner, request.offset(), request.len_bytes());
            read_in(request, bytes[4095]);
        });
        assert!(read(&ring, &store, 0, 8192) == [6; 8192]);
    }
}

#[test]
fn a_short_answer_inside_a_block_is_continued_from_the_block_and_an_empty_one_is_the_end() {
    for ring in rings(4) {
        let content = pattern(1, 10_000);
        let served = content.clone();
        let store = scripted(10_000, move |mut request| {
            let start = request.offset() as usize;
            assert!(start.is_multiple_of(512));
            let len = request.len_bytes().min(700);
            request.copy_in(0, &served[start..start + len]);
            request.complete(Ok(len));
        });
        assert!(read(&ring, &store, 0, 12_288) == padded(&content, 12_288));
        let less = scripted(10_000, |request| match request.offset() {
            0..4096 => read_in_part(request, 4096),
            _ => request.complete(Ok(0)),
        });
        assert!(read(&ring, &less, 0, 12_288) == padded(&[1; 4096], 12_288));
        let stuck = scripted(10_000, |request| request.complete(Ok(100)));
        let error = transfer(&ring, &stuck, Op::Read, 0, &AlignedBytes::new(4096)).unwrap_err();
        assert!(error.to_string().contains("gave up after 64 attempts"), "{error}");
    }
}

fn read_in_part(mut request: IoRequest, len: usize) {
    request.copy_in(0, &vec![1; len]);
    request.complete(Ok(len));
}

#[test]
fn a_request_moves_bytes_only_inside_its_range_and_in_its_direction() {
    let store = scripted(8192, |mut request| {
        let len = request.len_bytes();
        let mut bytes = vec![0; len];
        type Attempt<'a> = &'a mut dyn FnMut(&mut IoRequest);
        let wrong: [Attempt<'_>; 3] = match request.op() {
            Op::Read => [
                &mut |request| request.copy_in(1, &vec![0; len]),
                &mut |request| request.copy_in(usize::MAX, &[0; 2]),
                &mut |request| request.copy_out(0, &mut [0]),
            ],
            _ => [
                &mut |request| request.copy_out(1, &mut bytes),
                &mut |request| request.copy_out(usize::MAX, &mut [0; 2]),
                &mut |request| request.copy_in(0, &[0]),
            ],
        };
        for wrong in wrong {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrong(&mut request)));
            assert!(refused.is_err());
        }
        assert_eq!(request.buffers().iter().map(|buffer| buffer.len).sum::<usize>(), len);
        request.complete(Ok(len));
    });
    let ring = &rings(4)[0];
    for op in [Op::Read, Op::Write] {
        transfer(ring, &store, op, 0, &AlignedBytes::new(4096)).unwrap();
    }
    clear(ring, &store, Op::Zero, 0, 8192).unwrap();
}

#[test]
fn dropping_a_ring_waits_for_the_back_end() {
    for ring in rings(4) {
        let (store, requests) = queued(8192);
        let (bytes, done) = (AlignedBytes::new(4096), Arc::new(AtomicBool::new(false)));
        // SAFETY: `bytes` outlives the ring.
        unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], 1) };
        let (request, told) = (requests.recv().unwrap(), done.clone());
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            told.store(true, Ordering::SeqCst);
            read_in(request, 2);
        });
        drop(ring);
        assert!(done.load(Ordering::SeqCst) && bytes[..] == [2; 4096]);
        thread.join().unwrap();
    }
}

/// A back end that records the thread which drops it.
struct Mortal(Sender<IoRequest>, Arc<Mutex<Option<ThreadId>>>);

impl Backend for Mortal {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(8192)
    }

    fn submit(&self, request: IoRequest) {
        let _ = self.0.send(request);
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(std::thread::current().id());
    }
}

/// B5: so the back end may wait for its threads.
#[test]
fn the_last_io_in_flight_keeps_the_back_end_until_its_completion_is_delivered() {
    for ring in rings(4) {
        let (sender, requests) = channel();
        let dropped_by = Arc::new(Mutex::new(None));
        let store = Store::from_backend("mortal", Mortal(sender, dropped_by.clone())).unwrap();
        let bytes = AlignedBytes::new(4096);
        // SAFETY: `bytes` outlives the wait.
        unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], 1) };
        drop(store);
        let request = requests.recv().unwrap();
        std::thread::spawn(move || read_in(request, 2)).join().unwrap();
        assert_eq!(*dropped_by.lock().unwrap(), None);
        successes(&ring, 1);
        assert_eq!(*dropped_by.lock().unwrap(), Some(std::thread::current().id()));
    }
}

/// B6.
#[test]
fn a_child_of_fork_neither_uses_nor_drops_its_parents_back_end() {
    let (sender, requests) = channel();
    let dropped_by = Arc::new(Mutex::new(None));
    let store = Store::from_backend("mortal", Mortal(sender, dropped_by.clone())).unwrap();
    let ring = rings(4).remove(0);
    let bytes = AlignedBytes::new(4096);
    // SAFETY: `bytes` outlives the wait.
    unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], 1) };
    let request = requests.recv().unwrap();
    // SAFETY: the child makes only calls of this crate, which take no lock of another thread, and
    // then ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `bytes` outlives the call.
        let refused = unsafe { ring.run(&store, Op::Read, 0, &[bytes.io_buffer()]) };
        let is_refused = refused.is_err_and(|error| error.to_string().contains("child of fork"))
            && store.present_len_bytes().is_err()
            && store.adopt_len_bytes().is_err()
            && store.set_len_bytes(4096).is_err();
        drop(request);
        drop(store);
        let is_kept = dropped_by.lock().unwrap().is_none();
        // SAFETY: ends the child without destructors.
        unsafe { libc::_exit(i32::from(!(is_refused && is_kept))) };
    }
    let mut status = 0;
    // SAFETY: writes one `int`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has failed");
    read_in(request, 2);
    successes(&ring, 1);
}

#[test]
fn adopting_a_length_waits_for_the_io_in_flight() {
    for ring in rings(4) {
        let (sender, requests) = channel();
        let len_bytes = Arc::new(AtomicU64::new(8192));
        let store = Store::from_backend("grows", Grows(sender, len_bytes.clone())).unwrap();
        let bytes = AlignedBytes::new(16_384);
        // SAFETY: `bytes` outlives the wait.
        unsafe { ring.push(&store, Op::Read, 0, &[bytes.io_buffer()], 1) };
        let request = requests.recv().unwrap();
        assert_eq!(request.len_bytes(), 8192, "cut by the old length");
        len_bytes.store(12_288, Ordering::SeqCst);
        assert_eq!((store.present_len_bytes().unwrap(), store.len_bytes()), (12_288, 8192));
        let is_adopted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(store.adopt_len_bytes().unwrap(), 12_288);
                is_adopted.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!is_adopted.load(Ordering::SeqCst));
            read_in(request, 5);
        });
        successes(&ring, 1);
        assert!(bytes[..] == padded(&[5; 8192], 16_384));
        assert_eq!(store.len_bytes(), 12_288);
        len_bytes.store(u64::MAX, Ordering::SeqCst);
        assert!(store.present_len_bytes().is_err() && store.adopt_len_bytes().is_err());
        assert!(store.set_len_bytes(4096).is_err());
        assert_eq!(store.len_bytes(), 12_288);
    }
}

struct Grows(Sender<IoRequest>, Arc<AtomicU64>);

impl Backend for Grows {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.1.load(Ordering::SeqCst))
    }

    fn submit(&self, request: IoRequest) {
        let _ = self.0.send(request);
    }
}

/// A back end that answers nothing, with these properties.
struct Idle {
    read_only: bool,
    len_bytes: Result<u64, io::ErrorKind>,
    block_bytes: u32,
}

impl Backend for Idle {
    fn len_bytes(&self) -> io::Result<u64> {
        self.len_bytes.map_err(|kind| io::Error::new(kind, "the volume is away"))
    }

    fn submit(&self, _: IoRequest) {
        unreachable!("the store is neither read nor written");
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity::from_bytes(b"volume 7"))
    }
}

#[test]
fn a_back_end_that_cannot_be_a_store_is_refused_with_its_name_and_the_reason() {
    for (len_bytes, block_bytes, why) in [
        (Err(io::ErrorKind::TimedOut), 512, "the volume is away"),
        (Ok(1 << 63), 512, "longest store"),
        (Ok(0), 256, "256 bytes"),
        (Ok(0), 1536, "1536 bytes"),
        (Ok(0), 8192, "8192 bytes"),
    ] {
        let error: OpenError =
            Store::from_backend("idle", Idle { read_only: true, len_bytes, block_bytes }).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("idle: ") && text.contains(why), "{text}");
    }
}

#[test]
fn a_store_has_the_properties_of_its_back_end() {
    let store = Store::from_backend("idle", Idle { read_only: true, len_bytes: Ok(5000), block_bytes: 2048 })
        .unwrap();
    assert_eq!((store.name(), store.len_bytes(), store.block_bytes()), ("idle", 5000, 2048));
    assert_eq!(store.identity(), Some(Identity::from_bytes(b"volume 7")));
    assert!(store.read_only() && !store.is_simulated());
    let ring: &Ring = &rings(4)[0];
    let error = transfer(ring, &store, Op::Write, 0, &AlignedBytes::new(2048)).unwrap_err();
    assert_eq!(error.errno(), libc::EROFS);
    assert_eq!(store.set_len_bytes(1).unwrap_err().errno(), libc::EROFS);
}

/// Two caches of the same bytes would overwrite each other's writes.
#[test]
fn one_store_at_a_time_is_claimed_of_those_whose_back_ends_have_one_identity() {
    let store = |read_only| {
        Store::from_backend("idle", Idle { read_only, len_bytes: Ok(4096), block_bytes: 512 }).unwrap()
    };
    let (first, second, reader) = (store(false), store(false), store(true));
    first.take("one cache").unwrap();
    assert_eq!(second.take("another cache"), Err("one cache".to_owned()));
    reader.take("a reader").unwrap();
    reader.release();
    assert_eq!(second.take("another cache"), Err("one cache".to_owned()), "a reader has no claim to end");
    first.release();
    second.take("another cache").unwrap();
    drop(second);
    first.take("one cache").unwrap();
}
