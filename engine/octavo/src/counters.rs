//! Exact counters that cost the hit path no shared store.
//!
//! Every thread counts in a block of its own, which only it writes; a reader adds the blocks up. A thread that ends leaves its
//! block to the partition. What is not here: gauges such as dirty pages (the table counts them).

use std::cell::RefCell;

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, thread_local};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    Hits,
    Misses,
    Fills,
    Bypasses,
    EvictionsCapacity,
    EvictionsResize,
    EvictionsDiscard,
    EvictionsWrite,
    Writebacks,
    WritebackIos,
    ReadErrors,
    WriteErrors,
    SyncErrors,
    /// Pages that entered a slot, by a fill or by a write.
    Arrivals,
    /// Pages that left without being evicted for another: failed fills and the like.
    Departures,
    Reads,
    Writes,
    Syncs,
    ReadBytes,
    WrittenBytes,
    Last,
}

const COUNTS: usize = Count::Last as usize;

/// One thread's counts for one partition. Only that thread writes.
#[repr(align(128))]
pub(crate) struct Block([AtomicU64; COUNTS]);

impl Block {
    fn new() -> Block {
        Block(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline(always)]
    fn add(&self, count: Count, n: u64) {
        let cell = &self.0[count as usize];
        // Relaxed load and store instead of an addition: this thread is the only writer, and readers want a sum, not an order.
        #[cfg(not(shuttle))]
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        #[cfg(shuttle)]
        cell.fetch_add(n, Ordering::Relaxed);
    }
}

/// The counters of one partition.
pub(crate) struct Counters {
    number: usize,
    blocks: Mutex<Vec<Arc<Block>>>,
}

thread_local! {
    /// This thread's blocks, by the number of the counters.
    static BLOCKS: RefCell<Vec<Option<Arc<Block>>>> = const { RefCell::new(Vec::new()) };
}

/// Numbers are not used again: a thread may still hold a block of counters that are gone.
static NEXT_NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl Counters {
    pub fn new() -> Counters {
        // Relaxed: only uniqueness matters.
        let number = NEXT_NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Counters { number, blocks: Mutex::new(Vec::new()) }
    }

    /// Adds to this thread's count.
    #[inline(always)]
    pub fn add(&self, count: Count, n: u64) {
        BLOCKS.with(|blocks| {
            if let Some(Some(block)) = blocks.borrow().get(self.number) {
                block.add(count, n);
                return;
            }
            self.first(&mut blocks.borrow_mut()).add(count, n);
        });
    }

    /// A read that was a hit of one page, in one look at the block.
    #[inline(always)]
    pub fn add_hit(&self, bytes: u64) {
        BLOCKS.with(|blocks| {
            if let Some(Some(block)) = blocks.borrow().get(self.number) {
                block.add(Count::Hits, 1);
                block.add(Count::Reads, 1);
                block.add(Count::ReadBytes, bytes);
                return;
            }
            let block = self.first(&mut blocks.borrow_mut());
            [(Count::Hits, 1), (Count::Reads, 1), (Count::ReadBytes, bytes)]
                .iter()
                .for_each(|(c, n)| block.add(*c, *n));
        });
    }

    #[cold]
    fn first(&self, blocks: &mut Vec<Option<Arc<Block>>>) -> Arc<Block> {
        let block = Arc::new(Block::new());
        lock(&self.blocks).push(block.clone());
        // Blocks of partitions that are gone are let go here, where it costs nobody a hit.
        blocks
            .iter_mut()
            .filter(|b| b.as_ref().is_some_and(|b| Arc::strong_count(b) == 1))
            .for_each(|b| *b = None);
        blocks.resize(blocks.len().max(self.number + 1), None);
        blocks[self.number] = Some(block.clone());
        block
    }

    /// The sum over all threads: exact for everything that happened before.
    pub fn sum(&self, count: Count) -> u64 {
        // Relaxed: who must see a thread's counts has synchronised with it by other means.
        lock(&self.blocks)
            .iter()
            .fold(0, |sum, b| sum.wrapping_add(b.0[count as usize].load(Ordering::Relaxed)))
    }
}
