//! [`Memory`]: a guest's memory, as its VMM shares it: regions of files, mapped into this process.
//!
//! All accesses are bounded by `vm-memory`, which finds the region of a guest's address. Each
//! change of the regions makes a new `Memory`, which shares the regions that stay. A request keeps
//! the `Memory` that it began with, so its regions stay mapped until it has ended.

use super::fault::Guard;
use octavo::{Object, Piece, RawRead};
use std::fs::File;
use std::io;
use std::sync::Arc;
use vm_memory::mmap::MmapRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

/// The most regions of a guest's memory.
pub(super) const REGIONS_MAX: usize = 64;

/// A region as the VMM describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub guest_address: u64,
    pub len_bytes: u64,
    /// Where the VMM has mapped the region in its own memory. It uses such addresses for rings.
    pub vmm_address: u64,
    pub file_offset: u64,
}

/// The mapped memory of a guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    guest: GuestMemoryMmap<()>,
    regions: Vec<Arc<Region>>,
}

#[derive(Debug)]
struct Region {
    // Before the mapping, so that it is dropped first.
    guard: Guard,
    mapping: Arc<GuestRegionMmap<()>>,
    place: Place,
}

impl Memory {
    /// Returns this memory with another region.
    pub fn with(&self, place: Place, file: File) -> io::Result<Memory> {
        if self.regions.len() == REGIONS_MAX {
            return Err(io::Error::other(format!("more than {REGIONS_MAX} regions")));
        }
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region::map(place, file)?));
        Memory::of(regions)
    }

    /// Returns this memory without a region.
    pub fn without(&self, place: Place) -> io::Result<Memory> {
        let is_it = |region: &Arc<Region>| {
            let found = region.place;
            (found.guest_address, found.len_bytes, found.vmm_address)
                == (place.guest_address, place.len_bytes, place.vmm_address)
        };
        let mut regions = self.regions.clone();
        let before = regions.len();
        regions.retain(|region| !is_it(region));
        match regions.len() < before {
            true => Memory::of(regions),
            false => Err(io::Error::other("there is no such region")),
        }
    }

    fn of(mut regions: Vec<Arc<Region>>) -> io::Result<Memory> {
        regions.sort_by_key(|region| region.place.guest_address);
        if regions.is_empty() {
            return Ok(Memory::default());
        }
        let mappings = regions.iter().map(|region| region.mapping.clone()).collect();
        let guest = GuestMemoryMmap::from_arc_regions(mappings).map_err(io::Error::other)?;
        Ok(Memory { guest, regions })
    }

    /// The memory by the guest's addresses.
    pub fn guest(&self) -> &GuestMemoryMmap<()> {
        &self.guest
    }

    /// Returns the guest's address of what the VMM has at this address of its own.
    pub fn guest_address(&self, vmm_address: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = vmm_address.checked_sub(region.place.vmm_address)?;
            (offset < region.place.len_bytes).then(|| GuestAddress(region.place.guest_address + offset))
        })
    }

    /// Adds the pieces of a range of the guest's memory to `pieces`. `None` if a part of the range
    /// is not the guest's.
    pub fn add_pieces(&self, address: GuestAddress, len: usize, pieces: &mut Vec<Piece>) -> Option<()> {
        for slice in self.guest.get_slices(address, len) {
            let slice = slice.ok()?;
            pieces.push(Piece { start: slice.ptr_guard_mut().as_ptr(), len: slice.len() });
        }
        Some(())
    }

    /// Lends pieces of the memory to a request of the cache.
    #[expect(unsafe_code, reason = "the memory is not the process's own")]
    pub fn lend(self: &Arc<Memory>, pieces: &[Piece]) -> octavo::Memory {
        // SAFETY: the pieces lie in mappings of this memory, which the owner keeps. Only volatile
        // and atomic accesses of `vm-memory` and the guest touch them.
        unsafe { octavo::Memory::from_pieces(pieces.iter().copied(), self.clone()) }
    }

    /// Fills pieces of the memory with an object's bytes that are resident, and sets `missing` to
    /// the numbers of the other reads.
    #[expect(unsafe_code, reason = "the memory is not the process's own")]
    pub fn read_resident(&self, object: &Object, reads: &mut [RawRead], missing: &mut Vec<usize>) {
        // SAFETY: the pieces lie in mappings of this memory. Only volatile and atomic accesses of
        // `vm-memory` and the guest touch them.
        unsafe { object.try_read_raw_batch(reads, missing) }
    }

    /// Returns whether a region's file has shrunk, so that its bytes are lost.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.guard.is_lost())
    }
}

impl Region {
    fn map(place: Place, file: File) -> io::Result<Region> {
        let wrong = |what: String| Err(io::Error::other(what));
        let Place { guest_address, len_bytes, file_offset, .. } = place;
        let found = file.metadata()?;
        if !found.is_file() {
            return wrong("the memory is not a file".into());
        }
        let end = file_offset.checked_add(len_bytes);
        if len_bytes == 0 || end.is_none_or(|end| end > found.len()) {
            return wrong(format!(
                "{len_bytes} bytes at {file_offset} do not lie in the file, which has {}",
                found.len()
            ));
        }
        let no_end = guest_address.checked_add(len_bytes).is_none()
            || place.vmm_address.checked_add(len_bytes).is_none();
        let (Ok(len), false) = (usize::try_from(len_bytes), no_end) else {
            return wrong("the region has no end".into());
        };
        let mapping =
            MmapRegion::from_file(FileOffset::new(file, file_offset), len).map_err(io::Error::other)?;
        let guard = Guard::new(mapping.as_ptr(), len)?;
        let mapping = GuestRegionMmap::new(mapping, GuestAddress(guest_address))
            .ok_or_else(|| io::Error::other("the region has no end"))?;
        debug_assert_eq!(mapping.len(), len_bytes);
        Ok(Region { guard, mapping: Arc::new(mapping), place })
    }
}
