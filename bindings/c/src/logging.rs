//! The library's log.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Once, PoisonError, RwLock};

use log::{LevelFilter, Log, Metadata, Record};

use crate::call::call;
use crate::error::Failure;

/// Nothing is logged.
pub const OCTAVO_LOG_OFF: u32 = 0;
/// What lost data or may lose it.
pub const OCTAVO_LOG_ERROR: u32 = 1;
/// What works less well than it should.
pub const OCTAVO_LOG_WARN: u32 = 2;
/// What an operator may want to know.
pub const OCTAVO_LOG_INFO: u32 = 3;
/// What helps to find defects.
pub const OCTAVO_LOG_DEBUG: u32 = 4;

/// Takes a line of the log. `level` is `OCTAVO_LOG_*`; `line` is valid during the call. Any thread
/// may call it, with locks of the cache held: it must not call the cache.
pub type octavo_log_function =
    Option<unsafe extern "C" fn(user: *mut c_void, level: u32, line: *const c_char)>;

struct Sink {
    function: octavo_log_function,
    user: *mut c_void,
}

// SAFETY: the caller of `octavo_set_log` promises that any thread may call the function.
unsafe impl Send for Sink {}
// SAFETY: as above, several at a time.
unsafe impl Sync for Sink {}

static SINK: RwLock<Sink> = RwLock::new(Sink { function: None, user: std::ptr::null_mut() });

struct Forward;

impl Log for Forward {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        let Some(function) = sink.function else { return };
        let line = CString::new(record.args().to_string().replace('\0', "")).unwrap_or_default();
        let level = (record.level() as u32).min(OCTAVO_LOG_DEBUG);
        // SAFETY: the promise of `octavo_set_log`.
        unsafe { function(sink.user, level, line.as_ptr()) };
    }

    fn flush(&self) {}
}

/// Sends the library's log, up to a level, to a function; a null function ends that. At first, the
/// log goes nowhere. When this returns, an earlier function is not called any more.
///
/// Errors: `OCTAVO_EINVALID` if there is no such level, or the process has another Rust logger.
///
/// # Safety
/// Any thread may call `function`, with `user`, until another call replaces it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_set_log(
    level: u32,
    function: octavo_log_function,
    user: *mut c_void,
) -> c_int {
    static INSTALL: Once = Once::new();
    static FORWARD: Forward = Forward;
    call(|| {
        let filter = match level {
            OCTAVO_LOG_OFF => LevelFilter::Off,
            OCTAVO_LOG_ERROR => LevelFilter::Error,
            OCTAVO_LOG_WARN => LevelFilter::Warn,
            OCTAVO_LOG_INFO => LevelFilter::Info,
            OCTAVO_LOG_DEBUG => LevelFilter::Debug,
            _ => return Err(Failure::invalid(format!("{level} is no level of the log"))),
        };
        let mut is_other = false;
        INSTALL.call_once(|| is_other = log::set_logger(&FORWARD).is_err());
        if is_other {
            return Err(Failure::invalid("another library of this process has the Rust logger"));
        }
        *SINK.write().unwrap_or_else(PoisonError::into_inner) = Sink { function, user };
        log::set_max_level(filter);
        Ok(())
    })
}
