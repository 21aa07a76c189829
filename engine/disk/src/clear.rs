//! Making a range of a store read as zeros, by the cheapest means that its file system or device has. Not here: I/O
//! that callers queue; this blocks, and is rare.

use std::io;

use crate::buffer::{AlignedBytes, IoBuffer};
use crate::file::FileStore;
use crate::io::{Io, Op};
use crate::store::{Kind, Store};
use crate::sys;

/// Zeros are written in pieces of this much where the kernel cannot make them.
const WRITE_BYTES: u64 = 1 << 20;

/// What becomes of the space under the zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    Keep,
    GiveBack,
}

/// Makes bytes `offset .. offset + len_bytes` read as zeros, as far as they lie inside the store.
pub(crate) fn clear(store: &Store, offset: u64, len_bytes: u64, means: Means) -> io::Result<()> {
    if store.read_only() {
        return Err(io::Error::from_raw_os_error(libc::EROFS));
    }
    match store.kind() {
        Kind::Memory(memory) => {
            memory.zero(offset, len_bytes);
            Ok(())
        }
        Kind::Sim(sim) => sim.zero(offset, len_bytes),
        Kind::File(file) => {
            // L1: the length may not change meanwhile; the shard is any.
            file.gate.enter(0);
            let result = clear_file(store, file, offset, len_bytes, means);
            file.gate.leave(0);
            result
        }
    }
}

fn clear_file(store: &Store, file: &FileStore, offset: u64, len_bytes: u64, means: Means) -> io::Result<()> {
    let end = offset.saturating_add(len_bytes).min(file.len_bytes());
    if offset >= end {
        return Ok(());
    }
    if !file.is_device() {
        return match clear_by_file_system(file, offset, end, means) {
            true => Ok(()),
            false => write_zeros(store, file, offset, end),
        };
    }
    // A device clears whole blocks; the edges are written.
    let block = u64::from(file.block_bytes());
    let first = offset.next_multiple_of(block).min(end);
    let last = (end - end % block).max(first);
    write_zeros(store, file, offset, first)?;
    write_zeros(store, file, last, end)?;
    if first < last && !clear_by_device(file, first, last, means) {
        write_zeros(store, file, first, last)?;
    }
    Ok(())
}

/// False if the file system cannot.
fn clear_by_file_system(file: &FileStore, offset: u64, end: u64, means: Means) -> bool {
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let zero = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    // Where one is missing the other may be there (tmpfs punches but does not zero).
    let modes = if means == Means::GiveBack { [punch, zero] } else { [zero, punch] };
    modes.iter().any(|&mode| allocate(file, mode, offset, end))
}

/// False if the device cannot. A hole in a device is made only where it reads as zeros for certain, unlike what
/// `BLKDISCARD` promises.
fn clear_by_device(file: &FileStore, offset: u64, end: u64, means: Means) -> bool {
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    if means == Means::GiveBack && allocate(file, punch, offset, end) {
        return true;
    }
    sys::device_zero(file.descriptor(crate::io::Channel::Main), offset, end - offset).is_ok()
}

fn allocate(file: &FileStore, mode: i32, offset: u64, end: u64) -> bool {
    sys::allocate(file.descriptor(crate::io::Channel::Main), mode, offset, end - offset).is_ok()
}

/// Writes zeros over any bytes; blocks of which only a part is meant are read first.
fn write_zeros(store: &Store, file: &FileStore, offset: u64, end: u64) -> io::Result<()> {
    if offset >= end {
        return Ok(());
    }
    let block = u64::from(file.block_bytes());
    let zeros = AlignedBytes::new(WRITE_BYTES.min((end - offset).next_multiple_of(block)) as usize);
    let mut at = offset;
    while at < end {
        let is_whole = at.is_multiple_of(block) && (end - at >= block || end == file.len_bytes());
        if is_whole {
            // At the end of the store the rest of the last block is cut off again.
            let whole = if end == file.len_bytes() { (end - at).next_multiple_of(block) } else { end - at };
            let len = (whole - whole % block).min(zeros.len() as u64);
            transfer(store, file, Op::Write, at, IoBuffer { len: len as usize, ..zeros.io_buffer() })?;
            at += len;
        } else {
            let start = at - at % block;
            let stop = end.min(start + block);
            let mut edge = AlignedBytes::new(block as usize);
            transfer(store, file, Op::Read, start, edge.io_buffer())?;
            edge[(at - start) as usize..(stop - start) as usize].fill(0);
            transfer(store, file, Op::Write, start, edge.io_buffer())?;
            at = stop;
        }
    }
    Ok(())
}

/// One I/O, by a caller that is inside the gate.
fn transfer(store: &Store, file: &FileStore, op: Op, offset: u64, buffer: IoBuffer) -> io::Result<()> {
    let mut io = Io::new(store, op, offset, &[buffer], 0);
    file.cut(&mut io);
    file.execute(&mut io);
    io.error.map_or(Ok(()), |error| Err(error.into()))
}
