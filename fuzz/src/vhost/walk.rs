//! Computes the bytes that the device may write for a chain and the tables that it reads. An
//! independent implementation of VIRTIO 1.2 (2.7), to compare the device with.

use std::ops::Range;

/// A copy of the guest's memory: regions (address and length), one after the other.
pub struct Memory<'a> {
    pub regions: &'a [(u64, u64)],
    pub bytes: &'a [u8],
}

/// The ranges of a chain, as positions in the copy.
#[derive(Default)]
pub struct Chain {
    pub writable: Vec<Range<usize>>,
    /// Indirect tables.
    pub tables: Vec<Range<usize>>,
    /// The bytes that the device may write, also those that are not the guest's.
    pub writable_bytes: u64,
}

const DESCRIPTOR: u64 = 16;

impl Memory<'_> {
    /// The positions of a range of the guest's memory: up to the first byte that is not the
    /// guest's.
    pub fn positions(&self, mut address: u64, mut len: u64) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        while len > 0 {
            let mut start = 0;
            let region = self.regions.iter().find_map(|(begin, count)| {
                let position = start;
                start += count;
                let offset = address.checked_sub(*begin).filter(|offset| offset < count)?;
                Some((position + offset, count - offset))
            });
            let Some((position, left)) = region else { break };
            let count = left.min(len);
            found.push(position as usize..(position + count) as usize);
            (address, len) = (address.wrapping_add(count), len - count);
        }
        found
    }

    /// The positions of all bytes of a range that are the guest's.
    fn covered(&self, address: u64, len: u64) -> Vec<Range<usize>> {
        let (mut found, mut start) = (Vec::new(), 0);
        for (begin, count) in self.regions {
            let (first, end) = (address.max(*begin), address.saturating_add(len).min(begin + count));
            if first < end {
                found.push((start + first - begin) as usize..(start + end - begin) as usize);
            }
            start += count;
        }
        found
    }

    fn read(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let parts = self.positions(address, len);
        let bytes: Vec<u8> = parts.into_iter().flat_map(|part| self.bytes[part].iter().copied()).collect();
        (bytes.len() as u64 == len).then_some(bytes)
    }

    pub fn word(&self, address: u64) -> Option<u16> {
        self.read(address, 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Follows a chain until it ends or leaves the rules.
    pub fn walk(&self, mut table: u64, mut count: u64, head: u16) -> Chain {
        let mut chain = Chain::default();
        let (mut index, mut is_indirect) = (u64::from(head), false);
        for _ in 0..1100 {
            let Some(bytes) = (index < count)
                .then(|| table.checked_add(index * DESCRIPTOR))
                .flatten()
                .and_then(|address| self.read(address, DESCRIPTOR))
            else {
                break;
            };
            let address = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let len = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
            let flags = u16::from_le_bytes([bytes[12], bytes[13]]);
            let next = u16::from_le_bytes([bytes[14], bytes[15]]);
            if flags & 4 != 0 {
                if is_indirect {
                    break;
                }
                chain.tables.extend(self.positions(address, u64::from(len)));
                (table, count, index, is_indirect) = (address, u64::from(len) / DESCRIPTOR, 0, true);
                continue;
            }
            if flags & 2 != 0 {
                // A status may lie behind bytes that are not the guest's.
                chain.writable.extend(self.covered(address, u64::from(len)));
                chain.writable_bytes += u64::from(len);
            }
            if flags & 1 == 0 {
                break;
            }
            index = u64::from(next);
        }
        chain
    }
}
