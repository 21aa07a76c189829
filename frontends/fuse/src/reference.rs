//! [`ReferenceReader`]: reads that are answered without the cache, in the same loop. `octavo bench
//! fuse` compares the cache with them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::handles::Open;
use crate::lower;
use crate::options::Reference;

/// A thread's reader of lower files. Keeps the file that was read last open.
#[derive(Default)]
pub struct ReferenceReader(Option<(Arc<Open>, OwnedFd)>);

impl ReferenceReader {
    /// Reads bytes at an offset, or leaves the buffer as it is. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn read(
        &mut self,
        reference: Reference,
        open: &Arc<Open>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Errno> {
        if reference == Reference::Constant {
            return Ok(bytes.len());
        }
        let lower = match self.0.take_if(|(last, _)| Arc::ptr_eq(last, open)) {
            Some((_, lower)) => lower,
            None => lower::open_again(open.node.place.at()?, OFlags::RDONLY)?,
        };
        let (_, lower) = self.0.insert((open.clone(), lower));
        rustix::io::pread(lower, bytes, offset)
    }
}
