//! What the twin's objects lie on: a simulated disk, or volumes behind a back end whose threads
//! answer late, in part and in any order. Volumes cannot crash, and their runs do not repeat: two
//! threads race.

use octavo::disk::{Backend, IoRequest, Op, SimDisk, SimFaults, SimOptions, Store};
use octavo_random::Random;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECTOR: usize = 512;

/// The number of threads that answer.
const THREADS: usize = 2;

#[derive(Debug)]
pub enum Disk {
    Sim(SimDisk),
    Volumes(Volumes),
}

/// Named volumes.
#[derive(Debug)]
pub struct Volumes {
    block_bytes: u32,
    volumes: Mutex<BTreeMap<String, Bytes>>,
    answerer: Arc<Mutex<Answerer>>,
    /// The threads end when this and all stores are dropped.
    requests: Sender<(Bytes, IoRequest)>,
}

type Bytes = Arc<Mutex<Vec<u8>>>;

/// Decides the outcome of each request.
#[derive(Debug)]
struct Answerer {
    random: Random,
    faults: SimFaults,
}

impl Disk {
    pub fn new(options: SimOptions, is_threaded: bool) -> Disk {
        match is_threaded {
            true => Disk::Volumes(Volumes::new(&options)),
            false => Disk::Sim(SimDisk::new(options)),
        }
    }

    /// Opens the file or volume of this name, or creates it.
    pub fn store(&self, name: &str, len_bytes: u64) -> Store {
        match self {
            Disk::Sim(disk) => disk.store(name, len_bytes),
            Disk::Volumes(volumes) => volumes.store(name, len_bytes),
        }
    }

    pub fn set_faults(&self, faults: SimFaults) {
        match self {
            Disk::Sim(disk) => disk.set_faults(faults),
            Disk::Volumes(volumes) => volumes.answerer.lock().unwrap().faults = faults,
        }
    }

    /// Makes something happen on a simulated disk.
    pub fn step(&self) {
        match self {
            Disk::Sim(disk) => _ = disk.step(),
            Disk::Volumes(_) => std::thread::yield_now(),
        }
    }

    pub fn can_crash(&self) -> bool {
        matches!(self, Disk::Sim(_))
    }

    /// Cuts the power.
    pub fn crash(&self) {
        match self {
            Disk::Sim(disk) => disk.crash(),
            Disk::Volumes(_) => unreachable!("volumes cannot crash"),
        }
    }

    pub fn image(&self, name: &str) -> Vec<u8> {
        match self {
            Disk::Sim(disk) => disk.image(name),
            Disk::Volumes(volumes) => volumes.volumes.lock().unwrap()[name].lock().unwrap().clone(),
        }
    }

    /// Returns the hash of all events of a simulated disk.
    pub fn history_digest(&self) -> u64 {
        match self {
            Disk::Sim(disk) => disk.history_digest(),
            Disk::Volumes(_) => 0,
        }
    }
}

impl Volumes {
    fn new(options: &SimOptions) -> Volumes {
        let random = Random::new(options.seed);
        let answerer = Arc::new(Mutex::new(Answerer { random, faults: SimFaults::default() }));
        let (requests, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..THREADS {
            let (answerer, receiver) = (answerer.clone(), receiver.clone());
            std::thread::spawn(move || answer_all(&answerer, &receiver));
        }
        Volumes { block_bytes: options.block_bytes, volumes: Mutex::default(), answerer, requests }
    }

    fn store(&self, name: &str, len_bytes: u64) -> Store {
        let mut volumes = self.volumes.lock().unwrap();
        let zeros = || Arc::new(Mutex::new(vec![0; len_bytes as usize]));
        let volume = Volume {
            bytes: volumes.entry(name.to_owned()).or_insert_with(zeros).clone(),
            block_bytes: self.block_bytes,
            answerer: self.answerer.clone(),
            requests: self.requests.clone(),
        };
        Store::from_backend(name, volume).unwrap()
    }
}

fn answer_all(answerer: &Mutex<Answerer>, requests: &Mutex<Receiver<(Bytes, IoRequest)>>) {
    let mut held = Vec::new();
    loop {
        if held.is_empty() {
            let Ok(request) = requests.lock().unwrap().recv() else { return };
            held.push(request);
        }
        // The other thread may hold the lock while it sleeps in `recv`.
        if let Ok(requests) = requests.try_lock() {
            held.extend(requests.try_iter().take(4));
        }
        let mut locked = answerer.lock().unwrap();
        let (bytes, mut request) = held.swap_remove(locked.random.below(held.len() as u64) as usize);
        let is_late = locked.random.one_in(64);
        let outcome = locked.execute(&mut bytes.lock().unwrap(), &mut request);
        drop(locked);
        if is_late {
            std::thread::sleep(Duration::from_micros(50));
        }
        request.complete(outcome);
    }
}

impl Answerer {
    fn execute(&mut self, volume: &mut [u8], request: &mut IoRequest) -> io::Result<usize> {
        let Answerer { random, faults } = self;
        if random.one_in(32) {
            return Err(random.pick(&[io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock]).into());
        }
        let (op, start) = (request.op(), request.offset() as usize);
        let mut len = request.len_bytes();
        let p_error = if op == Op::Read { faults.p_read_error } else { faults.p_write_error };
        let fails = op != Op::Sync && random.chance(p_error);
        let is_full = matches!(op, Op::Write | Op::Zero | Op::Discard) && random.chance(faults.p_no_space);
        if matches!(op, Op::Zero | Op::Discard) && random.chance(faults.p_unsupported) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if len > SECTOR && random.chance(faults.p_short) {
            len = 1 + random.below(len as u64) as usize;
        }
        let range = &mut volume[start..start + len];
        let mut new = range.to_vec();
        match op {
            Op::Read => request.copy_in(0, range),
            Op::Write => request.copy_out(0, &mut new),
            Op::Zero | Op::Discard => new.fill(0),
            Op::Sync => {}
        }
        // A sector is written wholly or not at all. Those of a write that fails may be.
        let is_torn = random.chance(faults.p_torn);
        let whole = if len == request.len_bytes() { len } else { len - len % SECTOR };
        for (old, new) in range[..whole].chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
            if !(fails || is_full) || (is_torn && random.coin()) {
                old.copy_from_slice(&new[..old.len()]);
            }
        }
        match (fails, is_full) {
            (true, _) => Err(io::Error::other("the volume fails")),
            (_, true) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(len),
        }
    }
}

/// The back end of one volume.
struct Volume {
    bytes: Bytes,
    block_bytes: u32,
    answerer: Arc<Mutex<Answerer>>,
    requests: Sender<(Bytes, IoRequest)>,
}

impl Backend for Volume {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn submit(&self, request: IoRequest) {
        self.requests.send((self.bytes.clone(), request)).unwrap();
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn supports(&self, _: Op) -> bool {
        true
    }

    fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        let Answerer { random, faults } = &mut *self.answerer.lock().unwrap();
        if random.chance(faults.p_write_error) {
            return Err(io::Error::other("the volume fails"));
        }
        self.bytes.lock().unwrap().resize(len_bytes as usize, 0);
        Ok(())
    }
}
