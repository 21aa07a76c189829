//! What a recording says: the accesses to a partition's pages, and every step of its table that
//! decides what the next access finds.
//!
//! A table that is taken through the same steps in the same order holds the same pages: hits and
//! misses are not read from a recording but happen again. What an access found is written down too,
//! so that a replay can be compared with what was, access by access; and accesses alone are a
//! trace, for caches of another kind.
//!
//! Events are one byte and what it asks for. The byte's upper half says what happened, the lower
//! half where: a small step from the page before, or that a longer one follows. A hit takes one to
//! four bytes. Bytes are read in *blocks*, each of which can be understood alone
//! ([`Encoder::take`], [`Decoder::new`]).
//!
//! What is not here: files, checksums, compression, time (`octavo-sim`); when an event is written
//! (the engine); what it does to a table (`octavo-sim`).

mod decoder;
mod header;
// No unsafe code here that an interpreter would have to see, and much to do for one.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests;

use octavo_table::{Learned, PolicyKind, Tag};

pub use decoder::{Decoder, Malformed};
pub use header::{Header, Secret};

/// A page's key is its object's number above this many bits of page number.
pub const PAGE_BITS: u32 = 40;

/// A sample's bound that leaves no page out: pages whose sample number lies below the bound are
/// recorded.
pub const WHOLE: u32 = 1 << Tag::SAMPLE_BITS;

const OBJECT_BITS: u32 = u64::BITS - PAGE_BITS;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;

/// The longest name of an object or a partition that is written down; more is cut off.
const NAME_BYTES_MAX: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A look at a page that was counted as a hit or a miss.
    Access {
        /// The page.
        key: u64,
        /// By a write.
        write: bool,
        /// The page was there.
        hit: bool,
    },
    /// A step of the table that concerns one page.
    Step {
        /// The page.
        key: u64,
        /// What was done.
        step: Step,
    },
    /// A pin has gone.
    Unpin {
        /// The slot that it held.
        slot: u32,
    },
    /// A segment came into use; the moves to be made follow from that.
    Join {
        /// Its number.
        segment: u32,
    },
    /// A segment is to leave; the moves to be made follow from that.
    Leave {
        /// Its number.
        segment: u32,
    },
    /// All moves to be made were made, before the table had any page.
    Settled,
    /// The last of the moves to be made has begun: pages of its entry are claimed in the new
    /// segment from here on.
    MoveBegun,
    /// The pages of the moving entry that one set of the old segment had were moved, as far as they
    /// were quiet.
    SetMoved {
        /// The set's place in its segment.
        set: u32,
    },
    /// A pass over the last of the moves to be made.
    Advance {
        /// It is done.
        done: bool,
    },
    /// Another policy was followed from here on.
    Policy {
        /// Which.
        policy: PolicyKind,
    },
    /// An emptied segment was to be taken out of use.
    Retire {
        /// Its number.
        segment: u32,
        /// It was.
        retired: bool,
    },
    /// What the partition has counted since the recording began, sampled or not.
    Totals(Totals),
    /// An object was opened.
    Opened {
        /// Its number.
        object: u64,
        /// Its name.
        name: String,
    },
    /// Segments that were in use when the recording, or this part of it, began.
    Live {
        /// The first one's number.
        first: u32,
        /// How many, one after the other.
        count: u32,
    },
    /// What the policy had learned when the recording, or this part of it, began.
    Learned(Learned),
    /// A page that was there when the recording, or this part of it, began.
    Resident {
        /// The page.
        key: u64,
        /// It was dirty.
        dirty: bool,
        /// What the policy knew of it (`SetGuard::policy_bits`).
        bits: u16,
    },
}

/// What the partition has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pages that were there.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
}

/// A step of the table that concerns one page. The rules are those of [`octavo_table::slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// P1 for a page that was not there.
    Claim(Place),
    /// The same for one that nobody had asked for yet.
    ClaimAhead(Place),
    /// The same for one that is wanted once.
    ClaimOnce(Place),
    /// P2.
    Publish {
        /// With bytes that the store does not have.
        dirty: bool,
    },
    /// P9 for a slot in its owner's hands.
    Release,
    /// A hit that was not counted: the policy was told.
    Touch,
    /// P6, the policy was told, P7: new bytes, which the store does not have.
    Overwrite,
    /// P8: Clean -> Storing, and the policy was told.
    BeginStore,
    /// P8: Storing -> Writing -> Clean.
    EndStore,
    /// P10.
    BeginWriteback,
    /// P11.
    EndWriteback {
        /// The store has the bytes.
        written: bool,
    },
    /// P9 for a page that nobody has in hands.
    Drop {
        /// Its bytes were given up, had it been dirty.
        even_dirty: bool,
    },
    /// P1 for a page that is there and pinned, then the move to the new slot, dirty.
    Supersede(Place),
    /// The same, where the old slot would not be moved: the new one was let go.
    SupersedeRefused(Place),
    /// P4.
    Pin {
        /// The slot.
        slot: u32,
    },
    /// Pins that a page had when it was listed, also those of [`Step::Pin`]s before.
    Held {
        /// The slot.
        slot: u32,
        /// How many.
        pins: u32,
    },
}

/// Where a claim led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Every way was pinned, dirty or busy.
    Full,
    /// A way of the page's set.
    Way {
        /// Which.
        way: u8,
        /// Another page had to leave.
        evicted: bool,
    },
}

impl Place {
    fn to_byte(self) -> u8 {
        match self {
            Place::Full => 0x40,
            Place::Way { way, evicted } => way & 0x1f | if evicted { 0x80 } else { 0 },
        }
    }

    fn from_byte(byte: u8) -> Result<Place, &'static str> {
        match byte {
            0x40 => Ok(Place::Full),
            _ if byte & 0x60 == 0 => Ok(Place::Way { way: byte & 0x1f, evicted: byte & 0x80 != 0 }),
            _ => Err("no outcome of a claim"),
        }
    }
}

/// What happened, in the byte's upper half.
mod op {
    /// With a bit for a hit and one for a write.
    pub const ACCESS: u8 = 0;
    pub const ACCESS_LAST: u8 = ACCESS + HIT + WRITE;
    pub const HIT: u8 = 1;
    pub const WRITE: u8 = 2;
    pub const CLAIM: u8 = 4;
    pub const PUBLISH_CLEAN: u8 = 5;
    pub const PUBLISH_DIRTY: u8 = 6;
    pub const TOUCH: u8 = 7;
    pub const OVERWRITE: u8 = 8;
    pub const BEGIN_STORE: u8 = 9;
    pub const END_STORE: u8 = 10;
    pub const BEGIN_WRITEBACK: u8 = 11;
    pub const WRITTEN_BACK: u8 = 12;
    pub const RESIDENT: u8 = 13;
    /// Of a page, and what is in the byte behind the place.
    pub const SELDOM: u8 = 14;
    /// Of no page; the lower half says what.
    pub const WITHOUT_PAGE: u8 = 15;
}

mod seldom {
    pub const RELEASE: u8 = 0;
    pub const NOT_WRITTEN_BACK: u8 = 1;
    pub const DROP: u8 = 2;
    pub const DROP_EVEN_DIRTY: u8 = 3;
    pub const SUPERSEDE: u8 = 4;
    pub const SUPERSEDE_REFUSED: u8 = 5;
    pub const PIN: u8 = 6;
    pub const RESIDENT_DIRTY: u8 = 7;
    pub const CLAIM_AHEAD: u8 = 8;
    pub const CLAIM_ONCE: u8 = 9;
    pub const HELD: u8 = 10;
}

mod without_page {
    pub const UNPIN: u8 = 0;
    pub const JOIN: u8 = 1;
    pub const LEAVE: u8 = 2;
    pub const ADVANCE_BUSY: u8 = 3;
    pub const ADVANCE_DONE: u8 = 4;
    pub const RETIRE_REFUSED: u8 = 5;
    pub const RETIRE: u8 = 6;
    pub const TOTALS: u8 = 7;
    pub const OPENED: u8 = 8;
    pub const POLICY: u8 = 9;
    pub const LIVE: u8 = 10;
    pub const LEARNED: u8 = 11;
    pub const MOVE_BEGUN: u8 = 12;
    pub const SET_MOVED: u8 = 13;
    pub const SETTLED: u8 = 14;
}

/// Where it happened, in the lower half: so much less this many pages from the page before, of the
/// same object.
const NEAR_BACK: i64 = 4;
const NEAR_END: u8 = 14;
/// The distance follows.
const FAR: u8 = 14;
/// The object's number follows, and the distance from its last page.
const ELSEWHERE: u8 = 15;

/// The page that was spoken of last, and those of a few objects before it.
struct Last {
    object: u64,
    page: u64,
    others: [(u64, u64); Last::OBJECTS],
}

impl Last {
    const OBJECTS: usize = 16;

    /// No object has the number that all start with.
    fn new() -> Last {
        Last { object: u64::MAX, page: 0, others: [(u64::MAX, 0); Last::OBJECTS] }
    }

    /// Another object is spoken of: `page` is its last one.
    #[cold]
    fn turn_to(&mut self, object: u64) {
        self.others[self.object as usize % Last::OBJECTS] = (self.object, self.page);
        let (known, page) = self.others[object as usize % Last::OBJECTS];
        (self.object, self.page) = (object, if known == object { page } else { 0 });
    }
}

const _: () = assert!(NAME_BYTES_MAX + 32 < Encoder::EVENT_BYTES_MAX);

/// Writes events.
pub struct Encoder {
    bytes: Vec<u8>,
    last: Last,
}

impl Encoder {
    /// The most bytes of one event.
    pub const EVENT_BYTES_MAX: usize =
        if NAME_BYTES_MAX > 2 * Learned::DENSITIES_MAX { NAME_BYTES_MAX } else { 2 * Learned::DENSITIES_MAX }
            + 32;

    /// Writes behind what is in `bytes`, which is nothing, so that its memory is used.
    pub fn new(bytes: Vec<u8>) -> Encoder {
        debug_assert!(bytes.is_empty());
        Encoder { bytes, last: Last::new() }
    }

    /// Bytes written since the last block.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Ends the block and gives it; the next is written to `bytes`.
    pub fn take(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        debug_assert!(bytes.is_empty());
        self.last = Last::new();
        std::mem::replace(&mut self.bytes, bytes)
    }

    /// Writes a look at a page, the most frequent event.
    #[inline]
    pub fn access(&mut self, key: u64, write: bool, hit: bool) {
        self.page(op::ACCESS + op::HIT * u8::from(hit) + op::WRITE * u8::from(write), key);
    }

    /// Writes an event.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Access { key, write, hit } => self.access(*key, *write, *hit),
            Event::Step { key, step } => self.step(*key, *step),
            Event::Unpin { slot } => self.without_page(without_page::UNPIN, &[u64::from(*slot)]),
            Event::Join { segment } => self.without_page(without_page::JOIN, &[u64::from(*segment)]),
            Event::Leave { segment } => self.without_page(without_page::LEAVE, &[u64::from(*segment)]),
            Event::Settled => self.without_page(without_page::SETTLED, &[]),
            Event::MoveBegun => self.without_page(without_page::MOVE_BEGUN, &[]),
            Event::SetMoved { set } => self.without_page(without_page::SET_MOVED, &[u64::from(*set)]),
            Event::Advance { done } => {
                let kind = if *done { without_page::ADVANCE_DONE } else { without_page::ADVANCE_BUSY };
                self.without_page(kind, &[]);
            }
            Event::Retire { segment, retired } => {
                let kind = if *retired { without_page::RETIRE } else { without_page::RETIRE_REFUSED };
                self.without_page(kind, &[u64::from(*segment)]);
            }
            Event::Policy { policy } => {
                self.without_page(without_page::POLICY, &[]);
                self.name(policy.name());
            }
            Event::Totals(Totals { hits, misses }) => {
                self.without_page(without_page::TOTALS, &[*hits, *misses]);
            }
            Event::Opened { object, name } => {
                self.without_page(without_page::OPENED, &[*object]);
                self.name(name);
            }
            Event::Live { first, count } => {
                self.without_page(without_page::LIVE, &[u64::from(*first), u64::from(*count)]);
            }
            Event::Learned(Learned { leader, misses, densities }) => {
                let counts = [*leader as usize, misses.len(), densities.len()].map(|count| count as u64);
                self.without_page(without_page::LEARNED, &counts);
                misses
                    .iter()
                    .flat_map(|(late, all)| [*late, *all])
                    .for_each(|number| self.number(number.into()));
                densities.iter().for_each(|density| self.bytes.extend(density.to_le_bytes()));
            }
            Event::Resident { key, dirty, bits } => {
                match dirty {
                    false => self.page(op::RESIDENT, *key),
                    true => self.seldom(seldom::RESIDENT_DIRTY, *key),
                }
                self.bytes.extend(bits.to_le_bytes());
            }
        }
    }

    /// Writes a step.
    pub fn step(&mut self, key: u64, step: Step) {
        match step {
            Step::Claim(place) => {
                self.page(op::CLAIM, key);
                self.bytes.push(place.to_byte());
            }
            Step::ClaimAhead(place) => {
                self.seldom(seldom::CLAIM_AHEAD, key);
                self.bytes.push(place.to_byte());
            }
            Step::ClaimOnce(place) => {
                self.seldom(seldom::CLAIM_ONCE, key);
                self.bytes.push(place.to_byte());
            }
            Step::Publish { dirty: false } => self.page(op::PUBLISH_CLEAN, key),
            Step::Publish { dirty: true } => self.page(op::PUBLISH_DIRTY, key),
            Step::Touch => self.page(op::TOUCH, key),
            Step::Overwrite => self.page(op::OVERWRITE, key),
            Step::BeginStore => self.page(op::BEGIN_STORE, key),
            Step::EndStore => self.page(op::END_STORE, key),
            Step::BeginWriteback => self.page(op::BEGIN_WRITEBACK, key),
            Step::EndWriteback { written: true } => self.page(op::WRITTEN_BACK, key),
            Step::EndWriteback { written: false } => self.seldom(seldom::NOT_WRITTEN_BACK, key),
            Step::Release => self.seldom(seldom::RELEASE, key),
            Step::Drop { even_dirty: false } => self.seldom(seldom::DROP, key),
            Step::Drop { even_dirty: true } => self.seldom(seldom::DROP_EVEN_DIRTY, key),
            Step::Supersede(place) => {
                self.seldom(seldom::SUPERSEDE, key);
                self.bytes.push(place.to_byte());
            }
            Step::SupersedeRefused(place) => {
                self.seldom(seldom::SUPERSEDE_REFUSED, key);
                self.bytes.push(place.to_byte());
            }
            Step::Pin { slot } => {
                self.seldom(seldom::PIN, key);
                self.number(u64::from(slot));
            }
            Step::Held { slot, pins } => {
                self.seldom(seldom::HELD, key);
                self.number(u64::from(slot));
                self.number(u64::from(pins));
            }
        }
    }

    #[inline]
    fn page(&mut self, op: u8, key: u64) {
        let (object, page) = (key >> PAGE_BITS, key & PAGE_MASK);
        let here = self.last.object == object;
        if !here {
            self.last.turn_to(object);
        }
        let distance = page as i64 - std::mem::replace(&mut self.last.page, page) as i64;
        let near = distance + NEAR_BACK;
        if here && (0..i64::from(NEAR_END)).contains(&near) {
            return self.bytes.push(op << 4 | near as u8);
        }
        if here {
            self.bytes.push(op << 4 | FAR);
        } else {
            self.bytes.push(op << 4 | ELSEWHERE);
            self.number(object);
        }
        self.number((distance << 1 ^ distance >> 63) as u64);
    }

    fn seldom(&mut self, kind: u8, key: u64) {
        self.page(op::SELDOM, key);
        self.bytes.push(kind);
    }

    fn without_page(&mut self, kind: u8, numbers: &[u64]) {
        self.bytes.push(op::WITHOUT_PAGE << 4 | kind);
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn name(&mut self, name: &str) {
        push_name(&mut self.bytes, name);
    }

    fn number(&mut self, number: u64) {
        push_number(&mut self.bytes, number);
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn push_name(bytes: &mut Vec<u8>, name: &str) {
    let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    push_number(bytes, name.len() as u64);
    bytes.extend(name.as_bytes());
}
