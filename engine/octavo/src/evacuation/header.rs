//! The header of a file of evacuated pages. Chunks of pages (`chunk.rs`) and the catalog
//! (`catalog.rs`) follow. All numbers are little-endian.
//!
//! | bytes of the header | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | [`VERSION`] |
//! | 12..16 | 1 if the file is complete and unused, else 0 |
//! | 16..24, 24..32 | offset and length of the catalog |
//! | 32..40 | checksum of the catalog |
//! | 40..48 | checksum of the bytes before |

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"octavoPG";

/// Raised by every change of the format. A file of another version is not read.
const VERSION: u32 = 1;

/// Chunks begin at multiples of this, so that their memory can be returned.
pub(super) const ALIGN_BYTES: u64 = 4096;

pub(super) const HEADER_BYTES: usize = 48;

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

pub(super) fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

/// Returns where the catalog lies, and its checksum.
pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> io::Result<(Range<u64>, u64)> {
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let small = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    if &header[..8] != MAGIC {
        return Err(invalid("the file holds no evacuated pages"));
    }
    if small(8) != VERSION {
        return Err(invalid(format!(
            "the file of pages has version {}, and this program reads version {VERSION}",
            small(8)
        )));
    }
    if number(40) != checksum(&header[..40]) {
        return Err(invalid("the header of the file of pages has a wrong checksum"));
    }
    match small(12) {
        1 => {}
        0 => return Err(invalid("the evacuation was not completed, or its pages were used already")),
        _ => return Err(invalid("the state of the file of pages is unknown")),
    }
    let end = number(16).checked_add(number(24));
    let end = end.ok_or_else(|| invalid("the catalog of the evacuated pages has no possible length"))?;
    Ok((number(16)..end, number(32)))
}

/// E6, and the beginning of an evacuation: marks the file as incomplete.
pub(super) fn mark_used(file: &File) -> io::Result<()> {
    write_header(file, false, 0..0, 0)
}

/// E4: marks the file as complete. `catalog` is where its catalog lies.
pub(super) fn mark_complete(file: &File, catalog: Range<u64>, sum: u64) -> io::Result<()> {
    write_header(file, true, catalog, sum)
}

fn write_header(file: &File, is_complete: bool, catalog: Range<u64>, sum: u64) -> io::Result<()> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(u32::from(is_complete).to_le_bytes());
    header.extend(catalog.start.to_le_bytes());
    header.extend((catalog.end - catalog.start).to_le_bytes());
    header.extend(sum.to_le_bytes());
    header.extend(checksum(&header).to_le_bytes());
    file.write_all_at(&header, 0)
}
