//! The server's signals, handled on a thread of their own.
//!
//! | signal | effect |
//! |---|---|
//! | first SIGTERM or SIGINT | asks the server to stop |
//! | second SIGTERM or SIGINT | this thread ends the process at once, whatever the server does |
//! | SIGHUP | asks for a reload of the configuration; without one, as SIGTERM |
//! | SIGPIPE | Rust's start-up code ignores it |
//! | SIGXFSZ | is ignored: a write beyond the limit on file sizes fails with EFBIG |

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use octavo::Cache;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::control::drain;
use crate::error::Error;
use crate::logger;
use crate::units;

/// Starts the thread. `stop` is called with the number of the first SIGTERM or SIGINT. `reload`
/// gets a message for each SIGHUP, unless one is waiting there already.
pub fn start(
    cache: Cache,
    stop: impl Fn(i32) + Send + 'static,
    reload: Option<SyncSender<()>>,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::failed(format!("cannot handle signals: {error}"));
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let serve = move || {
        let mut stopping = false;
        for signal in signals.forever() {
            match (signal, &reload, stopping) {
                // A full channel holds a reload that will read what this one would. A closed one is
                // that of a server that could not start.
                (SIGHUP, Some(reload), _) => drop(reload.try_send(())),
                (_, _, false) => {
                    stopping = true;
                    stop(signal);
                }
                (_, _, true) => end_at_once(&cache, signal),
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(serve).map_err(failed)?;
    Ok(())
}

/// A signal's name.
pub fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

fn end_at_once(cache: &Cache, signal: i32) -> ! {
    let dirty_bytes = drain::dirty_bytes(cache);
    logger::failure(&Error::failed(format!(
        "a second {}: ended at once, {} dirty bytes left ({})",
        name(signal),
        dirty_bytes,
        units::human_bytes(dirty_bytes)
    )));
    std::process::exit(128 + signal)
}
