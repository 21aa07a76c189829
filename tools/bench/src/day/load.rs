//! A tenant: a client of a disk of its own, with one thread, that checks every block it reads.
//!
//! A tenant sends requests in small batches and waits for all replies. No two requests of a batch
//! touch the same block, so that each block has at most one write in flight. A flush is sent alone.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use octavo_random::Random;

use super::checker::{BLOCK_BYTES, Mode, Twin};
use super::schedule::{Event, Phase};
use super::server::Disk;
use super::state::State;
use crate::error::Error;
use crate::nbd::{REPLY_BYTES, REPLY_MAGIC, REQUEST_MAGIC, connect};

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// The blocks of a request of a scan, and of a read that verifies a disk.
const RUN_BLOCKS: u64 = 16;
/// The requests of a batch. Their data fits into the buffers of a socket in each direction, so that
/// neither side waits for the other.
const BATCH: usize = 8;
const BATCH_OF_RUNS: usize = 2;
/// One flush per so many batches.
const FLUSH_EVERY: u64 = 50;
/// Writes per hundred requests.
const WRITES_PERCENT: u64 = 35;
/// A tenant thinks so long after each batch, so that the server is not always saturated.
const THINK: Duration = Duration::from_millis(1);
/// How long a tenant waits for a server to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client with its disk.
pub struct Tenant {
    pub disk: Disk,
    /// Whether its store fails in the day's failures, in the upper half of the disk.
    pub can_fail: bool,
    number: u64,
    twin: Twin,
    random: Random,
    /// The next block of a loop or a scan.
    next: u64,
    /// The kills that the twin knows.
    kills: u64,
}

/// A read or a write of some blocks, or a flush.
struct Request {
    command: u16,
    first: u64,
    count: u64,
}

impl Request {
    fn blocks(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

impl Tenant {
    /// A tenant with a new disk of zeros.
    pub fn new(
        (name, number): (&'static str, u64),
        directory: &Path,
        bytes: u64,
        mode: Mode,
        seed: u64,
    ) -> Result<Tenant, Error> {
        let path = directory.join(format!("{name}.raw"));
        let file = std::fs::File::create_new(&path).and_then(|file| file.set_len(bytes));
        file.map_err(Error::at(&path.display().to_string()))?;
        Ok(Tenant {
            disk: Disk { name, path, mode },
            can_fail: false,
            number,
            twin: Twin::new(number, bytes / BLOCK_BYTES as u64, mode),
            random: Random::new(seed ^ octavo_random::mix(number)),
            next: 0,
            kills: 0,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.twin.blocks() * BLOCK_BYTES as u64
    }

    /// Uses the disk until `is_over`, and then reads all of it. Failures are noted in `state`.
    pub fn work(&mut self, socket: &Path, state: &State, is_over: &dyn Fn() -> bool) {
        self.kills = state.kills();
        let mut stream = None;
        loop {
            let result = match &mut stream {
                None => self.connected(socket, state).map(|connected| stream = Some(connected)),
                Some(stream) if is_over() => match self.verify(stream, state, false) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                },
                Some(stream) => self.batch(stream, state),
            };
            if let Err(error) = result {
                let is_known = state.kills() != self.kills && stream.is_some();
                if !is_known {
                    state.trouble(format!("{}: {error}", self.disk.name));
                }
                // Without a server there is nothing left to do.
                if stream.take().is_none() {
                    return;
                }
            }
            std::thread::sleep(THINK);
        }
    }

    /// Connects. After a kill, reads the whole disk, and takes what is there as its content.
    fn connected(&mut self, socket: &Path, state: &State) -> Result<UnixStream, Error> {
        let begun = Instant::now();
        let mut stream = loop {
            match connect(socket, self.disk.name) {
                Ok(stream) => break stream,
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        if state.kills() != self.kills {
            self.kills = state.kills();
            self.twin.killed();
            self.verify(&mut stream, state, true)?;
        }
        Ok(stream)
    }

    /// Reads and checks the whole disk. `settles`: what is there is the content from now on.
    fn verify(&mut self, stream: &mut UnixStream, state: &State, settles: bool) -> Result<(), Error> {
        for first in (0..self.twin.blocks()).step_by(RUN_BLOCKS as usize) {
            let request = Request { command: READ, first, count: RUN_BLOCKS };
            stream.write_all(&self.message(0, &request)).map_err(Error::at("NBD"))?;
            let (_, error) = reply(stream)?;
            if error != 0 {
                state
                    .trouble(format!("{}: a read at block {first} fails with error {error}", self.disk.name));
                continue;
            }
            self.take(stream, &request, state, settles)?;
        }
        Ok(())
    }

    /// Sends some requests, or a flush, and takes the replies.
    fn batch(&mut self, stream: &mut UnixStream, state: &State) -> Result<(), Error> {
        let phase = state.schedule.phase(self.number, state.begun.elapsed());
        let (event, was_failing) = (state.event(), state.is_failing());
        let requests = self.choose(phase, was_failing && self.can_fail);
        let mut message = Vec::new();
        for (cookie, request) in requests.iter().enumerate() {
            message.extend(self.message(cookie as u64, request));
        }
        let begun = Instant::now();
        stream.write_all(&message).map_err(Error::at("NBD"))?;
        let mut times = Vec::with_capacity(requests.len());
        for _ in 0..requests.len() {
            let (cookie, error) = reply(stream)?;
            times.push(begun.elapsed().as_nanos() as u64);
            let request = requests.get(cookie as usize);
            let request = request.ok_or_else(|| Error::new("NBD: a reply to no request"))?;
            match error {
                0 => self.take(stream, request, state, false)?,
                _ => self.refused(request, error, was_failing, state),
            }
        }
        note_times(&times, phase, event.or(state.event()), state);
        Ok(())
    }

    fn choose(&mut self, phase: Phase, must_fail: bool) -> Vec<Request> {
        if self.random.one_in(FLUSH_EVERY) {
            return vec![Request { command: FLUSH, first: 0, count: 0 }];
        }
        let mut requests: Vec<Request> = Vec::new();
        for _ in 0..if phase == Phase::Scan { BATCH_OF_RUNS } else { BATCH } {
            let mut request = self.request(phase);
            if must_fail {
                // Only the upper half fails.
                request.first = self.twin.blocks() / 2 + request.first / 2 / RUN_BLOCKS * RUN_BLOCKS;
            }
            let (blocks, overlaps) = (request.blocks(), |one: &Request| {
                one.first < request.first + request.count && request.first < one.first + one.count
            });
            debug_assert!(blocks.end <= self.twin.blocks(), "{blocks:?}");
            if !requests.iter().any(overlaps) {
                requests.push(request);
            }
        }
        requests
    }

    fn request(&mut self, phase: Phase) -> Request {
        let blocks = self.twin.blocks();
        let command = if self.random.below(100) < WRITES_PERCENT { WRITE } else { READ };
        let (first, count) = match phase {
            Phase::Uniform => (self.random.below(blocks), 1),
            Phase::Skewed if self.random.below(10) > 0 => (self.random.below(blocks / 10), 1),
            Phase::Skewed => (self.random.below(blocks), 1),
            Phase::Loop => (self.next % (blocks / 4), 1),
            Phase::Scan => (self.next % (blocks / RUN_BLOCKS) * RUN_BLOCKS, RUN_BLOCKS),
        };
        self.next += 1;
        Request { command, first, count }
    }

    /// Returns the bytes of a request. A write gets new generations.
    fn message(&mut self, cookie: u64, request: &Request) -> Vec<u8> {
        let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
        message.extend(0_u16.to_be_bytes());
        message.extend(request.command.to_be_bytes());
        message.extend(cookie.to_be_bytes());
        message.extend((request.first * BLOCK_BYTES as u64).to_be_bytes());
        message.extend((request.count as u32 * BLOCK_BYTES as u32).to_be_bytes());
        if request.command == WRITE {
            for block in request.blocks() {
                let begin = message.len();
                message.resize(begin + BLOCK_BYTES, 0);
                self.twin.send(block, &mut message[begin..]);
            }
        }
        message
    }

    /// Takes the answer to a request that succeeded, and checks what was read.
    fn take(
        &mut self,
        stream: &mut UnixStream,
        request: &Request,
        state: &State,
        settles: bool,
    ) -> Result<(), Error> {
        match request.command {
            FLUSH => {
                self.twin.flushed();
                state.times().flushes += 1;
            }
            WRITE => {
                request.blocks().for_each(|block| self.twin.acknowledge(block));
                state.times().blocks_written += request.count;
            }
            _ => {
                let mut bytes = vec![0; request.count as usize * BLOCK_BYTES];
                stream.read_exact(&mut bytes).map_err(Error::at("NBD"))?;
                for (block, bytes) in request.blocks().zip(bytes.chunks(BLOCK_BYTES)) {
                    match self.twin.check(block, bytes) {
                        Ok(found) if settles => self.twin.settle(block, found),
                        Ok(_) => {}
                        Err(wrong) => state.lose(&self.disk.path, block, wrong),
                    }
                }
                state.times().blocks_checked += request.count;
            }
        }
        Ok(())
    }

    /// A request has failed. That is expected while the tenant's store fails.
    fn refused(&self, request: &Request, error: u32, was_failing: bool, state: &State) {
        if self.can_fail && request.command != READ && (was_failing || state.is_failing()) {
            state.times().refused += 1;
            return;
        }
        let what = match request.command {
            READ => "read",
            WRITE => "write",
            _ => "flush",
        };
        state.trouble(format!(
            "{}: a {what} at block {} fails with error {error}",
            self.disk.name, request.first
        ));
    }

    /// Compares the file with the twin, after the server has closed it.
    pub fn compare(&self, state: &State) -> Result<(), Error> {
        let wrong = |error: std::io::Error| Error::at(&self.disk.path.display().to_string())(error);
        let file = std::fs::File::open(&self.disk.path).map_err(wrong)?;
        let mut bytes = vec![0; BLOCK_BYTES];
        for block in 0..self.twin.blocks() {
            file.read_exact_at(&mut bytes, block * BLOCK_BYTES as u64).map_err(wrong)?;
            if let Err(wrong) = self.twin.check(block, &bytes) {
                state.lose(&self.disk.path, block, wrong);
            }
        }
        state.times().blocks_checked += self.twin.blocks();
        Ok(())
    }
}

/// Waits for a simple reply: its cookie and error.
fn reply(stream: &mut UnixStream) -> Result<(u64, u32), Error> {
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply).map_err(Error::at("NBD: no reply"))?;
    let word = |at: usize| u32::from_be_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    if word(0) != REPLY_MAGIC {
        return Err(Error::new("NBD: a reply has a wrong magic number"));
    }
    Ok((u64::from(word(8)) << 32 | u64::from(word(12)), word(4)))
}

/// Counts the times of a batch for the minute, and for its event or else its phase.
fn note_times(times: &[u64], phase: Phase, event: Option<Event>, state: &State) {
    let mut all = state.times();
    let all = &mut *all;
    let kind = match event {
        Some(event) => Event::ALL.iter().position(|one| *one == event).map(|at| &mut all.events[at]),
        None => Phase::ALL.iter().position(|one| *one == phase).map(|at| &mut all.phases[at]),
    };
    let kind = kind.expect("ALL has every event and phase");
    for ns in times {
        all.minute.add(*ns);
        kind.add(*ns);
    }
}
