//! A store over a slow, lying, fake network. A back end sends each request over a wire that delays
//! and loses packets, cuts them short, damages them and answers other questions than it was asked.
//! It believes nothing that it cannot check, and asks again. The cache above sees a store that is
//! slow at times, and never wrong.
//!
//! Run it with `cargo run -p octavo-examples --bin network`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use octavo::disk::{Backend, IoRequest, Op, Store};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_random::Random;

const VOLUME_BYTES: usize = 4 << 20;
const PAGE_BYTES: usize = 64 << 10;

/// A request on the wire, or its answer.
#[derive(Clone)]
struct Packet {
    number: u64,
    op: Op,
    offset: u64,
    len_bytes: usize,
    /// The bytes of a write, or of the answer to a read.
    bytes: Vec<u8>,
    /// The checksum of `bytes`; in the answer to a write, of the bytes that were stored.
    sum: u64,
}

/// The end of the wire that the cache talks to.
struct Remote(Arc<Mutex<Waiting>>);

/// The wire, and the requests that the server has not answered. The wire is cut when the store is
/// dropped: the server ends, and then the thread that takes answers.
struct Waiting {
    wire: Sender<Packet>,
    numbers: u64,
    requests: HashMap<u64, (IoRequest, Packet, Instant)>,
}

impl Backend for Remote {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(VOLUME_BYTES as u64)
    }

    fn submit(&self, request: IoRequest) {
        let mut waiting = lock(&self.0);
        waiting.numbers += 1;
        let (number, op, offset) = (waiting.numbers, request.op(), request.offset());
        let mut packet =
            Packet { number, op, offset, len_bytes: request.len_bytes(), bytes: Vec::new(), sum: 0 };
        if op == Op::Write {
            packet.bytes = vec![0; packet.len_bytes];
            request.copy_out(0, &mut packet.bytes);
        }
        packet.sum = checksum(&packet.bytes);
        let _ = waiting.wire.send(packet.clone());
        waiting.requests.insert(number, (request, packet, Instant::now()));
    }
}

/// Takes answers until the server hangs up. Sends requests again whose answers do not come. Returns
/// how many answers were right, were wrong, and did not come in time.
fn receive(answers: &Receiver<Packet>, waiting: &Weak<Mutex<Waiting>>) -> [u64; 3] {
    let [mut right, mut wrong, mut late] = [0; 3];
    loop {
        let answer = answers.recv_timeout(Duration::from_millis(5));
        if matches!(answer, Err(RecvTimeoutError::Disconnected)) {
            return [right, wrong, late];
        }
        let Some(waiting) = waiting.upgrade() else { continue };
        if let Ok(answer) = answer
            // An answer may come twice, or to a question that nobody asked.
            && let Some((mut request, ..)) = { lock(&waiting).requests.remove(&answer.number) }
        {
            if check(&request, &answer) {
                right += 1;
                if answer.op == Op::Read {
                    request.copy_in(0, &answer.bytes);
                }
                // Fewer bytes than were asked for, perhaps: the store asks for the rest.
                request.complete(Ok(answer.len_bytes));
            } else {
                wrong += 1;
                // The store submits the request again.
                request.complete(Err(ErrorKind::Interrupted.into()));
            }
        }
        let Waiting { wire, requests, .. } = &mut *lock(&waiting);
        for (_, packet, sent) in requests.values_mut() {
            if sent.elapsed() > Duration::from_millis(20) {
                *sent = Instant::now();
                late += 1;
                let _ = wire.send(packet.clone());
            }
        }
    }
}

/// Whether an answer is one to this request, and whole or at least undamaged.
fn check(request: &IoRequest, answer: &Packet) -> bool {
    let is_its_own = answer.op == request.op() && answer.offset == request.offset();
    let is_undamaged = match answer.op {
        Op::Read => {
            let is_possible = (1..=request.len_bytes()).contains(&answer.len_bytes);
            is_possible && answer.len_bytes == answer.bytes.len() && answer.sum == checksum(&answer.bytes)
        }
        Op::Write => {
            let mut bytes = vec![0; request.len_bytes()];
            request.copy_out(0, &mut bytes);
            answer.len_bytes == bytes.len() && answer.sum == checksum(&bytes)
        }
        _ => true,
    };
    is_its_own && is_undamaged
}

/// Serves a volume, badly, until the wire is cut. Returns the volume.
fn serve(requests: &Receiver<Packet>, answers: &Sender<Packet>) -> Vec<u8> {
    let (mut volume, mut random) = (vec![0; VOLUME_BYTES], Random::new(7));
    for mut packet in requests {
        thread::sleep(Duration::from_micros(random.below(300)));
        let range = packet.offset as usize..packet.offset as usize + packet.len_bytes;
        if packet.op == Op::Write {
            if checksum(&packet.bytes) == packet.sum {
                volume[range].copy_from_slice(&packet.bytes);
            }
            packet.bytes.clear();
        } else if packet.op == Op::Read {
            packet.bytes = volume[range].to_vec();
            packet.sum = checksum(&packet.bytes);
        }
        match random.below(12) {
            // Says nothing.
            0 => continue,
            // A short answer, which is right as far as it goes.
            1 if packet.op == Op::Read && packet.len_bytes > 512 => {
                packet.len_bytes = 512 + random.below(packet.len_bytes as u64 - 512) as usize;
                packet.bytes.truncate(packet.len_bytes);
                packet.sum = checksum(&packet.bytes);
            }
            // A damaged answer.
            2 if !packet.bytes.is_empty() => packet.bytes[0] ^= 1,
            // The answer to another question.
            3 => packet.offset += 512,
            // An answer that comes twice.
            4 => _ = answers.send(packet.clone()),
            _ => {}
        }
        let _ = answers.send(packet);
    }
    volume
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().expect("no thread panics with the lock")
}

/// The thread of a server, and the one that takes its answers.
type Threads = (JoinHandle<Vec<u8>>, JoinHandle<[u64; 3]>);

/// Connects to a new server.
fn connect() -> Result<(Store, Threads), Box<dyn Error>> {
    let ((wire, requests), (replies, answers)) = (channel(), channel());
    let server = thread::spawn(move || serve(&requests, &replies));
    let waiting = Arc::new(Mutex::new(Waiting { wire, numbers: 0, requests: HashMap::new() }));
    let watched = Arc::downgrade(&waiting);
    let receiver = thread::spawn(move || receive(&answers, &watched));
    Ok((Store::from_backend("remote volume", Remote(waiting))?, (server, receiver)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (store, (server, receiver)) = connect()?;
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig {
        page_bytes: Some(PAGE_BYTES as u32),
        max_bytes: Some(3 << 20),
        ..PartitionConfig::new("remote")
    })?;
    let object = partition.open(store, "volume")?;

    let (mut model, mut random) = (vec![0; VOLUME_BYTES], Random::new(1));
    for _ in 0..300 {
        let start = random.below(VOLUME_BYTES as u64) as usize;
        let end = (start + random.below(100_000) as usize).min(VOLUME_BYTES);
        if random.one_in(3) {
            model[start..end].copy_from_slice(&random.bytes(end - start));
            object.write_at(start as u64, &model[start..end])?;
        } else {
            let mut bytes = vec![0; end - start];
            object.read_at(start as u64, &mut bytes)?;
            assert!(bytes == model[start..end], "a lie has come through at {start}");
        }
    }
    object.close()?;
    let stat = partition.stat();
    println!("{} hits, {} misses, and every byte was right", stat.hits, stat.misses);
    drop(object);

    let [right, wrong, late] = receiver.join().expect("the receiver does not panic");
    assert!(server.join().expect("the server does not panic") == model, "the volume differs");
    println!("{right} answers were right, {wrong} were wrong, and {late} did not come in time");
    Ok(())
}
