//! Which block is in which place (F4): a table of the engine, whose slots have places in the files.
//!
//! A block's state is that of its slot (P1 to P9 of the table). A block that is being written is in
//! state Filling, one that can be read is Clean, one that is being deleted is Writing. A reader
//! pins it. The policy is the engine's default.
//!
//! A slot gets a place when it is first claimed, and keeps it. If there is no place for it, because
//! the disk is full (F5), the slot is *parked*: claimed for no block, so that the blocks of its set
//! use the other ways. When the files have grown, parked slots are let go.
//!
//! Keys are not kept. A tag has 40 bits of the object's key and the number of the block; 32 more
//! bits of the object's key stand beside the place. The header has the rest (F1).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use octavo_table::{Claim, Found, Mixer, PolicyKind, Shape, SlotIndex, Table, Tag};

use super::key::BlockKey;

/// Number of blocks in a set.
pub(super) const WAYS: usize = 16;

/// Number of segments that an index should at least have: more leave less room unused at its end.
const SEGMENTS_WANTED: u64 = 64;

/// Bits of a table's key for the number of a block. The bits of the number above them go into the
/// object's part.
const BLOCK_BITS: u32 = 24;

/// The index of a tier.
pub(super) struct Index {
    table: Table<WAYS>,
    mixer: Mixer,
    /// By slot: the place plus 1 (0: none) in the low half, bits of the object's key in the high
    /// half. Relaxed: written by the thread that owns the slot; the slot's word orders it (P1, P2).
    places: Box<[AtomicU64]>,
    parked: Mutex<Vec<Tag>>,
}

/// The outcome of a claim.
pub(super) enum Begun<'i> {
    /// The caller owns a slot for the block.
    Owned(Owned<'i>),
    /// The block is there, or is being written or deleted.
    Present,
    /// All slots where the block could be are in use.
    Full,
}

/// A slot that no other thread reads or writes. It must be published, released or parked.
pub(super) struct Owned<'i> {
    index: &'i Index,
    slot: SlotIndex,
    tag: Tag,
    place: Option<u32>,
    evicted: bool,
}

/// A block that stays where it is.
pub(super) struct Pinned<'i> {
    index: &'i Index,
    found: Found<'i>,
    place: u32,
}

/// The part of an object's key that stands beside the place.
fn check_of(key: &BlockKey) -> u64 {
    let bytes = key.object.0[8..12].try_into().expect("four bytes");
    u64::from(u32::from_le_bytes(bytes)) << u32::BITS
}

const PLACE_MASK: u64 = u32::MAX as u64;

impl Index {
    /// Makes an index of at most `places` slots, and at least one set.
    pub fn new(places: u64) -> Index {
        let sets = (places / WAYS as u64).max(1);
        let sets_max = u64::from(octavo_table::SETS_PER_SEGMENT_MAX);
        let wanted = (sets / SEGMENTS_WANTED).clamp(1, sets_max);
        let sets_per_segment = 1 << wanted.ilog2();
        let segments = (sets / sets_per_segment).min(octavo_table::SEGMENTS_MAX.into()) as u32;
        let shape = Shape { segments_max: segments, sets_per_segment: sets_per_segment as u32 };
        let slots = u64::from(segments) * sets_per_segment * WAYS as u64;
        Index {
            table: Table::new(shape, PolicyKind::default(), segments),
            // Another seed for each process: nobody can choose objects of one set.
            mixer: Mixer::new(RandomState::new().hash_one(slots)),
            places: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            parked: Mutex::default(),
        }
    }

    /// Returns the number of slots.
    pub fn places_max(&self) -> u64 {
        self.places.len() as u64
    }

    /// Returns the memory of the index.
    pub fn memory_bytes(&self) -> u64 {
        let table = Table::<WAYS>::memory_bytes(self.table.shape());
        let learning = Table::<WAYS>::learning_bytes(self.table.policy(), self.places_max());
        (table + learning + size_of_val(&*self.places)) as u64
    }

    fn tag(&self, key: &BlockKey) -> Tag {
        let object = u64::from_le_bytes(key.object.0[..8].try_into().expect("eight bytes"));
        let far = octavo_random::mix(key.block >> BLOCK_BITS);
        let near = key.block & ((1 << BLOCK_BITS) - 1);
        self.mixer.tag((object ^ far) << BLOCK_BITS | near)
    }

    fn place_of(&self, slot: SlotIndex) -> &AtomicU64 {
        &self.places[slot.0 as usize]
    }

    /// Whether the slot is of this object, as far as that is known here.
    fn is_of(&self, slot: SlotIndex, key: &BlockKey) -> bool {
        self.place_of(slot).load(Ordering::Relaxed) & !PLACE_MASK == check_of(key)
    }

    /// Returns whether a block can be read now.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.find(key).is_some()
    }

    /// Returns a block, if it can be read.
    pub fn find(&self, key: &BlockKey) -> Option<Pinned<'_>> {
        let found = self.table.find(self.tag(key)).filter(|found| found.word.readable())?;
        // P4. Too many pins, or a change in between: a miss.
        found.slot().pin(found.word).ok()?;
        let place = (self.place_of(found.index).load(Ordering::Relaxed) & PLACE_MASK) as u32;
        let pinned = Pinned { index: self, found, place: place.wrapping_sub(1) };
        self.is_of(found.index, key).then_some(pinned)
    }

    /// Takes a slot for a block: a free one, or one that the policy chooses.
    pub fn claim(&self, key: &BlockKey) -> Begun<'_> {
        let tag = self.tag(key);
        let mut guard = self.table.lock(tag);
        if let Some(found) = guard.find(tag) {
            let is_other = found.word.readable() && !self.is_of(found.index, key);
            // Two objects with the same bits in their tags: the later one stays.
            if !is_other || guard.remove_quiet(&found, false).is_err() {
                return Begun::Present;
            }
        }
        let Claim::Claimed { slot, evicted } = guard.claim(tag) else { return Begun::Full };
        let place = (self.place_of(slot).load(Ordering::Relaxed) & PLACE_MASK) as u32;
        self.place_of(slot).store(check_of(key) | u64::from(place), Ordering::Relaxed);
        let place = place.checked_sub(1);
        Begun::Owned(Owned { index: self, slot, tag, place, evicted: evicted.is_some() })
    }

    /// Lets go of all parked slots.
    pub fn unpark(&self) {
        let parked = std::mem::take(&mut *self.parked.lock().unwrap_or_else(PoisonError::into_inner));
        for tag in parked {
            let mut guard = self.table.lock(tag);
            if let Some(found) = guard.find(tag) {
                // Nobody waits for a slot.
                let _ = guard.remove(found.index);
            }
        }
    }
}

impl Owned<'_> {
    /// Whether another block was evicted for this one.
    pub fn evicted(&self) -> bool {
        self.evicted
    }

    /// Whether the slot has a place.
    pub fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// # Panics
    /// If it has none.
    pub fn place(&self) -> u32 {
        self.place.expect("a slot with a place")
    }

    /// Gives the slot a place. Returns the one that it had.
    pub fn set_place(&mut self, place: u32) -> Option<u32> {
        let word = self.index.place_of(self.slot);
        let check = word.load(Ordering::Relaxed) & !PLACE_MASK;
        word.store(check | (u64::from(place) + 1), Ordering::Relaxed);
        self.place.replace(place)
    }

    /// P2: the block can be read from now on.
    pub fn publish(self) {
        let _ = self.index.table.publish(self.slot, false);
    }

    /// P9: the slot has no block.
    pub fn release(self) {
        let _ = self.index.table.lock(self.tag).remove(self.slot);
    }

    /// Keeps the slot from being claimed.
    pub fn park(self) {
        let index = self.index;
        let mut guard = index.table.lock(self.tag);
        let _ = guard.remove(self.slot);
        let mut parked = index.parked.lock().unwrap_or_else(PoisonError::into_inner);
        // A tag of the same set that no block has, as far as is known.
        let tag = Tag(self.tag.0 ^ (parked.len() as u64 + 1) << Tag::DRAW_SHIFT);
        if guard.find(tag).is_some() {
            return;
        }
        let Claim::Claimed { slot, .. } = guard.claim_ahead(tag) else { return };
        if index.place_of(slot).load(Ordering::Relaxed) & PLACE_MASK == 0 {
            parked.push(tag);
        } else {
            // Another way that was let go in between, which the next claim gets.
            let _ = guard.remove(slot);
        }
    }
}

impl<'i> Pinned<'i> {
    /// Returns the place of the block.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// Notes a hit for the policy.
    pub fn touch(&self) {
        self.index.table.touch(&self.found);
    }

    /// Takes the block away from other threads, to delete it. `None` if others read it.
    pub fn own(self) -> Option<Owned<'i>> {
        let (index, found, place) = (self.index, self.found, self.place);
        let tag = found.tag();
        drop(self);
        // P6: only if the slot has not changed since it was pinned. So the tag is its tag.
        found.slot().begin_write(found.word).ok()?;
        Some(Owned { index, slot: found.index, tag, place: Some(place), evicted: false })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.found.slot().unpin();
    }
}
