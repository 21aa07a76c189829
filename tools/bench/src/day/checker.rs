//! The content of blocks, and the *twin* of a disk: which generations of each block a read may
//! find.
//!
//! Every block that is written consists of its disk, its number, its generation, a checksum of
//! these, and bytes that follow from the checksum. A block of zeros is generation 0. Generations of
//! a disk only grow, so they order the writes of each block.
//!
//! While the server lives, a read must find the last acknowledged generation, or one of a write
//! that failed after it. After a kill it may find any generation from the last durable one on. A
//! write is durable once a flush that follows its acknowledgement is answered. In write-through
//! mode the store has it when it is acknowledged, so that a killed process cannot lose it.

use std::fmt;

use octavo_random::mix;

pub const BLOCK_BYTES: usize = 4096;

/// The words before the bytes that follow from the checksum.
const HEAD_WORDS: usize = 4;

/// Whether a write has reached the store when it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Writeback,
    Writethrough,
}

/// Fills a block with the content of one generation.
pub fn fill(disk: u64, block: u64, generation: u64, bytes: &mut [u8]) {
    let checksum = checksum(disk, block, generation);
    let (words, _) = bytes.as_chunks_mut::<8>();
    for (at, word) in words.iter_mut().enumerate() {
        *word = match at {
            0 => disk,
            1 => block,
            2 => generation,
            3 => checksum,
            at => body(checksum, at),
        }
        .to_le_bytes();
    }
}

fn checksum(disk: u64, block: u64, generation: u64) -> u64 {
    mix(mix(mix(disk) ^ block) ^ generation)
}

fn body(checksum: u64, at: usize) -> u64 {
    checksum.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Why a block may not be what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Bytes that no write has written.
    Changed,
    /// The content of another block or disk.
    Foreign { disk: u64, block: u64 },
    /// An older generation than the least that may be there.
    Lost { found: u64, least: u64 },
    /// A generation that was not written to this block.
    Unknown { found: u64, most: u64 },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Changed => write!(f, "has bytes that nobody wrote"),
            Wrong::Foreign { disk, block } => write!(f, "has the content of block {block} of disk {disk}"),
            Wrong::Lost { found, least } => {
                write!(f, "has generation {found}, but generation {least} must be kept")
            }
            Wrong::Unknown { found, most } => {
                write!(f, "has generation {found}, but {most} was the last one sent")
            }
        }
    }
}

/// Reads the generation of a block of this disk.
fn generation(disk: u64, block: u64, bytes: &[u8]) -> Result<u64, Wrong> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    if word(0) == 0 && words.iter().all(|word| *word == [0; 8]) {
        return Ok(0);
    }
    let checksum = checksum(word(0), word(1), word(2));
    let is_whole = word(3) == checksum && (HEAD_WORDS..words.len()).all(|at| word(at) == body(checksum, at));
    match (is_whole, word(0) == disk && word(1) == block) {
        (false, _) => Err(Wrong::Changed),
        (true, false) => Err(Wrong::Foreign { disk: word(0), block: word(1) }),
        (true, true) => Ok(word(2)),
    }
}

/// The generations of a block: `durable <= acknowledged <= sent`.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    durable: u64,
    acknowledged: u64,
    sent: u64,
}

/// What a disk must contain.
pub struct Twin {
    disk: u64,
    mode: Mode,
    blocks: Vec<History>,
    /// The last generation of any block.
    generation: u64,
}

impl Twin {
    /// The twin of a disk of zeros. `disk` is not 0.
    pub fn new(disk: u64, blocks: u64, mode: Mode) -> Twin {
        assert!(disk > 0, "the first word of a written block must differ from zeros");
        Twin { disk, mode, blocks: vec![History::default(); blocks as usize], generation: 0 }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Notes that a write of a block is sent, and fills `bytes` with its content. Returns its
    /// generation. A block may have one write in flight.
    pub fn send(&mut self, block: u64, bytes: &mut [u8]) -> u64 {
        self.generation += 1;
        self.blocks[block as usize].sent = self.generation;
        fill(self.disk, block, self.generation, bytes);
        self.generation
    }

    /// Notes that the last write of a block is acknowledged.
    pub fn acknowledge(&mut self, block: u64) {
        let history = &mut self.blocks[block as usize];
        history.acknowledged = history.sent;
        if self.mode == Mode::Writethrough {
            history.durable = history.sent;
        }
    }

    /// Notes that a flush is answered that was sent when no write was in flight.
    pub fn flushed(&mut self) {
        self.blocks.iter_mut().for_each(|history| history.durable = history.acknowledged);
    }

    /// Notes that the server was killed: acknowledged writes that are not durable may be lost.
    pub fn killed(&mut self) {
        self.blocks.iter_mut().for_each(|history| history.acknowledged = history.durable);
    }

    /// Checks the bytes that were read from a block. Returns their generation.
    pub fn check(&self, block: u64, bytes: &[u8]) -> Result<u64, Wrong> {
        let found = generation(self.disk, block, bytes)?;
        let History { acknowledged: least, sent: most, .. } = self.blocks[block as usize];
        match found {
            found if found < least => Err(Wrong::Lost { found, least }),
            found if found > most => Err(Wrong::Unknown { found, most }),
            found => Ok(found),
        }
    }

    /// Notes the generation that the store has after a kill, which later kills cannot lose.
    pub fn settle(&mut self, block: u64, found: u64) {
        self.blocks[block as usize] = History { durable: found, acknowledged: found, sent: found };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with its twin: what a store without faults does.
    struct Disk(Twin, Vec<[u8; BLOCK_BYTES]>);

    impl Disk {
        fn written(mode: Mode) -> Disk {
            let mut disk = Disk(Twin::new(7, 8, mode), vec![[0; BLOCK_BYTES]; 8]);
            (0..8).for_each(|block| disk.write(block));
            disk
        }

        fn write(&mut self, block: u64) {
            self.0.send(block, &mut self.1[block as usize]);
            self.0.acknowledge(block);
        }

        fn wrong(&self) -> Vec<(u64, Wrong)> {
            let found = |block: u64| self.0.check(block, &self.1[block as usize]);
            (0..8).filter_map(|block| Some((block, found(block).err()?))).collect()
        }
    }

    #[test]
    fn a_disk_with_every_write_has_nothing_wrong() {
        let mut disk = Disk::written(Mode::Writeback);
        disk.0.flushed();
        disk.0.killed();
        assert_eq!(disk.wrong(), []);
    }

    #[test]
    fn one_changed_byte_is_noticed_wherever_it_is() {
        for at in [0, 9, 17, 25, 32, 2000, BLOCK_BYTES - 1] {
            let mut disk = Disk::written(Mode::Writeback);
            disk.1[3][at] ^= 1;
            assert_eq!(disk.wrong(), [(3, Wrong::Changed)], "byte {at}");
        }
    }

    #[test]
    fn a_foreign_block_is_noticed_and_named() {
        let mut disk = Disk::written(Mode::Writeback);
        disk.1[2] = disk.1[5];
        assert_eq!(disk.wrong(), [(2, Wrong::Foreign { disk: 7, block: 5 })]);
        let mut other = Twin::new(8, 8, Mode::Writeback);
        other.send(2, &mut disk.1[2]);
        assert_eq!(disk.wrong(), [(2, Wrong::Foreign { disk: 8, block: 2 })]);
    }

    #[test]
    fn a_lost_write_is_noticed_while_the_server_lives_and_a_flushed_one_also_after_a_kill() {
        let mut disk = Disk::written(Mode::Writeback);
        disk.0.flushed();
        let old = disk.1[4];
        disk.write(4);
        disk.1[4] = old;
        assert_eq!(disk.wrong(), [(4, Wrong::Lost { found: 5, least: 9 })]);
        disk.0.killed();
        assert_eq!(disk.wrong(), [], "it was not flushed, so the old block may be there");
        disk.1[4] = [0; BLOCK_BYTES];
        assert_eq!(disk.wrong(), [(4, Wrong::Lost { found: 0, least: 5 })]);
    }

    #[test]
    fn a_write_through_is_durable_without_a_flush() {
        let mut disk = Disk::written(Mode::Writethrough);
        let old = disk.1[4];
        disk.write(4);
        disk.1[4] = old;
        disk.0.killed();
        assert_eq!(disk.wrong(), [(4, Wrong::Lost { found: 5, least: 9 })]);
    }

    #[test]
    fn a_failed_write_may_be_there_or_not_and_what_a_kill_left_must_stay() {
        let mut disk = Disk::written(Mode::Writeback);
        let old = disk.1[1];
        disk.0.send(1, &mut disk.1[1]);
        assert_eq!(disk.wrong(), []);
        let new = std::mem::replace(&mut disk.1[1], old);
        assert_eq!(disk.wrong(), []);
        disk.0.killed();
        disk.0.settle(1, 2);
        disk.1[1] = new;
        assert_eq!(disk.wrong(), [(1, Wrong::Unknown { found: 9, most: 2 })]);
    }
}
