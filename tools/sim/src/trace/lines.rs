//! Traces that are text: each line is a request, or none.

use std::collections::VecDeque;

use crate::trace::extent::Run;
use crate::trace::input::{Input, LINE_BYTES_MAX, Line};
use crate::{CHUNK, Source, SourceError};

/// The pages that a line requests; None: the line is no access.
pub type Parsed = Result<Option<Run>, String>;

/// A text format.
pub trait Format: Send {
    /// Appends the pages that a line asks for to `runs`. The line has no white space at its ends
    /// and is not empty. The error says what is wrong with the line; then `runs` is unchanged.
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String>;

    /// Called after the last line: appends the pages that were held back until more lines came.
    fn end(&mut self, _runs: &mut VecDeque<Run>) {}
}

/// A function that returns the pages of a line is a format.
impl<F: FnMut(&[u8]) -> Parsed + Send> Format for F {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        runs.extend(self(line)?);
        Ok(())
    }
}

/// Reads lines, and yields the pages that they stand for.
pub struct Lines<F> {
    input: Input,
    format: F,
    skip_bad: bool,
    /// Requests that were read and not yet yielded; one may be longer than a chunk.
    runs: VecDeque<Run>,
    lines: u64,
    skipped: u64,
    is_over: bool,
}

impl<F: Format> Lines<F> {
    /// Reads from the input's beginning.
    pub fn new(input: Input, format: F, skip_bad: bool) -> Self {
        Lines { input, format, skip_bad, runs: VecDeque::new(), lines: 0, skipped: 0, is_over: false }
    }

    /// Reads a line. The error is about this line.
    fn read(&mut self) -> Result<(), String> {
        match self.input.line() {
            Err(error) => {
                // If the input cannot be read, the line cannot be skipped: there is no next line.
                self.is_over = true;
                self.lines += 1;
                Err(error.to_string())
            }
            Ok(Line::End) => {
                self.is_over = true;
                self.format.end(&mut self.runs);
                Ok(())
            }
            Ok(Line::TooLong) => {
                self.lines += 1;
                self.bad(format!("the line is longer than {LINE_BYTES_MAX} bytes"))
            }
            Ok(Line::Is(line)) => {
                self.lines += 1;
                let line = self.input.buffer()[line].trim_ascii();
                if line.is_empty() {
                    return Ok(());
                }
                match self.format.line(line, &mut self.runs) {
                    Ok(()) => Ok(()),
                    Err(what) => self.bad(what),
                }
            }
        }
    }

    fn bad(&mut self, what: String) -> Result<(), String> {
        if self.skip_bad {
            self.skipped += 1;
            return Ok(());
        }
        self.is_over = true;
        Err(what)
    }

    /// Yields what was read, until `pages` has `target` pages.
    fn drain(&mut self, pages: &mut Vec<u64>, target: usize) {
        while let Some(run) = self.runs.front_mut() {
            let count = run.count.min(target.saturating_sub(pages.len()) as u64);
            pages.extend((0..count).map(|page| run.first.wrapping_add(page)));
            run.first = run.first.wrapping_add(count);
            run.count -= count;
            if run.count > 0 {
                return;
            }
            self.runs.pop_front();
        }
    }
}

impl<F: Format> Source for Lines<F> {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let target = pages.len() + CHUNK;
        loop {
            self.drain(pages, target);
            if pages.len() >= target || (self.is_over && self.runs.is_empty()) {
                return Ok(());
            }
            if let Err(what) = self.read() {
                self.runs.clear();
                return Err(SourceError(format!("{}:{}: {what}", self.input.name(), self.lines)));
            }
        }
    }

    fn progress(&self) -> Option<f64> {
        self.input.progress()
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Parses a whole number.
pub fn number(field: &[u8]) -> Result<u64, String> {
    let wrong = |why| Err(format!("\"{}\" is {why}", shown(field)));
    if field.is_empty() || !field.iter().all(u8::is_ascii_digit) {
        return wrong("not a whole number");
    }
    let digit = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    match field.iter().try_fold(0, digit) {
        Some(number) => Ok(number),
        None => wrong("not below 2^64"),
    }
}

/// Returns a part of a line for a message: printable, and at most 40 bytes of it.
pub fn shown(field: &[u8]) -> String {
    let end = if field.len() > 40 { ".." } else { "" };
    format!("{}{end}", field[..field.len().min(40)].escape_ascii())
}

/// Splits a line at its white space.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_fit_into_64_bits() {
        assert_eq!(number(b"0"), Ok(0));
        assert_eq!(number(b"18446744073709551615"), Ok(u64::MAX));
        for wrong in [&b""[..], b"-1", b"+1", b"1.0", b"0x10", b"1 2", b"18446744073709551616"] {
            assert!(number(wrong).is_err(), "{}", wrong.escape_ascii());
        }
        assert_eq!(number(b"\x1b[2J\n").unwrap_err(), "\"\\x1b[2J\\n\" is not a whole number");
    }
}
