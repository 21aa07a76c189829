//! The usual miss: a blocking read of bytes of one page that is not resident, by a thread that
//! waits for nothing else. It takes the steps of `read.rs` on the caller's stack, without a lane, a
//! task or an allocation.
//!
//! 1. Under the set's lock, check that the page is not resident, not a stray and not in a closed
//!    range, that the object is open, and that a way of its set can be claimed. If not, the read
//!    becomes a task.
//! 2. Count the miss, and claim a slot (P1).
//! 3. Tell the object's streams. If pages are to be read ahead, the read becomes a task that has
//!    claimed its page, so that adjacent pages travel in one I/O.
//! 4. Read the page into its frame, with one system call.
//! 5. Copy the bytes to the caller, and publish the slot (P2), which wakes tasks that have
//!    registered with it (P12). If the read failed, remove the page (P9).
//!
//! Not here: reads of several pages, and everything that a read may have to wait for.

use std::time::Instant;

use octavo_disk::{IoBuffer, Ring};
use octavo_table::{SlotIndex, Tag};

use super::blocking::Object;
use super::read_ahead;
use super::task::{Job, Task};
use crate::error::Error;
use crate::memory::{Lent, copy};
use crate::pages::steps::{Claimed, Claiming};
use crate::position::{ByteOffset, PageIndex};
use crate::state::counters::Count;
use crate::state::latency::Timed;
use crate::state::partition::ObjectInner;

/// The bytes of a read, which lie in one page.
#[derive(Clone, Copy)]
struct Wanted {
    page: PageIndex,
    tag: Tag,
    /// Offset of the bytes in the page.
    skip: usize,
    memory: *mut u8,
    len: usize,
}

impl Object {
    /// Reads `len` bytes inside the page `tag`, whose request was counted.
    ///
    /// # Safety
    /// `memory` is valid for writes of `len` bytes, and the range lies in the page.
    pub(crate) unsafe fn read_alone(
        &self,
        tag: Tag,
        offset: ByteOffset,
        memory: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        let (object, partition) = (&*self.inner, &*self.inner.partition);
        let page = partition.page_size.page_of(offset);
        let skip = partition.page_size.offset_in_page(offset);
        let wanted = Wanted { page, tag, skip, memory, len };
        let task = || Task::new(Job::Read, self.inner.clone(), offset, Lent::one_piece(memory), len);
        let Some(claimed) = object.claim_alone(&wanted) else { return self.run(task()) };
        let Some(slot) = claimed else {
            // The access was counted.
            return self.run(task().tried_once());
        };
        match read_ahead::wanted_next(object, page..page + 1) {
            None => {
                // SAFETY: the caller's promise, and the slot was claimed for the page.
                unsafe { object.fill_alone(&wanted, slot) }
            }
            Some(ahead) => match self.lanes.borrow() {
                Ok(lane) => lane.run_claimed(task(), slot, ahead),
                Err(error) => {
                    partition.release(wanted.tag, slot);
                    Err(error)
                }
            },
        }
    }
}

impl ObjectInner {
    /// Steps 1 and 2. Returns `None`, with nothing counted, if the read needs a task, and
    /// `Some(None)` if it turned out to need one after the access was counted.
    fn claim_alone(&self, wanted: &Wanted) -> Option<Option<SlotIndex>> {
        let (partition, tag) = (&*self.partition, wanted.tag);
        // A recording sees the look at the page and the access as one step, a twin may save the
        // read, and a simulated disk advances only while threads look at their rings.
        let shared = &*partition.shared;
        let needs_task = partition.is_recorded_whole() || partition.places.replicates || shared.simulated();
        if needs_task || shared.is_forked() || wanted.len == 0 {
            return None;
        }
        let guard = partition.table.lock(tag);
        if guard.find(tag).is_some()
            || partition.strays.has(tag)
            || self.ranges.is_closed(wanted.page)
            || self.takes_no_page()
            || !guard.has_room()
        {
            return None;
        }
        partition.count_access(tag, false, false);
        let claiming = if self.streams.is_once() { Claiming::FillOnce } else { Claiming::Fill };
        let slot = match partition.claim(guard, tag, claiming) {
            Claimed::Slot(slot) => Some(slot),
            Claimed::Full(_) | Claimed::Resident => None,
        };
        partition.charge_access(tag, wanted.len, 1);
        Some(slot)
    }

    /// Steps 4 and 5.
    ///
    /// # Safety
    /// As `Object::read_alone`, and the caller has claimed `slot` for the page.
    unsafe fn fill_alone(&self, wanted: &Wanted, slot: SlotIndex) -> Result<(), Error> {
        let partition = &*self.partition;
        let frame = partition.frames.at(slot);
        let buffer = IoBuffer { ptr: frame, len: partition.page_bytes() };
        let offset = partition.page_size.start_of(wanted.page).0;
        // SAFETY: the frame is in state Filling, so no other thread touches it. It stays mapped.
        let (begun, read) = (Instant::now(), unsafe { Ring::read_alone(&self.store, offset, buffer) });
        partition.counters.add_time(Timed::Store, begun.elapsed());
        if let Err(source) = read {
            partition.release(wanted.tag, slot);
            partition.counters.add(Count::ReadErrors, 1);
            return Err(self.io_error(&source));
        }
        let bytes = frame.wrapping_add(wanted.skip);
        copy::prefetch(bytes, wanted.len);
        // SAFETY: the frame is ours until `publish` (P1, P2), and the memory is the caller's.
        unsafe { copy::copy_out(bytes, wanted.memory, wanted.len) };
        partition.counters.add(Count::Fills, 1);
        partition.publish(slot, false);
        Ok(())
    }
}
