//! Encodes events into blocks.

use octavo_table::Learned;

use crate::code::{
    ELSEWHERE, FAR, Last, NEAR_BACK, NEAR_END, more, op, push_name, push_number, seldom, without_page,
};
use crate::event::{Event, NAME_BYTES_MAX, PAGE_BITS, PAGE_MASK, Place, Step, Totals};

const _: () = assert!(NAME_BYTES_MAX + 32 < Encoder::EVENT_BYTES_MAX);

/// Encodes events.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    last: Last,
}

impl Encoder {
    /// Maximum number of bytes of one event.
    pub const EVENT_BYTES_MAX: usize =
        if NAME_BYTES_MAX > 2 * Learned::DENSITIES_MAX { NAME_BYTES_MAX } else { 2 * Learned::DENSITIES_MAX }
            + 32;

    /// Creates an encoder that reuses the memory of `bytes`, which must be empty.
    pub fn new(bytes: Vec<u8>) -> Encoder {
        debug_assert!(bytes.is_empty());
        Encoder { bytes, last: Last::new() }
    }

    /// Returns the number of bytes encoded since the last block.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether no byte was encoded since the last block.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Ends the block and returns it. The next block reuses the memory of `bytes`, which must be
    /// empty.
    pub fn take(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        debug_assert!(bytes.is_empty());
        self.last = Last::new();
        std::mem::replace(&mut self.bytes, bytes)
    }

    /// Encodes an access to a page, the most frequent event.
    #[inline]
    pub fn access(&mut self, key: u64, write: bool, hit: bool) {
        self.page(op::ACCESS + op::HIT * u8::from(hit) + op::WRITE * u8::from(write), key);
    }

    /// Encodes an event.
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
            Event::Closed { object } => self.more(more::CLOSED, &[*object]),
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

    /// Encodes a step.
    pub fn step(&mut self, key: u64, step: Step) {
        match step {
            Step::Claim(place) => {
                self.page(op::CLAIM, key);
                self.bytes.push(place.to_byte());
            }
            Step::ClaimAhead(place) => self.seldom_claim(seldom::CLAIM_AHEAD, key, place),
            Step::ClaimOnce(place) => self.seldom_claim(seldom::CLAIM_ONCE, key, place),
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
            Step::Supersede(place) => self.seldom_claim(seldom::SUPERSEDE, key, place),
            Step::SupersedeRefused(place) => self.seldom_claim(seldom::SUPERSEDE_REFUSED, key, place),
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

    fn seldom_claim(&mut self, kind: u8, key: u64, place: Place) {
        self.seldom(kind, key);
        self.bytes.push(place.to_byte());
    }

    fn without_page(&mut self, kind: u8, numbers: &[u64]) {
        self.bytes.push(op::WITHOUT_PAGE << 4 | kind);
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn more(&mut self, kind: u8, numbers: &[u64]) {
        self.without_page(without_page::MORE, &[]);
        self.bytes.push(kind);
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn name(&mut self, name: &str) {
        push_name(&mut self.bytes, name);
    }

    fn number(&mut self, number: u64) {
        push_number(&mut self.bytes, number);
    }
}
