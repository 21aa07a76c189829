//! What pins keep of a partition's memory: their pages, and nothing else.
//!
//! - A resize moves a pinned page as any other, and leaves a snapshot for the pins in the old slot
//!   (Detached). The segment is taken out of use all the same (R5). Its other frames go back to the
//!   system, and only the snapshots' frames stay charged.
//! - A frame whose last pin is dropped goes back at the next resize, period of the reaper, or close
//!   of an object: an unpin itself costs one atomic operation.
//! - If a partition grows again, a segment with snapshots may join like any other. Until the last
//!   unpin the snapshots' ways are missing in their sets.
//! - If owned pins outlive all other handles of a partition, its addresses stay mapped until the
//!   last of them is dropped. All frames without a pin go back when the last other handle is
//!   dropped (`Lease` in `partition.rs`).
//!
//! Not here: what a pin guarantees (P4, P5 of `octavo_table`), the pins themselves (`api/pin.rs`).

use octavo_table::{SegmentIndex, SlotIndex};

use super::costs::Kept;
use super::partition::PartitionInner;
use crate::error::Error;
use crate::sync::{lock, try_lock};

impl PartitionInner {
    /// Returns the number of pages with at least one pin, snapshots included. Looks at the word of
    /// each slot, without a lock.
    pub fn pinned_pages(&self) -> u64 {
        let behind = self.segments_with_snapshots().into_iter().map(|(segment, _)| segment);
        let segments: Vec<SegmentIndex> = self.table.segments().chain(behind).collect();
        segments.into_iter().map(|segment| self.pinned_in(segment).count() as u64).sum()
    }

    fn pinned_in(&self, segment: SegmentIndex) -> impl Iterator<Item = SlotIndex> {
        self.table.slots_of(segment).filter(|(_, word)| word.pins() > 0).map(|(slot, _)| slot)
    }

    /// Gives back the frames of a segment that has just been taken out of use, except those of
    /// snapshots (R5).
    pub fn give_back_emptied(&self, segment: SegmentIndex) -> Result<(), Error> {
        let kept = self.give_back_all_but(segment, &self.table.snapshots_in(segment));
        let learning = self.learning_bytes(self.table.live_segments());
        lock(&self.costs).give_back(segment, kept, learning)
    }

    /// Gives back the frames of snapshots that are no longer pinned, in segments not in use. The
    /// caller holds `resizing`, so no segment joins meanwhile.
    pub fn give_back_unpinned(&self) -> Result<(), Error> {
        for (segment, frames) in self.segments_with_snapshots() {
            let snapshots = self.table.snapshots_in(segment);
            if snapshots.len() < frames {
                let kept = self.give_back_all_but(segment, &snapshots);
                lock(&self.costs).give_back_more(segment, kept)?;
            }
        }
        Ok(())
    }

    /// Does what `give_back_unpinned` does, unless another thread is resizing the partition, and so
    /// does the same.
    pub fn try_give_back_unpinned(&self) {
        if self.segments_with_snapshots().is_empty() {
            return;
        }
        let Some(_resizing) = try_lock(&self.resizing) else { return };
        if let Err(error) = self.give_back_unpinned() {
            log::debug!("partition {}: {error}", self.config.name);
        }
    }

    /// Gives back all frames without a pin. No handle but pins is left: no thread can pin a page
    /// any more, nor use a frame that is not pinned.
    pub fn leave_to_pins(&self) {
        let pages = self.pinned_pages();
        if pages > 0 {
            log::warn!(
                "partition {}: {pages} pages ({} bytes) are still pinned; their memory stays until \
                 all pins of the partition are dropped",
                self.config.name,
                self.page_size.len_of(pages)
            );
        }
        self.try_give_back_unpinned();
        let learning = lock(&self.costs).learning_bytes();
        for segment in self.table.segments() {
            let pinned: Vec<SlotIndex> = self.pinned_in(segment).collect();
            let kept = self.give_back_all_but(segment, &pinned);
            if let Err(error) = lock(&self.costs).give_back(segment, kept, learning) {
                log::debug!("partition {}: {error}", self.config.name);
            }
        }
    }

    /// Gives back the frames of a segment, except those of the slots `kept`. No thread may use the
    /// others.
    fn give_back_all_but(&self, segment: SegmentIndex, kept: &[SlotIndex]) -> Kept {
        Kept { bytes: self.frames.give_back(segment, kept), frames: kept.len() }
    }

    /// Segments not in use in which pins keep snapshots, and the number of the frames that they
    /// keep.
    fn segments_with_snapshots(&self) -> Vec<(SegmentIndex, usize)> {
        let costs = lock(&self.costs);
        let kept = costs.left_behind().iter().filter(|left| left.kept.frames > 0);
        kept.map(|left| (left.segment, left.kept.frames)).collect()
    }
}
