//! What went wrong: codes, and the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use octavo::Error;
use octavo::disk::OpenError;

/// The call succeeded.
pub const OCTAVO_OK: c_int = 0;
/// The store failed; `octavo_error_errno` tells the system's error. After a failed write, the bytes
/// of the store in that range are unknown.
pub const OCTAVO_EIO: c_int = -1;
/// The range reaches past the end of the object.
pub const OCTAVO_EPASTEND: c_int = -2;
/// The object was opened read-only.
pub const OCTAVO_EREADONLY: c_int = -3;
/// An earlier sync of the store failed, so the contents of the store are unknown: abandon the
/// object, check the store, and open it again.
pub const OCTAVO_EFAILED: c_int = -4;
/// A memory limit leaves no room.
pub const OCTAVO_ENOMEMORY: c_int = -5;
/// The object was closed.
pub const OCTAVO_ECLOSED: c_int = -6;
/// This process is a child of `fork`, and its parent created the cache. Create another cache here.
pub const OCTAVO_EFORK: c_int = -7;
/// An argument is invalid, or the system refused a resource. The message says which.
pub const OCTAVO_EINVALID: c_int = -8;
/// A store could not be opened; `octavo_error_errno` tells the system's error, if there was one.
pub const OCTAVO_EOPEN: c_int = -9;
/// Not done at once: the call would have to wait. No message.
pub const OCTAVO_EAGAIN: c_int = -10;
/// A defect of Octavo. Please report it with the message. The objects of the call may be unusable.
pub const OCTAVO_EPANIC: c_int = -11;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub code: c_int,
    pub errno: c_int,
    pub message: String,
}

impl Failure {
    /// An argument is invalid.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure { code: OCTAVO_EINVALID, errno: libc::EINVAL, message: message.into() }
    }

    /// The call would have to wait.
    pub fn again() -> Failure {
        Failure { code: OCTAVO_EAGAIN, errno: libc::EAGAIN, message: String::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (code, errno) = match &error {
            Error::Io { source, .. } => (OCTAVO_EIO, source.errno()),
            Error::PastEnd { .. } => (OCTAVO_EPASTEND, libc::EINVAL),
            Error::ReadOnly { .. } => (OCTAVO_EREADONLY, libc::EROFS),
            Error::Failed { .. } => (OCTAVO_EFAILED, libc::EIO),
            Error::NoMemory { .. } => (OCTAVO_ENOMEMORY, libc::ENOMEM),
            Error::Closed { .. } => (OCTAVO_ECLOSED, libc::EBADF),
            Error::Forked => (OCTAVO_EFORK, libc::EPERM),
            _ => (OCTAVO_EINVALID, libc::EINVAL),
        };
        Failure { code, errno, message: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let of = |source: &std::io::Error| source.raw_os_error().unwrap_or(libc::EIO);
        let errno = match &error {
            OpenError::NotFound { .. } => libc::ENOENT,
            OpenError::IsDirectory { .. } => libc::EISDIR,
            OpenError::Permission { source, .. } | OpenError::Io { source, .. } => of(source),
            OpenError::ReadOnlyDevice { .. } => libc::EROFS,
            OpenError::Locked { .. } => libc::EBUSY,
            _ => libc::EINVAL,
        };
        Failure { code: OCTAVO_EOPEN, errno, message: error.to_string() }
    }
}

/// The last error of a thread.
struct Last {
    errno: c_int,
    message: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { errno: 0, message: None }) };
}

/// Keeps an error for `octavo_error_message`, and returns its code.
pub(crate) fn remember(failure: Failure) -> c_int {
    let Failure { code, errno, message } = failure;
    // A thread that is ending has no last error.
    let _ = LAST.try_with(|last| {
        let message = CString::new(message.replace('\0', "")).ok();
        *last.borrow_mut() = Last { errno, message };
    });
    code
}

/// Returns the message of this thread's last call that failed: a sentence, in English. Valid until
/// the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_error_message() -> *const c_char {
    let message = LAST.try_with(|last| last.borrow().message.as_ref().map(|text| text.as_ptr()));
    message.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the number of the system's error (`ENOSPC`, ...) of this thread's last call that failed,
/// or the one nearest to it.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_error_errno() -> c_int {
    LAST.try_with(|last| last.borrow().errno).unwrap_or(0)
}

/// Returns the name of a code, such as "OCTAVO_EIO".
#[unsafe(no_mangle)]
pub extern "C" fn octavo_error_name(code: c_int) -> *const c_char {
    let name: &'static CStr = match code {
        OCTAVO_OK => c"OCTAVO_OK",
        OCTAVO_EIO => c"OCTAVO_EIO",
        OCTAVO_EPASTEND => c"OCTAVO_EPASTEND",
        OCTAVO_EREADONLY => c"OCTAVO_EREADONLY",
        OCTAVO_EFAILED => c"OCTAVO_EFAILED",
        OCTAVO_ENOMEMORY => c"OCTAVO_ENOMEMORY",
        OCTAVO_ECLOSED => c"OCTAVO_ECLOSED",
        OCTAVO_EFORK => c"OCTAVO_EFORK",
        OCTAVO_EINVALID => c"OCTAVO_EINVALID",
        OCTAVO_EOPEN => c"OCTAVO_EOPEN",
        OCTAVO_EAGAIN => c"OCTAVO_EAGAIN",
        OCTAVO_EPANIC => c"OCTAVO_EPANIC",
        _ => c"no code of Octavo",
    };
    name.as_ptr()
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn octavo_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}
