//! A correct back end that answers late, in any order, in part, and with errors that may pass.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use octavo_disk::{Backend, IoRequest, Op, Store};

use crate::fixture::Random;

struct Unruly {
    volume: Arc<Mutex<Volume>>,
    /// The thread that answers. None if `submit` does.
    requests: Option<Sender<IoRequest>>,
    block_bytes: u32,
    /// Whether zeroing and discarding are supported.
    supports: [bool; 2],
}

struct Volume {
    bytes: Vec<u8>,
    random: Random,
}

/// Opens a new volume of `len` zeros. Its properties and its answers depend on `seed`.
pub fn unruly(seed: u64, len: usize) -> Store {
    let mut random = Random::new(seed);
    let block_bytes = random.pick(&[512, 512, 1024, 4096]);
    let supports = [random.coin(), random.coin()];
    let answers_at_once = random.one_in(3);
    let volume = Arc::new(Mutex::new(Volume { bytes: vec![0; len], random }));
    let requests = (!answers_at_once).then(|| {
        let (sender, receiver) = channel();
        let volume = volume.clone();
        std::thread::spawn(move || serve(&volume, &receiver));
        sender
    });
    Store::from_backend("unruly", Unruly { volume, requests, block_bytes, supports }).unwrap()
}

/// Answers until the store is dropped.
fn serve(volume: &Mutex<Volume>, requests: &Receiver<IoRequest>) {
    let mut held: Vec<IoRequest> = Vec::new();
    loop {
        if held.is_empty() {
            let Ok(request) = requests.recv() else { return };
            held.push(request);
        }
        held.extend(requests.try_iter());
        let mut locked = volume.lock().unwrap();
        let is_late = locked.random.one_in(8);
        let next = locked.random.below(held.len() as u64) as usize;
        drop(locked);
        if is_late {
            // Meanwhile more requests may come.
            std::thread::sleep(Duration::from_micros(100));
            held.extend(requests.try_iter());
        }
        answer(volume, held.swap_remove(next));
    }
}

fn answer(volume: &Mutex<Volume>, mut request: IoRequest) {
    let outcome = volume.lock().unwrap().execute(&mut request);
    request.complete(outcome);
}

impl Volume {
    fn execute(&mut self, request: &mut IoRequest) -> io::Result<usize> {
        if self.random.one_in(8) {
            let kind = self.random.pick(&[io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock]);
            return Err(kind.into());
        }
        let start = request.offset() as usize;
        let mut len = request.len_bytes();
        if len > 0 && self.random.one_in(3) {
            // 0 would be the end of the volume.
            len = 1 + self.random.below(len as u64) as usize;
        }
        let range = start..start + len;
        match request.op() {
            Op::Read => request.copy_in(0, &self.bytes[range]),
            Op::Write => request.copy_out(0, &mut self.bytes[range]),
            Op::Zero | Op::Discard => self.bytes[range].fill(0),
            Op::Sync => {}
        }
        Ok(len)
    }
}

impl Backend for Unruly {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.volume.lock().unwrap().bytes.len() as u64)
    }

    fn submit(&self, request: IoRequest) {
        match &self.requests {
            Some(requests) => requests.send(request).unwrap(),
            None => answer(&self.volume, request),
        }
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn supports(&self, op: Op) -> bool {
        self.supports[usize::from(op == Op::Discard)]
    }

    fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        self.volume.lock().unwrap().bytes.resize(len_bytes as usize, 0);
        Ok(())
    }
}
