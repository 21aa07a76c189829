//! A flag that SIGINT and SIGTERM raise, for subcommands that keep what they have done so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::Error;

/// Installs a flag that the first SIGINT or SIGTERM raises; the second ends the process.
pub fn flag() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the conditional shutdown must find the flag down at the first signal.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Error::failed(format!("cannot handle signals: {error}")))?;
    }
    Ok(stop)
}

/// Fails with [`Error::Interrupted`] once the flag is raised.
pub fn unless_interrupted(stop: &AtomicBool) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted(SIGINT)) } else { Ok(()) }
}
