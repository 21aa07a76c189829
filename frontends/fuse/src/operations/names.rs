//! Names: looking up, creating, linking, renaming and removing.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, RenameFlags};
use rustix::io::Errno;

use super::request::{Request, put};
use crate::fs::Fs;
use crate::lower::{self, Key};
use crate::nodes::Node;
use crate::wire::{
    BatchForgetIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Opcode, Rename2In, RenameIn,
};

/// Sets the thread's mask for new files. The thread has a mask of its own (`worker.rs`).
pub(super) fn set_mask(umask: u32) {
    rustix::process::umask(Mode::from_raw_mode(umask as RawMode & 0o777));
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode as RawMode & 0o7777)
}

impl Fs {
    pub(super) fn lookup(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        match self.look_up(&parent, request.body.name()?) {
            Ok((node, stat)) => put(out, &self.entry(&node, &stat)),
            // No node: the name does not exist, and the kernel may keep that.
            Err(Errno::NOENT) if self.options.is_exclusive() => {
                let (entry_valid, entry_valid_nsec) = self.valid();
                put(out, &EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() });
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Returns the nodes that the kernel does not know any more.
    pub(super) fn forget(
        &self,
        operation: Opcode,
        mut request: Request<'_>,
    ) -> Result<Vec<Arc<Node>>, Errno> {
        if operation == Opcode::Forget {
            let ForgetIn { nlookup } = request.body.take()?;
            return Ok(self.nodes.forget(request.head.nodeid, nlookup).into_iter().collect());
        }
        let BatchForgetIn { count, .. } = request.body.take()?;
        let mut forgotten = Vec::new();
        for _ in 0..count {
            let ForgetOne { nodeid, nlookup } = request.body.take()?;
            forgotten.extend(self.nodes.forget(nodeid, nlookup));
        }
        Ok(forgotten)
    }

    /// Replies with a name that was just made.
    fn made(&self, parent: &Node, name: &std::ffi::OsStr, out: &mut Vec<u8>) -> Result<(), Errno> {
        let (node, stat) = self.look_up(parent, name)?;
        put(out, &self.entry(&node, &stat));
        Ok(())
    }

    pub(super) fn mknod(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let MknodIn { mode, rdev, umask, .. } = request.body.take()?;
        let name = request.body.name()?;
        set_mask(umask);
        let kind = FileType::from_raw_mode(mode as RawMode);
        {
            let _disguise = request.caller().disguise()?;
            rustix::fs::mknodat(parent.place.at()?, name, kind, permissions(mode), lower::device_of(rdev))?;
        }
        self.made(&parent, name, out)
    }

    pub(super) fn mkdir(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let MkdirIn { mode, umask } = request.body.take()?;
        let name = request.body.name()?;
        set_mask(umask);
        {
            let _disguise = request.caller().disguise()?;
            rustix::fs::mkdirat(parent.place.at()?, name, permissions(mode))?;
        }
        self.made(&parent, name, out)
    }

    pub(super) fn symlink(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let (name, target) = (request.body.name()?, request.body.name()?);
        {
            let _disguise = request.caller().disguise()?;
            rustix::fs::symlinkat(target, parent.place.at()?, name)?;
        }
        self.made(&parent, name, out)
    }

    pub(super) fn readlink(&self, request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let target = rustix::fs::readlinkat(node.place.at()?, "", Vec::new())?;
        out.extend_from_slice(target.as_bytes());
        Ok(())
    }

    pub(super) fn link(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let LinkIn { oldnodeid } = request.body.take()?;
        let name = request.body.name()?;
        let node = self.nodes.get(oldnodeid)?;
        let place = node.place.at()?;
        let link = lower::link_of(place.as_fd());
        rustix::fs::linkat(CWD, link, parent.place.at()?, name, AtFlags::SYMLINK_FOLLOW)?;
        self.made(&parent, name, out)
    }

    pub(super) fn unlink(&self, mut request: Request<'_>, is_directory: bool) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let name = request.body.name()?;
        if is_directory {
            return rustix::fs::unlinkat(parent.place.at()?, name, AtFlags::REMOVEDIR);
        }
        let last = self.last_name(&parent, name);
        rustix::fs::unlinkat(parent.place.at()?, name, AtFlags::empty())?;
        last.into_iter().for_each(|key| self.files.drop_idle(key));
        Ok(())
    }

    /// Returns the file of a name if it has no other: its space must become free with the name.
    fn last_name(&self, parent: &Node, name: &std::ffi::OsStr) -> Option<Key> {
        let stat = lower::stat_at(parent.place.at().ok()?, name).ok()?;
        (stat.stx_nlink == 1).then(|| Key::of(&stat))
    }

    pub(super) fn rename(&self, operation: Opcode, mut request: Request<'_>) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let (newdir, flags) = match operation {
            Opcode::Rename => (request.body.take::<RenameIn>()?.newdir, 0),
            _ => {
                let Rename2In { newdir, flags, .. } = request.body.take()?;
                (newdir, flags)
            }
        };
        let (old, new) = (request.body.name()?, request.body.name()?);
        let to = self.nodes.get(newdir)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let last = if flags.contains(RenameFlags::EXCHANGE) { None } else { self.last_name(&to, new) };
        let replaced = last.filter(|key| {
            // Renaming a file to another of its own names removes neither.
            let stat = parent.place.at().and_then(|directory| lower::stat_at(directory, old));
            stat.is_ok_and(|stat| Key::of(&stat) != *key)
        });
        if flags.contains(RenameFlags::WHITEOUT) {
            // The kernel has checked that the caller may make devices.
            let _disguise = request.caller().disguise()?;
            rustix::fs::renameat_with(parent.place.at()?, old, to.place.at()?, new, flags)?;
        } else if flags.is_empty() {
            rustix::fs::renameat(parent.place.at()?, old, to.place.at()?, new)?;
        } else {
            rustix::fs::renameat_with(parent.place.at()?, old, to.place.at()?, new, flags)?;
        }
        replaced.into_iter().for_each(|key| self.files.drop_idle(key));
        Ok(())
    }

    /// Opens a new file, which no name of another program leads to yet, or without a name.
    pub(super) fn open_new(
        &self,
        parent: &Node,
        name: Option<&std::ffi::OsStr>,
        mode: u32,
    ) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match name {
            None => {
                let name = std::ffi::OsStr::from_bytes(b".");
                rustix::fs::openat(parent.place.at()?, name, flags | OFlags::TMPFILE, permissions(mode))
            }
            Some(name) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                rustix::fs::openat(parent.place.at()?, name, flags, permissions(mode))
            }
        }
    }
}
