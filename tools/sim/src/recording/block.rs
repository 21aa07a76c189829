//! The blocks of a recording's file.
//!
//! ```text
//!  file:   magic (8 bytes) | block | block | ...
//!  block:  head (24 bytes) | packed bytes
//!  head:   kind u8, packing u8, 0 u16, packed bytes u32, bytes u32, time u64, checksum u32
//! ```
//!
//! Numbers are little-endian; time is in milliseconds since the recording began; the checksum is
//! CRC-32 of the 20 bytes before it and of the packed bytes. The first block of every file is its
//! header, so that a file can be read alone. The others are events, and each of these blocks can be
//! decoded alone. The last block says why the file ends. A file without this block is torn: its
//! writer was killed, or is still writing.
//!
//! What is not here: files.

use octavo_recording::{Encoder, Header};

/// The first bytes of a file; the last of them is the version.
pub const MAGIC: [u8; 8] = *b"octr\r\n\x1a\x01";

/// Bytes of a block's head.
pub const HEAD_BYTES: usize = 24;

/// The most bytes of a block, packed or not.
pub const BLOCK_BYTES_MAX: usize = 96 << 10;

const CHECKSUM_AT: usize = 20;

/// The compression level of blocks: low, because page numbers gain little from a higher one.
const ZSTD_LEVEL: i32 = -3;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file's header.
    Header,
    /// Events.
    Events,
    /// The file's end.
    End,
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of the block.
    pub kind: Kind,
    is_packed: bool,
    /// Packed bytes, which follow the head.
    pub packed_bytes: usize,
    /// Unpacked bytes.
    bytes: usize,
    /// When the block was written, in milliseconds since the recording began.
    pub time_ms: u64,
    checksum: u32,
}

const KINDS: [(u8, Kind); 3] = [(b'H', Kind::Header), (b'E', Kind::Events), (b'Z', Kind::End)];

impl Head {
    /// Reads a head. Returns None if no block begins here.
    pub fn read(head: &[u8; HEAD_BYTES]) -> Option<Head> {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (_, kind) = KINDS.into_iter().find(|(byte, _)| *byte == head[0])?;
        let (packed_bytes, bytes) = (number(4) as usize, number(8) as usize);
        let fits = head[1] <= 1
            && head[2..4] == [0, 0]
            && packed_bytes <= BLOCK_BYTES_MAX
            && bytes <= BLOCK_BYTES_MAX
            && (head[1] == 1 || packed_bytes == bytes);
        let time_ms = u64::from(number(12)) | u64::from(number(16)) << 32;
        let checksum = number(CHECKSUM_AT);
        fits.then_some(Head { kind, is_packed: head[1] == 1, packed_bytes, bytes, time_ms, checksum })
    }

    /// Unpacks a block, given with its head, into `bytes`, which is emptied first. The error says
    /// what is wrong with the block.
    pub fn unpack(&self, block: &[u8], bytes: &mut Vec<u8>) -> Result<(), &'static str> {
        let packed = &block[HEAD_BYTES..];
        debug_assert_eq!(packed.len(), self.packed_bytes);
        if checksum(&block[..CHECKSUM_AT], packed) != self.checksum {
            return Err("its checksum is wrong");
        }
        bytes.clear();
        if !self.is_packed {
            bytes.extend(packed);
            return Ok(());
        }
        bytes.resize(self.bytes, 0);
        match zstd::bulk::decompress_to_buffer(packed, bytes.as_mut_slice()) {
            Ok(count) if count == self.bytes => Ok(()),
            _ => Err("it cannot be unpacked"),
        }
    }
}

fn checksum(head: &[u8], packed: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(packed);
    hasher.finalize()
}

/// Packs a block, with its head.
///
/// # Errors
/// zstd's own.
///
/// # Panics
/// If there are more than [`BLOCK_BYTES_MAX`] bytes.
pub fn pack(kind: Kind, time_ms: u64, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    assert!(bytes.len() <= BLOCK_BYTES_MAX, "a block of {} bytes", bytes.len());
    let packed = match kind {
        Kind::Events => {
            Some(zstd::bulk::compress(bytes, ZSTD_LEVEL)?).filter(|packed| packed.len() < bytes.len())
        }
        // These blocks are small, and people may want to look at them.
        Kind::Header | Kind::End => None,
    };
    let is_packed = packed.is_some();
    let packed = packed.as_deref().unwrap_or(bytes);
    let mut block = Vec::with_capacity(HEAD_BYTES + packed.len());
    let kind = KINDS.iter().find(|(_, known)| *known == kind).expect("all kinds have a byte").0;
    block.extend([kind, u8::from(is_packed), 0, 0]);
    block.extend((packed.len() as u32).to_le_bytes());
    block.extend((bytes.len() as u32).to_le_bytes());
    block.extend(time_ms.to_le_bytes());
    let checksum = checksum(&block, packed);
    block.extend(checksum.to_le_bytes());
    block.extend(packed);
    Ok(block)
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The recording's number, which all of its files have and no other recording has.
    pub id: u64,
    /// The number of the part; the first is 1.
    pub part: u32,
    /// When the recording began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The header of the partition and its table.
    pub header: Header,
}

/// The version of the header and of the events. Version 2 has no events for single sets of a
/// resize. Up to version 3, a seed placed pages otherwise, so a replay is not exact. Up to version
/// 4, each object has a number of its own, and no event tells that it was closed.
const VERSION: u8 = 5;
const VERSION_LEAST: u8 = 2;
const VERSION_OF_PLACEMENT: u8 = 4;

impl About {
    /// Encodes the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.part.to_le_bytes());
        bytes.extend(self.began_unix_ms.to_le_bytes());
        self.header.encode(&mut bytes);
        bytes
    }

    /// Decodes a header; the error is a sentence.
    pub fn decode(bytes: &[u8]) -> Result<About, String> {
        let (version, bytes) = bytes.split_first().ok_or("the header is empty")?;
        if !(VERSION_LEAST..=VERSION).contains(version) {
            return Err(format!(
                "the header has version {version}; this program reads {VERSION_LEAST} to {VERSION}"
            ));
        }
        let cut = || "the header is cut off".to_owned();
        let (id, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (part, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (began, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (mut header, rest) =
            Header::decode(bytes).map_err(|what| format!("the header is malformed: {what}"))?;
        header.from_the_first &= *version >= VERSION_OF_PLACEMENT;
        if !rest.is_empty() {
            return Err(format!("the header is malformed: {} bytes too many", rest.len()));
        }
        let (id, part) = (u64::from_le_bytes(*id), u32::from_le_bytes(*part));
        Ok(About { id, part, began_unix_ms: u64::from_le_bytes(*began), header })
    }
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The recording was stopped.
    Stopped,
    /// Another file continues the recording.
    Rotated,
    /// Events came faster than they could be written.
    FellBehind,
    /// The end is torn: the writer was killed, or is still writing.
    Torn,
}

const ENDINGS: [(u8, Ending); 3] = [(0, Ending::Stopped), (1, Ending::Rotated), (2, Ending::FellBehind)];

impl Ending {
    /// Encodes the ending; a torn end has no bytes.
    pub fn encode(self) -> Vec<u8> {
        ENDINGS.iter().filter(|(_, known)| *known == self).map(|(byte, _)| *byte).collect()
    }

    /// Decodes an ending.
    pub fn decode(bytes: &[u8]) -> Option<Ending> {
        ENDINGS.into_iter().find(|(byte, _)| bytes == [*byte]).map(|(_, ending)| ending)
    }

    /// Returns the reason of the end, as words for people.
    pub fn words(self) -> &'static str {
        match self {
            Ending::Stopped => "it was stopped",
            Ending::Rotated => "another file goes on",
            Ending::FellBehind => "accesses came faster than they could be written",
            Ending::Torn => "in the middle: its writer was killed, or is still writing",
        }
    }
}

// An engine's largest buffer of events fits into a block.
const _: () = assert!((64 << 10) + 2 * Encoder::EVENT_BYTES_MAX < BLOCK_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(block: &[u8]) -> Result<Vec<u8>, &'static str> {
        let head = block.first_chunk().and_then(Head::read).ok_or("no block")?;
        let mut bytes = vec![1, 2, 3];
        head.unpack(block, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn a_block_unpacks_to_its_bytes_and_a_changed_byte_is_noticed() {
        let even: Vec<u8> = (0..5000).map(|number| (number / 100) as u8).collect();
        let uneven: Vec<u8> = (0..200u32).map(|number| ((number * number * 40_503) >> 7) as u8).collect();
        for bytes in [&even[..], &uneven, b""] {
            let block = pack(Kind::Events, 77, bytes).unwrap();
            assert!(block.len() <= HEAD_BYTES + bytes.len());
            assert_eq!(unpacked(&block).as_deref(), Ok(bytes));
            for at in 0..block.len() {
                let mut changed = block.clone();
                changed[at] ^= 0x20;
                // A changed length gives the block another length, which the reader notices.
                let lengths = (4..8).contains(&at);
                assert!(lengths || unpacked(&changed).is_err(), "byte {at}");
            }
        }
        assert!(pack(Kind::Events, 0, &even).unwrap().len() < even.len() / 10);
    }

    #[test]
    fn endings_are_decoded_as_they_were_encoded() {
        for ending in [Ending::Stopped, Ending::Rotated, Ending::FellBehind] {
            assert_eq!(Ending::decode(&ending.encode()), Some(ending));
        }
        assert_eq!(Ending::decode(&Ending::Torn.encode()), None);
    }
}
