//! The engine's part when the table moves pages between segments: copies bytes, wakes waiters,
//! records steps.

use octavo_recording::Event;
use octavo_table::{MoveStep, Mover, SlotIndex};

use super::record::Note;
use crate::memory::copy;
use crate::state::partition::PartitionInner;

/// Copies pages, wakes waiters and records steps while the table moves pages.
pub(crate) struct PageMover<'p> {
    partition: &'p PartitionInner,
    note: Option<Note<'p>>,
}

impl<'p> PageMover<'p> {
    pub fn new(partition: &'p PartitionInner) -> Self {
        PageMover { partition, note: None }
    }
}

impl Mover for PageMover<'_> {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        let frames = &self.partition.frames;
        // SAFETY: the table owns the old slot, so its bytes stay, and has claimed the new one.
        unsafe { copy::copy_in(frames.at(from), frames.at(to), self.partition.page_bytes()) };
    }

    fn wake(&mut self, slot: SlotIndex) {
        self.partition.waiters.wake(slot);
    }

    fn is_recorded(&self) -> bool {
        self.partition.is_recorded_whole()
    }

    fn begin_step(&mut self) {
        self.note = Some(self.partition.note());
    }

    fn end_step(&mut self, step: Option<MoveStep>) {
        if let (Some(note), Some(step)) = (self.note.take(), step) {
            note.event(|| match step {
                MoveStep::Begin => Event::MoveBegun,
                MoveStep::Set(set) => Event::SetMoved { set },
                MoveStep::End { done } => Event::Advance { done },
            });
        }
    }
}
