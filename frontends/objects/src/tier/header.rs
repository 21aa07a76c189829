//! The header of a block in a file (F1). All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `OCTVBLCK` |
//! | 8..12 | the format, [`FORMAT`] |
//! | 12..16 | length of the data |
//! | 16..48 | the object's key |
//! | 48..56 | the number of the block |
//! | 56..64 | XXH3-64 of the data |
//! | 64..4088 | zeros |
//! | 4088..4096 | XXH3-64 of bytes 0 to 4087 |
//!
//! The data follows. Both are padded to [`HEADER_BYTES`], the unit of direct I/O.

use twox_hash::XxHash3_64;

use super::key::{BlockKey, ObjectKey};

/// Length of a header, and the unit of all I/O.
pub(super) const HEADER_BYTES: usize = 4096;

/// The format of headers and files. Files of another format are deleted on open.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"OCTVBLCK";
const FIELDS_BYTES: usize = 64;
const SUM_AT: usize = HEADER_BYTES - size_of::<u64>();

/// Returns the bytes that a block of `len` bytes takes in a file, header included.
pub(super) fn padded(len: u32) -> usize {
    HEADER_BYTES + (len as usize).next_multiple_of(HEADER_BYTES)
}

/// The fields of the header before its own checksum.
fn fields(key: &BlockKey, data: &[u8]) -> [u8; FIELDS_BYTES] {
    let mut fields = [0; FIELDS_BYTES];
    fields[..8].copy_from_slice(&MAGIC);
    fields[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    fields[12..16].copy_from_slice(&key.len.to_le_bytes());
    fields[16..48].copy_from_slice(&key.object.0);
    fields[48..56].copy_from_slice(&key.block.to_le_bytes());
    fields[56..].copy_from_slice(&XxHash3_64::oneshot(data).to_le_bytes());
    fields
}

fn sum_of(header: &[u8]) -> [u8; 8] {
    XxHash3_64::oneshot(&header[..SUM_AT]).to_le_bytes()
}

/// Writes header and data of a block to `into`. Returns the part of it that belongs into the file.
pub(super) fn write<'b>(into: &'b mut [u8], key: &BlockKey, data: &[u8]) -> &'b [u8] {
    let into = &mut into[..padded(key.len)];
    into[..FIELDS_BYTES].copy_from_slice(&fields(key, data));
    into[FIELDS_BYTES..SUM_AT].fill(0);
    let sum = sum_of(into);
    into[SUM_AT..HEADER_BYTES].copy_from_slice(&sum);
    into[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
    into[HEADER_BYTES + data.len()..].fill(0);
    into
}

/// Returns the key in a header that is whole. Says nothing of the data.
pub(super) fn key_of(header: &[u8]) -> Option<BlockKey> {
    let is_whole = header[..8] == MAGIC
        && header[8..12] == FORMAT.to_le_bytes()
        && header[SUM_AT..HEADER_BYTES] == sum_of(header);
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    is_whole.then(|| BlockKey {
        object: ObjectKey(header[16..48].try_into().expect("32 bytes")),
        block: number(48),
        // The upper half of the number at 8: the format is below.
        len: (number(8) >> u32::BITS) as u32,
    })
}

/// F1: whether `bytes`, header and data, are the block `key` as it was written.
pub(super) fn is_block(bytes: &[u8], key: &BlockKey) -> bool {
    let data = &bytes[HEADER_BYTES..HEADER_BYTES + key.len as usize];
    bytes[SUM_AT..HEADER_BYTES] == sum_of(bytes) && bytes[..FIELDS_BYTES] == fields(key, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_tells_the_key_that_was_written() {
        let key = BlockKey { object: ObjectKey([7; 32]), block: u64::MAX - 1, len: 5000 };
        let (mut bytes, data) = (vec![0xee; 16 << 10], vec![3; 5000]);
        let block = write(&mut bytes, &key, &data);
        assert_eq!(block.len(), 4096 + 8192);
        assert_eq!(key_of(block), Some(key.clone()));
        assert!(is_block(block, &key));
        let others = [
            BlockKey { block: 1, ..key.clone() },
            BlockKey { len: 4999, ..key.clone() },
            BlockKey { object: ObjectKey([8; 32]), ..key.clone() },
        ];
        assert!(others.iter().all(|other| !is_block(block, other)));
        assert_eq!(key_of(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let key = BlockKey { object: ObjectKey([7; 32]), block: 9, len: 100 };
        let mut bytes = vec![0; 8192];
        write(&mut bytes, &key, &[5; 100]);
        for bit in 0..(HEADER_BYTES + 100) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_block(&bytes, &key), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(is_block(&bytes, &key));
    }
}
