//! [`Command`]: what a chain of descriptors asks for. Nothing in a chain is trusted: its bytes are
//! copied out of the guest's memory once, before anything looks at them.
//!
//! A chain has bytes that the device reads, then bytes that it writes. The first 16 of the former
//! are the header, the last of the latter is the status; what lies between is data. How the bytes
//! are divided among descriptors means nothing (VIRTIO 1.2, 2.7.4.1).

use super::memory::Memory;
use crate::request::{Request, Verb};
use octavo::Piece;
use virtio_bindings::virtio_blk as blk;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress};

/// The bytes of a sector, the unit of offsets.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The bytes of a header: type, reserved, sector.
const HEADER_BYTES: usize = 16;
/// The bytes of a range of a discard or zeroing: sector, count, flags.
const RANGE_BYTES: usize = 16;
/// The most ranges of a discard or zeroing.
pub(super) const RANGES_MAX: usize = 64;
/// The bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// The most descriptors of a chain.
pub(super) const CHAIN_MAX: usize = 1024;
/// The bytes of a disk's serial number.
pub(super) const SERIAL_BYTES: usize = 20;

/// A chain that breaks the rules of a ring, so that nothing in the ring can be trusted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub &'static str);

impl Broken {
    /// A descriptor names memory that the guest does not have.
    pub const DESCRIPTOR: Broken = Broken("a descriptor leads out of the guest's memory");
    /// The ring itself lies in memory that the guest does not have, any more.
    pub const RING: Broken = Broken("the ring does not lie in the guest's memory");
}

/// What a chain asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// A request with its data in the guest's memory.
    Transfer(Request),
    /// Discards or zeroings, one for each range.
    Clear(Vec<Request>),
    /// The serial number of the disk.
    GetId,
    /// Something that the device does not do.
    Unsupported,
    /// A request that cannot succeed.
    Refused,
}

/// A chain, taken apart. Its vectors are reused.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The bytes that the device reads and those that it writes, as ranges of the guest's memory.
    readable: Vec<(GuestAddress, usize)>,
    writable: Vec<(GuestAddress, usize)>,
    /// The address of the status.
    pub status: GuestAddress,
}

/// A table of descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub start: GuestAddress,
    pub count: u16,
}

impl Table {
    fn descriptor(&self, memory: &Memory, index: u16) -> Result<Descriptor, Broken> {
        if index >= self.count {
            return Err(Broken("a descriptor's number is out of its table"));
        }
        let address = self.start.checked_add(u64::from(index) * DESCRIPTOR_BYTES as u64);
        address
            .and_then(|address| memory.guest().read_obj(address).ok())
            .ok_or(Broken("a table of descriptors leads out of the guest's memory"))
    }
}

/// What a chain is checked against.
pub(super) struct Rules {
    pub len_bytes: u64,
    pub read_only: bool,
    /// Writes are durable before they end.
    pub is_durable: bool,
}

impl Chain {
    /// Takes the chain apart that begins at descriptor `head` of a table.
    ///
    /// `virtio-queue` walks only chains that come from the available ring, and not those of a
    /// predecessor (I4).
    pub fn read(&mut self, memory: &Memory, table: Table, head: u16) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        let (mut table, mut index, mut is_indirect, mut bytes) = (table, head, false, 0_u64);
        for _ in 0..=CHAIN_MAX {
            let descriptor = table.descriptor(memory, index)?;
            let len = descriptor.len() as usize;
            if descriptor.refers_to_indirect_table() {
                let count = len / DESCRIPTOR_BYTES;
                if is_indirect || !len.is_multiple_of(DESCRIPTOR_BYTES) || !(1..=CHAIN_MAX).contains(&count) {
                    return Err(Broken("an indirect table of descriptors is not one"));
                }
                (is_indirect, index) = (true, 0);
                table = Table { start: descriptor.addr(), count: count as u16 };
                continue;
            }
            bytes += len as u64;
            if bytes > u64::from(u32::MAX) {
                return Err(Broken("a chain of descriptors has more than 4 GiB"));
            }
            match (descriptor.is_write_only(), self.writable.is_empty()) {
                (true, _) => self.writable.push((descriptor.addr(), len)),
                (false, true) => self.readable.push((descriptor.addr(), len)),
                (false, false) => return Err(Broken("a descriptor to be read follows one to be written")),
            }
            if !descriptor.has_next() {
                return self.take_status();
            }
            index = descriptor.next();
        }
        Err(Broken("a chain of descriptors has no end"))
    }

    /// Takes the last byte that the device writes.
    fn take_status(&mut self) -> Result<(), Broken> {
        let Some((address, len)) = self.writable.iter_mut().rfind(|(_, len)| *len > 0) else {
            return Err(Broken("a request has no place for its status"));
        };
        *len -= 1;
        let status = address.checked_add(*len as u64);
        self.status = status.ok_or(Broken::DESCRIPTOR)?;
        Ok(())
    }

    /// Reads the header and what else decides the request.
    pub fn command(&mut self, memory: &Memory, rules: &Rules) -> Result<Command, Broken> {
        let mut header = [0; HEADER_BYTES];
        self.take_readable(memory, &mut header)?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let sector = u64::from(word(8)) | u64::from(word(12)) << 32;
        let transfer = |verb, ranges: &[(GuestAddress, usize)]| {
            let len_bytes: usize = ranges.iter().map(|(_, len)| *len).sum();
            let durable = verb == Verb::Write && rules.is_durable;
            // `read` has refused chains of more than 4 GiB.
            Ok(rules.checked(sector, len_bytes as u32, verb, durable))
        };
        match word(0) {
            blk::VIRTIO_BLK_T_IN => transfer(Verb::Read { contiguous: false }, &self.writable),
            blk::VIRTIO_BLK_T_OUT => transfer(Verb::Write, &self.readable),
            blk::VIRTIO_BLK_T_FLUSH => {
                let (verb, durable) = (Verb::Flush, true);
                Ok(Command::Transfer(Request { tag: 0, offset_bytes: 0, len_bytes: 0, verb, durable }))
            }
            blk::VIRTIO_BLK_T_GET_ID => Ok(Command::GetId),
            blk::VIRTIO_BLK_T_DISCARD => self.clear(memory, rules, false),
            blk::VIRTIO_BLK_T_WRITE_ZEROES => self.clear(memory, rules, true),
            _ => Ok(Command::Unsupported),
        }
    }

    /// Reads the ranges of a discard or zeroing.
    fn clear(&mut self, memory: &Memory, rules: &Rules, is_zero: bool) -> Result<Command, Broken> {
        let len: usize = self.readable.iter().map(|(_, len)| *len).sum();
        if len == 0 || !len.is_multiple_of(RANGE_BYTES) || len / RANGE_BYTES > RANGES_MAX {
            return Ok(Command::Unsupported);
        }
        let mut requests = Vec::with_capacity(len / RANGE_BYTES);
        for _ in 0..len / RANGE_BYTES {
            let mut range = [0; RANGE_BYTES];
            self.take_readable(memory, &mut range)?;
            let [a, b, c, d, e, f, g, h, rest @ ..] = range;
            let sector = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let [a, b, c, d, flags @ ..] = rest;
            let (sectors, flags) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(flags));
            let may_unmap = flags & blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            let known = if is_zero { blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
            if flags & !known != 0 {
                return Ok(Command::Unsupported);
            }
            let verb = if is_zero { Verb::Zero { hole: may_unmap } } else { Verb::Discard };
            // The device announces a maximum below this.
            let Some(len_bytes) = sectors.checked_mul(SECTOR_BYTES as u32) else {
                return Ok(Command::Unsupported);
            };
            match rules.checked(sector, len_bytes, verb, rules.is_durable) {
                Command::Transfer(request) => requests.push(request),
                other => return Ok(other),
            }
        }
        Ok(Command::Clear(requests))
    }

    /// The data of a request: the pieces that are left between header and status.
    pub fn pieces(&self, verb: Verb, memory: &Memory, pieces: &mut Vec<Piece>) -> Result<(), Broken> {
        let ranges = if verb == Verb::Write { &self.readable } else { &self.writable };
        pieces.clear();
        for (address, len) in ranges.iter().copied() {
            let added = memory.add_pieces(address, len, pieces);
            added.ok_or(Broken::DESCRIPTOR)?;
        }
        Ok(())
    }

    /// Writes bytes to the beginning of the data that the device writes. Returns their number.
    pub fn put(&self, memory: &Memory, bytes: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        for (address, len) in self.writable.iter().copied() {
            let part = &bytes[done..bytes.len().min(done + len)];
            let written = memory.guest().write_slice(part, address);
            written.map_err(|_| Broken::DESCRIPTOR)?;
            done += part.len();
        }
        Ok(done)
    }

    /// Moves the first bytes that the device reads to `bytes`.
    fn take_readable(&mut self, memory: &Memory, bytes: &mut [u8]) -> Result<(), Broken> {
        let mut done = 0;
        for (address, len) in &mut self.readable {
            let count = (bytes.len() - done).min(*len);
            let part = &mut bytes[done..done + count];
            let read = memory.guest().read_slice(part, *address);
            read.map_err(|_| Broken::DESCRIPTOR)?;
            // The bytes at the address were read, so the address does not overflow.
            *address = address.unchecked_add(count as u64);
            *len -= count;
            done += count;
        }
        match done == bytes.len() {
            true => Ok(()),
            false => Err(Broken("a request is shorter than its header")),
        }
    }
}

impl Rules {
    /// Returns a request, or why it cannot succeed.
    fn checked(&self, sector: u64, len_bytes: u32, verb: Verb, durable: bool) -> Command {
        let Some(offset_bytes) = sector.checked_mul(SECTOR_BYTES) else {
            return Command::Refused;
        };
        let request = Request { tag: 0, offset_bytes, len_bytes: len_bytes.into(), verb, durable };
        if !u64::from(len_bytes).is_multiple_of(SECTOR_BYTES) {
            return Command::Unsupported;
        }
        match request.check(self.len_bytes, self.read_only) {
            Ok(()) => Command::Transfer(request),
            Err(_) => Command::Refused,
        }
    }
}
