//! What every function does: catch panics, and remember the error.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Failure, OCTAVO_EPANIC, OCTAVO_OK, remember};

/// Runs the body of a function, and returns its code. An error also sets `errno`.
#[inline(always)]
pub fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // What a panic leaves behind is the engine's matter: its own structs stay consistent.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OCTAVO_OK,
        Ok(Err(failure)) => failed(failure),
        Err(panic) => failed(panicked(&*panic)),
    }
}

/// Runs the body of a function that returns no code. A panic is logged.
pub fn quietly(body: impl FnOnce()) {
    let code = call(|| {
        body();
        Ok(())
    });
    if code != OCTAVO_OK {
        log::error!("a defect: a call that cannot fail has panicked");
    }
}

#[cold]
fn failed(failure: Failure) -> c_int {
    let errno = failure.errno;
    let code = remember(failure);
    // SAFETY: the address of this thread's `errno`.
    let address = unsafe { libc::__errno_location() };
    // SAFETY: valid for writes.
    unsafe { *address = errno };
    code
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let message = format!("a defect: {}", text.unwrap_or_else(|| "a panic without a message".into()));
    Failure { code: OCTAVO_EPANIC, errno: libc::EIO, message }
}

/// Checks a pointer to a handle or to a result.
#[inline(always)]
pub fn given<T>(argument: Option<T>, name: &str) -> Result<T, Failure> {
    match argument {
        Some(argument) => Ok(argument),
        None => Err(missing(name)),
    }
}

#[cold]
fn missing(name: &str) -> Failure {
    Failure::invalid(format!("{name} is a null pointer"))
}

/// Returns the text of an argument.
///
/// # Safety
/// `text` is null, or points to bytes that end with a zero and outlive the result.
pub unsafe fn text<'t>(text: *const c_char, name: &str) -> Result<&'t str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { optional_text(text, name) }?;
    given(text, name)
}

/// Returns the text of an argument that may be null.
///
/// # Safety
/// As [`text`].
pub unsafe fn optional_text<'t>(text: *const c_char, name: &str) -> Result<Option<&'t str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}
