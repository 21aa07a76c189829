//! The bytes of files: opening, reading, writing, and what changes whole ranges.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use octavo::CacheMode;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::RawUid;

use super::names::set_mask;
use super::request::{Request, put};
use crate::device::Device;
use crate::file::{Access, Change, File};
use crate::fs::Fs;
use crate::handles::{Handle, Open};
use crate::in_flight::Waiting;
use crate::lower::{self, Caller};
use crate::nodes::Node;
use crate::uncached::{self, Writer};
use crate::wire::{
    self, CopyFileRangeIn, CreateIn, FSYNC_DATA, FallocateIn, FlushIn, FsyncIn, LseekIn, LseekOut, Opcode,
    OpenIn, OpenOut, ReadIn, ReleaseIn, WRITE_KILL_SUIDGID, WriteIn, WriteOut, open,
};

/// A read of this many bytes, or of fewer at the file's end.
pub struct ReadPlan {
    pub open: Arc<Open>,
    pub offset: u64,
    pub size: usize,
}

/// A write. Its bytes are the last of the request.
pub struct WritePlan {
    pub open: Arc<Open>,
    pub offset: u64,
    pub len: usize,
    /// The bytes go to the file's end, wherever that is.
    pub appends: bool,
    /// The bytes are pages of the kernel's own cache, which programs have changed by `mmap`.
    of_kernel: bool,
    /// The bytes end past the file's end, are appended, or need space (S1).
    pub extends: bool,
    /// Its number, for reads of the range that wait for it. Writes without the cache have none.
    pub flight: Option<u64>,
    /// The caller, if it may not keep the set-user-ID bit of the file.
    pub unprivileged: Option<Caller>,
    /// Ends with the value. `None` if the write must be admitted first (F7).
    change: Option<Change>,
}

/// A request between its submission to the cache and its reply.
pub enum Pending {
    Read { unique: u64, len: usize, open: Arc<Open> },
    Write { unique: u64, plan: WritePlan },
}

impl Pending {
    /// The kernel's number of the request.
    pub fn unique(&self) -> u64 {
        let (Pending::Read { unique, .. } | Pending::Write { unique, .. }) = self;
        *unique
    }

    /// The file and the number of a write.
    pub fn write(&self) -> Option<(Arc<Open>, u64)> {
        match self {
            Pending::Read { .. } => None,
            Pending::Write { plan, .. } => Some((plan.open.clone(), plan.flight?)),
        }
    }

    /// The file that the request is about.
    pub fn open(&self) -> &Open {
        let (Pending::Read { open, .. } | Pending::Write { plan: WritePlan { open, .. }, .. }) = self;
        open
    }
}

impl WritePlan {
    /// Ends the write for the reads that wait for it. Returns those that wait for no other write.
    #[must_use]
    pub fn end(&self) -> Vec<Waiting> {
        self.flight.map_or(Vec::new(), |flight| self.open.file.writes.end(flight))
    }

    /// Does what is to be done before the bytes are written.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn prepare(&mut self, fs: &Fs, device: &Device) -> Result<(), Errno> {
        let Open { node, file, .. } = &*self.open;
        if let Some(caller) = self.unprivileged {
            fs.take_privileges(node, caller, device)?;
        }
        if self.change.is_none() {
            if file.object().cache_mode() == CacheMode::Writeback {
                fs.files.admit(file)?;
            }
            self.change = Some(file.change());
        }
        Ok(())
    }

    /// Whether nothing is to be done before or beside the write, so that the queue can take it.
    pub fn is_plain(&self) -> bool {
        let needs_nothing_first = self.unprivileged.is_none() && self.change.is_some();
        !self.extends && self.open.writer.is_none() && needs_nothing_first
    }

    /// Writes the bytes before it returns. Returns how many were written.
    ///
    /// # Errors
    /// Those of the lower file system.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let Open { is_durable, seen, writer, file, .. } = &*self.open;
        let mut written = self.write_some(0, bytes)?;
        // The kernel drops its own pages after any answer but an error, though some were not taken.
        while self.of_kernel && written < bytes.len() {
            match self.write_some(written, bytes)? {
                0 => return Err(Errno::NOSPC),
                more => written += more,
            }
        }
        if *is_durable && writer.is_none() {
            file.sync_for(seen)?;
        }
        Ok(written)
    }

    /// Writes the bytes from `from` on, or some of them.
    fn write_some(&self, from: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let Open { file, is_durable, writer, .. } = &*self.open;
        let at = self.offset + from as u64;
        let offset = (!self.appends).then_some(at);
        let bytes = &bytes[from..];
        if let Some(writer) = writer {
            return writer.write(offset, bytes, *is_durable);
        }
        if self.extends { file.extend(offset, bytes) } else { file.write_at(at, bytes) }
    }
}

impl Fs {
    fn flags_of(&self, flags: u32) -> OFlags {
        OFlags::from_bits_retain(flags)
    }

    /// Opens a file for a handle. `created` is a descriptor that may write it, whatever its mode
    /// says.
    pub(super) fn open_file(
        &self,
        node: &Node,
        access: Access,
        created: Option<OwnedFd>,
    ) -> Result<(Arc<File>, Option<Writer>), Errno> {
        if self.options.has_leases() {
            return uncached::open(&self.files, node, access, created);
        }
        let file = match created {
            Some(created) => self.files.open_created(node, access, created),
            None => self.files.open(node, access),
        };
        Ok((file?, None))
    }

    /// Makes a handle of a file that is open.
    fn add_handle(
        &self,
        node: Arc<Node>,
        (file, writer): (Arc<File>, Option<Writer>),
        (flags, user): (OFlags, RawUid),
    ) -> OpenOut {
        let (seen, may_tell) = file.open_handle();
        // Only then does a close have errors to tell: those of write-backs.
        let writes_back = (flags.intersects(OFlags::WRONLY | OFlags::RDWR) || may_tell)
            && file.object().cache_mode() == CacheMode::Writeback;
        let noflush = if writes_back { 0 } else { open::NOFLUSH };
        let handle = Open {
            node,
            file,
            writer,
            appends: flags.contains(OFlags::APPEND),
            is_durable: flags.intersects(OFlags::SYNC | OFlags::DSYNC),
            seen: AtomicU64::new(seen),
            user,
        };
        let fh = self.handles.add(Handle::File(Arc::new(handle)));
        OpenOut { fh, open_flags: open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES | noflush, backing_id: 0 }
    }

    pub(super) fn open(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let node = self.nodes.get(request.head.nodeid)?;
        let OpenIn { flags, .. } = request.body.take()?;
        let flags = self.flags_of(flags);
        let for_writing = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if for_writing && self.options.read_only {
            return Err(Errno::ROFS);
        }
        let user = request.head.uid;
        let access = Access { writes: for_writing, appends: flags.contains(OFlags::APPEND), user };
        let file = self.open_file(&node, access, None)?;
        put(out, &self.add_handle(node, file, (flags, user)));
        Ok(())
    }

    pub(super) fn create(
        &self,
        operation: Opcode,
        mut request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let parent = self.nodes.get(request.head.nodeid)?;
        let CreateIn { flags, mode, umask, .. } = request.body.take()?;
        let name = match operation {
            Opcode::Create => Some(request.body.name()?),
            _ => None,
        };
        set_mask(umask);
        let flags = self.flags_of(flags);
        let made = {
            let _disguise = request.caller().disguise()?;
            self.open_new(&parent, name, mode)
        };
        let created = match made {
            // Another program was faster. The kernel looks again, and checks the permissions.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => return Err(Errno::STALE),
            made => made?,
        };
        let (node, stat) = self.enter(lower::open_again(&created, OFlags::PATH)?)?;
        let user = request.head.uid;
        let file = match self.open_file(&node, Access::writes(user), Some(created)) {
            Ok(file) => file,
            Err(errno) => {
                self.nodes.forget(node.id, 1);
                return Err(errno);
            }
        };
        put(out, &self.entry(&node, &stat));
        put(out, &self.add_handle(node, file, (flags, user)));
        Ok(())
    }

    pub(super) fn release(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let ReleaseIn { fh, .. } = request.body.take()?;
        if let Some(Handle::File(open)) = self.handles.remove(fh) {
            self.files.close(&open.node);
        }
        Ok(())
    }

    /// A close. Errors of write-backs that the handle has not been told yet are told here (E1).
    pub(super) fn flush(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let FlushIn { fh, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        open.file.close_for(&open.seen)
    }

    pub(super) fn fsync(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let FsyncIn { fh, flags, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        if let Some(synced) = open.sync_uncached(flags & FSYNC_DATA != 0) {
            return synced;
        }
        open.file.sync_for(&open.seen)?;
        if flags & FSYNC_DATA != 0 {
            return Ok(());
        }
        // The engine syncs what is needed to read the bytes; owner, times and the like are not.
        rustix::fs::fsync(lower::open_again(open.node.place.at()?, OFlags::RDONLY)?)
    }

    pub(super) fn read(&self, mut request: Request<'_>) -> Result<ReadPlan, Errno> {
        let ReadIn { fh, offset, size, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        Ok(ReadPlan { open, offset, size: size as usize })
    }

    pub(super) fn write(&self, mut request: Request<'_>) -> Result<WritePlan, Errno> {
        let WriteIn { fh, offset, size, write_flags, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        let len = size as usize;
        let end = offset.checked_add(len as u64).ok_or(Errno::FBIG)?;
        let unprivileged = (write_flags & WRITE_KILL_SUIDGID != 0).then(|| request.caller());
        let is_cached = open.writer.is_none();
        let needs_admission = is_cached && self.files.is_crowded() && open.file.is_settled();
        let change = (!needs_admission).then(|| open.file.change());
        // A write-back of the kernel's own pages has its offset, whatever the file was opened with.
        let of_kernel = write_flags & wire::WRITE_CACHE != 0;
        let appends = open.appends && !of_kernel;
        // Without the cache, the kernel knows the end.
        let extends = appends || is_cached && !open.file.is_ready_for(&(offset..end));
        let flight = is_cached.then(|| {
            // The end is not known yet.
            let end = if extends { u64::MAX } else { end };
            open.file.writes.begin(offset..end)
        });
        Ok(WritePlan { open, offset, len, appends, of_kernel, extends, flight, unprivileged, change })
    }

    pub(super) fn fallocate(&self, mut request: Request<'_>) -> Result<(), Errno> {
        let FallocateIn { fh, offset, length, mode, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        let flags = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        let lower = lower::open_again(open.node.place.at()?, OFlags::RDWR)?;
        // Collapsing and inserting move all that follows.
        let moves = flags.intersects(FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE);
        let changed = if moves { u64::MAX } else { length };
        let _change = open.file.change();
        self.take_privileges_of(&request, &open.node)?;
        let allocated =
            open.file.change_below(offset, changed, || rustix::fs::fallocate(&lower, flags, offset, length));
        if allocated.is_err() {
            // It may have lengthened the file all the same.
            self.outdate_attributes(&open.node, request.device);
        }
        allocated
    }

    pub(super) fn lseek(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let LseekIn { fh, offset, whence, .. } = request.body.take()?;
        let open = self.handles.file(fh)?;
        let from = match whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        // Dirty pages may lie in a hole of the lower file.
        open.file.settle()?;
        let lower = lower::open_again(open.node.place.at()?, OFlags::RDONLY)?;
        put(out, &LseekOut { offset: rustix::fs::seek(&lower, from)? });
        Ok(())
    }

    pub(super) fn copy_file_range(&self, mut request: Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let CopyFileRangeIn { fh_in, mut off_in, fh_out, mut off_out, len, flags, .. } =
            request.body.take()?;
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.handles.file(fh_in)?, self.handles.file(fh_out)?);
        from.file.settle()?;
        let source = lower::open_again(from.node.place.at()?, OFlags::RDONLY)?;
        let target = lower::open_again(to.node.place.at()?, OFlags::RDWR)?;
        // A reply has 32 bits.
        let most = len.min(1 << 30) as usize;
        let _change = to.file.change();
        self.take_privileges_of(&request, &to.node)?;
        let copied = to.file.change_below(off_out, most as u64, || {
            rustix::fs::copy_file_range(&source, Some(&mut off_in), &target, Some(&mut off_out), most)
        })?;
        put(out, &WriteOut { size: copied as u32, padding: 0 });
        Ok(())
    }

    /// Takes the set-user-ID bit and the like of a file that its caller changes by a call for which
    /// the kernel does not say whether the caller may keep them. Root may.
    fn take_privileges_of(&self, request: &Request<'_>, node: &Node) -> Result<(), Errno> {
        if request.caller().uid == 0 {
            return Ok(());
        }
        self.take_privileges(node, request.caller(), request.device)
    }

    /// Takes the set-user-ID bit and the like of a file that a writer may not keep. The kernel does
    /// not look at the mode of a file again because it was written: it would run the file with the
    /// bit until `attr_timeout` is over.
    fn take_privileges(&self, node: &Node, caller: Caller, device: &Device) -> Result<(), Errno> {
        if lower::take_privileges(node.place.at()?, caller)? {
            self.outdate_attributes(node, device);
        }
        Ok(())
    }
}
