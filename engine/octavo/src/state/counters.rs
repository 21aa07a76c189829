//! Exact counters that cost the hit path no shared store.
//!
//! Every thread counts in a block of its own, which only that thread writes; a reader adds up the
//! blocks. A thread that ends leaves its block, with its counts, to the next new thread. A
//! partition therefore has as many blocks as it had threads at the same time, not as many as it
//! ever had.
//!
//! Not here: gauges such as dirty pages (the table counts them).

use std::cell::{Cell, RefCell};
// The standard library's type, not the model checker's: these atomics order nothing.
use std::sync::atomic::AtomicUsize;

use octavo_disk::Process;

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock, thread_local};

/// The quantities that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Read requests that were a hit of one page. Included in `Hits` and `Reads` when these are
    /// summed.
    SingleHits,
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
    /// Pages that left a slot without counting as evicted: after a failed fill, for example.
    Departures,
    Reads,
    Writes,
    Syncs,
    ReadBytes,
    WrittenBytes,
    /// Pages found on the thread's own node; pages found on another node; and writes among the
    /// latter. Not counted if there is only one node.
    LocalHits,
    RemoteHits,
    RemoteWrites,
    /// Requests sent to another node, the bundles that carried them, and requests for which the
    /// queue had no room.
    Messages,
    Bundles,
    MessagesRefused,
    /// Pages found in a twin on the thread's own node.
    TwinHits,
    /// Remote reads that could have made a twin, and reads of stale twins. A count decides which of
    /// these reads does make or refresh one.
    CopyTurns,
    DoubtfulTurns,
    /// Twins made, refreshed, and made stale by writes; pages restored from a twin.
    TwinsMade,
    TwinsRefreshed,
    TwinsOvertaken,
    Elections,
    /// Mains that moved to the node that writes them.
    Switches,
    /// Remote accesses to pages that are no probes, in a partition that chooses its strategy. The
    /// count decides which access checks the probes.
    FarTurns,
    /// The waits for memory and the bytes moved, for which emulated distance charges
    /// (`numa/cost.rs`).
    LocalWaits,
    RemoteWaits,
    LocalBytes,
    RemoteBytes,
    Last,
}

const COUNTS: usize = Count::Last as usize;

/// One thread's counts for one partition. Only that thread writes them.
#[repr(align(128))]
pub(crate) struct Block([AtomicU64; COUNTS]);

impl Block {
    fn new() -> Block {
        Block(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Adds to a count.
    #[inline(always)]
    pub fn add(&self, count: Count, n: u64) {
        let cell = &self.0[count as usize];
        // A relaxed load and store instead of an atomic addition: this thread is the only
        // writer, and readers need a sum, not an order.
        #[cfg(not(shuttle))]
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        #[cfg(shuttle)]
        cell.fetch_add(n, Ordering::Relaxed);
    }

    /// `Counters::add_hit`.
    #[inline(always)]
    pub fn add_hit(&self, bytes: u64) {
        self.add(Count::SingleHits, 1);
        self.add(Count::ReadBytes, bytes);
    }
}

impl Block {
    /// Counts a batch of reads.
    #[inline(always)]
    pub fn add_batch(&self, requests: u64, bytes: u64, hits: u64) {
        self.add(Count::Reads, requests);
        self.add(Count::ReadBytes, bytes);
        self.add(Count::Hits, hits);
    }
}

/// The counters of one partition.
pub(crate) struct Counters {
    process: Process,
    number: usize,
    /// The same number while a hit need only be counted; `NOBODY` while a recorder or NUMA
    /// accounting must see every hit.
    at_hand: AtomicUsize,
    blocks: Mutex<Vec<Arc<Block>>>,
}

/// A thread's blocks, indexed by the number of the counters.
struct Blocks(RefCell<Vec<Option<Arc<Block>>>>);

impl Drop for Blocks {
    /// The thread ends, and another thread may take over its blocks: forget the block used last.
    fn drop(&mut self) {
        let _ = LAST.try_with(|last| last.set((usize::MAX, std::ptr::null())));
    }
}

thread_local! {
    static BLOCKS: Blocks = const { Blocks(RefCell::new(Vec::new())) };
    /// The block that this thread used last, with the number of its counters. A thread that serves
    /// only one tenant needs no other.
    static LAST: Cell<(usize, *const Block)> = const { Cell::new((usize::MAX, std::ptr::null())) };
}

/// A number that no counters have, and that differs from the initial value of `LAST`.
const NOBODY: usize = usize::MAX - 1;

/// Numbers are not reused: a thread may still hold a block of counters that no longer exist.
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Counters {
    pub fn new() -> Counters {
        // Relaxed: only uniqueness matters.
        let number = NEXT_NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Counters {
            process: Process::this(),
            number,
            at_hand: AtomicUsize::new(number),
            blocks: Mutex::new(Vec::new()),
        }
    }

    /// Sets whether a hit need only be counted. If not, `at_hand` returns no block, so every hit
    /// takes the accounted path. Recordings and NUMA accounting therefore cost hits nothing while
    /// they are off.
    pub fn set_at_hand(&self, at_hand: bool) {
        // Relaxed: a hit that does not see the change yet counts as earlier than the change.
        self.at_hand.store(if at_hand { self.number } else { NOBODY }, Ordering::Relaxed);
    }

    /// Adds to this thread's count.
    #[inline(always)]
    pub fn add(&self, count: Count, n: u64) {
        self.block().add(count, n);
    }

    /// Adds one to this thread's count, and returns the new value.
    pub fn turn(&self, count: Count) -> u64 {
        self.block().add(count, 1);
        self.block().0[count as usize].load(Ordering::Relaxed)
    }

    /// Counts a read that was a hit of one page. One count is enough: `sum` includes it in the
    /// requests and in the hits.
    #[inline(always)]
    pub fn add_hit(&self, bytes: u64) {
        self.block().add_hit(bytes);
    }

    /// Returns this thread's block if it is the block that the thread used last. `None` while a
    /// recorder or NUMA accounting must see every hit.
    #[inline(always)]
    pub fn at_hand(&self) -> Option<&Block> {
        let (number, block) = LAST.with(Cell::get);
        // SAFETY: as in `block`. Relaxed: see `set_at_hand`.
        (number == self.at_hand.load(Ordering::Relaxed)).then(|| unsafe { &*block })
    }

    /// Whether a hit need only be counted.
    pub fn hits_need_only_counting(&self) -> bool {
        self.at_hand.load(Ordering::Relaxed) != NOBODY
    }

    #[inline(always)]
    fn block(&self) -> &Block {
        let (number, block) = LAST.with(Cell::get);
        let block = if number == self.number { block } else { self.find_block() };
        // SAFETY: `find_block` returned the block for these counters, and counters keep all their
        // blocks as long as they exist. (In a child of `fork` the thread itself keeps the block,
        // until it makes another block, which then is the one used last.)
        unsafe { &*block }
    }

    #[cold]
    #[inline(never)]
    fn find_block(&self) -> *const Block {
        let own = BLOCKS.try_with(|blocks| {
            let known = blocks.0.borrow().get(self.number).cloned().flatten();
            known.unwrap_or_else(|| self.add_block(&mut blocks.0.borrow_mut()))
        });
        let block = match own {
            Ok(block) => Arc::as_ptr(&block),
            // A destructor of the ending thread is counting. This block's handle is leaked, so no
            // other thread can take over the block.
            Err(_) => Arc::into_raw(self.take_block()),
        };
        LAST.with(|last| last.set((self.number, block)));
        block
    }

    #[cold]
    fn add_block(&self, blocks: &mut Vec<Option<Arc<Block>>>) -> Arc<Block> {
        let block = self.take_block();
        // Release the blocks of partitions that no longer exist. Here no hit pays for that.
        blocks
            .iter_mut()
            .filter(|b| b.as_ref().is_some_and(|b| Arc::strong_count(b) == 1))
            .for_each(|b| *b = None);
        blocks.resize(blocks.len().max(self.number + 1), None);
        blocks[self.number] = Some(block.clone());
        block
    }

    /// Returns a block that no thread has: one that an ended thread has left, or a new one.
    fn take_block(&self) -> Arc<Block> {
        // In a child of `fork` a thread that does not exist may hold the lock. The child's counts
        // are never read, so any block will do.
        if !self.process.is_this() {
            return Arc::new(Block::new());
        }
        let mut blocks = lock(&self.blocks);
        if let Some(left) = blocks.iter().find(|block| Arc::strong_count(block) == 1) {
            // Pairs with the release when the ended thread dropped its handle: this thread
            // continues from its counts.
            fence(Ordering::Acquire);
            return left.clone();
        }
        let block = Arc::new(Block::new());
        blocks.push(block.clone());
        block
    }

    /// Returns the sum over all threads. It includes everything that happened before the call.
    pub fn sum(&self, count: Count) -> u64 {
        if !self.process.is_this() {
            return 0;
        }
        let single = match count {
            Count::Hits | Count::Reads => self.sum(Count::SingleHits),
            _ => 0,
        };
        // Relaxed: a reader that must see a thread's counts has synchronised with it by other
        // means.
        lock(&self.blocks)
            .iter()
            .fold(single, |sum, b| sum.wrapping_add(b.0[count as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Each connection of a server is a thread. Regression: each thread that ever counted left a
    /// block behind, half a kilobyte for each of 100,000 connections.
    #[test]
    fn blocks_are_as_many_as_threads_at_one_time_and_lose_no_count() {
        let counters = Arc::new(Counters::new());
        for _ in 0..50 {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let counters = counters.clone();
                    std::thread::spawn(move || (0..100).for_each(|_| counters.add(Count::Misses, 1)))
                })
                .collect();
            // Joined, not scoped: a scope ends before its threads' destructors.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        assert_eq!(counters.sum(Count::Misses), 50 * 4 * 100);
        assert!(lock(&counters.blocks).len() <= 4, "{} blocks", lock(&counters.blocks).len());
    }
}
