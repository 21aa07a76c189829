//! One way of one set: which page it holds, a state word that says what may be done with the page's
//! frame, and what a hit sees of both.
//!
//! A slot protects two things: the bytes of one frame, and the promise that they are the bytes of
//! the page `tag`. Not here: which slot a page gets (`set`), which tasks wait for it, and where its
//! bytes lie (the engine knows both).
//!
//! # The state word
//!
//! ```text
//!   63                   20 19     10 9      6    5        4      3..0
//!  +-----------------------+---------+--------+--------+-----------+-------+
//!  | version               | pins    | twins  | waited | writeback | state |
//!  +-----------------------+---------+--------+--------+-----------+-------+
//! ```
//!
//! | state    | findable | readable | may change bytes | leaves to                         |
//! |----------|----------|----------|------------------|-----------------------------------|
//! | Free     |          |          | no thread        | Filling                           |
//! | Filling  | yes      |          | its claimant     | Clean, Dirty, Free                |
//! | Clean   | yes      | yes      | no thread        | Filling, Writing, Storing, Free, Detached |
//! | Dirty    | yes      | yes      | no thread        | Writing, Clean, Storing, Free, Detached |
//! | Storing  | yes      | yes      | no thread        | Writing, Dirty, Free, Detached    |
//! | Writing  | yes      |          | its writer       | Clean, Dirty, Free, Detached      |
//! | Detached |          |          | no thread        | Free                              |
//! | Copying, Twin, Stale | | | copies of other nodes' pages: see `twin` | |
//!
//! In Storing, new bytes for the page are on their way to the store, and the frame still holds the
//! old ones. A Detached slot keeps a snapshot for the holders of its pins.
//!
//! The fields:
//!
//! - *version* grows whenever the bytes or the tag may have changed, and never goes backwards. It
//!   has 44 bits, which wrap after half a year of a million changes per second to one slot. A wrap
//!   harms only a reader that sleeps through exactly 2^44 changes.
//! - *pins* counts the pins, up to [`PINS_MAX`]. A further pin is refused, and the caller copies
//!   the bytes instead.
//! - *twins* says which nodes may have a copy of the page (`twin`); node n has bit n modulo 4. With
//!   one node it is 0.
//! - *waited* says that a waiter is registered and must be woken when the word leaves its busy
//!   state.
//! - *writeback* says that a write-back is in flight. It is a flag and not a state, because a page
//!   may be read, and even written again, while an older version of it is on its way to the store.
//!   In state Storing the flag means that the page is dirty (P14).
//!
//! # The protocol
//!
//! - **P1 claim** (under the set's lock): Free, or Clean without pins and write-back -> Filling,
//!   version + 1 (a compare-and-swap, because a pin needs no lock). Then a release fence, then the
//!   tag, then the bytes.
//! - **P2 publish** (claimant): Filling -> Clean or Dirty, with release. A thread that sees the new
//!   state sees the tag and the bytes.
//! - **P3 read by the word** (any thread, no store): load the word with acquire and check that it
//!   is readable; load the tag and check that it is the page's; copy the bytes with accesses that
//!   may race; acquire fence; load the word again. The copy is good if the version is unchanged and
//!   the state is still readable. The fence pairs with the release fences of P1, P6 and P8: a
//!   reader that saw a new byte, or the new tag, then also sees the word that announced the change.
//! - **P4 pin** (any thread): compare-and-swap from a readable word of the same version, pins + 1,
//!   with acquire. If the swap succeeds, a tag that was loaded between the load of the word and the
//!   swap is the tag of the pinned page.
//! - **P5 unpin**: pins - 1 with release. The last unpin of a Detached slot moves it to Free,
//!   version + 1. No other thread touches a Detached slot without pins. A pin may outlive the use
//!   of its segment (R5 of `resize`): its slot stays Detached, and its frame keeps its bytes.
//! - **P6 begin write** (any thread that found the page): Clean or Dirty without pins -> Writing,
//!   then a release fence, then bytes. Pinned bytes are never changed: the writer detaches the slot
//!   (P9) and writes to another.
//! - **P7 end write** (writer): Writing -> Clean or Dirty, version + 1, with release.
//! - **P8 store** (write-through): Clean -> Storing while the new bytes travel to the store;
//!   readers still read the old ones. Then Storing -> Writing if there are no pins, a release
//!   fence, the bytes, and P7. If the slot is pinned or the store failed: P9. P8 also has a *move*
//!   to another slot (under the set's lock): Clean or Dirty without write-back, pinned or not ->
//!   Writing; the bytes are copied to the other slot and do not change here; then P9.
//! - **P9 remove** (under the set's lock): an owned state (Filling, Writing, Storing), or Clean or
//!   Dirty without write-back -> Free, version + 1; with pins -> Detached instead.
//! - **P10 begin write-back**: Dirty without write-back -> the same with the flag. At most one
//!   write-back of a page is in flight, so that an older version can never overtake a newer one on
//!   its way to the store.
//! - **P11 end write-back**: the flag is cleared. Dirty becomes Clean if the version is the one
//!   that was written and the write succeeded.
//! - **P12 wait**: a compare-and-swap adds the *waited* flag to a busy word. The waiter swaps even
//!   if the flag is already set, because the flag in a word that was loaded earlier does not prove
//!   that the state still lasts; the swap fails if it has ended. The thread that ends the busy
//!   state clears the flag, with acquire, and learns that it was set. So no waiter is forgotten,
//!   and that thread sees everything that a waiter registered before its swap.
//! - **P13 read at a glance** (any thread, no store; nearly every hit uses it): as P3, but with one
//!   word for the whole set in place of the slot's own. Its low bits, one per way, say which ways
//!   are *shown*; its high bits are the set's version (48 bits with 16 ways). A thread that makes a
//!   page readable (P2, P7) first shows it: it sets the bit, with release. A thread that takes a
//!   page's bytes or tag away (P1 of a Clean page, P6, P8's second half and move, P9) hides the
//!   page after its swap and before the release fence: one addition clears the bit and increments
//!   the version. So only the slot's owner changes the bit, or a thread under the set's lock, which
//!   the next owner needs. While a slot's word is readable, its way is shown (only P9 of a Storing
//!   page hides it just before its swap). The copy is good if the way is shown in the first word
//!   and the set's version is the same at the end: then no page of the set was hidden, this one
//!   included. A reader compares the whole word, which takes fewer instructions than the version.
//!   If it has changed, perhaps only a neighbour was hidden or shown; the reader cannot tell, and
//!   reads again by P3.
//! - **P14 hold** (clearing a range): Dirty without write-back -> Storing with the flag. The range
//!   will read as zeros, and the store is cleared first. Meanwhile the page can be read and pinned,
//!   but not written, written back, moved or evicted. Then P9 if the store has cleared the range;
//!   otherwise the page returns to Dirty, with the same bytes and the same version.
//!
//! The lock order is: set lock, then word. No thread waits for a word while it holds a set's lock.

use super::operand;
use super::state::{PIN_MASK, PIN_ONE, TWINS_MASK, WAITED, WRITEBACK};
use super::tag::Tag;
use crate::broken::{self, Step};
use crate::sync::atomic::{AtomicU64, Ordering, fence};

pub(crate) use super::state::TWIN_BITS;
pub use super::state::{PINS_MAX, State, Word};

/// One way of one set: references to its word, its tag and the set's word of shown ways. Zeroed
/// memory is a free slot of version 0.
#[derive(Clone, Copy)]
pub struct Slot<'t> {
    pub(crate) word: &'t AtomicU64,
    tag: &'t AtomicU64,
    shown: &'t AtomicU64,
    way: u32,
    ways: u32,
}

/// The word of shown ways of a set of `W` ways, as it was at one moment (P13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown<const W: usize>(pub(crate) u64);

impl<const W: usize> Shown<W> {
    /// Loads the word. Acquire: pairs with `Slot::show`.
    #[inline(always)]
    pub(crate) fn load(shown: &AtomicU64) -> Self {
        Shown(shown.load(Ordering::Acquire))
    }

    /// Returns whether the way's page may be read.
    #[inline(always)]
    pub(crate) fn has(self, way: u32) -> bool {
        self.0 >> way & 1 != 0
    }

    /// P13, the re-check: returns whether no way was shown or hidden since this word was loaded.
    /// `shown` lies `W` bytes from `front`.
    #[inline(always)]
    pub(crate) fn holds<T>(self, front: &T, shown: &AtomicU64) -> bool {
        if broken::is(Step::NoRecheck) {
            return true;
        }
        // Pairs with the release fences of P1, P6 and P8; the load after it needs no ordering of
        // its own.
        fence(Ordering::Acquire);
        operand::equals_at::<W, T>(front, shown, self.0)
    }
}

impl<'t> Slot<'t> {
    #[inline(always)]
    pub(crate) fn new(
        word: &'t AtomicU64,
        tag: &'t AtomicU64,
        shown: &'t AtomicU64,
        way: usize,
        ways: usize,
    ) -> Slot<'t> {
        debug_assert!(way < ways && ways <= 32);
        Slot { word, tag, shown, way: way as u32, ways: ways as u32 }
    }

    /// P13. Shows the page to readers. The slot's owner calls this before it makes the word
    /// readable; until then no other thread touches the bit.
    fn show(&self) {
        debug_assert!(!self.is_shown());
        // Release: a reader that sees the bit sees the tag and the bytes.
        self.shown.fetch_add(1 << self.way, Ordering::Release);
    }

    /// P13. Hides the page from readers: clears the bit and increments the set's version, in one
    /// addition. The slot's owner calls this after it has changed the word, and before the tag or
    /// the bytes change. Relaxed: the fence that follows orders it before those changes.
    fn hide(&self) {
        debug_assert!(self.is_shown());
        let step = match broken::is(Step::HideKeepsVersion) {
            true => 0,
            false => 1u64 << self.ways,
        };
        self.shown.fetch_add(step.wrapping_sub(1 << self.way), Ordering::Relaxed);
    }

    /// Returns whether the way's bit is set. The answer is stable for the slot's owner, and for a
    /// resident page under the set's lock.
    fn is_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed) >> self.way & 1 != 0
    }

    /// Loads the word. Acquire: pairs with `publish` (P2) and `end_write` (P7).
    #[inline(always)]
    pub fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Loads the tag. Relaxed: the tag is valid only if `unchanged` or a compare-and-swap then
    /// confirms the word that was loaded before it (P3, P4).
    #[inline(always)]
    pub fn tag(&self) -> Tag {
        Tag(self.tag.load(Ordering::Relaxed))
    }

    /// P3, the re-check: returns whether the bytes that were read since `seen` was loaded are the
    /// page's, untorn. `seen` is a readable word.
    #[inline(always)]
    pub fn unchanged(&self, seen: Word) -> bool {
        debug_assert!(seen.readable(), "bytes were read under {seen:?}");
        if broken::is(Step::NoRecheck) {
            return true;
        }
        // Pairs with the release fences of P1, P6 and P8; the load after it needs no ordering of
        // its own.
        fence(Ordering::Acquire);
        let now = Word(self.word.load(Ordering::Relaxed));
        // The word is usually the same. In between, pins and flags may have changed, and a
        // write-through or a write-back may have begun or ended: none of these changes the bytes
        // without a new version.
        now == seen || now.version() == seen.version() && now.readable()
    }

    /// P1. Takes the slot for the page `tag`, under the set's lock. Returns false if the word is no
    /// longer `seen`.
    pub fn claim(&self, seen: Word, tag: Tag) -> bool {
        self.claim_as(State::Filling, seen, tag, 0)
    }

    /// P1, to `state` (Filling; Copying for a copy, T1), with the bits of the nodes on which the
    /// page may already have copies (T7).
    pub(crate) fn claim_as(&self, state: State, seen: Word, tag: Tag, twins: u8) -> bool {
        debug_assert!(seen.evictable());
        let bare = seen.without(WAITED | WRITEBACK | PIN_MASK | TWINS_MASK);
        let next = bare.with_state(state).with_twins(twins).next_version();
        // Acquire: pairs with `unpin` (P5), whose holder has read its last byte.
        if self.word.compare_exchange(seen.0, next.0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        if seen.state() == State::Clean {
            self.hide();
        }
        Self::fence_before_bytes();
        // Relaxed: ordered by the fence before it and `publish` after it.
        self.tag.store(tag.0, Ordering::Relaxed);
        true
    }

    /// Replaces the word by the result of `next`, which is called again whenever another thread has
    /// changed the word in between. Returns the word that was replaced. Acquire on failure: pairs
    /// with the end of the state in `seen`, for a caller that then looks again.
    ///
    /// # Errors
    /// The current word, if `next` returns `None` for it.
    #[inline(always)]
    pub(crate) fn change(
        &self,
        seen: Word,
        success: Ordering,
        next: impl Fn(Word) -> Option<Word>,
    ) -> Result<Word, Word> {
        let mut now = seen;
        while let Some(next) = next(now) {
            match self.word.compare_exchange_weak(now.0, next.0, success, Ordering::Acquire) {
                Ok(_) => return Ok(now),
                Err(word) => now = Word(word),
            }
        }
        Err(now)
    }

    /// Changes a word whose state only its owner, or a thread under the set's lock, can end. Other
    /// threads may change its flags and pins in the meantime. Returns the word that was replaced.
    /// Release: the owner's accesses to the bytes come before the next claimant's writes (P1).
    /// Acquire: pairs with `unpin`, and with `wait` (P12), whose registration is looked up next.
    #[inline(always)]
    pub(crate) fn change_own(&self, next: impl Fn(Word) -> Word) -> Word {
        let seen = Word(self.word.load(Ordering::Relaxed));
        let (Ok(replaced) | Err(replaced)) = self.change(seen, Ordering::AcqRel, |now| Some(next(now)));
        replaced
    }

    /// The release fence of P1 and P6 between the word and the bytes.
    fn fence_before_bytes() {
        if !broken::is(Step::NoReleaseFence) {
            fence(Ordering::Release);
        }
    }

    /// P2. Makes the claimed page readable. Returns whether a waiter must be woken.
    #[must_use]
    pub fn publish(&self, dirty: bool) -> bool {
        self.show();
        // Only the claimant changes a Filling word, but a waiter may add its flag.
        let filled = self.change_own(|now| {
            debug_assert!(now.state() == State::Filling, "publish of {now:?}");
            now.without(WAITED).with_state(State::resident(dirty))
        });
        filled.waited()
    }

    /// P4. Adds a pin if the slot is readable and still holds the version `seen`.
    ///
    /// # Errors
    /// The word that forbids it.
    #[inline]
    pub fn pin(&self, seen: Word) -> Result<(), Word> {
        let pinned = self.change(seen, Ordering::Acquire, |now| {
            let may = now.readable() && now.version() == seen.version() && now.pins() < PINS_MAX;
            may.then_some(Word(now.0 + PIN_ONE))
        });
        pinned.map(drop)
    }

    /// P5. Releases a pin. Returns whether that freed the slot.
    #[inline]
    pub fn unpin(&self) -> bool {
        // Release: pairs with the claim (P1) or write (P6) that may change the bytes once no pin is
        // left.
        let old = Word(self.word.fetch_sub(PIN_ONE, Ordering::Release));
        debug_assert!(old.pins() > 0, "unpin of {old:?}");
        if old.state() != State::Detached || old.pins() != 1 {
            return false;
        }
        // Acquire: the other holders' reads are over (their release decrements are in this word's
        // history).
        fence(Ordering::Acquire);
        let left = Word(old.0 - PIN_ONE).without(WAITED | WRITEBACK | TWINS_MASK);
        let next = left.with_state(State::Free).next_version();
        // A Detached slot without pins belongs to the thread that released the last pin: a plain
        // store cannot lose an update.
        self.word.store(next.0, Ordering::Release);
        true
    }

    /// P6. Takes the bytes to change them in place. Returns the word that was replaced, which says
    /// whether the page was clean or dirty.
    ///
    /// # Errors
    /// The word that forbids it: the page is busy or pinned, or the version is another by now.
    #[inline(always)]
    pub fn begin_write(&self, seen: Word) -> Result<Word, Word> {
        // Acquire: pairs with `unpin` (P5) and with the publish whose bytes this write builds on
        // (P2, P7).
        let taken = self.change(seen, Ordering::Acquire, |now| {
            let free_of_pins = now.pins() == 0 || broken::is(Step::WriteIgnoresPins);
            let may = now.unowned() && now.version() == seen.version() && free_of_pins;
            may.then_some(now.with_state(State::Writing))
        })?;
        self.hide();
        Self::fence_before_bytes();
        Ok(taken)
    }

    /// P7. Ends a write and makes the page readable again. Returns whether a waiter must be woken.
    /// At this point no copy of the page on another node is valid: there was none, or T5 has
    /// overtaken them all.
    #[must_use]
    #[inline(always)]
    pub fn end_write(&self, dirty: bool) -> bool {
        self.show();
        let written = self.change_own(|now| {
            debug_assert!(now.state() == State::Writing, "end_write of {now:?}");
            debug_assert!(dirty || !now.writeback(), "a page with a write-back in flight is dirty");
            let next = now.without(WAITED | TWINS_MASK).with_state(State::resident(dirty));
            if broken::is(Step::NoVersionBump) { next } else { next.next_version() }
        });
        written.waited()
    }

    /// P8. Announces a write-through: the page stays readable and its slot belongs to the caller.
    ///
    /// # Errors
    /// The word that forbids it.
    pub fn begin_store(&self, seen: Word) -> Result<(), Word> {
        let announced = self.change(seen, Ordering::Acquire, |now| {
            let may = now.state() == State::Clean && now.version() == seen.version();
            may.then_some(now.with_state(State::Storing))
        });
        announced.map(drop)
    }

    /// P8, second half: takes the frame to change it, now that the store has the new bytes. Returns
    /// the word that was replaced, or `None` if the slot is pinned: then remove it (P9).
    #[must_use]
    pub fn store_to_write(&self) -> Option<Word> {
        let seen = Word(self.word.load(Ordering::Relaxed));
        let taken = self.change(seen, Ordering::Acquire, |now| {
            debug_assert!(now.state() == State::Storing && !now.held(), "store_to_write of {now:?}");
            (now.pins() == 0).then_some(now.with_state(State::Writing))
        });
        let taken = taken.ok()?;
        self.hide();
        fence(Ordering::Release);
        Some(taken)
    }

    /// P8, the move to another slot: takes a quiet page, pinned or not, so that its bytes can be
    /// copied elsewhere. No thread changes the bytes, so pins may stay. Call it under the set's
    /// lock, and end with `remove` (P9). Returns the word that was replaced.
    ///
    /// # Errors
    /// The word that forbids it.
    pub fn begin_move(&self, seen: Word) -> Result<Word, Word> {
        let taken = self.change(seen, Ordering::Acquire, |now| {
            let may = now.quiet() && now.version() == seen.version();
            may.then_some(now.with_state(State::Writing))
        })?;
        // The page is hidden here before it is shown, and can change, in the other slot.
        self.hide();
        Ok(taken)
    }

    /// P9. Releases an owned slot: Free, or Detached while it is pinned. Call it under the set's
    /// lock. Returns the word that was replaced, which says whether a waiter must be woken and
    /// which nodes may have copies.
    #[must_use]
    pub(crate) fn remove(&self) -> Word {
        if Word(self.word.load(Ordering::Relaxed)).state() == State::Storing {
            self.hide();
        }
        self.change_own(|now| {
            debug_assert!(now.owned() && (!now.writeback() || now.held()), "remove of {now:?}");
            now.without(WRITEBACK).removed()
        })
    }

    /// P9 for a page without an owner: Clean (or, with `even_dirty`, Dirty) and quiet -> Free or
    /// Detached. Call it under the set's lock. Returns the word that was replaced.
    ///
    /// # Errors
    /// The word that forbids it.
    pub(crate) fn remove_quiet(&self, seen: Word, even_dirty: bool) -> Result<Word, Word> {
        let removed = self.change(seen, Ordering::AcqRel, |now| {
            let allowed = now.quiet() && (even_dirty || now.state() == State::Clean);
            (allowed && now.version() == seen.version()).then_some(now.removed())
        })?;
        // The bit is cleared before the next claim, which needs the lock that the caller holds.
        self.hide();
        Ok(removed)
    }

    /// P14. Holds a dirty page while the store clears the page's range.
    ///
    /// # Errors
    /// The word that forbids it.
    pub fn hold(&self, seen: Word) -> Result<(), Word> {
        let held = self.change(seen, Ordering::Acquire, |now| {
            Some(now.with_writeback(seen)?.with_state(State::Storing))
        });
        held.map(drop)
    }

    /// P14. Ends a hold whose clear failed: the page is dirty as before. Returns whether a waiter
    /// must be woken.
    #[must_use]
    pub fn let_go(&self) -> bool {
        let held = self.change_own(|now| {
            debug_assert!(now.held(), "let_go of {now:?}");
            now.without(WAITED | WRITEBACK).with_state(State::Dirty)
        });
        held.waited()
    }

    /// P10. Marks a dirty page as being written back, if its word still has the version `seen`.
    ///
    /// # Errors
    /// The word that forbids it.
    pub fn begin_writeback(&self, seen: Word) -> Result<(), Word> {
        self.change(seen, Ordering::Acquire, |now| now.with_writeback(seen)).map(drop)
    }

    /// P11. Ends the write-back of `version`; `written` says whether the store has the bytes.
    #[must_use]
    pub fn end_writeback(&self, version: u64, written: bool) -> EndedWriteback {
        let cleans = |now: Word| {
            let same = now.version() == version || broken::is(Step::WritebackIgnoresVersion);
            written && now.state() == State::Dirty && same
        };
        let ended = self.change_own(|now| {
            debug_assert!(now.writeback(), "end_writeback of {now:?}");
            // While a writer owns the slot, the waited flag stays: its waiters may wait for the
            // writer, which clears the flag at its end.
            let left = now.without(if now.owned() { WRITEBACK } else { WRITEBACK | WAITED });
            if cleans(now) { left.with_state(State::Clean) } else { left }
        });
        EndedWriteback { cleaned: cleans(ended), waited: ended.waited() && !ended.owned() }
    }

    /// P12. Registers interest in the end of the busy state `seen`.
    ///
    /// # Errors
    /// The current word, if the state has changed: look again.
    pub fn wait(&self, seen: Word) -> Result<(), Word> {
        debug_assert!(seen.owned() || seen.writeback());
        if broken::is(Step::WaitWithoutSwap) {
            self.word.fetch_or(WAITED, Ordering::Relaxed);
            return Ok(());
        }
        // The swap is needed even if another waiter has set the flag: the state may have ended
        // since `seen` was loaded, and then only that other waiter was woken.
        //
        // Release: the registration made before the swap is visible to the thread that clears the
        // flag (its swap reads this one). Acquire: pairs with the end of the state.
        let flagged = self.change(seen, Ordering::AcqRel, |now| {
            let same = now.state() == seen.state()
                && now.version() == seen.version()
                && now.writeback() == seen.writeback();
            same.then_some(Word(now.0 | WAITED))
        });
        flagged.map(drop)
    }
}

/// The memory of one slot, for models of a single slot.
#[cfg(all(loom, test))]
pub(crate) struct OneWay {
    word: AtomicU64,
    tag: AtomicU64,
    shown: AtomicU64,
}

#[cfg(all(loom, test))]
impl OneWay {
    pub fn new() -> OneWay {
        OneWay { word: AtomicU64::new(0), tag: AtomicU64::new(0), shown: AtomicU64::new(0) }
    }

    pub fn slot(&self) -> Slot<'_> {
        Slot::new(&self.word, &self.tag, &self.shown, 0, 1)
    }

    pub fn shown(&self) -> Shown<1> {
        Shown::load(&self.shown)
    }

    pub fn holds(&self, seen: Shown<1>) -> bool {
        seen.holds(self, &self.shown)
    }
}

/// How a write-back ended (P11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedWriteback {
    /// The page is clean now. If false, the page was written again in the meantime, or the store
    /// did not take it.
    pub cleaned: bool,
    /// A waiter for the end of the write-back must be woken.
    pub waited: bool,
}
