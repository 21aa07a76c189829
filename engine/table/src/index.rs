//! The numbers of segments, sets, slots and nodes as types, and [`Found`], the result of a lookup.

use crate::word::slot::{Slot, Word};
use crate::word::tag::Tag;

/// The number of a segment of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u32);

/// The number of a slot of a table, and of the frame that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

/// The number of a set: all sets of segment 0, then those of segment 1, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetNumber(pub(crate) u32);

/// A page that a lookup found, with the word that the lookup saw.
#[derive(Clone, Copy)]
pub struct Found<'t> {
    pub(crate) slot: Slot<'t>,
    /// The number of the page's slot, and of its frame.
    pub index: SlotIndex,
    /// The slot's word at the moment of the lookup.
    pub word: Word,
}

impl<'t> Found<'t> {
    /// Returns the slot.
    #[inline(always)]
    pub fn slot(&self) -> Slot<'t> {
        self.slot
    }

    /// Returns the tag of the page.
    pub fn tag(&self) -> Tag {
        self.slot.tag()
    }
}

/// A NUMA node, by the number that tables give it, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Maximum number of nodes of a table.
pub const NODES_MAX: u32 = 16;
