//! [`Queue`]: the lines of a server's log on their way to standard error.
//!
//! A thread of its own writes them. A reader that does not read (a full pipe, a stopped terminal, a
//! journal that hangs) therefore delays the log, and nothing else.
//!
//! - **Q1** A thread that logs holds the queue's lock only while it appends a line. It never
//!   writes.
//! - **Q2** The writing thread holds no lock during a write.
//! - **Q3** The queue holds at most `bytes_max`, the line being written included. A line that does
//!   not fit is dropped and counted, and so is one that cannot be written (a full disk).
//! - **Q4** Before the next line that is written, a note says how many lines are missing there.
//! - **Q5** At the end of the process, [`Queue::flush`] waits for the lines that are left, for as
//!   long as they are being read and at most [`FLUSH_MAX`].

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};

use crate::lock::lock;

/// The most bytes of a server's lines that wait: thousands of lines.
pub const BYTES_MAX: usize = 1 << 20;

/// What a line takes beside its text.
const LINE_BYTES: usize = 64;

/// How long the end of the process waits for a reader that reads nothing.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// How long the end of the process waits for a slow reader.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Lines that wait to be written.
pub struct Queue {
    state: Mutex<State>,
    /// Signalled when a line was appended.
    appended: Condvar,
    /// Signalled when a line was written.
    written: Condvar,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    /// What `lines` and the line being written take.
    bytes: usize,
    /// When the write in progress began.
    writing_since: Option<Instant>,
    /// Lines written or lost: shows that the reader reads.
    done_count: u64,
    /// The last write failed.
    is_failing: bool,
    /// Lines dropped so far.
    dropped_count: u64,
    /// Those that no note has reported.
    unreported_count: u64,
    dropped_at: Option<Instant>,
}

struct Line {
    text: String,
    /// Lines that were dropped immediately before this one.
    missing_count: u64,
}

/// The state of the log, for health checks and metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    /// Lines dropped since the start.
    pub dropped_count: u64,
    /// When the last one was dropped.
    pub dropped_at: Option<Instant>,
    /// Since when a line has been waiting for its reader.
    pub writing_since: Option<Instant>,
}

impl Queue {
    /// A queue for lines of this many bytes.
    pub fn new(bytes_max: usize) -> Queue {
        Queue { state: Mutex::default(), appended: Condvar::new(), written: Condvar::new(), bytes_max }
    }

    /// Appends a line, or drops it if there is no room (Q1, Q3).
    pub fn push(&self, text: String) {
        let mut state = lock(&self.state);
        let bytes = text.len() + LINE_BYTES;
        if state.bytes + bytes > self.bytes_max {
            state.drop_line();
            return;
        }
        state.bytes += bytes;
        let missing_count = std::mem::take(&mut state.unreported_count);
        state.lines.push_back(Line { text, missing_count });
        drop(state);
        self.appended.notify_one();
    }

    /// Writes lines for ever. `note` is the line that reports missing lines.
    pub fn run(&self, sink: impl AsFd, note: impl Fn(u64) -> String) -> ! {
        loop {
            let line = self.next();
            let is_told = line.missing_count == 0 || write_all(&sink, &note(line.missing_count));
            let is_written = is_told && write_all(&sink, &line.text);
            let mut state = lock(&self.state);
            if !is_told {
                state.unreported_count += line.missing_count;
            }
            if !line.text.is_empty() {
                state.bytes -= line.text.len() + LINE_BYTES;
                if !is_written {
                    state.drop_line();
                }
            }
            state.is_failing = !is_written;
            state.writing_since = None;
            state.done_count += 1;
            drop(state);
            self.written.notify_all();
        }
    }

    /// Waits for a line. An empty one stands for lines that were dropped at the end.
    fn next(&self) -> Line {
        let mut state = lock(&self.state);
        loop {
            let found = state.lines.pop_front().or_else(|| {
                // A sink that fails gets its note before a line that it takes.
                let is_due = state.unreported_count > 0 && !state.is_failing;
                let missing_count = if is_due { std::mem::take(&mut state.unreported_count) } else { 0 };
                is_due.then(|| Line { text: String::new(), missing_count })
            });
            if let Some(line) = found {
                state.writing_since = Some(Instant::now());
                return line;
            }
            state = self.appended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines are written (Q5). False: the reader does not read them.
    pub fn flush(&self) -> bool {
        let begun = Instant::now();
        let mut state = lock(&self.state);
        let mut moved = begun;
        let mut done_count = state.done_count;
        while !state.is_idle() {
            if state.done_count != done_count {
                done_count = state.done_count;
                moved = Instant::now();
            }
            if moved.elapsed() >= SILENCE_MAX || begun.elapsed() >= FLUSH_MAX {
                return false;
            }
            state = self.wait_for_write(state);
        }
        true
    }

    fn wait_for_write<'q>(&self, state: MutexGuard<'q, State>) -> MutexGuard<'q, State> {
        let waited = self.written.wait_timeout(state, SILENCE_MAX / 10);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What was lost, and whether the reader reads.
    pub fn loss(&self) -> Loss {
        let state = lock(&self.state);
        Loss {
            dropped_count: state.dropped_count,
            dropped_at: state.dropped_at,
            writing_since: state.writing_since,
        }
    }
}

impl State {
    fn drop_line(&mut self) {
        self.dropped_count += 1;
        self.unreported_count += 1;
        self.dropped_at = Some(Instant::now());
    }

    fn is_idle(&self) -> bool {
        let has_note = self.unreported_count > 0 && !self.is_failing;
        self.lines.is_empty() && self.writing_since.is_none() && !has_note
    }
}

/// Writes a text, however long the reader takes. False: it cannot be written.
fn write_all(sink: &impl AsFd, text: &str) -> bool {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match write(sink, rest) {
            Ok(0) => return false,
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            // Another process may have made a terminal that it shares with this one nonblocking.
            Err(Errno::AGAIN) => _ = poll(&mut [PollFd::new(sink, PollFlags::OUT)], None),
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    fn note(count: u64) -> String {
        format!("{count} missing\n")
    }

    /// A queue of a few lines, whose thread writes to this descriptor.
    fn queue(sink: OwnedFd) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(8 * (LINE_BYTES + 8)));
        let running = Arc::clone(&queue);
        std::thread::spawn(move || running.run(sink, note));
        queue
    }

    fn pipe() -> (File, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (File::from(OwnedFd::from(reader)), writer.into())
    }

    /// Fills a pipe, so that the next write to it waits.
    fn fill(pipe: &OwnedFd) -> usize {
        rustix::io::ioctl_fionbio(pipe, true).unwrap();
        let mut count = 0;
        while write(pipe, b"full...\n").is_ok() {
            count += 1;
        }
        rustix::io::ioctl_fionbio(pipe, false).unwrap();
        count
    }

    #[test]
    fn a_log_that_nobody_reads_drops_lines_and_later_says_how_many() {
        let (reader, writer) = pipe();
        let before = fill(&writer);
        let queue = queue(writer);
        // Would never return if a line were written by the thread that logs it.
        (0..100).for_each(|number| queue.push(format!("line{number:03}\n")));
        let loss = queue.loss();
        assert!((91..=92).contains(&loss.dropped_count), "{loss:?}");
        assert!(loss.dropped_at.is_some());
        assert!(!queue.flush(), "the end of a process does not wait for ever");
        // Somebody reads again.
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        assert!(lines.by_ref().take(before).all(|line| line == "full..."));
        let kept = 100 - loss.dropped_count as usize;
        let first: Vec<String> = lines.by_ref().take(kept).collect();
        assert_eq!((&*first[0], first.len()), ("line000", kept));
        assert_eq!(lines.next().unwrap(), format!("{} missing", loss.dropped_count));
        queue.push("after\n".into());
        assert_eq!(lines.next().unwrap(), "after");
        assert!(queue.flush());
        assert!(queue.loss().writing_since.is_none());
    }

    #[test]
    fn lines_are_written_in_their_order_and_flush_waits_for_them() {
        let (reader, writer) = pipe();
        let queue = queue(writer);
        for number in 0..200 {
            queue.push(format!("{number}\n"));
            assert!(queue.flush());
        }
        let lines = BufReader::new(reader).lines().take(200).map(Result::unwrap);
        assert!(lines.eq((0..200).map(|number| number.to_string())));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_do_not_occupy_the_queue() {
        let queue = queue(File::options().write(true).open("/dev/full").unwrap().into());
        for count in 1..=100 {
            queue.push("lost\n".into());
            assert!(queue.flush());
            assert_eq!(queue.loss().dropped_count, count);
        }
    }
}
