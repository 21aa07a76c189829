//! A toy cache: a table, frames of a few words, a store of one number per page. It uses the table
//! as an engine does, checks at every step what a reader may see, and runs under threads
//! (`threads`) and under shuttle (`schedules`).
//!
//! The bytes of page *p* after its *n*th write hold *n* in every word, each word in a different
//! encoding, so that a torn read shows. Each write reads the page first, so that a lost write is
//! missing at the end.

use octavo_table::{
    Claim, Mixer, Move, Mover, PolicyKind, SegmentIndex, Shape, SlotIndex, State, Table, Tag, Word,
};

use octavo_random::Random;
use sync::{AtomicU64, Condvar, Mutex, Ordering::Relaxed, Ordering::SeqCst, yield_now};

pub mod sync {
    #[cfg(shuttle)]
    pub use shuttle::{
        sync::atomic::{AtomicU64, Ordering},
        sync::{Condvar, Mutex},
        thread::yield_now,
    };
    #[cfg(not(shuttle))]
    pub use std::{
        sync::atomic::{AtomicU64, Ordering},
        sync::{Condvar, Mutex},
        thread::yield_now,
    };
}

const WORDS: usize = 3;

pub struct Cache<const W: usize> {
    pub table: Table<W>,
    mixer: Mixer,
    /// Relaxed everywhere: the slots' words order them, which is the claim under test.
    frames: Vec<[AtomicU64; WORDS]>,
    pages: Vec<Page>,
    /// The highest version seen of each slot.
    versions: Vec<AtomicU64>,
    /// Number of wake-ups so far, and the condition to wait on.
    woken: (Mutex<u64>, Condvar),
    /// Held by the thread that resizes.
    resizing: Mutex<()>,
}

/// The test's own record of a page. SeqCst: one order for all threads.
#[derive(Default)]
struct Page {
    /// The write that the store holds.
    stored: AtomicU64,
    /// Writes that have completed, in order.
    completed: AtomicU64,
    /// The latest write that a read returned, which no later read may undo.
    returned: AtomicU64,
    /// Number of writes that were begun.
    begun: AtomicU64,
}

impl<const W: usize> Mover for &Cache<W> {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        let bytes = self.bytes(from);
        for (word, value) in self.frames[to.0 as usize].iter().zip(bytes) {
            word.store(value, Relaxed);
        }
    }

    fn wake(&mut self, _slot: SlotIndex) {
        Cache::wake(self, true);
    }
}

fn disguised(page: usize, write: u64, word: usize) -> u64 {
    (page as u64) << 48 | (write << 8) | word as u64
}

impl<const W: usize> Cache<W> {
    pub fn new(shape: Shape, policy: PolicyKind, segments: u32, pages: usize, mixer: Mixer) -> Self {
        let slots = (shape.segments_max * shape.sets_per_segment) as usize * W;
        Cache {
            table: Table::new(shape, policy, segments),
            mixer,
            frames: (0..slots).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            pages: (0..pages).map(|_| Page::default()).collect(),
            versions: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            woken: (Mutex::new(0), Condvar::new()),
            resizing: Mutex::new(()),
        }
    }

    /// Runs `count` random operations, as one thread.
    pub fn run(&self, random: &mut Random, count: usize) {
        for _ in 0..count {
            let page = random.below(self.pages.len() as u64) as usize;
            match random.below(16) {
                read @ 0..5 => self.read(page, read == 4),
                5..9 => self.write(page),
                9 => self.write_through(page),
                10..12 => self.write_back_any(random.below(self.pages.len() as u64) as usize),
                12 => self.drop_page(page),
                13 => self.sync(),
                _ => self.resize(random),
            }
            self.check_version(random.below(self.versions.len() as u64) as usize);
        }
    }

    fn tag(&self, page: usize) -> Tag {
        self.mixer.tag((page as u64) << 24 | page as u64)
    }

    fn page_of(&self, tag: Tag) -> usize {
        self.mixer.key(tag) as usize & 0xFF_FFFF
    }

    fn bytes(&self, slot: SlotIndex) -> [u64; WORDS] {
        std::array::from_fn(|word| self.frames[slot.0 as usize][word].load(Relaxed))
    }

    fn fill(&self, slot: SlotIndex, page: usize, write: u64) {
        for word in 0..WORDS {
            self.frames[slot.0 as usize][word].store(disguised(page, write, word), Relaxed);
        }
    }

    /// Returns the write of the page that the bytes hold; asserts that they are whole, and the
    /// page's.
    fn write_in(page: usize, bytes: [u64; WORDS]) -> u64 {
        let write = bytes[0] << 16 >> 24;
        for (word, value) in bytes.into_iter().enumerate() {
            assert_eq!(
                value,
                disguised(page, write, word),
                "torn or another page's bytes: {bytes:x?} of page {page}"
            );
        }
        write
    }

    // Waiting (P12)

    fn wake(&self, waited: bool) {
        if waited {
            *self.woken.0.lock().unwrap() += 1;
            self.woken.1.notify_all();
        }
    }

    /// Waits until the busy state `seen` may be over. A lost wake-up is a deadlock, which shuttle
    /// reports.
    fn wait(&self, slot: SlotIndex, seen: Word) {
        let mut woken = self.woken.0.lock().unwrap();
        let before = *woken;
        if self.table.slot(slot).wait(seen).is_ok() {
            while *woken == before {
                woken = self.woken.1.wait(woken).unwrap();
            }
        }
    }

    // Reads

    /// Reads a page. With `hold`, pins it for a while: a pinned page is a snapshot, whose bytes
    /// never change.
    fn read(&self, page: usize, hold: bool) {
        let Page { completed, returned, begun, .. } = &self.pages[page];
        let at_least = completed.load(SeqCst).max(returned.load(SeqCst));
        let write = match hold {
            true => self.read_pinned(page, || (0..3).for_each(|_| yield_now())),
            false => self.read_optimistic(page).unwrap_or_else(|| self.read_pinned(page, || {})),
        };
        assert!(write >= at_least, "page {page}: a read returned write {write} after {at_least}");
        assert!(write <= begun.load(SeqCst), "page {page}: bytes that were never written");
        returned.fetch_max(write, SeqCst);
    }

    /// P13, and if that finds nothing P3.
    fn read_optimistic(&self, page: usize) -> Option<u64> {
        let tag = self.tag(page);
        if let Some(slot) = self.table.candidate(tag)
            && let Some(glance) = self.table.glance(slot, tag)
        {
            let bytes = self.bytes(slot);
            if self.table.hit(&glance) {
                return Some(Self::write_in(page, bytes));
            }
        }
        let found = self.table.find(tag).filter(|found| found.word.readable())?;
        let bytes = self.bytes(found.index);
        found.slot().unchanged(found.word).then(|| {
            self.table.touch(&found);
            Self::write_in(page, bytes)
        })
    }

    /// P4, P5, after a fill if necessary; a page without a way is read from the store.
    fn read_pinned(&self, page: usize, meanwhile: impl Fn()) -> u64 {
        let tag = self.tag(page);
        loop {
            let mut guard = self.table.lock(tag);
            let Some(found) = guard.find(tag) else {
                match guard.claim(tag) {
                    Claim::Claimed { slot, .. } => {
                        drop(guard);
                        let write = self.pages[page].stored.load(SeqCst);
                        self.fill(slot, page, write);
                        self.wake(self.table.publish(slot, false));
                        return write;
                    }
                    // Under the lock: no other thread can bring the page in and write it before the
                    // store was read.
                    Claim::Full => return self.pages[page].stored.load(SeqCst),
                }
            };
            drop(guard);
            match found.slot().pin(found.word) {
                Ok(()) => {
                    let bytes = self.bytes(found.index);
                    let write = Self::write_in(page, bytes);
                    meanwhile();
                    assert_eq!(self.bytes(found.index), bytes, "a pinned page changed");
                    if found.slot().unpin() {
                        yield_now();
                    }
                    return write;
                }
                Err(word) if word.owned() => self.wait(found.index, word),
                Err(_) => yield_now(),
            }
        }
    }

    // Writes

    fn write(&self, page: usize) {
        let (tag, count) = (self.tag(page), &self.pages[page]);
        loop {
            let mut guard = self.table.lock(tag);
            let Some(found) = guard.find(tag) else {
                let Claim::Claimed { slot, .. } = guard.claim(tag) else { return };
                drop(guard);
                count.begun.fetch_add(1, SeqCst);
                let write = count.stored.load(SeqCst) + 1;
                self.fill(slot, page, write);
                self.wake(self.table.publish(slot, true));
                count.completed.fetch_max(write, SeqCst);
                return;
            };
            match found.slot().begin_write(found.word) {
                Ok(before) => {
                    drop(guard);
                    count.begun.fetch_add(1, SeqCst);
                    let write = Self::write_in(page, self.bytes(found.index)) + 1;
                    self.fill(found.index, page, write);
                    self.wake(self.table.end_write(&found, before, true));
                    count.completed.fetch_max(write, SeqCst);
                    return;
                }
                Err(word) if word.owned() => {
                    drop(guard);
                    self.wait(found.index, word);
                }
                // Pinned: the write continues in another slot, and this one becomes the snapshot of
                // the pins.
                Err(word) if word.pins() > 0 && word.readable() => {
                    let Claim::Claimed { slot, .. } = guard.claim_beside(tag) else { return };
                    let Ok(taken) = found.slot().begin_move(found.word) else {
                        self.wake(guard.remove(slot));
                        drop(guard);
                        yield_now();
                        continue;
                    };
                    count.begun.fetch_add(1, SeqCst);
                    let write = Self::write_in(page, self.bytes(found.index)) + 1;
                    self.fill(slot, page, write);
                    self.wake(self.table.publish(slot, true));
                    self.wake(guard.remove_moved(found.index, taken));
                    drop(guard);
                    count.completed.fetch_max(write, SeqCst);
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// P8 on a clean page.
    fn write_through(&self, page: usize) {
        let (tag, count) = (self.tag(page), &self.pages[page]);
        let Some(found) = self.table.find(tag) else { return };
        if found.slot().begin_store(found.word).is_err() {
            return;
        }
        count.begun.fetch_add(1, SeqCst);
        let write = Self::write_in(page, self.bytes(found.index)) + 1;
        yield_now();
        count.stored.store(write, SeqCst);
        if found.slot().store_to_write().is_some() {
            self.fill(found.index, page, write);
            self.wake(self.table.end_write(&found, found.word, false));
        } else {
            let mut guard = self.table.lock(tag);
            self.wake(guard.remove(found.index));
        }
        count.completed.fetch_max(write, SeqCst);
    }

    /// P10, P11. Returns false if the page is not dirty, or is being written back already.
    fn write_back(&self, page: usize, slot: SlotIndex, seen: Word) -> bool {
        if self.table.slot(slot).begin_writeback(seen).is_err() {
            return false;
        }
        let bytes = self.bytes(slot);
        let whole = self.table.slot(slot).unchanged(seen);
        if whole {
            let write = Self::write_in(page, bytes);
            let before = self.pages[page].stored.swap(write, SeqCst);
            assert!(before <= write, "an older version overtook a newer one on its way to the store");
        }
        self.wake(self.table.end_writeback(slot, seen.version(), whole).waited);
        whole
    }

    fn write_back_any(&self, skip: usize) {
        let mut dirty = Vec::new();
        self.table.for_each_dirty(|slot, tag, word| dirty.push((slot, tag, word)));
        if let Some((slot, tag, word)) = dirty.get(skip % dirty.len().max(1)).copied() {
            self.write_back(self.page_of(tag), slot, word);
        }
    }

    /// Writes all dirty pages back: every write that completed before the call is in the store
    /// after it.
    fn sync(&self) {
        let before: Vec<u64> = self.pages.iter().map(|page| page.completed.load(SeqCst)).collect();
        let mut dirty = Vec::new();
        self.table.for_each_dirty(|_, tag, _| dirty.push(tag));
        for tag in dirty {
            let page = self.page_of(tag);
            while self.pages[page].stored.load(SeqCst) < before[page] {
                let Some(found) = self.table.lock(tag).find(tag) else { break };
                if found.word.owned() || found.word.writeback() {
                    self.wait(found.index, found.word);
                } else {
                    self.write_back(page, found.index, found.word);
                }
            }
        }
        for (page, at_least) in before.into_iter().enumerate() {
            let stored = self.pages[page].stored.load(SeqCst);
            assert!(
                stored >= at_least,
                "page {page}: a sync missed write {at_least}, the store holds {stored}"
            );
        }
    }

    /// P9 of a clean page.
    fn drop_page(&self, page: usize) {
        let tag = self.tag(page);
        let mut guard = self.table.lock(tag);
        if let Some(found) = guard.find(tag) {
            let _ = guard.remove_quiet(&found, false);
        }
    }

    // Resizing

    fn resize(&self, random: &mut Random) {
        let Ok(_alone) = self.resizing.try_lock() else { return };
        let live: Vec<SegmentIndex> = self.table.segments().collect();
        let spare = self.table.spare_segment();
        match (spare, live.len()) {
            (Some(spare), 1) => self.move_all(self.table.join(spare)),
            (Some(spare), _) if random.below(2) == 0 => self.move_all(self.table.join(spare)),
            (None, 1) => {}
            _ => {
                let count = 1 + random.below(live.len() as u64 - 1) as usize;
                let first = random.below((live.len() - count + 1) as u64) as usize;
                let leaving = &live[first..first + count];
                let moves = self.table.leave_all(leaving);
                for of_segment in moves.chunk_by(|one, next| one.from() == next.from()) {
                    if !self.table.give_entries(of_segment) {
                        self.move_all(of_segment.to_vec());
                    }
                }
                for segment in leaving {
                    while self.table.retire(*segment).is_err() {
                        yield_now();
                    }
                }
            }
        }
    }

    fn move_all(&self, moves: Vec<Move>) {
        for mv in moves {
            while let Some(busy) = self.table.advance(mv, &mut &*self).busy {
                let word = self.table.slot(busy).load();
                if word.owned() || word.writeback() {
                    self.wait(busy, word);
                } else if word.state() == State::Dirty {
                    // No way was available: a clean page may be released.
                    self.write_back(self.page_of(self.table.slot(busy).tag()), busy, word);
                }
            }
        }
    }

    // Checks

    /// Asserts that a slot's version never goes backwards, even if its segment left and joined
    /// again.
    fn check_version(&self, slot: usize) {
        let before = self.versions[slot].load(SeqCst);
        let now = self.table.slot(SlotIndex(slot as u32)).load().version();
        assert!(now >= before, "slot {slot} went from version {before} to {now}");
        self.versions[slot].fetch_max(now, SeqCst);
    }

    /// Checks the end state, after all threads have ended.
    pub fn check_quiet(&self) {
        let mut copies = vec![Vec::new(); self.pages.len()];
        self.table
            .for_each_page(|_, found| copies[self.page_of(found.tag())].push((found.index, found.word)));
        for (page, copies) in copies.iter().enumerate() {
            assert!(copies.len() <= 1, "page {page} is in several slots: {copies:?}");
            let found = self.table.find(self.tag(page)).map(|found| found.index);
            assert_eq!(found, copies.first().map(|copy| copy.0), "page {page} is where the directory says");
            let stored = self.pages[page].stored.load(SeqCst);
            let now = copies.first().map_or(stored, |copy| Self::write_in(page, self.bytes(copy.0)));
            let writes = self.pages[page].begun.load(SeqCst);
            assert_eq!(now, writes, "page {page}: a write was lost");
            let dirty = copies.first().is_some_and(|copy| copy.1.state() == State::Dirty);
            assert!(
                dirty || now == stored,
                "page {page} is clean and the store holds write {stored} of {now}"
            );
        }
        let words = || (0..self.versions.len()).map(|slot| self.table.slot(SlotIndex(slot as u32)).load());
        assert!(words().all(|word| word.pins() == 0 && !word.writeback() && !word.waited() && !word.owned()));
        let mut shown: Vec<Tag> = Vec::new();
        self.table.for_each_dirty(|_, tag, _| shown.push(tag));
        let dirty = words().filter(|word| word.state() == State::Dirty).count();
        assert_eq!(
            (shown.len(), self.table.dirty_pages()),
            (dirty, dirty as u64),
            "the dirty pages are counted"
        );
        (0..self.versions.len()).for_each(|slot| self.check_version(slot));
    }
}
