//! The events of a recording, including the steps of a table.

use octavo_table::{Learned, PolicyKind, Tag};

/// Number of bits of the page number in a page's key; the object's number is above them.
pub const PAGE_BITS: u32 = 40;

/// The sample bound that includes every page: a page is recorded if its sample number is below the
/// bound.
pub const WHOLE: u32 = 1 << Tag::SAMPLE_BITS;

pub(crate) const OBJECT_BITS: u32 = u64::BITS - PAGE_BITS;
pub(crate) const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;

/// Maximum number of bytes of the name of an object or a partition; longer names are cut.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

/// One recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An access to a page, counted as a hit or a miss.
    Access {
        /// The page's key.
        key: u64,
        /// True for a write.
        write: bool,
        /// True for a hit.
        hit: bool,
    },
    /// A step of the table that concerns one page.
    Step {
        /// The page's key.
        key: u64,
        /// The step.
        step: Step,
    },
    /// A pin was released.
    Unpin {
        /// The pinned slot.
        slot: u32,
    },
    /// A segment came into use. A replay computes the moves that follow from this event.
    Join {
        /// Its number.
        segment: u32,
    },
    /// A segment began to leave. A replay computes the moves that follow from this event. Several
    /// such events in a row: the segments leave together, and the moves follow from all of them.
    Leave {
        /// Its number.
        segment: u32,
    },
    /// All pending moves were made. The table had no page yet.
    Settled,
    /// The last of the pending moves has begun (R1): from here on, pages of its entry are claimed
    /// in the new segment.
    MoveBegun,
    /// The quiet pages of the moving entry in one set of the old segment were moved (R2).
    SetMoved {
        /// The set's place in its segment.
        set: u32,
    },
    /// A pass of the last of the pending moves ended (R4, or a busy page was left behind).
    Advance {
        /// True if the move is done.
        done: bool,
    },
    /// The policy changed.
    Policy {
        /// The new policy.
        policy: PolicyKind,
    },
    /// The engine tried to take an emptied segment out of use.
    Retire {
        /// Its number.
        segment: u32,
        /// True if the segment was retired.
        retired: bool,
    },
    /// The partition's counters since the recording began, including accesses that are not in the
    /// sample.
    Totals(Totals),
    /// An object was opened, or was open when the recording, or this part of it, began.
    Opened {
        /// Its number.
        object: u64,
        /// Its name.
        name: String,
    },
    /// An object is closed, and nothing of it follows: the life of its number ends here. The next
    /// event with this number belongs to another object.
    Closed {
        /// Its number.
        object: u64,
    },
    /// Segments in use when the recording, or this part of it, began.
    Live {
        /// The number of the first segment.
        first: u32,
        /// The number of segments, with consecutive numbers.
        count: u32,
    },
    /// The policy's learned state when the recording, or this part of it, began.
    Learned(Learned),
    /// A page that was resident when the recording, or this part of it, began.
    Resident {
        /// The page's key.
        key: u64,
        /// True if the page was dirty.
        dirty: bool,
        /// The policy's bits of the page (`SetGuard::policy_bits`).
        bits: u16,
    },
}

/// The counters of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of hits.
    pub hits: u64,
    /// Number of misses.
    pub misses: u64,
}

/// A step of the table that concerns one page. The rules are those of [`octavo_table::slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// P1 for a page that was not resident.
    Claim(Place),
    /// P1 for a page that is read ahead.
    ClaimAhead(Place),
    /// P1 for a page that will be requested once.
    ClaimOnce(Place),
    /// P2.
    Publish {
        /// True if the store does not have the page's bytes yet.
        dirty: bool,
    },
    /// P9 for a slot that a thread owns.
    Release,
    /// A hit that was reported to the policy but not counted.
    Touch,
    /// P6, a hit reported to the policy, then P7: the page has new bytes, which the store does not
    /// have.
    Overwrite,
    /// P8: Clean -> Storing, and a hit reported to the policy.
    BeginStore,
    /// P8: Storing -> Writing -> Clean.
    EndStore,
    /// P10.
    BeginWriteback,
    /// P11.
    EndWriteback {
        /// True if the store has the bytes.
        written: bool,
    },
    /// P9 for a page that no thread owns.
    Drop {
        /// True if the step would have removed a dirty page too, and discarded its bytes.
        even_dirty: bool,
    },
    /// P1 for a resident, pinned page, then the move to the new slot, where the page is dirty.
    Supersede(Place),
    /// P1 for a resident, pinned page whose old slot refused the move: the new slot was released.
    SupersedeRefused(Place),
    /// P4.
    Pin {
        /// The slot.
        slot: u32,
    },
    /// The pins of a page at the time of its [`Event::Resident`], including those of earlier
    /// [`Step::Pin`]s.
    Held {
        /// The slot.
        slot: u32,
        /// The number of pins.
        pins: u32,
    },
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Every way was pinned, dirty or busy.
    Full,
    /// The claim took a way of the page's set.
    Way {
        /// The way's number.
        way: u8,
        /// True if another page was evicted.
        evicted: bool,
    },
}

impl Place {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Place::Full => 0x40,
            Place::Way { way, evicted } => way & 0x1f | if evicted { 0x80 } else { 0 },
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Result<Place, &'static str> {
        match byte {
            0x40 => Ok(Place::Full),
            _ if byte & 0x60 == 0 => Ok(Place::Way { way: byte & 0x1f, evicted: byte & 0x80 != 0 }),
            _ => Err("a claim has no such outcome"),
        }
    }
}
