//! Progress of a run: what the user sees on standard error. A line for each case with the remaining
//! time; on a terminal also the current step of the case.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::report::Row;

/// Receives the rows and the progress of a suite.
pub trait Listener {
    /// Called when a case begins.
    fn begins(&mut self, case: &Begun);
    /// Called when a case has a row.
    fn row(&mut self, row: &Row);
    /// Called with the current step of the case.
    fn progress(&mut self, news: &str);
    /// Receives a warning: something makes the figures less reliable.
    fn warning(&mut self, warning: &str);
}

/// A case that begins.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The name of the case.
    pub case: String,
    /// The number of cases that are done, and the number of all cases.
    pub done: (usize, usize),
    /// The estimated remaining time of the suite, in seconds.
    pub left_s: f64,
}

/// Estimates the seconds until all cases are done: the expected time of the remaining cases,
/// multiplied by the ratio of actual to expected time of the first `done` cases.
pub(crate) fn left_s(expected_s: &[f64], done: usize, elapsed: Duration) -> f64 {
    let (behind, ahead) = expected_s.split_at(done);
    let behind: f64 = behind.iter().sum();
    let pace = if behind > 0.0 { elapsed.as_secs_f64() / behind } else { 1.0 };
    ahead.iter().sum::<f64>() * pace
}

impl Begun {
    /// Formats it as a line: `[2/12] single_128 (about 3 min left)`.
    pub fn line(&self) -> String {
        let (done, of) = self.done;
        let left = match self.left_s.ceil() as u64 {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds => format!("{} min", seconds.div_ceil(60)),
        };
        format!("[{}/{of}] {} (about {left} left)", done + 1, self.case)
    }
}

/// Writes progress to standard error, and ignores failures to write.
pub struct Progress {
    is_quiet: bool,
    is_terminal: bool,
    /// Whether the next line replaces the last one.
    is_open: bool,
}

impl Progress {
    /// Creates a writer that has not written a line yet. It writes nothing if `is_quiet`.
    pub fn new(is_quiet: bool) -> Progress {
        Progress { is_quiet, is_terminal: std::io::stderr().is_terminal(), is_open: false }
    }

    /// Writes a line that stays.
    pub fn begins(&mut self, case: &Begun) {
        self.clear();
        if !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "{}", case.line());
        }
    }

    /// Writes a line that the next one replaces. Only on a terminal.
    pub fn news(&mut self, news: &str) {
        if self.is_terminal && !self.is_quiet {
            self.is_open = !news.is_empty();
            // Return to the start of the line, and clear the rest after the text.
            let _ = write!(std::io::stderr(), "\r{news}\x1b[K");
        }
    }

    /// Removes a line that was to be replaced.
    pub fn clear(&mut self) {
        if self.is_open {
            self.news("");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Ignores everything, but panics if a case begins.
    pub(crate) struct NeverBegins;

    impl Listener for NeverBegins {
        fn begins(&mut self, case: &Begun) {
            panic!("{} began", case.case);
        }
        fn row(&mut self, _: &Row) {}
        fn progress(&mut self, _: &str) {}
        fn warning(&mut self, _: &str) {}
    }

    #[test]
    fn the_remaining_time_follows_the_pace_of_the_cases_that_are_done() {
        let expected = [10.0, 10.0, 20.0];
        assert_eq!(left_s(&expected, 0, Duration::ZERO), 40.0);
        assert_eq!(left_s(&expected, 1, Duration::from_secs(15)), 45.0);
        assert_eq!(left_s(&expected, 3, Duration::from_secs(60)), 0.0);
    }

    #[test]
    fn a_case_that_begins_is_a_line_with_its_number_and_the_remaining_time() {
        let line = |left_s| Begun { case: "pin".into(), done: (1, 6), left_s }.line();
        assert_eq!(line(29.2), "[2/6] pin (about 30 s left)");
        assert_eq!(line(200.0), "[2/6] pin (about 4 min left)");
    }
}
