//! The log of a server: who, where and why, at a bounded rate.
//!
//! A hostile client can make as many errors as it likes; it cannot make as many lines.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Lines per window: enough to see what is going on, few enough for a disk.
const LINES_MAX: u32 = 16;
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    dropped: u64,
}

/// Writes warnings about one client; all journals of a server share one rate.
#[derive(Clone, Default)]
pub struct Journal {
    who: String,
    window: Arc<Mutex<Window>>,
}

impl Journal {
    /// The journal of a client of the same server.
    pub fn about(&self, who: String) -> Journal {
        Journal { who, window: self.window.clone() }
    }

    /// Whom the lines are about.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// One warning, unless there were too many.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        if let Some(dropped) = self.admit(Instant::now()) {
            if dropped > 0 {
                log::warn!("nbd: {dropped} warnings were left out");
            }
            log::warn!("nbd: {}: {what}", self.who);
        }
    }

    /// Whether one more line may be written, and how many were left out before it.
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
    fn a_window_admits_its_lines_and_the_next_one_tells_how_many_were_left_out() {
        let (journal, start) = (Journal::default(), Instant::now());
        let admitted = (0..LINES_MAX + 5).filter(|_| journal.admit(start).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(journal.admit(start + WINDOW), Some(5));
        assert_eq!(journal.admit(start + WINDOW), Some(0));
    }
}
