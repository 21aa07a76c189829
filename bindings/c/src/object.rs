//! Objects: open stores, read and written through the cache.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libc::iovec;
use octavo::disk::{OpenOptions, Store};
use octavo::{Advice, Object, Piece};

use crate::backend::{self, octavo_backend};
use crate::call::{call, given, quietly, text};
use crate::error::Failure;
use crate::partition::octavo_partition;

/// A file, a device or a back end that is open in a partition. Any thread may use it.
#[derive(Debug)]
pub struct octavo_object(pub(crate) Object);

/// Refuses writes, and lets other readers open the file too.
pub const OCTAVO_OPEN_READ_ONLY: u32 = 1;
/// Does not bypass the kernel's page cache.
pub const OCTAVO_OPEN_BUFFERED: u32 = 2;
/// Takes no lock on the file, so others may change it meanwhile.
pub const OCTAVO_OPEN_NO_LOCK: u32 = 4;

/// Forgets earlier advice.
pub const OCTAVO_ADVICE_NORMAL: u32 = 0;
/// The object will be read in ascending order.
pub const OCTAVO_ADVICE_SEQUENTIAL: u32 = 1;
/// The object will be read in random order.
pub const OCTAVO_ADVICE_RANDOM: u32 = 2;
/// The range will be needed soon: its pages are read into the cache, as far as there is room.
pub const OCTAVO_ADVICE_WILLNEED: u32 = 3;
/// The range will not be needed soon: its dirty pages are written back, and all are evicted.
pub const OCTAVO_ADVICE_DONTNEED: u32 = 4;
/// Each page of the object will be used once.
pub const OCTAVO_ADVICE_NOREUSE: u32 = 5;

pub(crate) fn advice_of(number: u32) -> Result<Advice, Failure> {
    Ok(match number {
        OCTAVO_ADVICE_NORMAL => Advice::Normal,
        OCTAVO_ADVICE_SEQUENTIAL => Advice::Sequential,
        OCTAVO_ADVICE_RANDOM => Advice::Random,
        OCTAVO_ADVICE_WILLNEED => Advice::WillNeed,
        OCTAVO_ADVICE_DONTNEED => Advice::DontNeed,
        OCTAVO_ADVICE_NOREUSE => Advice::NoReuse,
        _ => return Err(Failure::invalid(format!("{number} is no advice"))),
    })
}

/// Opens a store in a partition.
fn open(
    partition: Option<&octavo_partition>,
    object: Option<&mut *mut octavo_object>,
    store: impl FnOnce() -> Result<Store, Failure>,
) -> c_int {
    call(|| {
        let object = given(object, "object")?;
        *object = std::ptr::null_mut();
        let partition = &given(partition, "partition")?.0;
        let store = store()?;
        let name = store.name().to_owned();
        let opened = partition.open(store, &name)?;
        *object = Box::into_raw(Box::new(octavo_object(opened)));
        Ok(())
    })
}

/// Opens a file or a device, and creates a file of so many bytes if it may.
///
/// # Safety
/// As [`octavo_open`].
unsafe fn open_path(
    partition: Option<&octavo_partition>,
    path: *const c_char,
    flags: u32,
    create_len_bytes: Option<u64>,
    object: Option<&mut *mut octavo_object>,
) -> c_int {
    open(partition, object, || {
        // SAFETY: the caller's promise.
        let path = unsafe { text(path, "path") }?;
        let known = OCTAVO_OPEN_READ_ONLY | OCTAVO_OPEN_BUFFERED | OCTAVO_OPEN_NO_LOCK;
        if flags & !known != 0 {
            return Err(Failure::invalid(format!("flags are {flags:#x}: {known:#x} are known")));
        }
        let options = OpenOptions {
            read_only: flags & OCTAVO_OPEN_READ_ONLY != 0,
            direct: flags & OCTAVO_OPEN_BUFFERED == 0,
            lock: flags & OCTAVO_OPEN_NO_LOCK == 0,
            create_len_bytes,
        };
        Ok(Store::open(Path::new(path), &options)?)
    })
}

/// Opens a regular file or a block device that exists. `flags` are `OCTAVO_OPEN_*`, or 0. On
/// success, `*object` is the caller's to close.
///
/// Errors: `OCTAVO_EOPEN`, `OCTAVO_EINVALID`, `OCTAVO_EFORK`.
///
/// # Safety
/// `path` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_open(
    partition: Option<&octavo_partition>,
    path: *const c_char,
    flags: u32,
    object: Option<&mut *mut octavo_object>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(partition, path, flags, None, object) }
}

/// As `octavo_open`. If there is no such file, creates one of `len` zeros, which take no space. A
/// file that exists keeps its bytes and its length.
///
/// # Safety
/// `path` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_open_or_create(
    partition: Option<&octavo_partition>,
    path: *const c_char,
    flags: u32,
    len: u64,
    object: Option<&mut *mut octavo_object>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_path(partition, path, flags, Some(len), object) }
}

/// Opens a new store of `len` zeros in memory, for trials and tests. Its bytes are lost with it.
/// They are not part of the cache's limit.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_open_memory(
    partition: Option<&octavo_partition>,
    name: *const c_char,
    len: u64,
    object: Option<&mut *mut octavo_object>,
) -> c_int {
    // SAFETY: the caller's promise.
    open(partition, object, || Ok(Store::memory(unsafe { text(name, "name") }?, len)))
}

/// Opens a store whose I/O the caller's functions carry: see `octavo_backend`. If this fails, it
/// has called `drop` of the back end, unless `backend` is invalid.
///
/// Errors: `OCTAVO_EOPEN`, `OCTAVO_EINVALID`, `OCTAVO_EFORK`.
///
/// # Safety
/// `name` ends with a zero, and `backend` keeps its promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_open_backend(
    partition: Option<&octavo_partition>,
    name: *const c_char,
    backend: *const octavo_backend,
    object: Option<&mut *mut octavo_object>,
) -> c_int {
    open(partition, object, || {
        // SAFETY: the caller's promise.
        let backend = unsafe { backend::of(backend) }?;
        // SAFETY: as above.
        let name = unsafe { text(name, "name") }?;
        Ok(Store::from_backend(name, backend)?)
    })
}

/// Makes all writes durable, drops the object's pages, and gives up the handle. If that fails, the
/// handle stays valid: `octavo_object_abandon` closes the object all the same.
///
/// Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_EFORK`.
///
/// # Safety
/// `object` is null or a handle; after success, nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_object_close(object: *mut octavo_object) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let Some(opened) = (unsafe { object.as_ref() }) else { return Ok(()) };
        opened.0.close()?;
        // SAFETY: made by `open`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(object) });
        Ok(())
    })
}

/// Closes the object without a sync, and gives up the handle. Dirty pages are lost; `*lost` (may be
/// null) becomes their bytes.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_object_abandon(object: Option<Box<octavo_object>>, lost: Option<&mut u64>) {
    quietly(|| {
        let bytes = object.map_or(0, |object| object.0.abandon());
        if let Some(lost) = lost {
            *lost = bytes;
        }
    });
}

/// Returns the length in bytes, or 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_object_len(object: Option<&octavo_object>) -> u64 {
    object.map_or(0, |object| object.0.len_bytes())
}

/// Changes the length of the object and of its store.
///
/// Errors: `OCTAVO_EREADONLY`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_object_set_len(object: Option<&octavo_object>, len: u64) -> c_int {
    call(|| Ok(given(object, "object")?.0.set_len_bytes(len)?))
}

/// Reads `len` bytes at `offset` into `buffer`.
///
/// Errors: `OCTAVO_EPASTEND`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
///
/// # Safety
/// `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_read(
    object: Option<&octavo_object>,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { given(object, "object")?.0.read_raw_at(offset, buffer.cast(), len) }?;
        Ok(())
    })
}

/// Reads as `octavo_read` does, if all bytes are in the cache. Never waits for a store.
///
/// Errors: `OCTAVO_EAGAIN` if bytes are missing: `buffer` may have been changed. Those of
/// `octavo_read`.
///
/// # Safety
/// `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_try_read(
    object: Option<&octavo_object>,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let hit = unsafe { given(object, "object")?.0.try_read_raw_at(offset, buffer.cast(), len) }?;
        if hit { Ok(()) } else { Err(Failure::again()) }
    })
}

/// Writes `len` bytes at `offset`. They are durable after a sync.
///
/// Errors: `OCTAVO_EPASTEND`, `OCTAVO_EREADONLY`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
///
/// # Safety
/// `bytes` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_write(
    object: Option<&octavo_object>,
    offset: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { given(object, "object")?.0.write_raw_at(offset, bytes.cast(), len) }?;
        Ok(())
    })
}

/// The pieces of a vector.
///
/// # Safety
/// `vector` has `count` entries, which outlive the result.
unsafe fn pieces_of<'v>(vector: *const iovec, count: usize) -> Result<&'v [Piece], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let vector = given((!vector.is_null()).then_some(vector), "vector")?;
    // SAFETY: a `Piece` has the layout of an `iovec`; the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(vector.cast::<Piece>(), count) })
}

/// Reads at `offset` into `count` buffers, one after the other.
///
/// Errors: those of `octavo_read`.
///
/// # Safety
/// The buffers have their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_readv(
    object: Option<&octavo_object>,
    offset: u64,
    vector: *const iovec,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let pieces = unsafe { pieces_of(vector, count) }?;
        // SAFETY: as above.
        unsafe { given(object, "object")?.0.read_raw_vectored_at(offset, pieces) }?;
        Ok(())
    })
}

/// Writes at `offset` the bytes of `count` buffers, one after the other.
///
/// Errors: those of `octavo_write`.
///
/// # Safety
/// The buffers have their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_writev(
    object: Option<&octavo_object>,
    offset: u64,
    vector: *const iovec,
    count: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let pieces = unsafe { pieces_of(vector, count) }?;
        // SAFETY: as above.
        unsafe { given(object, "object")?.0.write_raw_vectored_at(offset, pieces) }?;
        Ok(())
    })
}

/// Makes all writes that were acknowledged before the call durable.
///
/// Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_sync(object: Option<&octavo_object>) -> c_int {
    call(|| Ok(given(object, "object")?.0.sync()?))
}

/// As `octavo_sync`, for the pages of a range.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_sync_range(object: Option<&octavo_object>, offset: u64, len: u64) -> c_int {
    call(|| Ok(given(object, "object")?.0.sync_range(offset, len)?))
}

/// Makes a range read as zeros; the store may free its space.
///
/// Errors: those of `octavo_write`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_discard(object: Option<&octavo_object>, offset: u64, len: u64) -> c_int {
    call(|| Ok(given(object, "object")?.0.discard(offset, len)?))
}

/// Makes a range read as zeros; the store keeps its space.
///
/// Errors: those of `octavo_write`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_zero(object: Option<&octavo_object>, offset: u64, len: u64) -> c_int {
    call(|| Ok(given(object, "object")?.0.zero(offset, len)?))
}

/// Announces how a range will be used. `advice` is one of `OCTAVO_ADVICE_*`; all but
/// `OCTAVO_ADVICE_WILLNEED` and `OCTAVO_ADVICE_DONTNEED` apply to the whole object.
///
/// Errors: `OCTAVO_EINVALID`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_advise(object: Option<&octavo_object>, offset: u64, len: u64, advice: u32) -> c_int {
    call(|| {
        let advice = advice_of(advice)?;
        Ok(given(object, "object")?.0.advise(offset, len, advice)?)
    })
}

/// Drops the pages of a range, because something else has changed the store. Dirty pages stay:
/// `*dirty` (may be null) becomes the bytes of these.
///
/// Errors: `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_invalidate(
    object: Option<&octavo_object>,
    offset: u64,
    len: u64,
    dirty: Option<&mut u64>,
) -> c_int {
    call(|| {
        let bytes = given(object, "object")?.0.invalidate(offset, len)?;
        if let Some(dirty) = dirty {
            *dirty = bytes;
        }
        Ok(())
    })
}
