//! Open stores: reads, writes, pins.

use std::sync::Arc;

use octavo::disk::Process;
use octavo::{Advice, Error, PinOrCopy, RawRead};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{Failure, Result, config};
use crate::fetch::Raised;
use crate::live::{Live, refuse_pickle, warn_unclosed};
use crate::memory::{Memory, new_bytes, with_readable, with_writable};
use crate::pin::{Page, Pin};
use crate::stat;
use crate::wait::{is_interruptible, wait};

/// The longest piece of a read or write that waits where a signal can interrupt it: the piece takes
/// memory of its own (I2).
const PIECE_MAX_BYTES: u64 = 16 << 20;

/// The longest read whose hits are copied with the GIL held, in bytes: 10 to 20 microseconds. A
/// thread that gives the GIL up may wait 5 milliseconds to get it again.
const HELD_MAX_BYTES: usize = 128 << 10;

/// The most pages that such a read touches: pages have 4,096 bytes at least.
const PAGES_MAX: usize = HELD_MAX_BYTES / 4096 + 1;

/// An open file, device or other store, with its pages in the cache.
#[pyclass(frozen, weakref, module = "octavo")]
pub struct Object {
    inner: octavo::Object,
    /// Keeps the cache running.
    live: Arc<Live>,
    /// The exceptions of the function that returns its bytes, if there is one.
    raised: Option<Arc<Raised>>,
    process: Process,
}

impl Object {
    /// Wraps an object of a cache.
    pub fn new(inner: octavo::Object, live: Arc<Live>, raised: Option<Arc<Raised>>) -> Object {
        Object { inner, live, raised, process: Process::this() }
    }

    /// Does work that may wait.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&octavo::Object) -> Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let object = self.inner.clone();
        let done = wait(py, &self.live.left_behind, move || work(&object))?;
        done.map_err(|error| self.explain(py, error))
    }

    /// Adds the exception of the function that returns the bytes to an error of the engine.
    fn explain(&self, py: Python<'_>, error: Error) -> Failure {
        let cause = match (&self.raised, &error) {
            (Some(raised), Error::Io { .. }) => raised.behind(py, &error.to_string()),
            _ => None,
        };
        if cause.is_none() {
            return error.into();
        }
        let told = PyErr::from(Failure::from(error));
        told.set_cause(py, cause);
        Failure::Python(told)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.process.is_this() && self.check_open().is_ok() {
            warn_unclosed(&self.__repr__());
        }
    }
}

#[pymethods]
impl Object {
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.inner.len_bytes()
    }

    #[getter]
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    /// Fills a buffer, and returns the bytes read: fewer than its length only at the end.
    #[pyo3(signature = (buffer, offset=0))]
    fn read_into(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> Result<usize> {
        with_writable(buffer, |py, memory| {
            let memory = memory.first(self.inner.len_bytes().saturating_sub(offset));
            self.read_memory(py, memory, offset)?;
            Ok(memory.len)
        })
    }

    /// Reads up to `size` bytes.
    #[pyo3(signature = (size, offset=0))]
    fn read<'py>(&self, py: Python<'py>, size: u64, offset: u64) -> Result<Bound<'py, PyBytes>> {
        let size = size.min(self.inner.len_bytes().saturating_sub(offset));
        new_bytes(py, size as usize, |memory| self.read_memory(py, memory, offset))
    }

    /// Writes all bytes of a buffer, and returns their number.
    #[pyo3(signature = (data, offset=0))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: u64) -> Result<usize> {
        with_readable(data, |py, memory| {
            if is_interruptible() {
                self.write_interruptible(py, memory, offset)?;
                return Ok(memory.len);
            }
            // SAFETY: the buffer is lent for the call, and the engine reads each byte once.
            py.detach(move || unsafe { write_raw(&self.inner, offset, memory) })?;
            Ok(memory.len)
        })
    }

    /// Makes all acknowledged writes durable, or those of a range.
    #[pyo3(signature = (offset=0, length=None))]
    fn sync(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> Result<()> {
        let rest = self.rest(offset, length);
        self.wait(py, move |object| match (offset, length) {
            (0, None) => object.sync(),
            _ => object.sync_range(offset, rest),
        })
    }

    /// Changes the length.
    fn truncate(&self, py: Python<'_>, size: u64) -> Result<()> {
        self.wait(py, move |object| object.set_len_bytes(size))
    }

    /// Discards a range, which then reads as zeros.
    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> Result<()> {
        self.wait(py, move |object| object.discard(offset, length))
    }

    /// Zeroes a range.
    fn zero(&self, py: Python<'_>, offset: u64, length: u64) -> Result<()> {
        self.wait(py, move |object| object.zero(offset, length))
    }

    /// Advises how a range will be used, in the words of `posix_fadvise`.
    #[pyo3(signature = (advice, offset=0, length=None))]
    fn advise(&self, py: Python<'_>, advice: &str, offset: u64, length: Option<u64>) -> Result<()> {
        let advice = advice_of(advice)?;
        let rest = self.rest(offset, length);
        self.wait(py, move |object| object.advise(offset, rest, advice))
    }

    /// Returns the page that contains `offset` as a buffer.
    #[pyo3(signature = (offset=0))]
    fn pin(&self, py: Python<'_>, offset: u64) -> Result<Pin> {
        let start = offset - offset % self.inner.page_bytes();
        if let Some(page) = self.inner.try_pin_owned(offset)? {
            return Ok(Pin::new(Page::Pinned(page), start));
        }
        let page = self.wait(py, move |object| {
            Ok(match object.pin_or_copy(offset)? {
                PinOrCopy::Pin(page) => Page::Pinned(page.into_owned()),
                PinOrCopy::Copy(bytes) => Page::Copied(bytes),
            })
        })?;
        Ok(Pin::new(page, start))
    }

    /// Drops the pages of a range, because something else has changed the store.
    #[pyo3(signature = (offset=0, length=None))]
    fn invalidate(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> Result<u64> {
        let rest = self.rest(offset, length);
        self.wait(py, move |object| object.invalidate(offset, rest))
    }

    /// Returns how many bytes of a range are in the cache now.
    #[pyo3(signature = (offset=0, length=None))]
    fn resident_bytes(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> Result<u64> {
        Ok(py.detach(|| self.inner.resident_bytes(offset, self.rest(offset, length)))?)
    }

    fn stat<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let stat = py.detach(|| self.inner.stat());
        Ok(stat::of_object(py, &stat)?)
    }

    /// Syncs the object, drops its pages and closes it.
    fn close(&self, py: Python<'_>) -> Result<()> {
        self.wait(py, octavo::Object::close)?;
        if let Some(raised) = &self.raised {
            raised.clear(py);
        }
        Ok(())
    }

    /// Closes the object without writing its dirty pages, and returns the bytes that are lost.
    fn abandon(&self, py: Python<'_>) -> Result<u64> {
        self.wait(py, |object| Ok(object.abandon()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> Result<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        refuse_pickle("cached object")
    }

    fn __repr__(&self) -> String {
        format!("<octavo.Object {:?}, {} bytes>", self.inner.name(), self.inner.len_bytes())
    }
}

impl Object {
    /// Reads a range inside of the object: first what hits, with the GIL held; then the rest.
    fn read_memory(&self, py: Python<'_>, memory: Memory, offset: u64) -> Result<()> {
        if memory.len == 0 {
            return self.check_open();
        }
        let page_bytes = self.inner.page_bytes();
        if memory.len as u64 <= page_bytes - offset % page_bytes {
            // SAFETY: the memory is lent for the call, and nothing here has a reference to its
            // bytes.
            if unsafe { self.inner.try_read_raw_at(offset, memory.start, memory.len)? } {
                return Ok(());
            }
        } else if memory.len <= HELD_MAX_BYTES {
            return self.read_pages(py, memory, offset);
        }
        self.read_waiting(py, memory, offset)
    }

    /// Reads several pages: those that hit together, and then the others.
    fn read_pages(&self, py: Python<'_>, memory: Memory, offset: u64) -> Result<()> {
        // A batch does not look whether this is a child of `fork`.
        if !self.process.is_this() {
            return Err(Error::Forked.into());
        }
        let page_bytes = self.inner.page_bytes();
        let mut reads = [RawRead { offset: 0, start: std::ptr::null_mut(), len: 0 }; PAGES_MAX];
        let (mut count, mut done) = (0, 0);
        while done < memory.len {
            let at = offset + done as u64;
            let piece = memory.skip(done).first(page_bytes - at % page_bytes);
            reads[count] = RawRead { offset: at, start: piece.start, len: piece.len };
            (count, done) = (count + 1, done + piece.len);
        }
        let mut missing = Vec::new();
        // SAFETY: as in `read_memory`.
        unsafe { self.inner.try_read_raw_batch(&mut reads[..count], &mut missing) };
        // Adjacent pages are read together.
        for run in missing.chunk_by(|one, next| one + 1 == *next) {
            let pages = &reads[run[0]..run[0] + run.len()];
            let len = pages.iter().map(|page| page.len).sum();
            self.read_waiting(py, Memory { start: pages[0].start, len }, pages[0].offset)?;
        }
        Ok(())
    }

    /// Reads without the GIL.
    fn read_waiting(&self, py: Python<'_>, memory: Memory, offset: u64) -> Result<()> {
        if is_interruptible() {
            return self.read_interruptible(py, memory, offset);
        }
        // SAFETY: as in `read_memory`.
        let read = py.detach(move || unsafe { read_raw(&self.inner, offset, memory) });
        read.map_err(|error| self.explain(py, error))
    }

    /// Reads by a thread that may be left behind (I2), into memory of its own.
    fn read_interruptible(&self, py: Python<'_>, memory: Memory, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < memory.len {
            let piece = memory.skip(done).first(PIECE_MAX_BYTES);
            let at = offset + done as u64;
            let bytes = self.wait(py, move |object| {
                let mut bytes = vec![0; piece.len];
                object.read_at(at, &mut bytes).map(|()| bytes)
            })?;
            // SAFETY: the memory is lent for the call, and has this length. Other threads of Python
            // do not run meanwhile.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.start, piece.len) };
            done += piece.len;
        }
        Ok(())
    }

    /// Writes by a thread that may be left behind (I2), from memory of its own, unless the write
    /// hits.
    fn write_interruptible(&self, py: Python<'_>, memory: Memory, offset: u64) -> Result<()> {
        let mut done = 0;
        loop {
            let piece = memory.skip(done).first(PIECE_MAX_BYTES);
            let at = offset + done as u64;
            let mut bytes: Vec<u8> = Vec::with_capacity(piece.len);
            // SAFETY: the memory is lent for the call, and has this length. Other threads of Python
            // do not run meanwhile.
            unsafe { std::ptr::copy_nonoverlapping(piece.start, bytes.as_mut_ptr(), piece.len) };
            // SAFETY: the copy has initialized these bytes.
            unsafe { bytes.set_len(piece.len) };
            if piece.len > HELD_MAX_BYTES || !self.inner.try_write_at(at, &bytes) {
                self.wait(py, move |object| object.write_at(at, &bytes))?;
            }
            done += piece.len;
            if done == memory.len {
                return Ok(());
            }
        }
    }

    /// Fails if the object was closed, which has the length 0.
    fn check_open(&self) -> Result<()> {
        // SAFETY: the range is past every end, so nothing is read.
        match unsafe { self.inner.try_read_raw_at(u64::MAX, std::ptr::null_mut(), 1) } {
            Err(Error::PastEnd { .. }) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// The length of a range that goes to the end if it has none.
    fn rest(&self, offset: u64, length: Option<u64>) -> u64 {
        length.unwrap_or_else(|| self.inner.len_bytes().saturating_sub(offset))
    }
}

/// # Safety
/// As [`octavo::Object::read_raw_at`].
unsafe fn read_raw(object: &octavo::Object, offset: u64, memory: Memory) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { object.read_raw_at(offset, memory.start, memory.len) }
}

/// # Safety
/// As [`octavo::Object::write_raw_at`].
unsafe fn write_raw(object: &octavo::Object, offset: u64, memory: Memory) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { object.write_raw_at(offset, memory.start, memory.len) }
}

fn advice_of(word: &str) -> Result<Advice> {
    Ok(match word {
        "normal" => Advice::Normal,
        "sequential" => Advice::Sequential,
        "random" => Advice::Random,
        "willneed" => Advice::WillNeed,
        "dontneed" => Advice::DontNeed,
        "noreuse" => Advice::NoReuse,
        _ => {
            let known = "normal, sequential, random, willneed, dontneed or noreuse";
            return Err(config(format!("advice is {word:?}: {known} is needed")));
        }
    })
}
