//! Exact counters that cost the hit path no shared store.
//!
//! Every thread counts in a block of its own, which only that thread writes; a reader adds up the
//! blocks. A thread that ends leaves its block, with its counts, to the next new thread. A
//! partition therefore has as many blocks as it had threads at the same time, not as many as it
//! ever had.
//!
//! Not here: gauges such as dirty pages (the table counts them).

use std::cell::{Cell, RefCell};
use std::time::Duration;
// The standard library's type, not the model checker's: these atomics order nothing.
use std::sync::atomic::{AtomicBool, AtomicUsize};

use octavo_disk::Process;

use super::latency::{OwnTimes, TIMED, Timed, Times};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock, thread_local};

/// The quantities that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Read requests that were a hit of one page. Included in `Hits` and `Reads` when these are
    /// summed.
    SingleHits,
    /// Beside `SingleHits`, so that a hit writes one line.
    ReadBytes,
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
#[repr(C, align(128))]
pub(crate) struct Block {
    /// The number of the counters while a hit need only be counted; `NOBODY` while a recorder or
    /// NUMA accounting must see every hit. Changes under the lock of the list of blocks.
    at_hand: AtomicUsize,
    /// The number of the counters.
    number: usize,
    counts: [AtomicU64; COUNTS],
    times: [OwnTimes; TIMED],
}

/// The block that a thread used last before its first: of no counters.
static NONE: Block = Block::new(NOBODY, false);

impl Block {
    const fn new(number: usize, at_hand: bool) -> Block {
        Block {
            at_hand: AtomicUsize::new(if at_hand { number } else { NOBODY }),
            number,
            counts: [const { AtomicU64::new(0) }; COUNTS],
            times: [const { OwnTimes::new() }; TIMED],
        }
    }

    /// Adds to a count.
    #[inline(always)]
    pub fn add(&self, count: Count, n: u64) {
        let cell = &self.counts[count as usize];
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
    /// Where threads keep their blocks.
    place: usize,
    /// Whether a hit need only be counted. Changes under the lock of `blocks`.
    at_hand: AtomicBool,
    blocks: Mutex<Vec<Arc<Block>>>,
}

/// A thread's blocks, indexed by the place of the counters. A place may still have the block of
/// counters that no longer exist.
struct Blocks(RefCell<Vec<Option<Arc<Block>>>>);

impl Drop for Blocks {
    /// The thread ends, and another thread may take over its blocks: forget the block used last.
    fn drop(&mut self) {
        let _ = LAST.try_with(|last| last.set(&NONE));
    }
}

thread_local! {
    static BLOCKS: Blocks = const { Blocks(RefCell::new(Vec::new())) };
    /// The block that this thread used last. It lives as long as the thread: `BLOCKS` drops a block
    /// only when the thread gets another one, which then is the one used last. A thread that serves
    /// only one tenant needs no other.
    static LAST: Cell<*const Block> = const { Cell::new(&NONE) };
}

/// A number that no counters have.
const NOBODY: usize = usize::MAX;

/// Numbers are not reused: a thread may still hold a block of counters that no longer exist.
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The places of counters are reused. Otherwise each thread's list would grow with the partitions
/// that ever were.
static NEXT_PLACE: AtomicUsize = AtomicUsize::new(0);

/// Places of counters that no longer exist. Only tried, never waited for: in a child of `fork` a
/// thread that does not exist may hold the lock. No model needs to see it.
static FREE_PLACES: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

impl Counters {
    pub fn new() -> Counters {
        // Relaxed, twice: only uniqueness matters.
        let next = |of: &AtomicUsize| of.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let free = FREE_PLACES.try_lock().ok().and_then(|mut free| free.pop());
        Counters {
            process: Process::this(),
            number: next(&NEXT_NUMBER),
            place: free.unwrap_or_else(|| next(&NEXT_PLACE)),
            at_hand: AtomicBool::new(true),
            blocks: Mutex::new(Vec::new()),
        }
    }

    /// Sets whether a hit need only be counted. If not, `at_hand` returns no block, so every hit
    /// takes the accounted path. Recordings and NUMA accounting therefore cost hits nothing while
    /// they are off.
    pub fn set_at_hand(&self, at_hand: bool) {
        // A child of `fork` must not take the lock, and nothing is recorded or accounted there.
        if !self.process.is_this() {
            return;
        }
        let blocks = lock(&self.blocks);
        // Relaxed: a hit that does not see the change yet counts as earlier than the change.
        self.at_hand.store(at_hand, Ordering::Relaxed);
        let number = if at_hand { self.number } else { NOBODY };
        blocks.iter().for_each(|block| block.at_hand.store(number, Ordering::Relaxed));
    }

    /// Adds to this thread's count.
    #[inline(always)]
    pub fn add(&self, count: Count, n: u64) {
        self.block().add(count, n);
    }

    /// Counts an I/O that took this long.
    pub fn add_time(&self, timed: Timed, time: Duration) {
        self.block().times[timed as usize].add(time.as_nanos() as u64);
    }

    /// Returns the times of I/Os, summed over all threads.
    pub fn times(&self, timed: Timed) -> Times {
        let mut times = Times::default();
        if self.process.is_this() {
            lock(&self.blocks).iter().for_each(|block| block.times[timed as usize].read(&mut times));
        }
        times
    }

    /// Adds one to this thread's count, and returns the new value.
    pub fn turn(&self, count: Count) -> u64 {
        self.block().add(count, 1);
        self.block().counts[count as usize].load(Ordering::Relaxed)
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
        // SAFETY: see `LAST`. A block of these counters lives as long as they do, too.
        let block = unsafe { &*LAST.with(Cell::get) };
        // Relaxed: see `set_at_hand`.
        (block.at_hand.load(Ordering::Relaxed) == self.number).then_some(block)
    }

    /// Whether a hit need only be counted.
    pub fn hits_need_only_counting(&self) -> bool {
        self.at_hand.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn block(&self) -> &Block {
        // SAFETY: see `LAST`.
        let block = unsafe { &*LAST.with(Cell::get) };
        if block.number == self.number {
            return block;
        }
        // SAFETY: `find_block` returned the block for these counters, and counters keep all their
        // blocks as long as they exist. (In a child of `fork` the thread itself keeps the block,
        // until it makes another block, which then is the one used last.)
        unsafe { &*self.find_block() }
    }

    #[cold]
    #[inline(never)]
    fn find_block(&self) -> *const Block {
        let own = BLOCKS.try_with(|blocks| {
            let known = blocks.0.borrow().get(self.place).cloned().flatten();
            let known = known.filter(|block| block.number == self.number);
            known.unwrap_or_else(|| self.add_block(&mut blocks.0.borrow_mut()))
        });
        let block = match own {
            Ok(block) => Arc::as_ptr(&block),
            // A destructor of the ending thread is counting. This block's handle is leaked, so no
            // other thread can take over the block.
            Err(_) => Arc::into_raw(self.take_block()),
        };
        LAST.with(|last| last.set(block));
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
        blocks.resize(blocks.len().max(self.place + 1), None);
        blocks[self.place] = Some(block.clone());
        block
    }

    /// Returns a block that no thread has: one that an ended thread has left, or a new one.
    fn take_block(&self) -> Arc<Block> {
        // In a child of `fork` a thread that does not exist may hold the lock. The child's counts
        // are never read, so any block will do.
        if !self.process.is_this() {
            return Arc::new(self.new_block());
        }
        let mut blocks = lock(&self.blocks);
        if let Some(left) = blocks.iter().find(|block| Arc::strong_count(block) == 1) {
            // Pairs with the release when the ended thread dropped its handle: this thread
            // continues from its counts.
            fence(Ordering::Acquire);
            return left.clone();
        }
        let block = Arc::new(self.new_block());
        blocks.push(block.clone());
        block
    }

    fn new_block(&self) -> Block {
        // Relaxed: the caller holds the lock, except in a child of `fork`.
        Block::new(self.number, self.at_hand.load(Ordering::Relaxed))
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
            .fold(single, |sum, b| sum.wrapping_add(b.counts[count as usize].load(Ordering::Relaxed)))
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // A place that is not free now is lost, and costs each thread eight bytes.
        if let (true, Ok(mut free)) = (self.process.is_this(), FREE_PLACES.try_lock()) {
            free.push(self.place);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Regression: a thread's list of blocks had an entry for each partition that ever was.
    #[test]
    fn a_thread_has_a_place_for_each_partition_at_one_time_and_counts_for_none_that_is_gone() {
        let mut places = Vec::new();
        for _ in 0..2000 {
            let counters = Counters::new();
            assert_eq!(counters.sum(Count::Misses), 0);
            counters.add(Count::Misses, 1);
            assert_eq!(counters.sum(Count::Misses), 1, "not counted in the block of others");
            places.push(counters.place);
        }
        places.sort_unstable();
        places.dedup();
        // Other tests create and drop partitions meanwhile.
        assert!(places.len() < 1000, "{} places", places.len());
    }

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
