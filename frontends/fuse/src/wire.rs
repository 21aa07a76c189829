//! The messages between the kernel and a file system in user space, as `linux/fuse.h` defines them
//! (protocol 7.39), and [`Reader`], which takes them from a request's bytes. Not here: what they do
//! (`operations/`), and the descriptor that they come from (`device.rs`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The version of the protocol. The kernel speaks the lower minor version of both sides.
pub const VERSION: (u32, u32) = (7, 39);

/// The node of the root directory.
pub const ROOT: u64 = 1;

macro_rules! opcodes {
    ($($name:ident = $code:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Opcode { $($name = $code,)* }

        impl Opcode {
            /// Returns the operation of this number, if this file system knows it.
            pub fn of(code: u32) -> Option<Opcode> {
                match code { $($code => Some(Opcode::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8, Mkdir = 9,
    Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, Statfs = 17,
    Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23, Removexattr = 24, Flush = 25,
    Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29, Fsyncdir = 30, Create = 35, Interrupt = 36,
    Destroy = 38, Ioctl = 39, BatchForget = 42, Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46,
    CopyFileRange = 47, Tmpfile = 51, Statx = 52,
}

/// Flags of INIT. The upper half is in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Flags of the reply to OPEN.
pub mod open {
    pub const DIRECT_IO: u32 = 1 << 0;
    /// No FLUSH comes when the handle's descriptors are closed.
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which fields of SETATTR count.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// A flag of WRITE: the caller may not keep the set-user-ID bit of the file.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// A flag of WRITE: the kernel writes its own pages, of a shared mapping.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Has the kernel drop the attributes of a node and pages of it.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Asks the kernel to forget nodes, as far as nothing uses them (protocol 7.45). A notification has
/// its number in place of an error.
pub const NOTIFY_PRUNE: i32 = 9;
/// A flag of FSYNC: data only.
pub const FSYNC_DATA: u32 = 1 << 0;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind,)* }
        )*
    };
}

messages! {
    /// The head of a request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16,
        padding: u16,
    }
    /// The head of a reply.
    OutHeader { len: u32, error: i32, unique: u64, }
    /// What `stat` returns.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// A node, with how long the kernel may keep its name and its attributes.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused2: u16, unused: [u32; 5],
    }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SxTime { sec: i64, nsec: u32, reserved: i32, }
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    /// A length of 0 means all that follows.
    NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    /// The nodes follow.
    NotifyPruneOut { count: u32, padding: u32, spare: u64, }
}

/// The bytes of a request that were not taken yet.
pub struct Reader<'r>(&'r [u8]);

impl<'r> Reader<'r> {
    /// Begins with these bytes.
    pub fn new(bytes: &'r [u8]) -> Reader<'r> {
        Reader(bytes)
    }

    /// Takes a message.
    ///
    /// # Errors
    /// EIO if the request is shorter: the kernel would have broken the protocol.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (message, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::IO)?;
        self.0 = rest;
        Ok(message)
    }

    /// Takes a message that older kernels send without its last fields, which are 0 then.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_short<T: FromBytes + IntoBytes + Default + Immutable>(
        &mut self,
        len: usize,
    ) -> Result<T, Errno> {
        let mut message = T::default();
        let bytes = self.bytes(len)?;
        message.as_mut_bytes()[..len].copy_from_slice(bytes);
        Ok(message)
    }

    /// Takes a name, which ends with a zero byte.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn name(&mut self) -> Result<&'r OsStr, Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(OsStr::from_bytes(name))
    }

    /// Takes this many bytes.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn bytes(&mut self, len: usize) -> Result<&'r [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(bytes)
    }
}
