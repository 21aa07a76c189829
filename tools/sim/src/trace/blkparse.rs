//! The text that `blkparse` writes by default.
//!
//! ```text
//!   8,0    3        1     0.000001829   697  Q   R 223490 + 8 [kjournald]
//! device  cpu  sequence     seconds     pid action  sectors
//! ```
//!
//! A request appears several times on its way through the kernel. Events of only one action count:
//! Q (queued, as requested), if a Q is among the first [`UNDECIDED_MAX`] events with sectors; else
//! D (issued to the device) or, if there is no D, C (completed). Reads and writes of data count;
//! discards, flushes and notes do not. A device is a volume; a device mapper recorded together with
//! its disks yields each request twice.

use std::collections::VecDeque;

use crate::trace::extent::{Extents, Run, sectors_to_bytes};
use crate::trace::fields::{number, shown, words};
use crate::trace::lines::Format;

/// The most events that wait for a Q before another action is chosen.
pub const UNDECIDED_MAX: usize = 4096;

/// Actions that may count, the best first.
const ACTIONS: [&[u8]; 3] = [b"Q", b"D", b"C"];

/// The events of one or more devices.
pub struct Blkparse {
    extents: Extents,
    /// The index in [`ACTIONS`] of the action that counts, once it is decided.
    action: Option<usize>,
    /// Until `action` is decided, the events so far, each with the number of its action.
    undecided: Vec<(usize, Run)>,
    /// Whether the reader has reached the totals at the end, which are no events.
    in_summary: bool,
}

impl Blkparse {
    /// Starts before the first line.
    pub fn new(extents: Extents) -> Self {
        Blkparse { extents, action: None, undecided: Vec::new(), in_summary: false }
    }

    /// Returns the pages of an event and the number of its action; None if it does not count.
    fn event(&mut self, line: &[u8]) -> Result<Option<(usize, Run)>, String> {
        let mut words = words(line);
        let device = words.next().unwrap_or_default();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("the event has no {what}"));
        number(next("processor")?)?;
        number(next("sequence number")?)?;
        next("time")?;
        next("process")?;
        let action = next("action")?;
        let Some(action) = ACTIONS.iter().position(|known| *known == action) else { return Ok(None) };
        let kind = next("kind (such as R or WS)")?;
        if !is_data(kind)? {
            return Ok(None);
        }
        let sector = next("sector")?;
        // In a request without sectors, the name of the process is here.
        if sector.starts_with(b"[") {
            return Ok(None);
        }
        let sector = number(sector)?;
        match words.next() {
            Some(b"+") => {}
            // In a completion without sectors, an error number is here.
            None => return Ok(None),
            Some(word) if word.starts_with(b"[") => return Ok(None),
            Some(word) => return Err(format!("expected \"+\", found \"{}\"", shown(word))),
        }
        let sectors = number(words.next().ok_or("the event has no count of sectors")?)?;
        let (offset, bytes) = (sectors_to_bytes(sector)?, sectors_to_bytes(sectors)?);
        Ok(Some((action, self.extents.touched_named(device, offset, bytes)?)))
    }

    /// Decides on an action and appends its events so far.
    fn decide(&mut self, action: usize, runs: &mut VecDeque<Run>) {
        self.action = Some(action);
        let undecided = std::mem::take(&mut self.undecided);
        runs.extend(undecided.into_iter().filter(|(of, _)| *of == action).map(|(_, run)| run));
    }

    /// Decides on the best of the actions so far.
    fn decide_now(&mut self, runs: &mut VecDeque<Run>) {
        if let Some(best) = self.undecided.iter().map(|(action, _)| *action).min() {
            self.decide(best, runs);
        }
    }
}

impl Format for Blkparse {
    fn line(&mut self, line: &[u8], runs: &mut VecDeque<Run>) -> Result<(), String> {
        if !begins_with_device(line) {
            self.in_summary |= line.starts_with(b"CPU") || line.starts_with(b"Total (");
            if self.in_summary || line.starts_with(b"Input file ") {
                return Ok(());
            }
            return Err(format!("\"{}\" is not an event of a device", shown(line)));
        }
        self.in_summary = false;
        let Some((action, run)) = self.event(line)? else { return Ok(()) };
        match self.action {
            Some(counts) if counts == action => runs.push_back(run),
            Some(_) => {}
            None => {
                self.undecided.push((action, run));
                if action == 0 {
                    self.decide(action, runs);
                } else if self.undecided.len() == UNDECIDED_MAX {
                    self.decide_now(runs);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, runs: &mut VecDeque<Run>) {
        if self.action.is_none() {
            self.decide_now(runs);
        }
    }
}

/// Returns whether the line begins with `major,minor` and a space.
fn begins_with_device(line: &[u8]) -> bool {
    let device = words(line).next().unwrap_or_default();
    let mut parts = device.split(|byte| *byte == b',');
    let mut is_number = || {
        let part = parts.next().unwrap_or_default();
        !part.is_empty() && part.iter().all(u8::is_ascii_digit)
    };
    is_number() && is_number() && parts.next().is_none()
}

/// Returns whether a request reads or writes data. `F` in front of another letter asks for a flush
/// first; letters behind (`S` synchronous, `A` ahead, `M` metadata, `F` forced to the medium) are
/// details.
fn is_data(kind: &[u8]) -> Result<bool, String> {
    if !kind.iter().all(u8::is_ascii_uppercase) {
        return Err(format!("\"{}\" is not a kind of request", shown(kind)));
    }
    let operation = match kind {
        [b'F', rest @ ..] => rest.first(),
        _ => kind.first(),
    };
    Ok(matches!(operation, Some(b'R' | b'W')))
}
