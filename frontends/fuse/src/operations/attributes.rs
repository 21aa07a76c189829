//! Attributes: of files, and of the file system.

use rustix::fs::{Statx, Timespec, UTIME_NOW};
use rustix::io::Errno;
use rustix::process::RawUid;

use super::request::{Request, put};
use crate::file::Access;
use crate::fs::Fs;
use crate::lower;
use crate::nodes::Node;
use crate::wire::{SetattrIn, StatfsOut, StatxIn, StatxOut, set};

/// Returns the time that a request sets, if it does.
fn time(valid: u32, flag: u32, now: u32, seconds: u64, nanoseconds: u32) -> Option<Timespec> {
    match (valid & flag != 0, valid & now != 0) {
        (_, true) => Some(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        // Signed to the kernel, unsigned in the protocol.
        (true, false) => Some(Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds.into() }),
        (false, false) => None,
    }
}

impl Fs {
    /// Returns the attributes of a node, with times that last. If pages of its file are served,
    /// first looks whether another program has changed it.
    fn look(&self, node: &Node) -> Result<Statx, Errno> {
        let Some(file) = self.files.find_regular(node) else { return node.stat() };
        // Its error is kept for the next sync or close.
        let _ = file.settle();
        let is_uncached = file.lease().is_some_and(|lease| !lease.serves());
        if is_uncached || self.options.is_exclusive() { node.stat() } else { file.look(node) }
    }

    pub(super) fn getattr(&self, request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let stat = self.look(&node)?;
        put(out, &self.attributes_out(&node, &stat));
        Ok(())
    }

    pub(super) fn statx(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let StatxIn { .. } = request.body.take()?;
        let node = self.nodes.get(request.head.nodeid)?;
        let looked = self.look(&node)?;
        let mut stat = lower::attributes_of_statx(&looked, self.number(&looked));
        if let Some(file) = self.files.find_regular(&node) {
            stat.size = file.len_to_show(stat.size);
        }
        let (attr_valid, attr_valid_nsec) = self.attributes_valid(&node);
        put(out, &StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat });
        Ok(())
    }

    pub(super) fn setattr(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let wanted: SetattrIn = request.body.take()?;
        let has = |flag: u32| wanted.valid & flag != 0;
        let file = self.files.find_regular(&node);
        let change = file.as_ref().map(|file| file.change());
        if has(set::MODE) {
            lower::set_mode(node.place.at()?, wanted.mode)?;
        }
        if has(set::UID) || has(set::GID) {
            let (uid, gid) = (has(set::UID).then_some(wanted.uid), has(set::GID).then_some(wanted.gid));
            lower::set_owner(node.place.at()?, uid, gid)?;
        }
        if has(set::SIZE) {
            let open = has(set::FH).then(|| self.handles.file(wanted.fh)).transpose()?;
            match open.as_deref().and_then(|open| open.writer.as_ref()) {
                Some(writer) => writer.set_len_bytes(wanted.size)?,
                None => self.set_len(&node, wanted.size, request.head.uid)?,
            }
        }
        if has(set::KILL_SUIDGID) {
            lower::take_privileges(node.place.at()?, request.caller())?;
        }
        let access = time(wanted.valid, set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atimensec);
        let modification = time(wanted.valid, set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtimensec);
        // Dirty pages that are written later would set the time again.
        if let Some(file) = &file {
            let settled = file.settle();
            if modification.is_some() {
                settled?;
            }
        }
        if access.is_some() || modification.is_some() {
            lower::set_times(node.place.at()?, access, modification)?;
        }
        let stat = node.stat()?;
        drop(change);
        put(out, &self.attributes_out(&node, &stat));
        Ok(())
    }

    /// Changes the length of a file for a user, in the cache if it is there.
    pub(super) fn set_len(&self, node: &Node, len: u64, user: RawUid) -> Result<(), Errno> {
        let (file, writer) = self.open_file(node, Access::writes(user), None)?;
        let set = match (writer, len) {
            (Some(writer), len) => writer.set_len_bytes(len),
            (None, 0) => self.files.empty(&file, node, user),
            (None, len) => file.set_len_bytes(len),
        };
        file.shared.close(user);
        self.files.close(node);
        set
    }

    pub(super) fn statfs(&self, request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let found = rustix::fs::fstatvfs(node.place.at()?)?;
        // S6.
        let unreserved = self.files.unreserved_bytes().div_ceil(found.f_frsize.max(1));
        put(
            out,
            &StatfsOut {
                blocks: found.f_blocks,
                bfree: found.f_bfree.saturating_sub(unreserved),
                bavail: found.f_bavail.saturating_sub(unreserved),
                files: found.f_files,
                ffree: found.f_ffree,
                bsize: found.f_bsize as u32,
                namelen: found.f_namemax as u32,
                frsize: found.f_frsize as u32,
                padding: 0,
                spare: [0; 6],
            },
        );
        Ok(())
    }
}
