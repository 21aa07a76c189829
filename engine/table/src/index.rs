//! Names of places in a table: segments, sets, slots, nodes; and a page that was found in one.

use crate::word::slot::{Slot, Word};
use crate::word::tag::Tag;

/// A segment of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u32);

/// A slot of a table, and the frame that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

/// A set: all sets of segment 0, then those of segment 1, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetNumber(pub(crate) u32);

/// A page that was found, with the word it was found by.
#[derive(Clone, Copy)]
pub struct Found<'t> {
    pub(crate) slot: Slot<'t>,
    /// Its slot, and frame.
    pub index: SlotIndex,
    /// Its word at that moment.
    pub word: Word,
}

impl<'t> Found<'t> {
    /// The slot.
    #[inline(always)]
    pub fn slot(&self) -> Slot<'t> {
        self.slot
    }

    /// The page.
    pub fn tag(&self) -> Tag {
        self.slot.tag()
    }
}

/// A node, as tables number them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Most nodes of a table.
pub const NODES_MAX: u32 = 16;
