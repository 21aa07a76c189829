//! Who waits for what: for slots to leave their busy state, for pages that are served without a
//! slot, for ranges, for flushes.
//!
//! A registration is made under a lock that whoever ends the condition takes too, so none is
//! forgotten: for a slot, its shard's lock around P12; for a stray, the map's; for a range or a
//! flush, the object's.

use std::collections::HashMap;
use std::ops::Range;

use octavo_table::{SlotIndex, Table, Tag, Word};

use crate::WAYS;
use crate::lane::Waiter;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

const SHARDS: usize = 16;

/// The waiters of a partition's slots.
pub(crate) struct SlotWaiters {
    shards: [Mutex<HashMap<SlotIndex, Vec<Waiter>>>; SHARDS],
}

impl SlotWaiters {
    pub fn new() -> Self {
        SlotWaiters { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())) }
    }

    fn shard(&self, slot: SlotIndex) -> &Mutex<HashMap<SlotIndex, Vec<Waiter>>> {
        &self.shards[slot.0 as usize % SHARDS]
    }

    /// Registers for the end of the busy state `seen` (P12). Err if it has ended: look again.
    pub fn register(
        &self,
        table: &Table<WAYS>,
        slot: SlotIndex,
        seen: Word,
        waiter: impl FnOnce() -> Waiter,
    ) -> Result<(), Word> {
        let mut shard = lock(self.shard(slot));
        table.slot(slot).wait(seen)?;
        shard.entry(slot).or_default().push(waiter());
        Ok(())
    }

    /// Tells everybody who is registered with the slot. For whoever ended its busy state and saw
    /// the flag.
    pub fn wake(&self, slot: SlotIndex) {
        let waiters = lock(self.shard(slot)).remove(&slot);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}

/// The pages that are being served without a slot, because their set had none to give.
///
/// A page is in a slot or here, never in both: one comes here, and is looked for here, under its
/// set's lock. So everything that happens to one page happens in order, and no fill can publish
/// what a write has overtaken.
pub(crate) struct Strays {
    count: AtomicU32,
    pages: Mutex<HashMap<Tag, Vec<Waiter>>>,
}

impl Strays {
    pub fn new() -> Self {
        Strays { count: AtomicU32::new(0), pages: Mutex::new(HashMap::new()) }
    }

    /// Registers with the page if it is a stray. Under its set's lock.
    pub fn wait(&self, tag: Tag, waiter: impl FnOnce() -> Waiter) -> bool {
        // Relaxed: a stray of this set was added under the lock that the caller holds.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        match lock(&self.pages).get_mut(&tag) {
            Some(waiters) => {
                waiters.push(waiter());
                true
            }
            None => false,
        }
    }

    /// Whether the page is a stray. Under its set's lock.
    pub fn has(&self, tag: Tag) -> bool {
        // Relaxed: as in `wait`.
        self.count.load(Ordering::Relaxed) > 0 && lock(&self.pages).contains_key(&tag)
    }

    /// The lowest of what `concerned` says of the strays that it picks.
    pub fn lowest(&self, concerned: impl Fn(Tag) -> Option<u64>) -> Option<u64> {
        lock(&self.pages).keys().filter_map(|tag| concerned(*tag)).min()
    }

    /// The page is served without a slot from now on. Under its set's lock.
    pub fn add(&self, tag: Tag) {
        let before = lock(&self.pages).insert(tag, Vec::new());
        debug_assert!(before.is_none(), "a stray twice");
        // Relaxed: see `wait`.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The page is done; whoever waited for it may try.
    pub fn remove(&self, tag: Tag) {
        let waiters = lock(&self.pages).remove(&tag);
        self.count.fetch_sub(1, Ordering::Relaxed);
        waiters.into_iter().flatten().for_each(Waiter::wake);
    }
}

/// The ranges of an object that somebody clears: nothing is brought in there meanwhile.
pub(crate) struct Ranges {
    count: AtomicU32,
    ranges: Mutex<Vec<(Range<u64>, Vec<Waiter>)>>,
}

impl Ranges {
    pub fn new() -> Self {
        Ranges { count: AtomicU32::new(0), ranges: Mutex::new(Vec::new()) }
    }

    /// Registers with the range the page lies in, if there is one. Under the page's set's lock.
    pub fn wait(&self, page: u64, waiter: impl FnOnce() -> Waiter) -> bool {
        // Whoever clears a range takes the lock of every set concerned after it has closed the range. A
        // thread that takes such a lock later sees it; one that took it earlier has claimed before,
        // and is waited for. Acquire: pairs with `open`, whose caller may have changed the length.
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        match lock(&self.ranges).iter_mut().find(|(range, _)| range.contains(&page)) {
            Some((_, waiters)) => {
                waiters.push(waiter());
                true
            }
            None => false,
        }
    }

    /// Whether the page lies in a closed range. Under its set's lock.
    pub fn is_closed(&self, page: u64) -> bool {
        // Acquire: as in `wait`.
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.ranges).iter().any(|(range, _)| range.contains(&page))
    }

    /// Closes a range of pages; or registers with one that overlaps it.
    pub fn close(&self, range: Range<u64>, waiter: impl FnOnce() -> Waiter) -> bool {
        let mut ranges = lock(&self.ranges);
        if let Some((_, waiters)) =
            ranges.iter_mut().find(|(r, _)| r.start < range.end && range.start < r.end)
        {
            waiters.push(waiter());
            return false;
        }
        ranges.push((range, Vec::new()));
        // Relaxed: see `wait`.
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Opens the end of a range that `close` has closed, from `end` on; all of it if nothing is
    /// left.
    pub fn shorten(&self, range: &Range<u64>, end: u64) {
        if end == range.start {
            return self.open(range);
        }
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        ranges[at].0.end = end;
        // Those who wait for what is still closed come again.
        let waiters = std::mem::take(&mut ranges[at].1);
        drop(ranges);
        waiters.into_iter().for_each(Waiter::wake);
    }

    /// Opens a range that `close` has closed.
    pub fn open(&self, range: &Range<u64>) {
        let mut ranges = lock(&self.ranges);
        let at = ranges.iter().position(|(r, _)| r == range).expect("a range that was closed");
        let (_, waiters) = ranges.swap_remove(at);
        drop(ranges);
        // Release: pairs with `wait`.
        self.count.fetch_sub(1, Ordering::Release);
        waiters.into_iter().for_each(Waiter::wake);
    }
}

/// The flushes of an object (the store's own syncs), one at a time: where two are in flight and one
/// fails, the other's success says nothing of the bytes that the first has lost. Whoever comes
/// while one is in flight shares the next.
pub(crate) struct Flushes(Mutex<FlushState>);

#[derive(Default)]
struct FlushState {
    in_flight: bool,
    /// How many were begun; flushes are numbered from 1.
    begun: u64,
    /// The last one that succeeded.
    done: u64,
    waiting: Vec<Waiter>,
}

/// What a task that needs a flush is to do.
pub(crate) enum Flush {
    /// Flush.
    Begin,
    /// Come back when it is told.
    Wait,
    /// Nothing: somebody's flush has begun after it asked, and succeeded.
    Covered,
}

impl Flushes {
    pub fn new() -> Self {
        Flushes(Mutex::new(FlushState::default()))
    }

    /// `needed` names the first flush that will do; 0 if the task asks for the first time.
    pub fn ask(&self, needed: &mut u64, waiter: impl FnOnce() -> Waiter) -> Flush {
        let mut state = lock(&self.0);
        if *needed == 0 {
            *needed = state.begun + 1;
        }
        if state.done >= *needed {
            return Flush::Covered;
        }
        if state.in_flight {
            state.waiting.push(waiter());
            return Flush::Wait;
        }
        state.in_flight = true;
        state.begun += 1;
        Flush::Begin
    }

    /// The flush in flight has ended.
    pub fn ended(&self, succeeded: bool) {
        let mut state = lock(&self.0);
        state.in_flight = false;
        if succeeded {
            state.done = state.begun;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waiter::wake);
    }
}
