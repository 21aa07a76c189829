//! From bytes of a volume to the pages that they touch.
//!
//! A page's number is its volume's number times 2^40 and its index in the volume. So pages of
//! different volumes differ, and a trace of one volume, the first, has the plain indices.

use std::collections::HashMap;

use crate::SourceError;

/// Pages one behind the other, accessed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first page.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// The most pages that one request may touch: 4 GiB of 4 KiB, the longest request of any block
/// interface. A longer one is a mistake, and would fill the trace.
pub const REQUEST_PAGES_MAX: u64 = 1 << 20;

/// What names of volumes may take of memory: a trace in a wrong format could name as many as it has
/// lines.
const NAMES_BYTES_MAX: usize = 16 << 20;

/// What a name takes beside its own bytes, about.
const NAME_BYTES_MORE: usize = 64;

const INDEX_BITS: u32 = 40;
const SECTOR_BYTES: u64 = 512;

/// How long a page is.
#[derive(Clone, Copy)]
pub struct PageBytes {
    shift: u32,
}

impl PageBytes {
    /// A power of two from 512 bytes to 16 MiB.
    pub fn new(page_bytes: u64) -> Result<PageBytes, SourceError> {
        if !page_bytes.is_power_of_two() || !(512..=16 << 20).contains(&page_bytes) {
            let expected = "a power of two from 512 bytes to 16 MiB is expected";
            return Err(SourceError(format!("pages of {page_bytes} bytes: {expected}")));
        }
        Ok(PageBytes { shift: page_bytes.trailing_zeros() })
    }

    /// The pages that bytes of a volume touch; the first and the last may be touched in part.
    pub fn touched(self, volume: u64, offset: u64, bytes: u64) -> Result<Run, String> {
        let Some(last) = bytes.checked_sub(1) else { return Ok(Run { first: 0, count: 0 }) };
        let last = offset.checked_add(last).ok_or("the request ends past 2^64 bytes")?;
        let (first, last) = (offset >> self.shift, last >> self.shift);
        if last >> INDEX_BITS != 0 {
            return Err("the request ends past page 2^40 of its volume".into());
        }
        if volume >> (u64::BITS - INDEX_BITS) != 0 {
            return Err(format!("volume {volume} is not below 2^24"));
        }
        Ok(Run { first: volume << INDEX_BITS | first, count: bounded(last - first + 1)? })
    }

    /// The pages that sectors of 512 bytes touch.
    pub fn touched_sectors(self, volume: u64, sector: u64, sectors: u64) -> Result<Run, String> {
        let bytes = |sectors: u64| {
            sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| format!("sector {sectors} lies past 2^64 bytes"))
        };
        self.touched(volume, bytes(sector)?, bytes(sectors)?)
    }
}

/// A count of pages, if it is one that a request may have.
pub fn bounded(count: u64) -> Result<u64, String> {
    if count > REQUEST_PAGES_MAX {
        return Err(format!(
            "a request of {count} pages; more than {REQUEST_PAGES_MAX} are taken for a mistake"
        ));
    }
    Ok(count)
}

/// Numbers for volumes that have names, in the order in which the trace brings them.
#[derive(Default)]
pub struct Volumes {
    numbers: HashMap<Vec<u8>, u64>,
    names_bytes: usize,
}

impl Volumes {
    /// The number of a volume.
    pub fn number(&mut self, name: &[u8]) -> Result<u64, String> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        self.names_bytes = self.names_bytes.saturating_add(name.len() + NAME_BYTES_MORE);
        if self.names_bytes > NAMES_BYTES_MAX {
            return Err(format!("{} volumes came before; so many names are not kept", self.numbers.len()));
        }
        let number = self.numbers.len() as u64;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}
