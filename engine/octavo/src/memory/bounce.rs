//! Bounce pages: memory that carries dirty pages to the store.
//!
//! A frame is never the source of a write in flight, so a page stays writable while an older
//! version of it travels. The pool is limited and charged. A task takes its bounce pages before
//! it takes any slot, and waits for them while it holds none. No object holds more of them than
//! it leaves to the others, so a hung store delays only its own objects.
//!
//! Not here: the buffers that callers borrow (`buffer.rs`).

use std::collections::VecDeque;
use std::sync::OnceLock;

use super::budget::Charge;
use super::frames::Mapping;
use super::reserve::Reserve;
use crate::error::Error;
use crate::position::PageSize;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use crate::wait::Waiter;

/// The number of page sizes that are possible.
const SIZES: usize = (PageSize::BYTES_MOST / PageSize::BYTES_LEAST).trailing_zeros() as usize + 1;

/// The bounce pools of a cache: one for each page size that a partition has had.
pub(crate) struct BouncePools {
    /// The buffer share, which every pool is charged to.
    reserve: Arc<Reserve>,
    /// By the binary logarithm of the page size, from the smallest. A pool stays until the cache
    /// is dropped.
    pools: [OnceLock<Arc<BouncePool>>; SIZES],
}

/// Bounce pages of one size, in one mapping.
pub(crate) struct BouncePool {
    mapping: Mapping,
    page_bytes: usize,
    pages: usize,
    state: Mutex<BounceState>,
    /// Number of waiters in `state`.
    waiting: AtomicUsize,
    _charge: Charge,
}

struct BounceState {
    taken: Vec<bool>,
    free: usize,
    /// Where the last search ended.
    next: usize,
    waiting: VecDeque<(Waiter, Arc<BounceShare>)>,
}

/// Number of bounce pages that an object holds. Changed under the pool's lock.
#[derive(Default)]
pub(crate) struct BounceShare(AtomicUsize);

impl BounceShare {
    /// How many more bounce pages the object may take while `free` are free: it may end with as
    /// many as it leaves, or with the last one if it has none.
    fn allowed(&self, free: usize) -> usize {
        // Relaxed, here and where it changes: under the pool's lock.
        free.saturating_sub(self.0.load(Ordering::Relaxed)).div_ceil(2)
    }
}

/// A run of adjacent bounce pages.
pub(crate) struct Bounce {
    pool: Arc<BouncePool>,
    share: Arc<BounceShare>,
    first: usize,
    pub pages: usize,
}

impl BouncePools {
    /// Creates no pool yet. `reserve` is the buffer share.
    pub fn new(reserve: Arc<Reserve>) -> BouncePools {
        BouncePools { reserve, pools: [const { OnceLock::new() }; SIZES] }
    }

    /// Returns the pool of a page size, and creates it at the first call. The first pool of all,
    /// for the cache's own page size, takes an eighth of the buffer share; any other one takes a
    /// sixteenth. A pool has at least two pages.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the buffer share is used up; [`Error::Config`] if the system refuses
    /// memory.
    pub fn of(&self, page_bytes: usize) -> Result<Arc<BouncePool>, Error> {
        let least = PageSize::BYTES_LEAST.trailing_zeros();
        let pool = &self.pools[(page_bytes.trailing_zeros() - least) as usize];
        if let Some(pool) = pool.get() {
            return Ok(pool.clone());
        }
        let pages = self.new_bytes(page_bytes) as usize / page_bytes;
        let what = format!("bounce pages of {page_bytes} bytes");
        let charge = self.reserve.charge((pages * page_bytes) as u64, &what)?;
        let made = BouncePool::new(page_bytes, pages, charge)
            .map_err(|e| Error::Config(format!("cannot map memory: {e}")))?;
        // If another thread was faster, this call's pool is dropped with its charge.
        Ok(pool.get_or_init(|| made).clone())
    }

    /// Returns the bytes that [`BouncePools::of`] charges for a page size: 0 if its pool exists.
    pub fn bytes_for(&self, page_bytes: usize) -> u64 {
        let least = PageSize::BYTES_LEAST.trailing_zeros();
        let pool = &self.pools[(page_bytes.trailing_zeros() - least) as usize];
        if pool.get().is_some() { 0 } else { self.new_bytes(page_bytes) }
    }

    fn new_bytes(&self, page_bytes: usize) -> u64 {
        let is_first = self.pools.iter().all(|pool| pool.get().is_none());
        let part = if is_first { 8 } else { 16 };
        pool_bytes(self.reserve.max_bytes() / part, page_bytes)
    }

    /// Returns the bytes of the first pool in a buffer share of `share_bytes`.
    pub fn first_bytes(share_bytes: u64, page_bytes: usize) -> u64 {
        pool_bytes(share_bytes / 8, page_bytes)
    }

    /// Passes turns on in every pool ([`BouncePool::pass_on`]).
    pub fn pass_on(&self) {
        self.pools.iter().filter_map(OnceLock::get).for_each(|pool| pool.pass_on());
    }
}

/// Returns the bytes of a pool that may take `most_bytes`: 2 to 4,096 pages.
fn pool_bytes(most_bytes: u64, page_bytes: usize) -> u64 {
    (most_bytes as usize / page_bytes).clamp(2, 4096) as u64 * page_bytes as u64
}

impl BouncePool {
    pub fn new(page_bytes: usize, pages: usize, charge: Charge) -> std::io::Result<Arc<BouncePool>> {
        let mapping = Mapping::reserve(page_bytes * pages)?;
        let state = BounceState { taken: vec![false; pages], free: pages, next: 0, waiting: VecDeque::new() };
        Ok(Arc::new(BouncePool {
            mapping,
            page_bytes,
            pages,
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            _charge: charge,
        }))
    }

    /// Takes up to `wanted` adjacent pages, at least one. If there is none for the object,
    /// returns `None` and wakes `waiter` when one is returned.
    pub fn take(
        self: &Arc<Self>,
        share: &Arc<BounceShare>,
        wanted: usize,
        waiter: impl FnOnce() -> Waiter,
    ) -> Option<Bounce> {
        debug_assert!(wanted > 0);
        let mut state = lock(&self.state);
        let wanted = wanted.min(share.allowed(state.free));
        if wanted == 0 {
            state.waiting.push_back((waiter(), share.clone()));
            self.waiting.store(state.waiting.len(), Ordering::Relaxed);
            return None;
        }
        // The longest run of free pages that is not longer than wanted, first fit from where the
        // last search ended.
        let (mut best, mut run) = ((0, 0), (0, 0));
        for step in 0..self.pages {
            let page = (state.next + step) % self.pages;
            let adjacent = page == run.0 + run.1;
            run = match state.taken[page] {
                true => (page + 1, 0),
                false if adjacent => (run.0, run.1 + 1),
                false => (page, 1),
            };
            if run.1 > best.1 {
                best = run;
            }
            if best.1 == wanted {
                break;
            }
        }
        let (first, pages) = best;
        state.taken[first..first + pages].fill(true);
        state.free -= pages;
        state.next = (first + pages) % self.pages;
        share.0.fetch_add(pages, Ordering::Relaxed);
        Some(Bounce { pool: self.clone(), share: share.clone(), first, pages })
    }

    /// Wakes as many waiters as there are free pages, among those that may have one. A woken
    /// task may find that it needs none, so the lanes call this after they have acted on their
    /// wake-ups: the turn is passed on.
    fn pass_on(&self) {
        // Relaxed: a waiter added now has found no page free, and the thread that frees one
        // wakes it.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.tell(lock(&self.state));
        }
    }

    /// Wakes waiters. A lane that no thread attends may act late or never: its waiter is woken,
    /// and another one beside it.
    fn tell(&self, mut state: MutexGuard<'_, BounceState>) {
        let mut told: Vec<Waiter> = Vec::new();
        let (free, mut turns, mut passed) = (state.free, state.free, 0);
        while turns > 0
            && let Some((_, share)) = state.waiting.get(passed)
        {
            if share.allowed(free) == 0 {
                passed += 1;
                continue;
            }
            let (waiter, _) = state.waiting.remove(passed).expect("just seen");
            turns -= waiter.is_attended() as usize;
            told.push(waiter);
        }
        self.waiting.store(state.waiting.len(), Ordering::Relaxed);
        drop(state);
        told.into_iter().for_each(Waiter::wake);
    }
}

impl Bounce {
    pub fn at(&self, page: usize) -> *mut u8 {
        debug_assert!(page < self.pages);
        self.pool.mapping.at((self.first + page) * self.pool.page_bytes)
    }

    /// Returns all but the first `pages` to the pool.
    pub fn shorten(&mut self, pages: usize) {
        if pages < self.pages {
            drop(self.split_off(pages));
        }
    }

    /// Keeps the first `pages`, and returns the others as a run of their own.
    pub fn split_off(&mut self, pages: usize) -> Bounce {
        let (pool, share) = (self.pool.clone(), self.share.clone());
        let rest = Bounce { pool, share, first: self.first + pages, pages: self.pages - pages };
        self.pages = pages;
        rest
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        let mut state = lock(&self.pool.state);
        state.taken[self.first..self.first + self.pages].fill(false);
        state.free += self.pages;
        self.share.0.fetch_sub(self.pages, Ordering::Relaxed);
        self.pool.tell(state);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::memory::Budget;

    /// One object's write-back to a store that hung once took all bounce pages: no other
    /// object's pages were written.
    #[test]
    fn no_object_takes_more_bounce_pages_than_it_leaves() {
        for pages in [2, 3, 64, 100] {
            let budget = Budget::new("memory_max", 1 << 20);
            let charge = budget.charge((pages as u64) << 12, "bounce pages").unwrap();
            let pool = BouncePool::new(4096, pages, charge).unwrap();
            let free = || lock(&pool.state).free;
            let mut taken = Vec::new();
            let shares: Vec<Arc<BounceShare>> = (0..4).map(|_| Arc::default()).collect();
            for share in &shares {
                let before = free();
                while share.allowed(free()) > 0 {
                    taken.push(pool.take(share, 5, || unreachable!("it may have some")).unwrap());
                }
                let held = share.0.load(Ordering::Relaxed);
                assert_eq!(held, before.div_ceil(2), "of {before}");
            }
            drop(taken);
            assert_eq!(free(), pages);
            assert!(shares.iter().all(|share| share.0.load(Ordering::Relaxed) == 0));
        }
    }
}
