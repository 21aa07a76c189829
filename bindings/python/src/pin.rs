//! Pages as buffers.
//!
//! A view of a buffer holds the object that exported it, and that holds the page. So the bytes stay
//! while any `memoryview` or array shows them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use octavo::OwnedPin;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{Failure, Result};

/// The bytes of a page.
pub enum Page {
    /// The page itself.
    Pinned(OwnedPin),
    /// A copy: the page's set had no room for it.
    Copied(Vec<u8>),
}

impl Page {
    fn bytes(&self) -> &[u8] {
        match self {
            Page::Pinned(page) => page,
            Page::Copied(bytes) => bytes,
        }
    }
}

/// A page as it was when it was pinned: a read-only buffer without a copy.
#[pyclass(frozen, weakref, module = "octavo")]
pub struct Pin {
    /// None after `release`. Locked with the GIL held.
    page: Mutex<Option<Page>>,
    /// Views of the buffer. They rise and fall with the GIL held, so nothing orders on the count.
    views: AtomicUsize,
    offset: u64,
    len: usize,
    is_copy: bool,
}

impl Pin {
    /// Wraps a page that begins at `offset` in its object.
    pub fn new(page: Page, offset: u64) -> Pin {
        let (len, is_copy) = (page.bytes().len(), matches!(page, Page::Copied(_)));
        Pin { page: Mutex::new(Some(page)), views: AtomicUsize::new(0), offset, len, is_copy }
    }

    fn page(&self) -> MutexGuard<'_, Option<Page>> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pin {
    /// Where the page begins in its object.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the bytes are a copy.
    #[getter]
    fn is_copy(&self) -> bool {
        self.is_copy
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Unpins the page now. Fails while a view of the bytes exists.
    fn release(&self) -> Result<()> {
        let views = self.views.load(Ordering::Relaxed);
        if views > 0 {
            let sentence = format!("cannot unpin the page: {views} views of its bytes exist");
            return Err(Failure::Python(PyBufferError::new_err(sentence)));
        }
        self.page().take();
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> Result<()> {
        self.release()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a pinned page cannot be pickled: pickle bytes(pin)"))
    }

    /// # Safety
    /// `view` is a view to be filled, as the interpreter passes it.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let pin = slf.get();
        let start = match &*pin.page() {
            Some(page) => page.bytes().as_ptr(),
            None => return Err(PyBufferError::new_err("the page was released")),
        };
        // SAFETY: the view gets a reference to `slf`, which holds the page: `release` fails while
        // there are views. Read-only, so that nobody writes the bytes.
        let outcome = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast_mut().cast(), pin.len as isize, 1, flags)
        };
        if outcome != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        pin.views.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// `view` was filled by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::Relaxed);
    }
}
