//! The file tier: blocks of remote objects in files on a local disk, beyond memory and across
//! restarts.
//!
//! A block is a fill unit of one version of one object. It never changes: another version of the
//! object has other keys. So the tier has nothing to write back and nothing to keep in step, and
//! losing a block costs one fetch. What it protects is the bytes: a block that is returned is the
//! block that was put.
//!
//! Rules:
//!
//! - **F1** Every block has a header with its key and two checksums, of the header and of the data.
//!   `get` compares the key and both checksums every time, before it returns a byte.
//! - **F2** The data is written before the header. Nothing is synced: after a crash, whatever is
//!   torn fails F1.
//! - **F3** A block that fails F1, or that cannot be read, is deleted and counted. Its header is
//!   overwritten with zeros, so that a restart does not find it either.
//! - **F4** The index of blocks is a table of the engine, and its policy chooses which block is
//!   evicted. A reader pins the block while it reads the file, and a writer owns its slot: so no
//!   place in a file is read and written at the same time.
//! - **F5** The files never take more than `max_bytes`. Room is allocated before it is used. If the
//!   disk is full, the tier goes on with the room that it has, and asks for more later.
//! - **F6** One process uses a directory at a time; it holds a lock on the file `lock`.
//! - **F7** On open, the headers in the files give the index again. Only the order in which blocks
//!   would have been evicted is lost.
//!
//! Memory is bounded: the index has a fixed size, and buffers are few. If all are in use, `put`
//! drops its block after a moment, and counts it.
//!
//! | file | idea |
//! |---|---|
//! | `header.rs` | the header of a block, and its checks (F1) |
//! | `index.rs` | which block is in which place (F4) |
//! | `files.rs` | the directory, its files and their room (F5, F6) |
//! | `buffer.rs` | aligned buffers, a bounded number |
//!
//! Not here: which blocks are worth keeping (`source.rs` puts every block that it fetches), and the
//! check of what a server sends (O1 to O3).

mod buffer;
mod config;
#[cfg(test)]
mod faults;
mod files;
mod header;
mod index;
mod key;
pub(crate) mod stat;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use self::config::TierConfig;
pub use self::key::{BlockKey, ObjectKey};
pub use self::stat::TierStat;

use self::buffer::Buffers;
use self::files::Files;
use self::header::HEADER_BYTES;
use self::index::{Begun, Index, Owned, Pinned};
use self::stat::Counters;
use crate::error::{Error, ErrorKind};
use crate::stat::add;

impl TierConfig {
    /// # Errors
    /// [`ErrorKind::Config`] with a sentence that names the setting and what it may be.
    pub fn validate(&self) -> Result<(), Error> {
        let TierConfig { directory, max_bytes, block_bytes } = self;
        let least = files::bytes_for(index::WAYS as u64, u64::from(*block_bytes) + HEADER_BYTES as u64);
        let problem = match () {
            () if !directory.is_absolute() => {
                format!("its directory is {directory:?}: an absolute path is needed")
            }
            () if !block_bytes.is_power_of_two() || !(4 << 10..=16 << 20).contains(block_bytes) => {
                format!("block_bytes is {block_bytes}: a power of two from 4096 to 16777216 is needed")
            }
            () if *max_bytes < least => {
                format!("max_bytes is {max_bytes}: blocks of {block_bytes} bytes need {least} or more")
            }
            () => return Ok(()),
        };
        Err(Error::new(ErrorKind::Config, "", format!("the file tier: {problem}")))
    }
}

/// How long `get` waits for a buffer before it reports a miss. Long: if the disk is so busy, the
/// server is asked.
const GET_PATIENCE: Duration = Duration::from_secs(1);

/// How long `put` waits for a buffer before it drops the block. It is the time of a few writes.
const PUT_PATIENCE: Duration = Duration::from_millis(20);

/// Blocks of remote objects in files on a local disk. Any number of threads may use it; all calls
/// may wait for the disk, so they are not for async tasks.
pub struct Tier {
    config: TierConfig,
    index: Index,
    files: Files,
    buffers: Buffers,
    counters: Counters,
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Tier {
    /// Opens the tier in a directory, with the blocks that an earlier process has left there. Reads
    /// the header of every block. Waits a few seconds for the lock, if another process is just
    /// ending.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a setting cannot be, the directory has other files or cannot be
    /// written, or another process uses it.
    pub fn open(config: &TierConfig) -> Result<Tier, Error> {
        config.validate()?;
        let files = Files::open(config)?;
        let index = Index::new(files.places_max());
        let buffers = Buffers::new(HEADER_BYTES + config.block_bytes as usize);
        let tier = Tier { config: config.clone(), index, files, buffers, counters: Counters::default() };
        scan(&tier);
        Ok(tier)
    }

    /// Reads a block into `into`, which has the block's length. Returns `None` if the block is not
    /// there, or is not what was put (F1): then `into` has not changed.
    ///
    /// # Panics
    /// If `into` has another length than `key` says.
    pub fn get(&self, key: &BlockKey, into: &mut [u8]) -> Option<()> {
        assert_eq!(into.len(), key.len as usize, "a buffer of the block's length");
        let got = self.read(key, into);
        add(if got.is_some() { &self.counters.hits } else { &self.counters.misses }, 1);
        got
    }

    fn read(&self, key: &BlockKey, into: &mut [u8]) -> Option<()> {
        self.check_len(key)?;
        let pinned = self.index.find(key)?;
        let Some(mut buffer) = self.buffers.take(GET_PATIENCE) else {
            add(&self.counters.dropped, 1);
            return None;
        };
        let bytes = &mut buffer[..header::padded(key.len)];
        if let Err(error) = self.files.read(pinned.place(), 0, bytes) {
            self.note_error("read", &error);
            self.delete(pinned);
            return None;
        }
        if !header::is_block(bytes, key) {
            add(&self.counters.corrupt, 1);
            log::warn!("{}: a block is corrupt, and is deleted", self.config.directory.display());
            self.delete(pinned);
            return None;
        }
        into.copy_from_slice(&bytes[HEADER_BYTES..HEADER_BYTES + into.len()]);
        pinned.touch();
        Some(())
    }

    /// Writes a block, unless it is there already. If the disk is busy or full, drops it, and
    /// counts that. `bytes` must be what every later `get` of the key should return.
    ///
    /// # Panics
    /// If `bytes` has another length than `key` says.
    pub fn put(&self, key: &BlockKey, bytes: &[u8]) {
        assert_eq!(bytes.len(), key.len as usize, "the bytes of the block");
        if self.check_len(key).is_none() || self.index.has(key) {
            return;
        }
        let Some(mut buffer) = self.buffers.take(PUT_PATIENCE) else { return add(&self.counters.dropped, 1) };
        let block = header::write(&mut buffer, key, bytes);
        let Some(owned) = self.claim(key) else { return };
        // F2.
        let written = self
            .files
            .write(owned.place(), HEADER_BYTES, &block[HEADER_BYTES..])
            .and_then(|()| self.files.write(owned.place(), 0, &block[..HEADER_BYTES]));
        match written {
            Ok(()) => {
                owned.publish();
                add(&self.counters.written, 1);
                add(&self.counters.blocks, 1);
            }
            Err(error) => {
                self.note_error("write", &error);
                self.erase(owned);
            }
        }
    }

    /// Takes a place for a block. `None` if there is none now, or the block is there already.
    fn claim(&self, key: &BlockKey) -> Option<Owned<'_>> {
        if self.files.may_grow_again() {
            self.index.unpark();
        }
        // Each round but the last parks a way of the block's set (F5), so there are no more rounds
        // than ways.
        for _ in 0..=index::WAYS {
            let mut owned = match self.index.claim(key) {
                Begun::Owned(owned) => owned,
                Begun::Present => return None,
                Begun::Full => break,
            };
            if owned.evicted() {
                add(&self.counters.evicted, 1);
                self.counters.blocks.fetch_sub(1, Ordering::Relaxed);
            }
            if owned.has_place() {
                return Some(owned);
            }
            if let Some(place) = self.files.allocate() {
                owned.set_place(place);
                return Some(owned);
            }
            owned.park();
        }
        add(&self.counters.dropped, 1);
        None
    }

    /// Deletes the blocks of an object of `size` bytes that nobody will ask for again. Blocks that
    /// are being read or written stay.
    pub fn forget(&self, object: &ObjectKey, size: u64) {
        let block_bytes = u64::from(self.config.block_bytes);
        for block in 0..size.div_ceil(block_bytes) {
            let len = block_bytes.min(size - block * block_bytes) as u32;
            self.forget_block(&BlockKey { object: *object, block, len });
        }
    }

    /// Deletes a block. If it is being read or written, it stays.
    pub fn forget_block(&self, key: &BlockKey) {
        if let Some(pinned) = self.index.find(key) {
            self.delete(pinned);
        }
    }

    /// F3. Does nothing if other threads read the block: if it is corrupt, they notice that too.
    fn delete(&self, pinned: Pinned<'_>) {
        if let Some(owned) = pinned.own() {
            self.counters.blocks.fetch_sub(1, Ordering::Relaxed);
            self.erase(owned);
        }
    }

    /// Overwrites the header of a block, and lets go of its place. An error does not matter: what
    /// the header names is checked before it is used.
    fn erase(&self, owned: Owned<'_>) {
        if let Err(error) = self.files.erase(owned.place()) {
            self.note_error("write", &error);
        }
        owned.release();
    }

    fn note_error(&self, what: &str, error: &std::io::Error) {
        add(&self.counters.io_errors, 1);
        log::warn!("{}: cannot {what} a block: {error}", self.config.directory.display());
    }

    /// `None` for a block that no object of this tier can have.
    fn check_len(&self, key: &BlockKey) -> Option<()> {
        (1..=self.config.block_bytes).contains(&key.len).then_some(())
    }

    /// Returns what was counted. Asks the file system for the length of every file.
    pub fn stat(&self) -> TierStat {
        // Relaxed: figures alone.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        TierStat {
            hits: read(&counters.hits),
            misses: read(&counters.misses),
            corrupt: read(&counters.corrupt),
            evicted: read(&counters.evicted),
            written: read(&counters.written),
            dropped: read(&counters.dropped),
            io_errors: read(&counters.io_errors),
            disk_full: self.files.times_full(),
            blocks: read(&counters.blocks),
            blocks_max: self.index.places_max(),
            bytes: self.files.allocated_bytes(),
            max_bytes: self.config.max_bytes,
        }
    }

    /// Returns the most memory that the tier takes: the index, and all buffers.
    pub fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() + self.files.memory_bytes() + self.buffers.memory_bytes()
    }
}

/// Threads that read headers: several reads in flight are faster on any disk.
const SCAN_THREADS: usize = 16;

/// Places that a thread takes at a time.
const CHUNK: u32 = 64;

/// Fills the index of a tier that was just opened, and notes which places are free.
///
/// Only headers are read: 4 KiB for each block, by several threads. Data is checked when it is
/// read. If two places have the same block, or a set has more blocks than ways, because `max_bytes`
/// was larger, one of them stays.
fn scan(tier: &Tier) {
    let since = Instant::now();
    let chunks: Vec<Range<u32>> = tier.files.old_places().into_iter().flat_map(chunks_of).collect();
    let (next, free) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let (mut header, mut unused) = (buffer::Aligned::new(HEADER_BYTES), Vec::new());
        // Relaxed: the number alone says who takes a chunk.
        while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            unused.extend(chunk.clone().filter_map(|place| take(tier, place, &mut header)));
        }
        free.lock().unwrap_or_else(PoisonError::into_inner).append(&mut unused);
    };
    // This thread works too: more of them are only faster.
    std::thread::scope(|scope| {
        for _ in 1..SCAN_THREADS.min(chunks.len()) {
            let _ = std::thread::Builder::new().name("octavo-tier-scan".into()).spawn_scoped(scope, work);
        }
        work();
    });
    tier.files.set_free(free.into_inner().unwrap_or_else(PoisonError::into_inner));
    let (directory, blocks) = (tier.config.directory.display(), tier.counters.blocks.load(Ordering::Relaxed));
    log::info!("{directory}: {blocks} blocks were there, found in {:?}", since.elapsed());
}

fn chunks_of(places: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = places.end;
    places.step_by(CHUNK as usize).map(move |from| from..end.min(from.saturating_add(CHUNK)))
}

/// Takes the block of a place into the index. Returns a place that has no block then: this one, or
/// that of a block which this one replaces.
fn take(tier: &Tier, place: u32, bytes: &mut [u8]) -> Option<u32> {
    if let Err(error) = tier.files.read(place, 0, bytes) {
        tier.note_error("read", &error);
        return Some(place);
    }
    let Some(key) = header::key_of(bytes).filter(|key| tier.check_len(key).is_some()) else {
        if bytes.iter().any(|byte| *byte != 0) {
            add(&tier.counters.corrupt, 1);
            erase(tier, place);
        }
        return Some(place);
    };
    let unused = match tier.index.claim(&key) {
        Begun::Owned(mut owned) => {
            let replaced = owned.set_place(place);
            owned.publish();
            if replaced.is_none() {
                add(&tier.counters.blocks, 1);
            }
            replaced
        }
        Begun::Present | Begun::Full => Some(place),
    };
    unused.inspect(|unused| erase(tier, *unused))
}

/// Keeps the next restart from finding a block.
fn erase(tier: &Tier, place: u32) {
    if let Err(error) = tier.files.erase(place) {
        tier.note_error("write", &error);
    }
}
