//! A test that hangs says what it was doing, and ends the process: nothing else would.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Must be fed, with what is being done, more often than its patience lasts; dropped, it goes.
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
