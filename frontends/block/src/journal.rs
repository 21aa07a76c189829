//! [`Journal`]: the warnings of a server about its clients, at a bounded rate. A hostile client can
//! cause any number of errors, but all clients together cause only [`LINES_MAX`] warnings per
//! [`WINDOW`].

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most lines per window: enough to diagnose a problem, few enough not to fill a disk.
const LINES_MAX: u32 = 16;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    dropped: u64,
}

/// Writes warnings about one client. All journals of a server share one rate.
#[derive(Clone)]
pub struct Journal {
    protocol: &'static str,
    who: String,
    window: Arc<Mutex<Window>>,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal { protocol: "nbd", who: String::new(), window: Arc::default() }
    }
}

impl Journal {
    /// Returns the journal of another client of the same server.
    pub fn about(&self, who: String) -> Journal {
        Journal { who, ..self.clone() }
    }

    /// Returns this journal for clients of another protocol.
    pub fn of(&self, protocol: &'static str) -> Journal {
        Journal { protocol, ..self.clone() }
    }

    /// Returns the client's name in the log.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Writes a warning, unless the window is full.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        if let Some(dropped) = self.admit(Instant::now()) {
            if dropped > 0 {
                log::warn!("{}: {dropped} warnings were suppressed", self.protocol);
            }
            log::warn!("{}: {}: {what}", self.protocol, self.who);
        }
    }

    /// Writes a line that is no warning, at the same rate.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        if self.admit(Instant::now()).is_some() {
            log::info!("{}: {}: {what}", self.protocol, self.who);
        }
    }

    /// Returns the number of lines suppressed before this one, or None if this line is suppressed
    /// too.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if window.start.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            *window = Window { start: Some(now), lines: 0, dropped: window.dropped };
        }
        if window.lines == LINES_MAX {
            window.dropped += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_admits_16_lines_and_the_next_window_counts_the_suppressed_ones() {
        let (journal, start) = (Journal::default(), Instant::now());
        let admitted = (0..LINES_MAX + 5).filter(|_| journal.admit(start).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(journal.admit(start + WINDOW), Some(5));
        assert_eq!(journal.admit(start + WINDOW), Some(0));
    }
}
