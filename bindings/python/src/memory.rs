//! Memory of Python objects during a call: buffers that the caller lends, and new `bytes`.
//!
//! Other threads of Python may access the memory while a call waits without the GIL. It therefore
//! never becomes a slice: the engine and the kernel get addresses.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::Result;

/// An address and a length, valid for one call. Gives no access by itself.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The first byte.
    pub start: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: an address and a length; every use of the memory is `unsafe` by itself.
unsafe impl Send for Memory {}
// SAFETY: as above; sharing the address gives no access.
unsafe impl Sync for Memory {}

impl Memory {
    /// The first `len` bytes, or all if there are fewer.
    pub fn first(self, len: u64) -> Memory {
        Memory { len: self.len.min(usize::try_from(len).unwrap_or(usize::MAX)), ..self }
    }

    /// What follows the first `skip` bytes.
    pub fn skip(self, skip: usize) -> Memory {
        Memory { start: self.start.wrapping_add(skip), len: self.len - skip }
    }
}

/// Calls `work` with the memory of a writable, contiguous buffer. The buffer's owner neither frees
/// nor resizes it until `work` returns.
pub fn with_writable<T>(
    buffer: &Bound<'_, PyAny>,
    work: impl FnOnce(Python<'_>, Memory) -> Result<T>,
) -> Result<T> {
    with_view(buffer, ffi::PyBUF_WRITABLE, work)
}

/// Calls `work` with the memory of a contiguous buffer, which it may only read.
pub fn with_readable<T>(
    buffer: &Bound<'_, PyAny>,
    work: impl FnOnce(Python<'_>, Memory) -> Result<T>,
) -> Result<T> {
    with_view(buffer, ffi::PyBUF_SIMPLE, work)
}

fn with_view<T>(
    buffer: &Bound<'_, PyAny>,
    flags: c_int,
    work: impl FnOnce(Python<'_>, Memory) -> Result<T>,
) -> Result<T> {
    // A view may point into itself, so it stays where it is.
    let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
    // SAFETY: the object is alive, and the view is valid memory.
    let outcome = unsafe { ffi::PyObject_GetBuffer(buffer.as_ptr(), view.as_mut_ptr(), flags) };
    if outcome != 0 {
        return Err(PyErr::fetch(buffer.py()).into());
    }
    // SAFETY: the call has succeeded, and so has initialised the view.
    let held = Held { view: unsafe { view.assume_init_mut() }, _py: buffer.py() };
    let memory = Memory { start: held.view.buf.cast(), len: held.view.len as usize };
    work(buffer.py(), memory)
}

/// A view that is released when it is dropped, with the GIL held.
struct Held<'v, 'py> {
    view: &'v mut ffi::Py_buffer,
    _py: Python<'py>,
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: the view is filled, and is released once.
        unsafe { ffi::PyBuffer_Release(self.view) };
    }
}

/// Makes `bytes` of `len` bytes, which `fill` must initialise all.
pub fn new_bytes<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(Memory) -> Result<()>,
) -> Result<Bound<'py, PyBytes>> {
    // SAFETY: no source: the bytes are uninitialised. The length fits: it is that of an allocation.
    let new = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), len as ffi::Py_ssize_t) };
    // SAFETY: a new reference, or null with an exception.
    let new = unsafe { Bound::from_owned_ptr_or_err(py, new) }?;
    // SAFETY: the object is `bytes`.
    let start = unsafe { ffi::PyBytes_AsString(new.as_ptr()) };
    // Only this function has a reference to the object so far, so it may fill the bytes.
    fill(Memory { start: start.cast(), len })?;
    // SAFETY: the object is `bytes`.
    Ok(unsafe { new.cast_into_unchecked() })
}
