//! Blocks of a recording, as they lie in a file.
//!
//! ```text
//!  file:   magic (8 bytes) | block | block | ...
//!  block:  kind u8, packing u8, 0 u16, packed bytes u32, bytes u32, time u64, checksum u32 | packed bytes
//! ```
//!
//! Numbers are little-endian; time is in milliseconds since the recording began; the checksum is
//! CRC-32 of the twenty bytes before it and of those behind it. The first block of every file is
//! its header, so that a file can be read alone; the others are events, each block of which
//! can be understood alone, and the last tells why the file ends. A file without a last block was
//! torn: its writer was killed, or goes on.
//!
//! What is not here: where bytes come from and go to.

use octavo_recording::{Encoder, Header};

/// What a file begins with; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"octr\r\n\x1a\x01";

/// Bytes before those of a block.
pub const HEAD_BYTES: usize = 24;

/// No block has more, packed or not.
pub const BLOCK_BYTES_MAX: usize = 96 << 10;

const CHECKSUM_AT: usize = 20;

/// What zstd spends on a block: little, for more gains little on page numbers.
const ZSTD_LEVEL: i32 = -3;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file's header.
    Header,
    /// Events.
    Events,
    /// The file's end.
    End,
}

/// The bytes before those of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    is_packed: bool,
    /// Bytes behind the head.
    pub packed_bytes: usize,
    /// Bytes when they are unpacked.
    bytes: usize,
    /// When its last byte was written.
    pub time_ms: u64,
    checksum: u32,
}

const KINDS: [(u8, Kind); 3] = [(b'H', Kind::Header), (b'E', Kind::Events), (b'Z', Kind::End)];

impl Head {
    /// Reads a head. None: no block begins here.
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

    /// Unpacks a block, head and all, into `bytes`, which is emptied first. The error says what is
    /// wrong with it.
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

/// A block as it lies in a file.
pub fn pack(kind: Kind, time_ms: u64, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    assert!(bytes.len() <= BLOCK_BYTES_MAX, "a block of {} bytes", bytes.len());
    let packed = match kind {
        Kind::Events => {
            Some(zstd::bulk::compress(bytes, ZSTD_LEVEL)?).filter(|packed| packed.len() < bytes.len())
        }
        // A few bytes that people look at.
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

/// What the header of a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The same for all files of a recording, and no other's.
    pub id: u64,
    /// The first is 1.
    pub part: u32,
    /// When the recording began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The partition and its table.
    pub header: Header,
}

/// The version of the header, and of the events behind it. The one before has no events of single
/// sets in a resize.
const VERSION: u8 = 3;
const VERSION_LEAST: u8 = 2;

impl About {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.part.to_le_bytes());
        bytes.extend(self.began_unix_ms.to_le_bytes());
        self.header.encode(&mut bytes);
        bytes
    }

    /// From bytes; the error is a sentence.
    pub fn decode(bytes: &[u8]) -> Result<About, String> {
        let (version, bytes) = bytes.split_first().ok_or("its header is empty")?;
        if !(VERSION_LEAST..=VERSION).contains(version) {
            return Err(format!(
                "its header has version {version}, and this program reads {VERSION_LEAST} to {VERSION}"
            ));
        }
        let cut = || "its header is cut off".to_owned();
        let (id, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (part, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (began, bytes) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (header, rest) = Header::decode(bytes).map_err(|what| format!("its header is wrong: {what}"))?;
        if !rest.is_empty() {
            return Err(format!("its header is wrong: {} bytes are left of it", rest.len()));
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
    /// Another file goes on.
    Rotated,
    /// Events came faster than they could be written.
    FellBehind,
    /// In the middle: whoever wrote it was killed, or still does.
    Torn,
}

const ENDINGS: [(u8, Ending); 3] = [(0, Ending::Stopped), (1, Ending::Rotated), (2, Ending::FellBehind)];

impl Ending {
    /// As bytes. A torn end has none.
    pub fn encode(self) -> Vec<u8> {
        ENDINGS.iter().filter(|(_, known)| *known == self).map(|(byte, _)| *byte).collect()
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Option<Ending> {
        ENDINGS.into_iter().find(|(byte, _)| bytes == [*byte]).map(|(_, ending)| ending)
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Ending::Stopped => "it was stopped",
            Ending::Rotated => "another file goes on",
            Ending::FellBehind => "accesses came faster than they could be written",
            Ending::Torn => "in the middle: its writer was killed, or still writes",
        }
    }
}

// What an engine hands on fits.
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
    fn a_block_is_unpacked_as_it_was_packed_and_no_byte_of_it_may_change() {
        let even: Vec<u8> = (0..5000).map(|number| (number / 100) as u8).collect();
        let uneven: Vec<u8> = (0..200u32).map(|number| ((number * number * 40_503) >> 7) as u8).collect();
        for bytes in [&even[..], &uneven, b""] {
            let block = pack(Kind::Events, 77, bytes).unwrap();
            assert!(block.len() <= HEAD_BYTES + bytes.len());
            assert_eq!(unpacked(&block).as_deref(), Ok(bytes));
            for at in 0..block.len() {
                let mut changed = block.clone();
                changed[at] ^= 0x20;
                // A length that changes is a block of another length: whoever reads finds other bytes there.
                let lengths = (4..8).contains(&at);
                assert!(lengths || unpacked(&changed).is_err(), "byte {at}");
            }
        }
        assert!(pack(Kind::Events, 0, &even).unwrap().len() < even.len() / 10);
    }

    #[test]
    fn endings_are_told_apart() {
        for ending in [Ending::Stopped, Ending::Rotated, Ending::FellBehind] {
            assert_eq!(Ending::decode(&ending.encode()), Some(ending));
        }
        assert_eq!(Ending::decode(&Ending::Torn.encode()), None);
    }
}
