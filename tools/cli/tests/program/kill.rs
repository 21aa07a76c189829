//! kill -9 in the middle of writes: every flushed write is in the file.
//!
//! Two writers run at a time. One is our own client: for each write it knows whether the reply
//! arrived before a flush was sent, and whether that flush was answered. The other is fio, with a
//! flush after every eighth write.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clients;
use crate::nbd_client::Client;
use crate::random::{self, Random};
use crate::server::{Directory, Server, Setup, wait_until};

const ROUNDS: u64 = 20;
const CONNECTIONS: u64 = 4;
const DISK_BYTES: u64 = 32 << 20;

/// Not a multiple of a page or a sector: neighbours share pages, and every write is unaligned.
const BLOCK_BYTES: u64 = 1800;
const BLOCKS_EACH: u64 = DISK_BYTES / CONNECTIONS / BLOCK_BYTES;

/// Requests of one connection in flight.
const DEPTH: usize = 16;

/// One flush per this many writes.
const FLUSH_EVERY: u64 = 40;

/// The cookie that no write has.
const FLUSH: u64 = u64::MAX;

/// The history of one block. Versions count its writes from one.
#[derive(Clone, Copy, Default)]
struct Block {
    sent: u32,
    answered: u32,
    flushed: u32,
}

/// A connection's own blocks, by the replies it got.
struct Writer {
    first_block: u64,
    blocks: Vec<Block>,
}

#[test]
fn every_flushed_write_survives_kill_9() {
    let fio = clients::present(&["fio"]);
    let directory = Directory::new();
    let ours = directory.disk("ours", DISK_BYTES);
    let mut random = random::seeded("kill");
    let mut writers: Vec<Writer> = (0..CONNECTIONS)
        .map(|number| Writer {
            first_block: number * BLOCKS_EACH,
            blocks: vec![Block::default(); BLOCKS_EACH as usize],
        })
        .collect();
    let (mut round, mut rounds_telling) = (0, 0);
    while rounds_telling < ROUNDS {
        round += 1;
        assert!(round <= 2 * ROUNDS, "only {rounds_telling} rounds had a flush that was answered");
        // A new disk: fio writes the same bytes to the same places every time.
        let fios = directory.disk("fio", DISK_BYTES);
        let setup =
            Setup { memory_max: "8MiB", exports: &[("ours", &ours), ("fio", &fios)], ..Setup::default() };
        let mut server = Server::start(&directory, &setup);
        let log = directory.join(&format!("iolog-{round}"));
        let fio = fio.then(|| fio_command(&server.uri("fio"), &log, random.next_u64()).spawn().unwrap());
        let clients: Vec<Client> =
            writers.iter().map(|_| Client::connect(&server.nbd, "ours").unwrap()).collect();
        let flushes: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = writers
                .iter_mut()
                .zip(clients)
                .map(|(writer, client)| {
                    let random = Random::new(random.next_u64());
                    scope.spawn(move || writer.write_until_killed(client, random))
                })
                .collect();
            if fio.is_some() {
                wait_for_bytes(&fios);
            }
            std::thread::sleep(Duration::from_millis(50 + random.below(350)));
            server.signal("KILL");
            server.wait();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let file = File::open(&ours).unwrap();
        for writer in &mut writers {
            writer.check(&file, round);
        }
        let fio_flushed = fio.map(|mut fio| {
            // fio fails because its server was killed.
            fio.wait().unwrap();
            check_fio(&log, &fios)
        });
        println!("round {round}: {flushes} flushes of ours, {fio_flushed:?} flushed writes of fio's");
        // A round without an answered flush before the kill proves nothing and does not count.
        rounds_telling += u64::from(flushes > 0 && fio_flushed != Some(0));
    }
}

impl Writer {
    /// Writes random blocks with occasional flushes, and records the replies, until the connection
    /// breaks. Returns the number of flushes that were answered.
    fn write_until_killed(&mut self, mut client: Client, mut random: Random) -> usize {
        let mut flushes_answered = 0;
        let mut in_flight: HashMap<u64, u32> = HashMap::new();
        let mut flushes: VecDeque<Vec<Block>> = VecDeque::new();
        loop {
            let sent = if flushes.is_empty() && random.below(FLUSH_EVERY) == 0 {
                // A flush covers the writes that were answered before it was sent, and no others.
                flushes.push_back(self.blocks.clone());
                client.send_flush(FLUSH)
            } else {
                let block = random.below(BLOCKS_EACH);
                if in_flight.contains_key(&block) {
                    // Of two writes to one block in flight, either may win: avoid that.
                    continue;
                }
                let version = self.blocks[block as usize].sent + 1;
                self.blocks[block as usize].sent = version;
                in_flight.insert(block, version);
                client.send_write(block, self.offset(block), &self.content(block, version))
            };
            if sent.is_err() {
                return flushes_answered;
            }
            while in_flight.len() + flushes.len() >= DEPTH {
                let Ok((cookie, error)) = client.reply() else { return flushes_answered };
                assert_eq!(error, 0, "an error for {cookie}");
                if cookie == FLUSH {
                    flushes_answered += 1;
                    let covered = flushes.pop_front().unwrap();
                    for (block, covered) in self.blocks.iter_mut().zip(covered) {
                        block.flushed = covered.answered;
                    }
                } else {
                    self.blocks[cookie as usize].answered = in_flight.remove(&cookie).unwrap();
                }
            }
        }
    }

    /// Checks every block, and takes the file's content as the state for the next round.
    fn check(&mut self, file: &File, round: u64) {
        for number in 0..BLOCKS_EACH {
            let mut found = vec![0; BLOCK_BYTES as usize];
            file.read_exact_at(&mut found, self.offset(number)).unwrap();
            let id = self.first_block + number;
            let block = &mut self.blocks[number as usize];
            let (words, _) = found.as_chunks::<8>();
            let mut oldest = u32::MAX;
            for word in words {
                let word = u64::from_le_bytes(*word);
                let version = word as u32;
                assert!(
                    (block.flushed..=block.sent).contains(&version)
                        && word >> 32 == if version == 0 { 0 } else { id },
                    "round {round}, block {id}: {word:#x} is there; version {} was flushed, {} answered, {} sent",
                    block.flushed,
                    block.answered,
                    block.sent
                );
                oldest = oldest.min(version);
            }
            // Answered writes without a flush may be lost, and unanswered ones present, whole or in
            // part. The next server starts with what the file holds now.
            block.answered = oldest;
            block.flushed = oldest;
        }
    }

    fn offset(&self, block: u64) -> u64 {
        (self.first_block + block) * BLOCK_BYTES
    }

    fn content(&self, block: u64, version: u32) -> Vec<u8> {
        let word = ((self.first_block + block) << 32) | u64::from(version);
        word.to_le_bytes().repeat((BLOCK_BYTES / 8) as usize)
    }
}

/// fio that writes each block's offset into the block, one write at a time, and keeps a log.
fn fio_command(uri: &str, log: &Path, seed: u64) -> Command {
    let mut command = Command::new(clients::find("fio").unwrap());
    command.args(["--name=kill", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=8"]);
    command.args(["--verify=pattern", "--verify_pattern=%o", "--do_verify=0", "--verify_state_save=0"]);
    command.arg(format!("--size={DISK_BYTES}")).arg(format!("--randseed={}", seed >> 1));
    command.arg(format!("--uri={uri}")).arg(format!("--write_iolog={}", log.display()));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits until a sparse file has blocks.
fn wait_for_bytes(disk: &Path) {
    wait_until(|| "fio does not write".into(), || disk.metadata().unwrap().blocks() > 0);
}

/// Checks the writes before each flush that was answered. Returns the number of these flushes.
///
/// fio has one request in flight, so each line of its log shows that the request before it has
/// ended. fio ignores a failed flush, but not a failed write: a flush counts as answered by a live
/// server only if two more requests follow it.
fn check_fio(log: &Path, disk: &Path) -> usize {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let file = File::open(disk).unwrap();
    // "[time] file verb offset length", with the time since fio 3.31; a flush has no place to
    // check.
    let requests: Vec<Option<u64>> = log
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let verb = words.iter().position(|word| ["write", "sync", "datasync"].contains(word))?;
            Some((words[verb] == "write").then(|| words[verb + 1].parse().unwrap()))
        })
        .collect();
    let answered = requests.len().saturating_sub(2);
    let last_flush = requests[..answered].iter().rposition(Option::is_none).unwrap_or(0);
    let flushed: Vec<u64> = requests[..last_flush].iter().flatten().copied().collect();
    for offset in &flushed {
        let mut found = [0; 4096];
        file.read_exact_at(&mut found, *offset).unwrap();
        let (words, _) = found.as_chunks::<8>();
        assert!(
            words.iter().all(|word| u64::from_le_bytes(*word) == *offset),
            "fio's block at {offset} was flushed and is not there: {:x?}",
            &found[..16]
        );
    }
    flushed.len()
}
