//! Owned pins: zero-copy views of pages without a lifetime, for holders that outlive a call:
//! buffers of other languages, replies in flight, `bytes::Bytes::from_owner`.
//!
//! An owned pin keeps the memory of its partition mapped. It keeps neither the object open nor the
//! cache running.
//!
//! Not here: what pins keep of a partition's memory (`state/pinned.rs`).

use std::mem::ManuallyDrop;
use std::ops::Deref;

use octavo_table::SlotIndex;

use super::pin::Pin;
use crate::error::Error;
use crate::flight::Object;
use crate::state::partition::PartitionInner;
use crate::sync::Arc;

/// A zero-copy view of a page, as [`Pin`], that any thread may hold for as long as it needs. It
/// borrows nothing: the object may be closed, the partition removed and the cache dropped in the
/// meantime, and the bytes stay.
///
/// A view that is held or forgotten keeps its page and no other memory. If all other handles of the
/// partition are gone, its metadata stays too, until its last view is dropped.
/// [`Partition::pinned_bytes`](crate::Partition::pinned_bytes) shows what is held.
///
/// To share a view, put it into an [`Arc`].
///
/// # Forks
///
/// In a child of `fork(2)` the bytes stay readable until the child exits, and dropping the view
/// does nothing.
pub struct OwnedPin {
    // Dropped by `drop`, but not in a child of `fork`.
    partition: ManuallyDrop<Arc<PartitionInner>>,
    slot: SlotIndex,
    at: *const u8,
    len: usize,
}

// SAFETY: the bytes do not change while the pin lives, and unpinning is an atomic operation on
// the slot. `PartitionInner` is Send and Sync.
unsafe impl Send for OwnedPin {}
// SAFETY: as above.
unsafe impl Sync for OwnedPin {}

impl Deref for OwnedPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: pinned bytes are not changed (P6), not evicted (P1) and not given back (R5), and
        // the partition keeps its addresses mapped.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl AsRef<[u8]> for OwnedPin {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        // The partition of a child of `fork` is a copy whose locks other threads may have held.
        if self.partition.shared.is_forked() {
            return;
        }
        self.partition.unpin(self.slot);
        // SAFETY: nothing uses the partition of a pin after its drop.
        unsafe { ManuallyDrop::drop(&mut self.partition) };
    }
}

impl Pin<'_> {
    /// Turns the view into one without a lifetime. Costs one atomic operation on the partition's
    /// reference count, which all threads share.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, OwnedPin, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// let mut pins = Vec::new();
    /// object.pin_batch(&[0, 4096, 8192], &mut pins)?;
    /// let pages: Vec<OwnedPin> = pins.into_iter().flatten().map(|pin| pin.into_owned()).collect();
    /// drop((object, partition, cache));
    /// assert!(pages.iter().all(|page| page[..] == [0; 4096]));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn into_owned(self) -> OwnedPin {
        let partition = self.partition.me.upgrade().expect("the object of a pin owns its partition");
        // The owned pin releases the slot.
        let pin = ManuallyDrop::new(self);
        OwnedPin { partition: ManuallyDrop::new(partition), slot: pin.slot, at: pin.at, len: pin.len }
    }
}

impl Object {
    /// Returns the view of [`pin`](Object::pin) without a lifetime: the page stays readable, on any
    /// thread, after this object is closed and the cache is dropped.
    ///
    /// # Errors
    /// The errors of [`pin`](Object::pin).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// object.write_at(8192, b"octavo")?;
    /// let page = object.pin_owned(8192)?.expect("the set has room");
    /// object.close()?;
    /// drop((object, partition, cache));
    /// let reader = std::thread::spawn(move || page.starts_with(b"octavo"));
    /// assert!(reader.join().unwrap());
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn pin_owned(&self, offset: u64) -> Result<Option<OwnedPin>, Error> {
        Ok(self.pin(offset)?.map(Pin::into_owned))
    }

    /// Returns the view of [`try_pin`](Object::try_pin) without a lifetime: of a resident page,
    /// without waiting.
    ///
    /// # Errors
    /// The errors of [`try_pin`](Object::try_pin).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig, disk::Store};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// # let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
    /// assert!(object.try_pin_owned(8192)?.is_none(), "nothing is resident yet");
    /// object.write_at(8192, b"octavo")?;
    /// let page = object.try_pin_owned(8192)?.expect("the page is resident");
    /// drop((object, partition, cache));
    /// assert!(page.starts_with(b"octavo"));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn try_pin_owned(&self, offset: u64) -> Result<Option<OwnedPin>, Error> {
        Ok(self.try_pin(offset)?.map(Pin::into_owned))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::{CacheConfig, CacheMode, PartitionConfig};
    use crate::disk::{Engine, Store};
    use crate::flight::{Handle, Lanes};
    use crate::state::partition::{Lease, ObjectInner};
    use crate::state::shared::Shared;

    /// Small, and without a cache's threads, rings and sockets, so that miri can run it.
    #[test]
    fn an_owned_pin_outlives_its_object_and_all_other_handles() {
        fn any_thread<T: Send + Sync + AsRef<[u8]> + 'static>(_: &T) {}
        let config = CacheConfig {
            memory_max_bytes: 1 << 20,
            segment_bytes: 64 << 10,
            buffers_max_bytes: Some(128 << 10),
            background: false,
            engine: Engine::Blocking,
            ..CacheConfig::default()
        };
        let shared = Arc::new(Shared::new(config).unwrap());
        let config = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("p") };
        let partition = PartitionInner::new(&shared, config, 256 << 10).unwrap();
        let lease = Arc::new(Lease(partition.clone()));
        let object = ObjectInner::new(&partition, &lease, Store::memory("m", 64 << 10), "m", 1);
        let lanes = Handle::passing(&Arc::new(Lanes::new(shared)));
        let object = Object { inner: Arc::new(object), lanes };
        object.write_at(4096, &[7; 4096]).unwrap();
        let [here, there] = [4096, 4096].map(|at| object.pin_owned(at).unwrap().unwrap());
        any_thread(&here);
        // The pins keep a snapshot.
        object.write_at(4096, &[8; 4096]).unwrap();
        drop((object, lease, partition));
        assert!(std::thread::spawn(move || there[..] == [7; 4096]).join().unwrap());
        assert_eq!(here[..], [7; 4096]);
    }
}
