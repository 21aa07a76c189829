//! Back ends: stores whose I/O the caller's functions carry.

use std::ffi::{c_int, c_void};
use std::io;

use libc::iovec;
use octavo::disk::{Backend, Identity, IoRequest, Op};

use crate::call::quietly;
use crate::error::Failure;
use crate::versioned::{self, Versioned};

/// The back end refuses writes.
pub const OCTAVO_BACKEND_READ_ONLY: u32 = 1;
/// The back end takes `OCTAVO_IO_ZERO`.
pub const OCTAVO_BACKEND_ZEROES: u32 = 2;
/// The back end takes `OCTAVO_IO_DISCARD`. The range reads as zeros afterwards.
pub const OCTAVO_BACKEND_DISCARDS: u32 = 4;

/// Fill the buffers from the store.
pub const OCTAVO_IO_READ: u32 = 0;
/// Write the buffers to the store.
pub const OCTAVO_IO_WRITE: u32 = 1;
/// Make every write that was completed before durable.
pub const OCTAVO_IO_SYNC: u32 = 2;
/// Make the range zeros.
pub const OCTAVO_IO_ZERO: u32 = 3;
/// Make the range zeros, and free its space.
pub const OCTAVO_IO_DISCARD: u32 = 4;

/// A store of the caller's own: a network volume, an object store, a compressed file. Set `size`,
/// and zero what is not used. The struct is copied; `user` must stay valid until `drop` is called.
///
/// All functions may be called from any thread, several at a time, and run with locks of the cache
/// held: they must not call the cache. In a child of `fork` none is called.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_backend {
    /// `sizeof(octavo_backend)`.
    pub size: usize,
    /// Passed to each function.
    pub user: *mut c_void,
    /// Sets `*len` to the length in bytes that the store has now. Returns 0, or a number such as
    /// `EIO`.
    pub len: Option<unsafe extern "C" fn(user: *mut c_void, len: *mut u64) -> c_int>,
    /// Starts an I/O and does not wait for it: `octavo_io_complete` may be called in here, or later
    /// from any thread.
    pub submit: Option<unsafe extern "C" fn(user: *mut c_void, io: *mut octavo_io)>,
    /// Changes the length; a longer store gains zeros. Returns 0, or a number such as `ENOSPC`, and
    /// the length must then be the old one. May be null: the length cannot be changed.
    pub set_len: Option<unsafe extern "C" fn(user: *mut c_void, len: u64) -> c_int>,
    /// Called once, when no I/O is in flight and the store is closed. May be null.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Bytes that tell this store from every other. Of the stores of a process with the same bytes,
    /// only one can be open for writing in a cache. Copied. May be null.
    pub identity: *const c_void,
    /// The number of these bytes.
    pub identity_len: usize,
    /// The unit of I/O in bytes: a power of two from 512 to 4,096. Default: 512.
    pub block_bytes: u32,
    /// `OCTAVO_BACKEND_*`.
    pub flags: u32,
}

// SAFETY: `repr(C)`; integers, addresses and nullable functions; members of 32 bits come in pairs.
unsafe impl Versioned for octavo_backend {
    const NAME: &'static str = "octavo_backend";
    const SIZE_MIN: usize = 72;
}

const _: () = assert!(size_of::<octavo_backend>() == 72);

/// One I/O that a back end has to execute. Valid until `octavo_io_complete`. An I/O that is never
/// completed hangs.
#[derive(Debug)]
pub struct octavo_io(IoRequest);

/// The functions of a back end.
pub(crate) struct Callbacks {
    table: octavo_backend,
    len: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int,
    submit: unsafe extern "C" fn(*mut c_void, *mut octavo_io),
    identity: Option<Identity>,
}

// SAFETY: the caller of `octavo_open_backend` promises that any thread may call the functions.
unsafe impl Send for Callbacks {}
// SAFETY: as above, several at a time.
unsafe impl Sync for Callbacks {}

/// # Safety
/// `backend` keeps the promises of [`octavo_backend`].
pub(crate) unsafe fn of(backend: *const octavo_backend) -> Result<Callbacks, Failure> {
    // SAFETY: the caller's promise.
    let table = unsafe { versioned::read(backend) }?;
    let octavo_backend { len: Some(len), submit: Some(submit), .. } = table else {
        return Err(Failure::invalid("the back end has no len or no submit"));
    };
    let known = OCTAVO_BACKEND_READ_ONLY | OCTAVO_BACKEND_ZEROES | OCTAVO_BACKEND_DISCARDS;
    if table.flags & !known != 0 {
        return Err(Failure::invalid(format!("flags are {:#x}: {known:#x} are known", table.flags)));
    }
    let identity = (!table.identity.is_null()).then(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(table.identity.cast::<u8>(), table.identity_len) };
        Identity::from_bytes(bytes)
    });
    Ok(Callbacks { table, len, submit, identity })
}

fn result_of(errno: c_int) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
    }
}

impl Backend for Callbacks {
    fn len_bytes(&self) -> io::Result<u64> {
        let mut len = 0;
        // SAFETY: the promise of `octavo_open_backend`.
        result_of(unsafe { (self.len)(self.table.user, &raw mut len) })?;
        Ok(len)
    }

    fn submit(&self, request: IoRequest) {
        let io = Box::into_raw(Box::new(octavo_io(request)));
        // SAFETY: the promise of `octavo_open_backend`; the function owns the I/O.
        unsafe { (self.submit)(self.table.user, io) };
    }

    fn block_bytes(&self) -> u32 {
        if self.table.block_bytes == 0 { 512 } else { self.table.block_bytes }
    }

    fn read_only(&self) -> bool {
        self.table.flags & OCTAVO_BACKEND_READ_ONLY != 0
    }

    fn supports(&self, op: Op) -> bool {
        let flag = match op {
            Op::Zero => OCTAVO_BACKEND_ZEROES,
            Op::Discard => OCTAVO_BACKEND_DISCARDS,
            _ => return true,
        };
        self.table.flags & flag != 0
    }

    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }

    fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        match self.table.set_len {
            // SAFETY: the promise of `octavo_open_backend`.
            Some(set_len) => result_of(unsafe { set_len(self.table.user, len_bytes) }),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(drop) = self.table.drop {
            // SAFETY: the promise of `octavo_open_backend`.
            unsafe { drop(self.table.user) };
        }
    }
}

/// Returns what to do: `OCTAVO_IO_*`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_io_op(io: Option<&octavo_io>) -> u32 {
    match io.map(|io| io.0.op()) {
        Some(Op::Read) => OCTAVO_IO_READ,
        Some(Op::Write) => OCTAVO_IO_WRITE,
        Some(Op::Zero) => OCTAVO_IO_ZERO,
        Some(Op::Discard) => OCTAVO_IO_DISCARD,
        Some(Op::Sync) | None => OCTAVO_IO_SYNC,
    }
}

/// Returns the first byte of the range in the store, a multiple of the store's block. 0 for a sync.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_io_offset(io: Option<&octavo_io>) -> u64 {
    io.map_or(0, |io| io.0.offset())
}

/// Returns the length of the range in bytes. 0 for a sync.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_io_len(io: Option<&octavo_io>) -> usize {
    io.map_or(0, |io| io.0.len_bytes())
}

/// Returns the buffers of a read or a write, at most 1,024, which together have the length of the
/// range: for `preadv`, `pwritev` and the like. Do not change the buffers of a write. `*count`
/// becomes their number, 0 for other operations.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_io_buffers(io: Option<&octavo_io>, count: Option<&mut usize>) -> *const iovec {
    let buffers = io.map_or(&[][..], |io| io.0.buffers());
    if let Some(count) = count {
        *count = buffers.len();
    }
    // An `IoBuffer` has the layout of an `iovec`.
    buffers.as_ptr().cast()
}

/// Completes an I/O, and gives it back. `done` is the number of bytes that are done, from the first
/// on (for a sync, 0), or a negative number such as `-EIO`. If bytes are left, a further I/O for
/// them follows; a read that ends with 0 bytes has reached the end of the store, and the rest reads
/// as zeros.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_io_complete(io: Option<Box<octavo_io>>, done: i64) {
    quietly(|| {
        let Some(io) = io else { return };
        let outcome = match usize::try_from(done) {
            Ok(bytes) => Ok(bytes),
            Err(_) => {
                let errno = i32::try_from(done.unsigned_abs()).unwrap_or(libc::EIO);
                Err(io::Error::from_raw_os_error(errno))
            }
        };
        io.0.complete(outcome);
    });
}
