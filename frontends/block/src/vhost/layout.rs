//! [`Layout`]: where a ring lies in the guest's memory, as its VMM describes it.

use super::memory::Memory;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use virtio_queue::{Queue as VirtQueue, QueueT};
use vm_memory::GuestAddress;

/// A ring as the VMM describes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    pub size: u16,
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
    /// The index of the next request to take.
    pub next: u16,
    pub has_event_index: bool,
}

impl Layout {
    /// Returns the ring, if all of it lies in the guest's memory.
    pub fn ring(&self, memory: &Memory) -> io::Result<VirtQueue> {
        let wrong = |error: virtio_queue::Error| io::Error::other(format!("the ring: {error}"));
        let mut ring = VirtQueue::new(self.size).map_err(wrong)?;
        ring.try_set_size(self.size).map_err(wrong)?;
        ring.try_set_desc_table_address(self.descriptors).map_err(wrong)?;
        ring.try_set_avail_ring_address(self.available).map_err(wrong)?;
        ring.try_set_used_ring_address(self.used).map_err(wrong)?;
        ring.set_event_idx(self.has_event_index);
        ring.set_next_avail(self.next);
        ring.set_ready(true);
        if !ring.is_valid(memory.guest()) {
            return Err(io::Error::other("the ring does not lie in the guest's memory"));
        }
        let used = ring.used_idx(memory.guest(), SeqCst).map_err(wrong)?.0;
        ring.set_next_used(used);
        Ok(ring)
    }
}
