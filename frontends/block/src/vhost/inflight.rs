//! [`Inflight`]: which requests are in flight, in memory that outlives this process.
//!
//! The VMM keeps the file and gives it to the next process if this one ends. Layout and steps are
//! those of the vhost-user document ("Inflight I/O tracking", split virtqueues), so a successor
//! need not be this program:
//!
//! - **I1** A request that is taken from the ring gets the next number, then its mark.
//! - **I2** A request that ends is made the head of the last batch; then it enters the used ring;
//!   then its mark is cleared; then the used index is copied. Batches have one request.
//! - **I3** A successor that finds the used indices unequal knows that the last batch has entered
//!   the used ring, and clears its mark.
//! - **I4** The successor repeats the marked requests in the order of their numbers. Then it takes
//!   new requests, from the available index that is the used index plus the number of marks.
//!
//! A dirty page that the guest has not flushed is lost with this process. Bit `UNFLUSHED` of a
//! region's features, which the document leaves to the back end, records that there may be such
//! pages: it is set before such a write completes and cleared after a flush. A successor that finds
//! it set must not serve the guest as if nothing was lost.
//!
//! A guest may use more entries than the VMM has asked room for: under QEMU 10, SeaBIOS makes rings
//! of 256 entries, for which QEMU asks 128. The descriptors that are too many for the document's
//! regions lie behind all of them, for each queue as many as its ring may have.
//!
//! The VMM can change all of it at any time. Each value is therefore read once and checked.

use super::fault::Guard;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory, VolatileSlice};

/// The bytes of a region before its descriptors, and of each descriptor.
const HEADER_BYTES: usize = 16;
const DESCRIPTOR_BYTES: usize = 16;
/// The most entries of a ring.
pub(super) const ENTRIES_MAX: u16 = 1024;
/// Regions begin at multiples of this.
const ALIGN_BYTES: usize = 64;

// Offsets in a region.
const FEATURES: usize = 0;
const VERSION: usize = 8;
const COUNT: usize = 10;
const LAST_BATCH: usize = 12;
const USED_INDEX: usize = 14;
// Offsets in a descriptor.
const MARK: usize = 0;
const NEXT: usize = 6;
const NUMBER: usize = 8;

/// The version of the layout.
const VERSION_1: u16 = 1;

/// A bit of a region's features; see the module.
const UNFLUSHED: u64 = 1 << 63;

/// The regions of all queues.
#[derive(Clone, Debug)]
pub(super) struct Inflight {
    // Before the mapping, so that it is dropped first.
    guard: Arc<Guard>,
    mapping: Arc<MmapRegion>,
    queues: u16,
    queue_size: u16,
    /// The bytes of each queue behind all regions.
    more_bytes: usize,
}

fn region_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + DESCRIPTOR_BYTES * usize::from(queue_size)).next_multiple_of(ALIGN_BYTES)
}

/// The bytes behind all regions for a queue of up to `entries` entries.
fn more_bytes(queue_size: u16, entries: u16) -> usize {
    (DESCRIPTOR_BYTES * usize::from(entries.saturating_sub(queue_size))).next_multiple_of(ALIGN_BYTES)
}

impl Inflight {
    /// Makes a file for the regions of `queues` queues of `queue_size` entries, with room for rings
    /// of `entries`, and returns its length.
    pub fn create(queues: u16, queue_size: u16, entries: u16) -> io::Result<(Inflight, File, u64)> {
        let len = (region_bytes(queue_size) + more_bytes(queue_size, entries)) * usize::from(queues);
        let file =
            File::from(memfd_create("octavo-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let inflight = Inflight::map(file.try_clone()?, 0, len as u64, queues, queue_size)?;
        Ok((inflight, file, len as u64))
    }

    /// Maps the regions in a file, `len_bytes` at `offset`.
    pub fn map(
        file: File,
        offset: u64,
        len_bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> io::Result<Inflight> {
        let regions = region_bytes(queue_size) * usize::from(queues);
        let (found, end) = (file.metadata()?, offset.checked_add(len_bytes));
        if queues == 0 || queue_size == 0 || len_bytes < regions as u64 {
            return Err(io::Error::other(format!(
                "the regions of {queues} queues of {queue_size} entries do not fit into {len_bytes} bytes"
            )));
        }
        if !found.is_file() || end.is_none_or(|end| end > found.len()) {
            return Err(io::Error::other("the regions do not lie in the file"));
        }
        // What `create` has added. Another back end may have added nothing, or anything.
        let added = (len_bytes as usize - regions) / usize::from(queues);
        let more_bytes = (added / ALIGN_BYTES * ALIGN_BYTES).min(more_bytes(queue_size, ENTRIES_MAX));
        let mapped = regions + more_bytes * usize::from(queues);
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), mapped);
        let mapping = Arc::new(mapping.map_err(io::Error::other)?);
        let guard = Arc::new(Guard::new(mapping.as_ptr(), mapped)?);
        Ok(Inflight { guard, mapping, queues, queue_size, more_bytes })
    }

    /// Returns the tracker of a queue of `size` entries, if there is room for it.
    pub fn tracker(&self, queue: usize, size: u16) -> Option<Tracker> {
        let entries = usize::from(self.queue_size) + self.more_bytes / DESCRIPTOR_BYTES;
        if queue >= usize::from(self.queues) || usize::from(size) > entries {
            return None;
        }
        let region = region_bytes(self.queue_size);
        let more = region * usize::from(self.queues) + queue * self.more_bytes;
        Some(Tracker { all: self.clone(), start: queue * region, more, size, next_number: 0 })
    }
}

/// The region of one queue.
#[derive(Debug)]
pub(super) struct Tracker {
    all: Inflight,
    /// Where the region begins.
    start: usize,
    /// Where the descriptors lie that the region has no room for.
    more: usize,
    size: u16,
    next_number: u64,
}

/// What a predecessor has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// The requests that were in flight, oldest first.
    pub heads: Vec<u16>,
    /// Writes that the guest has not flushed may be lost.
    pub is_unflushed: bool,
}

impl Tracker {
    /// Takes the region over from a predecessor, if there was one (I3, I4). `used_index` is that of
    /// the used ring.
    pub fn resume(&mut self, used_index: u16) -> io::Result<Left> {
        let broken = |what: &str| Err(io::Error::other(format!("the inflight region is broken: {what}")));
        match self.load::<u16>(VERSION) {
            0 => {
                // The first back end of this region.
                self.store(COUNT, self.size);
                self.store(USED_INDEX, used_index);
                self.store(VERSION, VERSION_1);
                return Ok(Left::default());
            }
            VERSION_1 => {}
            other => return broken(&format!("its version is {other}")),
        }
        if self.load::<u16>(COUNT) != self.size {
            return broken("it belongs to a queue of another size");
        }
        // I3. The batches of another back end may be longer than one.
        let since = used_index.wrapping_sub(self.load::<u16>(USED_INDEX));
        if since > self.size {
            return broken("its used index is not near that of the ring");
        }
        let mut head = self.load::<u16>(LAST_BATCH);
        for _ in 0..since {
            if head >= self.size {
                return broken("a link leads out of it");
            }
            self.store_in::<u8>(head, MARK, 0);
            head = self.load_in(head, NEXT);
        }
        self.store(USED_INDEX, used_index);
        // I4.
        let marked = (0..self.size).filter(|head| self.load_in::<u8>(*head, MARK) != 0);
        let mut heads: Vec<u16> = marked.collect();
        heads.sort_by_key(|head| self.load_in::<u64>(*head, NUMBER));
        let last = heads.last().map(|head| self.load_in::<u64>(*head, NUMBER));
        self.next_number = last.map_or(0, |last| last.wrapping_add(1));
        Ok(Left { heads, is_unflushed: self.load::<u64>(FEATURES) & UNFLUSHED != 0 })
    }

    /// I1.
    pub fn begin(&mut self, head: u16) {
        self.store_in(head, NUMBER, self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        self.store_in::<u8>(head, MARK, 1);
    }

    /// I2, before the request enters the used ring.
    pub fn before_use(&self, head: u16) {
        let last = self.load::<u16>(LAST_BATCH);
        self.store_in(head, NEXT, last);
        self.store(LAST_BATCH, head);
    }

    /// I2, after the request has entered the used ring, whose index is `used_index` now.
    pub fn after_use(&self, head: u16, used_index: u16) {
        self.store_in::<u8>(head, MARK, 0);
        self.store(USED_INDEX, used_index);
    }

    /// Records whether there are completed writes that no flush has made durable.
    pub fn set_unflushed(&self, is_unflushed: bool) {
        let features = self.load::<u64>(FEATURES);
        let new = if is_unflushed { features | UNFLUSHED } else { features & !UNFLUSHED };
        if new != features {
            self.store(FEATURES, new);
        }
    }

    /// Returns whether the file has shrunk.
    pub fn is_lost(&self) -> bool {
        self.all.guard.is_lost()
    }

    fn slice(&self) -> VolatileSlice<'_> {
        self.all.mapping.as_volatile_slice()
    }

    /// Where a field of a descriptor lies in the mapping.
    fn place_in(&self, head: u16, field: usize) -> usize {
        let start = match head.checked_sub(self.all.queue_size) {
            None => self.start + HEADER_BYTES + DESCRIPTOR_BYTES * usize::from(head),
            Some(beyond) => self.more + DESCRIPTOR_BYTES * usize::from(beyond),
        };
        start + field
    }

    fn load_at<T: vm_memory::AtomicAccess>(&self, place: usize) -> T {
        self.slice().load(place, Acquire).expect("the value lies in the mapping, aligned")
    }

    fn store_at<T: vm_memory::AtomicAccess>(&self, place: usize, value: T) {
        // Release: a successor that sees a step sees those before it. The kernel orders more when
        // this process ends, but another processor may look earlier.
        self.slice().store(value, place, Release).expect("the value lies in the mapping, aligned");
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: usize) -> T {
        self.load_at(self.start + at)
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        self.store_at(self.start + at, value);
    }

    fn load_in<T: vm_memory::AtomicAccess>(&self, head: u16, field: usize) -> T {
        self.load_at(self.place_in(head, field))
    }

    fn store_in<T: vm_memory::AtomicAccess>(&self, head: u16, field: usize, value: T) {
        self.store_at(self.place_in(head, field), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under QEMU 10 no disk started: its firmware uses rings of 256 entries, and QEMU asks for a
    /// record of 128.
    #[test]
    fn requests_beyond_the_size_that_was_asked_for_are_recorded_too() {
        let (inflight, file, len_bytes) = Inflight::create(2, 128, 256).unwrap();
        let mut first = inflight.tracker(0, 256).unwrap();
        let mut second = inflight.tracker(1, 256).unwrap();
        for tracker in [&mut first, &mut second] {
            assert_eq!(tracker.resume(0).unwrap(), Left::default());
        }
        for head in [255, 3, 128, 127] {
            second.begin(head);
        }
        first.begin(200);
        second.before_use(3);
        second.after_use(3, 1);
        let successor = Inflight::map(file, 0, len_bytes, 2, 128).unwrap();
        let left =
            |queue, used_index| successor.tracker(queue, 256).unwrap().resume(used_index).unwrap().heads;
        assert_eq!(left(0, 0), [200]);
        assert_eq!(left(1, 1), [255, 128, 127]);
        assert!(successor.tracker(0, 512).is_none() && successor.tracker(2, 4).is_none());
    }

    #[test]
    fn a_record_of_another_back_end_has_the_documents_regions_and_no_more() {
        let (_, file, _) = Inflight::create(2, 128, 256).unwrap();
        let len_bytes = 2 * region_bytes(128) as u64;
        let inflight = Inflight::map(file.try_clone().unwrap(), 0, len_bytes, 2, 128).unwrap();
        assert!(inflight.tracker(1, 128).is_some() && inflight.tracker(1, 129).is_none());
        assert!(Inflight::map(file, 0, len_bytes - 1, 2, 128).is_err());
    }
}
