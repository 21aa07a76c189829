//! Turns bytes of a volume into the pages that they touch.
//!
//! A page's number is its volume's number times 2^40 plus its index in the volume. Pages of
//! different volumes therefore have different numbers. In a trace of a single volume, number 0, the
//! page numbers are the plain indices.

use std::collections::HashMap;

use crate::SourceError;

/// Pages that follow each other, accessed in order, once or several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first page.
    pub first: u64,
    /// How many pages.
    pub count: u64,
    /// How often all of them are accessed, in passes that follow each other.
    pub times: u64,
}

impl Run {
    /// Returns pages that are accessed once.
    pub fn once(first: u64, count: u64) -> Run {
        Run { first, count, times: 1 }
    }
}

/// The most times that one line may repeat its request: a larger number is a mistake, and its
/// accesses would swamp the trace.
pub const TIMES_MAX: u64 = 1 << 24;

/// The most pages that one request may touch: 4 GiB in pages of 4 KiB, the longest request of any
/// block interface. A longer request is a mistake, and its pages would swamp the trace.
pub const REQUEST_PAGES_MAX: u64 = 1 << 20;

/// The most memory for names of volumes: a trace in a wrong format could name one per line.
const NAMES_BYTES_MAX: usize = 16 << 20;

/// The approximate memory, in bytes, that a name takes besides its own bytes.
const NAME_BYTES_MORE: usize = 64;

const INDEX_BITS: u32 = 40;
const SECTOR_BYTES: u64 = 512;

/// The length of a page, and the volumes named so far. Named volumes are numbered in the order in
/// which they first appear.
pub struct Extents {
    shift: u32,
    volumes: HashMap<Vec<u8>, u64>,
    names_bytes: usize,
}

impl Extents {
    /// Starts with no volume named. `page_bytes` is a power of two from 512 bytes to 16 MiB.
    pub fn new(page_bytes: u64) -> Result<Extents, SourceError> {
        if !page_bytes.is_power_of_two() || !(512..=16 << 20).contains(&page_bytes) {
            let expected = "the length of a page must be a power of two from 512 bytes to 16 MiB";
            return Err(SourceError(format!("pages of {page_bytes} bytes: {expected}")));
        }
        Ok(Extents { shift: page_bytes.trailing_zeros(), volumes: HashMap::new(), names_bytes: 0 })
    }

    /// Returns the bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the pages that bytes of a volume touch; the first and the last may be touched in
    /// part.
    pub fn touched(&self, volume: u64, offset: u64, bytes: u64) -> Result<Run, String> {
        let Some(last) = bytes.checked_sub(1) else { return Ok(Run::once(0, 0)) };
        let last = offset.checked_add(last).ok_or("the request ends past 2^64 bytes")?;
        let (first, last) = (offset >> self.shift, last >> self.shift);
        if last >> INDEX_BITS != 0 {
            return Err("the request ends past page 2^40 of its volume".into());
        }
        if volume >> (u64::BITS - INDEX_BITS) != 0 {
            return Err(format!("volume {volume} is not below 2^24"));
        }
        Ok(Run::once(volume << INDEX_BITS | first, bounded(last - first + 1)?))
    }

    /// Returns the pages that bytes of a named volume touch. A request that is refused does not
    /// give its volume a number.
    pub fn touched_named(&mut self, volume: &[u8], offset: u64, bytes: u64) -> Result<Run, String> {
        self.touched(0, offset, bytes)?;
        let number = self.volume(volume)?;
        self.touched(number, offset, bytes)
    }

    /// Returns the number of a named volume.
    pub fn volume(&mut self, name: &[u8]) -> Result<u64, String> {
        if let Some(number) = self.volumes.get(name) {
            return Ok(*number);
        }
        self.names_bytes = self.names_bytes.saturating_add(name.len() + NAME_BYTES_MORE);
        let number = self.volumes.len() as u64;
        if self.names_bytes > NAMES_BYTES_MAX {
            return Err(format!("the memory for names is full: {number} volumes are named already"));
        }
        self.volumes.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// Converts sectors of 512 bytes to bytes.
pub fn sectors_to_bytes(sectors: u64) -> Result<u64, String> {
    sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| format!("sector {sectors} lies past 2^64 bytes"))
}

/// Returns `count` if a request may touch that many pages.
pub fn bounded(count: u64) -> Result<u64, String> {
    if count > REQUEST_PAGES_MAX {
        return Err(format!("a request of {count} pages; the most that is taken is {REQUEST_PAGES_MAX}"));
    }
    Ok(count)
}
