//! The intervals of the last hour, in memory of a fixed size.
//!
//! Two rings: the last intervals as they were, and the hour in longer intervals, each the sum of
//! several. A page that is opened gets both, and shows either.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::interval::Interval;

/// Intervals in each ring: a chart has about as many columns.
pub const INTERVALS_MAX: usize = 360;

/// Rows in each ring, one for each partition in each interval. A row takes about 2 KiB at most
/// while all kinds of requests are busy, so both rings take less than 100 MiB. With more than 55
/// partitions the rings therefore reach less far back.
pub const ROWS_MAX: usize = 20_000;

/// How far the longer intervals reach back.
const HOUR: Duration = Duration::from_secs(3600);

/// The history.
#[derive(Debug, Serialize)]
pub struct History {
    /// The last intervals.
    recent: Ring,
    /// The last hour.
    hour: Ring,
    /// The sum of the latest intervals, which is not long enough yet.
    #[serde(skip)]
    growing: Option<Interval>,
    /// How long an interval of the hour is, in milliseconds.
    #[serde(skip)]
    step_ms: u64,
}

/// A bounded list of intervals, the oldest first.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
struct Ring {
    intervals: VecDeque<Interval>,
    #[serde(skip)]
    rows: usize,
}

impl History {
    /// An empty history.
    pub fn new() -> History {
        let step_ms = HOUR.as_millis() as u64 / INTERVALS_MAX as u64;
        History { recent: Ring::default(), hour: Ring::default(), growing: None, step_ms }
    }

    /// Adds an interval.
    pub fn push(&mut self, interval: Interval) {
        let growing = match self.growing.take() {
            Some(mut growing) => {
                growing.append(&interval);
                growing
            }
            None => interval.clone(),
        };
        // Intervals are not exact: half of the last one may be missing.
        if growing.length_ms + interval.length_ms / 2 >= self.step_ms {
            self.hour.push(growing);
        } else {
            self.growing = Some(growing);
        }
        self.recent.push(interval);
    }

    /// How many intervals and rows both rings hold.
    pub fn held(&self) -> (usize, usize) {
        (self.recent.intervals.len() + self.hour.intervals.len(), self.recent.rows + self.hour.rows)
    }

    /// The last interval.
    pub fn last(&self) -> Option<&Interval> {
        self.recent.intervals.back()
    }
}

impl Default for History {
    fn default() -> History {
        History::new()
    }
}

impl Ring {
    fn push(&mut self, interval: Interval) {
        self.rows += interval.partitions.len();
        self.intervals.push_back(interval);
        while self.intervals.len() > INTERVALS_MAX || (self.rows > ROWS_MAX && self.intervals.len() > 1) {
            let oldest = self.intervals.pop_front();
            self.rows -= oldest.map_or(0, |oldest| oldest.partitions.len());
        }
    }
}
