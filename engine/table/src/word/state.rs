//! The word of a slot: its states, its fields, and what can be read from one value of it.
//!
//! The head of `slot` has the layout of the word, the table of its states and the protocol (P1 to
//! P14).

/// The state of a slot. The table in the head of [`slot`](super::slot) says what each state allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No page.
    Free = 0,
    /// Claimed; its bytes are being read in.
    Filling = 1,
    /// Holds the bytes that the store holds.
    Clean = 4,
    /// Holds newer bytes than the store.
    Dirty = 5,
    /// New bytes are on their way to the store: those of a write-through to a clean page (P8), or
    /// zeros for a dirty one (P14). The frame still holds the old bytes.
    Storing = 6,
    /// Its bytes are being changed.
    Writing = 2,
    /// No longer findable: a snapshot that lives until its last unpin.
    Detached = 3,
    /// A copy of another node's page, overtaken by a write.
    Stale = 8,
    /// A copy that is being made.
    Copying = 9,
    /// A copy of another node's page, with the page's bytes.
    Twin = 10,
}

impl State {
    /// Returns the state of a page that is not busy.
    pub(crate) fn resident(dirty: bool) -> State {
        if dirty { State::Dirty } else { State::Clean }
    }
}

const STATE_MASK: u64 = 0b1111;
/// The bit that the readable states have in common.
const READABLE: u64 = 0b100;
pub(super) const WRITEBACK: u64 = 1 << 4;
pub(super) const WAITED: u64 = 1 << 5;
const TWINS_SHIFT: u32 = 6;
/// Number of bits for the nodes with twins. Node n has bit n modulo this number.
pub(crate) const TWIN_BITS: u32 = 4;
pub(super) const TWINS_MASK: u64 = ((1 << TWIN_BITS) - 1) << TWINS_SHIFT;
const PIN_SHIFT: u32 = TWINS_SHIFT + TWIN_BITS;
pub(super) const PIN_ONE: u64 = 1 << PIN_SHIFT;
/// Maximum number of pins of one slot at a time; one more is refused.
pub const PINS_MAX: u64 = (1 << 10) - 1;
pub(super) const PIN_MASK: u64 = PINS_MAX << PIN_SHIFT;
const VERSION_SHIFT: u32 = 20;
const VERSION_ONE: u64 = 1 << VERSION_SHIFT;

const _: () = assert!(
    PIN_MASK & (STATE_MASK | WRITEBACK | WAITED | TWINS_MASK) == 0,
    "pins share no bit with the flags"
);
const _: () = assert!(TWINS_MASK & (STATE_MASK | WRITEBACK | WAITED) == 0 && WAITED < 1 << TWINS_SHIFT);
const _: () =
    assert!(PIN_MASK < VERSION_ONE && PIN_MASK + PIN_ONE == VERSION_ONE, "pins end where the version starts");
const _: () = assert!((State::Storing as u64) < STATE_MASK && State::Clean as u64 == READABLE);

/// One value of a slot's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub(crate) u64);

impl Word {
    /// Returns the state.
    #[inline(always)]
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Writing,
            3 => State::Detached,
            4 => State::Clean,
            5 => State::Dirty,
            8 => State::Stale,
            9 => State::Copying,
            10 => State::Twin,
            _ => State::Storing,
        }
    }

    /// Returns whether a lookup may find the page of this slot's tag here. A copy of the page does
    /// not count.
    #[inline(always)]
    pub fn findable(self) -> bool {
        self.0 & STATE_MASK < State::Stale as u64 && !matches!(self.state(), State::Free | State::Detached)
    }

    /// Returns whether the slot holds a copy of another node's page, current or not.
    #[inline(always)]
    pub fn is_copy(self) -> bool {
        self.0 & STATE_MASK >= State::Stale as u64
    }

    /// Returns the nodes that may have copies of the page, one bit each. A bit that is not set says
    /// that its nodes have no copy.
    #[inline(always)]
    pub fn twins(self) -> u8 {
        ((self.0 & TWINS_MASK) >> TWINS_SHIFT) as u8
    }

    /// Returns whether the bytes may be read (P3) and pinned (P4).
    #[inline(always)]
    pub fn readable(self) -> bool {
        self.0 & READABLE != 0
    }

    /// Returns whether a thread owns the slot: a fill, a write or a store is in progress.
    #[inline(always)]
    pub fn owned(self) -> bool {
        matches!(self.state(), State::Filling | State::Writing | State::Storing)
    }

    /// Returns whether the slot holds a page that no thread owns.
    #[inline(always)]
    pub(crate) fn unowned(self) -> bool {
        matches!(self.state(), State::Clean | State::Dirty)
    }

    /// Returns whether the slot holds a page that no thread owns and that has no write-back in
    /// flight.
    #[inline(always)]
    pub(crate) fn quiet(self) -> bool {
        self.unowned() && !self.writeback()
    }

    /// Returns whether a write-back of some version of the page is in flight.
    #[inline(always)]
    pub fn writeback(self) -> bool {
        self.0 & WRITEBACK != 0
    }

    /// Returns whether the page is dirty and its range is being cleared (P14).
    #[inline(always)]
    pub fn held(self) -> bool {
        self.state() == State::Storing && self.writeback()
    }

    /// Returns whether a waiter must be woken when the busy state ends.
    #[inline(always)]
    pub fn waited(self) -> bool {
        self.0 & WAITED != 0
    }

    /// Returns the number of pins.
    #[inline(always)]
    pub fn pins(self) -> u64 {
        (self.0 & PIN_MASK) >> PIN_SHIFT
    }

    /// Returns the version of tag and bytes.
    #[inline(always)]
    pub fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT
    }

    /// Returns whether the slot can be claimed: it is free, holds a copy that is not being made, or
    /// holds a clean, unpinned page without write-back.
    #[inline(always)]
    pub fn evictable(self) -> bool {
        matches!(self.state(), State::Free | State::Clean | State::Twin | State::Stale)
            && self.0 & (PIN_MASK | WRITEBACK) == 0
    }

    #[inline(always)]
    pub(crate) fn with_state(self, state: State) -> Word {
        Word(self.0 & !STATE_MASK | state as u64)
    }

    #[inline(always)]
    pub(crate) fn with_twins(self, twins: u8) -> Word {
        Word(self.0 | u64::from(twins) << TWINS_SHIFT & TWINS_MASK)
    }

    #[inline(always)]
    pub(super) fn without(self, flags: u64) -> Word {
        Word(self.0 & !flags)
    }

    /// P10: returns the word with the write-back flag set, if the page is dirty, has no write-back
    /// in flight, and still has the version of `seen`.
    #[inline(always)]
    pub(super) fn with_writeback(self, seen: Word) -> Option<Word> {
        let may = self.state() == State::Dirty && !self.writeback() && self.version() == seen.version();
        may.then_some(Word(self.0 | WRITEBACK))
    }

    /// P9: returns the word without a page: Free, or Detached while it is pinned.
    #[inline(always)]
    pub(super) fn removed(self) -> Word {
        let left = self.without(WAITED | TWINS_MASK);
        match left.pins() {
            0 => left.with_state(State::Free).next_version(),
            _ => left.with_state(State::Detached),
        }
    }

    #[inline(always)]
    pub(crate) fn next_version(self) -> Word {
        Word(self.0.wrapping_add(VERSION_ONE))
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} v{} pins {}", self.state(), self.version(), self.pins())?;
        f.write_str(if self.writeback() { " writeback" } else { "" })?;
        f.write_str(if self.waited() { " waited" } else { "" })?;
        if self.twins() != 0 { write!(f, " twins {:04b}", self.twins()) } else { Ok(()) }
    }
}
