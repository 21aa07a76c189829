//! What people see on standard error while a suite runs: a line for each case with the time that is
//! left, and on a terminal what goes on within the case.
//!
//! What is not here: the rows (`report.rs`).

use std::io::{IsTerminal, Write};
use std::time::Duration;

/// A case that begins.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Its name.
    pub case: String,
    /// How many cases are done, and of how many.
    pub done: (usize, usize),
    /// Estimate of the seconds until the suite ends.
    pub left_s: f64,
}

/// Seconds until all cases are done: what is expected of those that are left, in proportion to what
/// the first `done` of them took.
pub(crate) fn left_s(expected_s: &[f64], done: usize, elapsed: Duration) -> f64 {
    let (behind, ahead) = expected_s.split_at(done);
    let behind: f64 = behind.iter().sum();
    let pace = if behind > 0.0 { elapsed.as_secs_f64() / behind } else { 1.0 };
    ahead.iter().sum::<f64>() * pace
}

impl Begun {
    /// In a line: `[2/12] single_128 (about 3 min left)`.
    pub fn line(&self) -> String {
        let (done, of) = self.done;
        let left = match self.left_s.ceil() as u64 {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds => format!("{} min", seconds.div_ceil(60)),
        };
        format!("[{}/{of}] {} (about {left} left)", done + 1, self.case)
    }
}

/// Writes to standard error. There is nobody to tell if that fails.
pub struct Progress {
    is_quiet: bool,
    is_terminal: bool,
    /// The last line may be written over.
    is_open: bool,
}

impl Progress {
    /// Writes nothing if `is_quiet`.
    pub fn new(is_quiet: bool) -> Progress {
        Progress { is_quiet, is_terminal: std::io::stderr().is_terminal(), is_open: false }
    }

    /// A line that stays.
    pub fn begins(&mut self, case: &Begun) {
        self.clear();
        if !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "{}", case.line());
        }
    }

    /// A line that the next one replaces; only on a terminal.
    pub fn news(&mut self, news: &str) {
        if self.is_terminal && !self.is_quiet {
            self.is_open = !news.is_empty();
            // To the beginning of the line, and the rest of what stood there away.
            let _ = write!(std::io::stderr(), "\r{news}\x1b[K");
        }
    }

    /// Takes such a line away.
    pub fn clear(&mut self) {
        if self.is_open {
            self.news("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace_of_the_cases_that_are_done() {
        let expected = [10.0, 10.0, 20.0];
        assert_eq!(left_s(&expected, 0, Duration::ZERO), 40.0);
        assert_eq!(left_s(&expected, 1, Duration::from_secs(15)), 45.0);
        assert_eq!(left_s(&expected, 3, Duration::from_secs(60)), 0.0);
    }

    #[test]
    fn a_case_that_begins_is_a_line_with_its_number_and_the_time_left() {
        let line = |left_s| Begun { case: "pin".into(), done: (1, 6), left_s }.line();
        assert_eq!(line(29.2), "[2/6] pin (about 30 s left)");
        assert_eq!(line(200.0), "[2/6] pin (about 4 min left)");
    }
}
