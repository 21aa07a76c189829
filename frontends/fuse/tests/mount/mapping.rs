//! Shared mappings of files.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A shared mapping of a part of a file.
pub struct Mapping {
    start: *mut u8,
    len: usize,
    is_writable: bool,
}

// SAFETY: threads that share one change it by `store` only, which is atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: BorrowedFd<'_>, at: u64, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an unused address, and no other code uses it.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, at) }?;
        Ok(Mapping { start: start.cast(), len, is_writable: writable })
    }

    /// Reads the mapping, at most `left` bytes: the file ends there.
    pub fn read(&self, left: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.len.min(left)];
        // SAFETY: the mapping is longer, and the file reaches that far.
        unsafe { std::ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Writes to the mapping. The file reaches as far as `bytes`.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(self.is_writable && bytes.len() <= self.len);
        // SAFETY: the mapping is as long, it is writable, and the file reaches that far.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len()) };
    }

    /// Stores a byte, while other threads may store others.
    pub fn store(&self, at: usize, byte: u8) {
        assert!(self.is_writable && at < self.len);
        // SAFETY: the place is in the mapping, which is writable and as long as its file.
        let place = unsafe { AtomicU8::from_ptr(self.start.wrapping_add(at)) };
        place.store(byte, Relaxed);
    }

    pub fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the mapping exists.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the mapping.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}
