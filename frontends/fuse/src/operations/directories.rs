//! Directories: opening and reading.

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::request::{Request, put};
use crate::budget::Kind;
use crate::fs::Fs;
use crate::handles::{Directory, Handle};
use crate::lower;
use crate::wire::{Dirent, EntryOut, FSYNC_DATA, FsyncIn, OpenIn, OpenOut, ReadIn, ReleaseIn};

/// What one system call reads of a directory.
const CHUNK_BYTES: usize = 32 << 10;

/// The length of an entry in a reply: entries are aligned.
fn entry_bytes(fixed: usize, name: &[u8]) -> usize {
    (fixed + name.len()).next_multiple_of(8)
}

/// The type of a file, as `d_type`.
fn type_of(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::RegularFile => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
        FileType::Unknown => 0,
    }
}

impl Fs {
    pub(super) fn opendir(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let OpenIn { .. } = request.body.take()?;
        let paid = self.budget.take(request.head.uid, 1, Kind::Directory)?;
        let lower = lower::open_again(node.place.at()?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let directory = Arc::new(Directory { node, lower, position: Mutex::default(), _paid: paid });
        let fh = self.handles.add(Handle::Directory(directory));
        put(out, &OpenOut { fh, open_flags: 0, backing_id: 0 });
        Ok(())
    }

    /// Reads entries from an offset. With `plus`, looks each of them up, so that the kernel needs
    /// no requests for their attributes.
    pub(super) fn readdir(
        &self,
        mut request: Request<'_>,
        plus: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let ReadIn { fh, offset, size, .. } = request.body.take()?;
        let directory = self.handles.directory(fh)?;
        let _position = directory.position.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::seek(&directory.lower, SeekFrom::Start(offset))?;
        let most = out.len() + size as usize;
        let fixed = size_of::<Dirent>() + if plus { size_of::<EntryOut>() } else { 0 };
        let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
        let mut entries = RawDir::new(&directory.lower, &mut chunk);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let bytes = entry_bytes(fixed, name);
            if out.len() + bytes > most {
                break;
            }
            let end = out.len() + bytes;
            if plus {
                put(out, &self.entry_of(&directory, name));
            }
            put(
                out,
                &Dirent {
                    ino: self.number_in(&directory.node, entry.ino()),
                    off: entry.next_entry_cookie(),
                    namelen: name.len() as u32,
                    kind: type_of(entry.file_type()),
                },
            );
            out.extend_from_slice(name);
            out.resize(end, 0);
        }
        Ok(())
    }

    /// Looks up an entry that is being listed. Returns no node for what the kernel knows anyway,
    /// for an entry that was removed meanwhile, and for one of another file system.
    fn entry_of(&self, directory: &Directory, name: &[u8]) -> EntryOut {
        if matches!(name, b"." | b"..") {
            return EntryOut::default();
        }
        let name = std::ffi::OsStr::from_bytes(name);
        // B6.
        if self.crossings.find(directory.node.id, name).is_some() {
            return EntryOut::default();
        }
        match self.look_up(&directory.node, name) {
            Ok((node, stat)) => self.entry(&node, &stat),
            Err(_) => EntryOut::default(),
        }
    }

    pub(super) fn releasedir(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let ReleaseIn { fh, .. } = request.body.take()?;
        self.handles.remove(fh);
        Ok(())
    }

    pub(super) fn fsyncdir(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let FsyncIn { fh, flags, .. } = request.body.take()?;
        let directory = self.handles.directory(fh)?;
        match flags & FSYNC_DATA {
            0 => rustix::fs::fsync(&directory.lower),
            _ => rustix::fs::fdatasync(&directory.lower),
        }
    }
}

const _: () = assert!(size_of::<Dirent>() == 24 && size_of::<EntryOut>() == 128);
