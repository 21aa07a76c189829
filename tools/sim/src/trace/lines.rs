//! Traces that are text: each line is a request, or none.
//!
//! A byte order mark of UTF-8, which spreadsheets write, is no part of a line, wherever files were
//! joined. A text in UTF-16 is refused, with a hint; its lines would be skipped one by one.

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
    /// The pages of the first of `runs` that were yielded.
    drained: u64,
    lines: u64,
    skipped: u64,
    is_over: bool,
}

/// The byte order mark of UTF-8.
const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";

/// The byte order marks of UTF-16, little-endian and big-endian.
const UTF_16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

impl<F: Format> Lines<F> {
    /// Reads from the input's beginning.
    pub fn new(input: Input, format: F, skip_bad: bool) -> Self {
        let runs = VecDeque::new();
        Lines { input, format, skip_bad, runs, drained: 0, lines: 0, skipped: 0, is_over: false }
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
                let line = &self.input.buffer()[line];
                if self.lines == 1 && UTF_16_MARKS.iter().any(|mark| line.starts_with(mark)) {
                    self.is_over = true;
                    return Err("the text is UTF-16; convert it to UTF-8, as with iconv(1)".into());
                }
                let line = line.strip_prefix(UTF_8_MARK).unwrap_or(line).trim_ascii();
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
        while let Some(run) = self.runs.front() {
            // A request that is repeated is yielded pass by pass, and takes no memory for that.
            let total = run.count.saturating_mul(run.times);
            while self.drained < total && pages.len() < target {
                let at = self.drained % run.count;
                let count = (run.count - at).min((target - pages.len()) as u64);
                let first = run.first.wrapping_add(at);
                pages.extend((0..count).map(|page| first.wrapping_add(page)));
                self.drained += count;
            }
            if self.drained < total {
                return;
            }
            self.drained = 0;
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
