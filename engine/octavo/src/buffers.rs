//! Memory for bytes on their way: buffers that callers hold, and the bounce pages of the engine's own writes.
//!
//! Both are bounded and charged. Bounce pages carry what goes to the store: a frame is never the source of a write in
//! flight, so pages stay writable while an older version of them travels. They are taken before any slot and waited for while holding none.
//! No object has more of them than it leaves to the others, so that a store that hangs holds up its own objects only.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::budget::{Budget, Charge};
use crate::frames::Mapping;
use crate::lane::Waiter;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, lock};

const ALIGN: usize = 4096;

/// Bytes of a request. Owned by the engine while the request is in flight, given back with its completion.
pub struct Buffer(Memory);

enum Memory {
    Own(Vec<u8>),
    Charged { at: NonNull<u8>, len: usize, _charge: Charge },
}

// SAFETY: the buffer owns its memory, as a vector does.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed memory, aligned to 4096, charged to `budget`. None where that is used up.
    pub(crate) fn charged(budget: &Arc<Budget>, len: usize) -> Option<Buffer> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        let charge = budget.charge(len as u64, "a buffer").ok()?;
        let layout = std::alloc::Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the length is not zero.
        let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Buffer(Memory::Charged { at, len, _charge: charge }))
    }
}

impl From<Vec<u8>> for Buffer {
    /// A buffer of the caller's own memory, which is not charged.
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer(Memory::Own(bytes))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            // SAFETY: our allocation of that length, initialised with zeros.
            Memory::Charged { at, len, .. } => unsafe { std::slice::from_raw_parts(at.as_ptr(), *len) },
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            // SAFETY: as in `deref`, and the borrow is unique.
            Memory::Charged { at, len, .. } => unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), *len) },
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Charged { at, len, .. } = self {
            let layout = std::alloc::Layout::from_size_align(*len, ALIGN).expect("as it was allocated");
            // SAFETY: allocated by `charged` with this layout.
            unsafe { std::alloc::dealloc(at.as_ptr(), layout) };
        }
    }
}

/// The bounce pages of a cache, in one mapping.
pub(crate) struct BouncePool {
    mapping: Mapping,
    page_bytes: usize,
    pages: usize,
    state: Mutex<BounceState>,
    /// How many wait.
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

/// How many bounce pages an object has. Changed under the pool's lock.
#[derive(Default)]
pub(crate) struct BounceShare(AtomicUsize);

impl BounceShare {
    /// How many more it may have while so many are free: it ends with as many as it leaves, or with the last one where it has none.
    fn allowed(&self, free: usize) -> usize {
        // Relaxed, here and where it changes: under the pool's lock.
        free.saturating_sub(self.0.load(Ordering::Relaxed)).div_ceil(2)
    }
}

/// Some adjacent bounce pages.
pub(crate) struct Bounce {
    pool: Arc<BouncePool>,
    share: Arc<BounceShare>,
    first: usize,
    pub pages: usize,
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

    /// Up to `wanted` adjacent pages, at least one. Where there is none for the object, `waiter` is told when one came back.
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
        // The longest run of free pages that is not longer than wanted, first fit from where the last search ended.
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
}

impl BouncePool {
    /// Tells as many waiters as there are free pages, of those that may have one. Whoever was told may have found that it needs none: the lanes call this
    /// when they have done what they were told, so that the turn is passed on.
    pub fn pass_on(&self) {
        // Relaxed: a waiter that is added now has found no page free, and whoever frees one tells it.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.tell(lock(&self.state));
        }
    }

    /// A lane that nobody attends may come to its turn late or never: it is told, and somebody else beside it.
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

    /// Gives all but the first `pages` back.
    pub fn shorten(&mut self, pages: usize) {
        if pages < self.pages {
            drop(self.split_off(pages));
        }
    }

    /// Keeps the first `pages`, and gives the others as their own.
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

    /// One object's write-back, to a store that hung, took all bounce pages: no other object's pages were written.
    #[test]
    fn no_object_takes_more_bounce_pages_than_it_leaves() {
        for pages in [2, 3, 64, 100] {
            let budget = Budget::new(1 << 20);
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
