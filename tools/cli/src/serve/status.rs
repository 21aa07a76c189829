//! The status line of the log: the rates of the last seconds, while there are requests.
//!
//! The engine's threads count their own requests and do nothing for the status line. The main
//! thread samples their counters every few seconds. A sample takes some microseconds and is all
//! that the main thread of an idle server does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use octavo::Cache;

use crate::control::keys::FIGURES;
use crate::units::{human_bytes, human_count, percent};

/// Time between two lines while there are requests.
const PERIOD: Duration = Duration::from_secs(3);

/// Time between two samples while there are none.
const PERIOD_IDLE: Duration = Duration::from_secs(5);

/// The last sample of the counters.
pub struct Status {
    last: Totals,
    looked: Instant,
    busy: bool,
}

/// The figures of all partitions together, by name.
type Totals = HashMap<&'static str, u64>;

impl Status {
    /// Takes the first sample.
    pub fn new(cache: &Cache, now: Instant) -> Status {
        Status { last: totals(cache), looked: now, busy: false }
    }

    /// How long to sleep before the next [`Status::look`].
    pub fn period(&self) -> Duration {
        if self.busy { PERIOD } else { PERIOD_IDLE }
    }

    /// Takes a sample. Returns the line, if there were requests since the last sample.
    pub fn look(&mut self, cache: &Cache, now: Instant) -> Option<String> {
        let totals = totals(cache);
        let line = line(&totals, &self.last, now.duration_since(self.looked));
        self.busy = line.is_some();
        self.last = totals;
        self.looked = now;
        line
    }
}

fn totals(cache: &Cache) -> Totals {
    let mut totals = Totals::new();
    for partition in cache.partitions() {
        let stat = partition.stat();
        for figure in FIGURES {
            *totals.entry(figure.name).or_default() += (figure.of)(&stat);
        }
    }
    totals
}

fn line(now: &Totals, last: &Totals, elapsed: Duration) -> Option<String> {
    let figure = |of: &Totals, name: &str| of.get(name).copied().unwrap_or(0);
    let since = |name: &str| figure(now, name).saturating_sub(figure(last, name));
    let requests = since("requests_read") + since("requests_write") + since("requests_sync");
    if requests == 0 {
        return None;
    }
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let (hits, misses) = (since("hits"), since("misses"));
    Some(format!(
        "{} req/s, hits {}, read {:.1} MB/s, write {:.1} MB/s, resident {}, dirty {}",
        human_count(requests as f64 / seconds),
        percent(hits, hits + misses),
        since("read_bytes") as f64 / 1e6 / seconds,
        since("written_bytes") as f64 / 1e6 / seconds,
        human_bytes(figure(now, "resident_bytes")),
        human_bytes(figure(now, "dirty_bytes")),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_shows_rates_since_the_last_one_if_there_were_requests() {
        let last = Totals::from([("requests_read", 1000), ("hits", 1000)]);
        let now = [
            ("requests_read", 1500),
            ("requests_sync", 100),
            ("hits", 1270),
            ("misses", 30),
            ("read_bytes", 6_000_000),
            ("resident_bytes", 1 << 20),
        ];
        let line = super::line(&now.into(), &last, Duration::from_secs(3)).unwrap();
        assert_eq!(line, "200 req/s, hits 90.0 %, read 2.0 MB/s, write 0.0 MB/s, resident 1 MiB, dirty 0 B");
        assert_eq!(super::line(&last, &last, Duration::from_secs(3)), None);
    }
}
