//! [`MemoryStore`]: a store in memory, for tests and tools that measure a cache without a device.
//! Its bytes lie in chunks, in sharded maps; the first write to a chunk allocates it. Protects
//! concurrent I/O from tearing within a chunk. Not here: durability, faults.

use std::collections::HashMap;

use crate::error::IoError;
use crate::io::Io;
use crate::io::sink::Sink;
use crate::op::Op;
use crate::store::target::Target;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// The unit of allocation, in bytes.
const CHUNK_BYTES: u64 = 64 << 10;
/// The number of maps, each with its own lock, so that threads in different chunks seldom contend.
const SHARDS: u64 = 64;

type Chunks = HashMap<u64, Box<[u8]>>;

/// Invariant: every byte of a chunk at or past the length is zero, except between the two steps of
/// `set_len_bytes`, when no I/O reads such a byte.
pub(crate) struct MemoryStore {
    len_bytes: AtomicU64,
    shards: Vec<Mutex<Chunks>>,
    changing: Mutex<()>,
}

impl MemoryStore {
    pub(crate) fn new(len_bytes: u64) -> MemoryStore {
        MemoryStore {
            len_bytes: AtomicU64::new(len_bytes),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            changing: Mutex::new(()),
        }
    }

    /// Executes an I/O on this thread.
    fn execute(&self, io: &Io) {
        let end = io.offset + io.buffers.len_bytes();
        match io.op {
            Op::Sync => {}
            Op::Zero | Op::Discard => self.zero(io.offset, end - io.offset),
            Op::Read => self.each_chunk(io.offset, end, |chunks, index, [from, inside, to]| {
                let skip = index * CHUNK_BYTES + from - io.offset;
                match chunks.get(&index) {
                    Some(chunk) => io.buffers.copy_in(skip, &chunk[from as usize..inside as usize]),
                    None => io.buffers.fill_zero(skip, inside - from),
                }
                io.buffers.fill_zero(skip + inside - from, to - inside);
            }),
            Op::Write => self.each_chunk(io.offset, end, |chunks, index, [from, inside, _]| {
                let skip = index * CHUNK_BYTES + from - io.offset;
                if inside > from {
                    let chunk = chunks.entry(index).or_insert_with(|| vec![0; CHUNK_BYTES as usize].into());
                    io.buffers.copy_out(skip, &mut chunk[from as usize..inside as usize]);
                }
            }),
        }
    }

    fn zero(&self, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes).min(self.len_bytes());
        self.each_chunk(offset, end, |chunks, index, [from, _, to]| {
            if to - from == CHUNK_BYTES {
                chunks.remove(&index);
            } else if let Some(chunk) = chunks.get_mut(&index) {
                chunk[from as usize..to as usize].fill(0);
            }
        });
    }

    /// Calls `f(chunks, chunk index, [from, inside, to])` for every chunk that the range touches,
    /// with the chunk's shard locked. `from .. to` are bytes of the chunk, and those from `inside`
    /// on lie past the end of the store.
    fn each_chunk(&self, offset: u64, end: u64, mut f: impl FnMut(&mut Chunks, u64, [u64; 3])) {
        let mut at = offset;
        while at < end {
            let index = at / CHUNK_BYTES;
            let chunk_start = index * CHUNK_BYTES;
            let to = (end - chunk_start).min(CHUNK_BYTES);
            let mut chunks = lock(&self.shards[(index % SHARDS) as usize]);
            let from = at - chunk_start;
            let inside = self.len_bytes().saturating_sub(chunk_start).clamp(from, to);
            f(&mut chunks, index, [from, inside, to]);
            at = chunk_start + to;
        }
    }
}

impl Target for MemoryStore {
    fn len_bytes(&self) -> u64 {
        // Relaxed: where the order matters, a shard's lock orders this load after `set_len_bytes`.
        self.len_bytes.load(Ordering::Relaxed)
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    /// Changes the length: first publishes it, then locks every shard once. A write that saw the
    /// old length held the shard's lock before that, and its excess bytes are zeroed; a later write
    /// sees the new length.
    fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        let _changing = lock(&self.changing);
        // Relaxed: the shards' locks below order it.
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        for shard in &self.shards {
            lock(shard).retain(|&index, chunk| {
                let inside = len_bytes.saturating_sub(index * CHUNK_BYTES).min(CHUNK_BYTES);
                chunk[inside as usize..].fill(0);
                inside > 0
            });
        }
        Ok(())
    }

    fn submit(&self, io: Io, ring: Arc<dyn Sink>, _: u8) {
        self.execute(&io);
        ring.complete(io.token, Ok(()), None);
    }

    fn run(&self, io: Io, _: u8) -> Result<(), IoError> {
        self.execute(&io);
        Ok(())
    }
}
