//! A line on standard error that is replaced while a run makes progress, if standard error is a
//! terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The shortest time between two updates.
const PAUSE: Duration = Duration::from_millis(100);

/// The line. Dropping it clears it.
pub struct Line {
    is_shown: bool,
    updated: Option<Instant>,
}

impl Line {
    /// A line that is shown if standard error is a terminal and `quiet` is not set.
    pub fn new(quiet: bool) -> Line {
        Line { is_shown: std::io::stderr().is_terminal() && !quiet, updated: None }
    }

    /// Replaces the line, at most ten times a second.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.is_shown && self.updated.is_none_or(|updated| updated.elapsed() >= PAUSE) {
            self.updated = Some(Instant::now());
            // Return to the beginning of the line, and clear its rest. A failure is ignored: there
            // is nowhere to report it.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", text());
        }
    }

    /// Clears the line.
    pub fn clear(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}
