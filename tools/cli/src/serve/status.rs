//! The status line of the log: the rates of the last seconds, while there are requests.
//!
//! The engine counts; a hit writes nothing shared. So the main thread samples the counters every
//! few seconds, which takes some microseconds and is all that an idle server does.

use std::time::{Duration, Instant};

use octavo::Cache;

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

#[derive(Clone, Copy, Default)]
struct Totals {
    requests: u64,
    hits: u64,
    misses: u64,
    read_bytes: u64,
    written_bytes: u64,
    resident_bytes: u64,
    dirty_bytes: u64,
}

impl Status {
    /// Takes the first sample.
    pub fn new(cache: &Cache, now: Instant) -> Status {
        Status { last: Totals::of(cache), looked: now, busy: false }
    }

    /// How long to sleep before the next [`Status::look`].
    pub fn period(&self) -> Duration {
        if self.busy { PERIOD } else { PERIOD_IDLE }
    }

    /// Takes a sample. Returns the line, if there were requests since the last sample.
    pub fn look(&mut self, cache: &Cache, now: Instant) -> Option<String> {
        let totals = Totals::of(cache);
        let line = totals.line(&self.last, now.duration_since(self.looked));
        self.busy = line.is_some();
        self.last = totals;
        self.looked = now;
        line
    }
}

impl Totals {
    fn of(cache: &Cache) -> Totals {
        let mut totals = Totals::default();
        for partition in cache.partitions() {
            let stat = partition.stat();
            totals.requests += stat.requests_read + stat.requests_write + stat.requests_sync;
            totals.hits += stat.hits;
            totals.misses += stat.misses;
            totals.read_bytes += stat.read_bytes;
            totals.written_bytes += stat.written_bytes;
            totals.resident_bytes += stat.resident_bytes;
            totals.dirty_bytes += stat.dirty_bytes;
        }
        totals
    }

    fn line(&self, last: &Totals, elapsed: Duration) -> Option<String> {
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let requests = since(self.requests, last.requests);
        if requests == 0 {
            return None;
        }
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let hits = since(self.hits, last.hits);
        let megabytes = |now: u64, then: u64| since(now, then) as f64 / 1e6 / seconds;
        Some(format!(
            "{} req/s, hits {}, read {:.1} MB/s, write {:.1} MB/s, resident {}, dirty {}",
            human_count(requests as f64 / seconds),
            percent(hits, hits + since(self.misses, last.misses)),
            megabytes(self.read_bytes, last.read_bytes),
            megabytes(self.written_bytes, last.written_bytes),
            human_bytes(self.resident_bytes),
            human_bytes(self.dirty_bytes),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_requests_there_is_no_status_line() {
        let totals = Totals { requests: 5, ..Totals::default() };
        assert_eq!(totals.line(&totals, Duration::from_secs(3)), None);
    }

    #[test]
    fn the_status_line_shows_rates_since_the_last_one() {
        let last = Totals { requests: 1000, hits: 1000, ..Totals::default() };
        let now = Totals {
            requests: 1600,
            hits: 1270,
            misses: 30,
            read_bytes: 6_000_000,
            resident_bytes: 1 << 20,
            ..Totals::default()
        };
        let line = now.line(&last, Duration::from_secs(3)).unwrap();
        assert_eq!(line, "200 req/s, hits 90.0 %, read 2.0 MB/s, write 0.0 MB/s, resident 1 MiB, dirty 0 B");
    }
}
