//! Ends the process when a test hangs, and prints what the test was doing.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Aborts the process unless [`feed`](Watchdog::feed) is called at least once within `patience`.
/// Dropping all of its clones ends the watch.
#[derive(Clone)]
pub struct Watchdog(Sender<String>);

impl Watchdog {
    pub fn new(patience: Duration, test: &str) -> Watchdog {
        let (sender, receiver) = channel();
        let test = test.to_owned();
        std::thread::spawn(move || {
            let mut doing = String::from("starting");
            loop {
                match receiver.recv_timeout(patience) {
                    Ok(what) => doing = what,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("{test} hangs, for {patience:?} now: {doing}");
                        std::process::abort();
                    }
                }
            }
        });
        Watchdog(sender)
    }

    pub fn feed(&self, doing: impl Into<String>) {
        let _ = self.0.send(doing.into());
    }
}
