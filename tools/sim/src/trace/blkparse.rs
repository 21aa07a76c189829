//! The text that `blkparse` writes by default.
//!
//! ```text
//!   8,0    3        1     0.000001829   697  Q   R 223490 + 8 [kjournald]
//! device  cpu  sequence     seconds     pid action  sectors
//! ```
//!
//! A request appears several times on its way through the kernel. One action counts: Q (queued,
//! what was asked for), if it is among the first [`UNDECIDED_MAX`] events with sectors; else D
//! (issued to the device) or, without that, C (completed). Data that is read or written counts;
//! discards, flushes and notes do not. A device is a volume, numbered as they come: a device mapper
//! recorded with its disks gives each request twice.

use std::collections::VecDeque;

use crate::trace::extent::{PageBytes, Run, Volumes};
use crate::trace::lines::{Format, number, shown, words};

/// How many events are looked at, and kept, before Q is given up.
pub const UNDECIDED_MAX: usize = 4096;

/// Actions that may count, the best first.
const ACTIONS: [&[u8]; 3] = [b"Q", b"D", b"C"];

/// The events of one or more devices.
pub struct Blkparse {
    page_bytes: PageBytes,
    devices: Volumes,
    /// Which of [`ACTIONS`] counts.
    action: Option<usize>,
    /// Until that is decided: what came, by action.
    undecided: Vec<(usize, Run)>,
    /// The sums at the end are no events.
    in_summary: bool,
}

impl Blkparse {
    /// With no event seen.
    pub fn new(page_bytes: PageBytes) -> Self {
        Blkparse {
            page_bytes,
            devices: Volumes::default(),
            action: None,
            undecided: Vec::new(),
            in_summary: false,
        }
    }

    /// The pages of an event, and the number of its action; none if it does not count.
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
        // Requests without sectors have a process there.
        if sector.starts_with(b"[") {
            return Ok(None);
        }
        let sector = number(sector)?;
        match words.next() {
            Some(b"+") => {}
            // As above: a completion without sectors has an error there.
            None => return Ok(None),
            Some(word) if word.starts_with(b"[") => return Ok(None),
            Some(word) => return Err(format!("\"{}\" stands where \"+\" is expected", shown(word))),
        }
        let sectors = number(words.next().ok_or("the event has no count of sectors")?)?;
        // A request that is refused names no device.
        self.page_bytes.touched_sectors(0, sector, sectors)?;
        let run = self.page_bytes.touched_sectors(self.devices.number(device)?, sector, sectors)?;
        Ok(Some((action, run)))
    }

    /// Settles on an action; what came of it before goes first.
    fn decide(&mut self, action: usize, runs: &mut VecDeque<Run>) {
        self.action = Some(action);
        let undecided = std::mem::take(&mut self.undecided);
        runs.extend(undecided.into_iter().filter(|(of, _)| *of == action).map(|(_, run)| run));
    }

    /// The best of the actions that came.
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
            return Err(format!("\"{}\" is no event of a device", shown(line)));
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

/// Whether the line begins with `major,minor` and a space.
fn begins_with_device(line: &[u8]) -> bool {
    let device = words(line).next().unwrap_or_default();
    let mut parts = device.split(|byte| *byte == b',');
    let mut is_number = || {
        let part = parts.next().unwrap_or_default();
        !part.is_empty() && part.iter().all(u8::is_ascii_digit)
    };
    is_number() && is_number() && parts.next().is_none()
}

/// Whether a request reads or writes data. `F` in front of another letter asks for a flush before
/// it, letters behind (`S` synchronous, `A` ahead, `M` metadata, `F` forced to the medium) are
/// details.
fn is_data(kind: &[u8]) -> Result<bool, String> {
    if !kind.iter().all(u8::is_ascii_uppercase) {
        return Err(format!("\"{}\" is no kind of request", shown(kind)));
    }
    let operation = match kind {
        [b'F', rest @ ..] => rest.first(),
        _ => kind.first(),
    };
    Ok(matches!(operation, Some(b'R' | b'W')))
}
