//! [`Writer`]: writes to the lower file itself, where pages are kept under leases, and how files
//! are opened there. Not here: when a file has a lease (`leases.rs`).

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::budget::{Kind, Paid};
use crate::file::{Access, File};
use crate::files::Files;
use crate::leases::{Leased, Pages};
use crate::lower;
use crate::nodes::Node;

impl Pages for File {
    fn lease(&self) -> Option<&Leased> {
        File::lease(self)
    }

    fn renew(&self, node: &Node) -> Result<(), Errno> {
        // The look may take a change for the mount's own.
        self.look(node)?;
        self.refresh()
    }

    fn drop_pages(&self) {
        // It fails if the file is closed. If its pages are served again by now, they are read once
        // more.
        let _ = self.object().invalidate(0, u64::MAX);
    }
}

/// A handle that may write: its own descriptor of the lower file (L5).
pub struct Writer {
    file: Arc<File>,
    lower: Option<OwnedFd>,
    /// For the descriptor (D2).
    _paid: Paid,
}

impl Writer {
    /// `created` is a descriptor that may write.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn new(file: &Arc<File>, node: &Node, created: Option<OwnedFd>, paid: Paid) -> Result<Writer, Errno> {
        let mut writer = Writer { file: file.clone(), lower: created, _paid: paid };
        if let Some(lease) = file.lease() {
            lease.add_writer(file);
        }
        if writer.lower.is_none() {
            writer.lower = Some(lower::open_again(node.place.at()?, OFlags::RDWR)?);
        }
        Ok(writer)
    }

    /// The descriptor.
    ///
    /// # Errors
    /// EBADF while it is being opened or closed.
    pub fn lower(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.lower.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Writes bytes. `None` as the offset appends them. Returns how many were written.
    ///
    /// # Errors
    /// Those of the lower file system, if it takes no byte.
    pub fn write(&self, offset: Option<u64>, bytes: &[u8], is_durable: bool) -> Result<usize, Errno> {
        let mut flags = ReadWriteFlags::empty();
        flags.set(ReadWriteFlags::APPEND, offset.is_none());
        flags.set(ReadWriteFlags::DSYNC, is_durable);
        let lower = self.lower()?;
        lower::go_on(bytes.len(), |done| {
            let at = offset.map_or(0, |offset| offset + done as u64);
            rustix::io::pwritev2(lower, &[IoSlice::new(&bytes[done..])], at, flags)
        })
    }

    /// Changes the length.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn set_len_bytes(&self, len: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(self.lower()?, len)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // First: while it is open, no lease can be had.
        self.lower = None;
        self.file.lease().iter().for_each(|lease| lease.remove_writer());
    }
}

/// Opens a file for a handle. `created` is a descriptor that may write the file, whatever its mode
/// says.
///
/// # Errors
/// Those of the lower file system.
pub fn open(
    files: &Files,
    node: &Node,
    access: Access,
    created: Option<OwnedFd>,
) -> Result<(Arc<File>, Option<Writer>), Errno> {
    // The cache only reads, so that its own descriptors prevent no lease.
    let user = access.user;
    let file = match (files.open(node, Access::reads(user)), &created) {
        // The server may write its new file, but not read it. It gets no lease.
        (Err(Errno::ACCESS), Some(created)) => {
            files.open_created(node, access, rustix::io::fcntl_dupfd_cloexec(created, 0)?)?
        }
        (file, _) => file?,
    };
    if !access.writes {
        file.lease().iter().for_each(|lease| lease.try_take(&file, node, true));
        return Ok((file, None));
    }
    let paid = files.budget().take(user, 1, Kind::File);
    match paid.and_then(|paid| Writer::new(&file, node, created, paid)) {
        Ok(writer) => Ok((file, Some(writer))),
        Err(errno) => {
            file.shared.close(user);
            files.close(node);
            Err(errno)
        }
    }
}
