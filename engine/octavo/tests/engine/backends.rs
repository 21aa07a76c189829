//! Several threads over a back end that a user wrote: it answers inside of `submit` or from a
//! thread of its own, in part, and with errors. Each byte that a read shows was written there.

use crate::fixture::{PAGE, bytes_at, scene, sized, small, written_back};
use octavo::disk::{Backend, IoRequest, Op, Store};
use octavo::{Object, PartitionConfig};
use octavo_random::{Random, for_seeds};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

const THREADS: usize = 4;

/// The bytes that each thread has for itself: its range begins and ends inside pages.
const SHARE: usize = 20 * PAGE as usize + 100;

struct Volume {
    bytes: Mutex<(Vec<u8>, Random)>,
    /// A third of the reads and writes fail.
    fails: AtomicBool,
}

struct Carried {
    volume: Arc<Volume>,
    /// None if `submit` answers.
    requests: Option<Sender<IoRequest>>,
}

impl Volume {
    fn answer(&self, mut request: IoRequest) {
        let mut locked = self.bytes.lock().unwrap();
        let (bytes, random) = &mut *locked;
        let mut len = request.len_bytes();
        if len > 512 && random.one_in(3) {
            len = 512 * (1 + random.below(len as u64 / 512)) as usize;
        }
        let range = request.offset() as usize..request.offset() as usize + len.min(request.len_bytes());
        let fails = self.fails.load(SeqCst) && random.one_in(3);
        let outcome = match request.op() {
            Op::Sync => Ok(0),
            _ if fails => Err(io::Error::other("the volume fails")),
            Op::Read => {
                request.copy_in(0, &bytes[range.clone()]);
                Ok(range.len())
            }
            _ => {
                request.copy_out(0, &mut bytes[range.clone()]);
                Ok(range.len())
            }
        };
        drop(locked);
        request.complete(outcome);
    }
}

impl Backend for Carried {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.volume.bytes.lock().unwrap().0.len() as u64)
    }

    fn submit(&self, request: IoRequest) {
        match &self.requests {
            Some(requests) => requests.send(request).unwrap(),
            None => self.volume.answer(request),
        }
    }
}

fn store(seed: u64, is_threaded: bool) -> (Store, Arc<Volume>) {
    let bytes = Mutex::new((vec![0; THREADS * SHARE], Random::new(seed)));
    let volume = Arc::new(Volume { bytes, fails: AtomicBool::new(false) });
    let requests = is_threaded.then(|| {
        let (sender, receiver) = channel();
        let volume = volume.clone();
        std::thread::spawn(move || receiver.iter().for_each(|request| volume.answer(request)));
        sender
    });
    (Store::from_backend("volume", Carried { volume: volume.clone(), requests }).unwrap(), volume)
}

/// The values that each byte of a thread's range may have.
struct Model(Vec<Vec<u8>>);

impl Model {
    fn check(&self, at: usize, bytes: &[u8]) {
        for (possible, (place, found)) in self.0[at..].iter().zip((at..).zip(bytes)) {
            assert!(possible.contains(found), "byte {place} is {found}, not one of {possible:?}");
        }
    }

    /// A write has ended. If it failed, each byte is the old or the new one.
    fn write(&mut self, at: usize, bytes: &[u8], is_done: bool) {
        for (possible, new) in self.0[at..].iter_mut().zip(bytes) {
            if is_done {
                possible.clear();
            }
            if !possible.contains(new) {
                possible.push(*new);
            }
        }
    }
}

/// Reads and writes one thread's range.
fn work(object: &Object, model: &mut Model, thread: usize, random: &mut Random) {
    let start = (thread * SHARE) as u64;
    for _ in 0..150 {
        let at = random.below(SHARE as u64 - 1) as usize;
        let len = (1 + random.below(3 * PAGE) as usize).min(SHARE - at);
        let offset = start + at as u64;
        if random.one_in(20) {
            let _ = object.sync();
        } else if random.coin() {
            let mut bytes = vec![0; len];
            if object.read_at(offset, &mut bytes).is_ok() {
                model.check(at, &bytes);
            }
        } else {
            let bytes = random.bytes(len);
            let is_done = object.write_at(offset, &bytes).is_ok();
            model.write(at, &bytes, is_done);
        }
    }
}

fn agrees(seed: u64, is_threaded: bool, partition: PartitionConfig) {
    let (store, volume) = store(seed, is_threaded);
    let (_cache, _partition, object) = scene(small(seed), partition, store);
    let mut models: Vec<Model> = (0..THREADS).map(|_| Model(vec![vec![0]; SHARE])).collect();
    for fails in [false, true, false] {
        volume.fails.store(fails, SeqCst);
        std::thread::scope(|scope| {
            for (thread, model) in models.iter_mut().enumerate() {
                let object = &object;
                scope.spawn(move || work(object, model, thread, &mut Random::new(seed + thread as u64)));
            }
        });
    }
    object.sync().unwrap();
    let found = bytes_at(&object, 0, (THREADS * SHARE) as u64);
    models.iter().zip(found.chunks(SHARE)).for_each(|(model, bytes)| model.check(0, bytes));
    assert!(volume.bytes.lock().unwrap().0 == found, "the volume has other bytes than the cache");
}

#[test]
fn threads_over_a_back_end_read_only_bytes_that_were_written_through_it() {
    for_seeds(0..6, |seed| agrees(seed, seed % 2 == 0, sized(256 << 10)));
}

#[test]
fn threads_over_a_back_end_read_only_bytes_that_are_written_back_to_it() {
    for_seeds(0..6, |seed| agrees(seed, seed % 2 == 0, written_back(256 << 10)));
}
