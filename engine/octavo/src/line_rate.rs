//! [`LineRate`]: a bound on the log lines that others can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most lines per window: enough to diagnose a problem, few enough not to fill a disk.
const LINES_MAX: u32 = 16;

/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// A bound on the log lines that others can cause, such as clients and servers: 16 in ten seconds.
///
/// # Examples
/// ```
/// let (rate, now) = (octavo::LineRate::default(), std::time::Instant::now());
/// assert!((0..16).all(|_| rate.admit(now) == Some(0)));
/// assert_eq!(rate.admit(now), None);
/// ```
#[derive(Debug, Default)]
pub struct LineRate(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LineRate {
    /// Returns the number of lines suppressed before this one, or `None` if this line is suppressed
    /// too.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.start.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            *window = Window { start: Some(now), lines: 0, suppressed: window.suppressed };
        }
        if window.lines == LINES_MAX {
            window.suppressed += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_admits_16_lines_and_the_next_window_counts_the_suppressed_ones() {
        let (rate, start) = (LineRate::default(), Instant::now());
        let admitted = (0..LINES_MAX + 5).filter(|_| rate.admit(start).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(rate.admit(start + WINDOW), Some(5));
        assert_eq!(rate.admit(start + WINDOW), Some(0));
    }
}
