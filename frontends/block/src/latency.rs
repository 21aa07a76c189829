//! How long requests take, by [`Class`]: [`Latencies`] while they are counted, [`Histogram`] once
//! they are read.
//!
//! A request's time begins when the server has taken it from its socket or ring, and ends when its
//! reply is ready: in the ring, or about to be written to the socket. A connection looks at the
//! clock once when it takes requests and once when it collects completions ([`Clock`]), so requests
//! of one batch share both times. This is also what a client sees, because the replies of a batch
//! leave together.
//!
//! The buckets are those of HdrHistogram. The unit is 250 ns; each doubling from 1 µs to 134 s has
//! four buckets, so a bucket is at most a quarter wider than its lower bound. Only the thread of
//! the connection writes, with a load and a store for each value, so counting
//! takes no locked instruction ([`add`]). A class takes 912 bytes once it has had a request, and a
//! connection 4.5 KiB at most.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Nanoseconds in a unit, the width of the first buckets.
const UNIT_NS: u64 = 250;

/// The buckets: four of one unit, then four for each of 27 doublings. The last one has no end.
const BUCKETS: usize = 4 + 4 * 27;

/// The kinds of requests whose times are counted separately. Unknown commands, announcements of
/// reads and status requests have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads that succeeded at once: all pages were resident, and the read waited neither for a
    /// store nor for another thread.
    Hit,
    /// All other reads.
    Miss,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards and zeroings of ranges.
    Discard,
}

impl Class {
    /// All classes. The index of a class is its number.
    pub const ALL: [Class; 5] = [Class::Hit, Class::Miss, Class::Write, Class::Flush, Class::Discard];

    /// Returns the class's name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Hit => "hit",
            Class::Miss => "miss",
            Class::Write => "write",
            Class::Flush => "flush",
            Class::Discard => "discard",
        }
    }
}

/// When a request was taken, and how it was carried out so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    taken_ns: u64,
    /// All operations of the request so far have succeeded at once.
    is_hit: bool,
}

impl Timing {
    /// Notes the end of an operation of the request.
    pub fn note(&mut self, completion: &octavo::Completion) {
        self.is_hit &= completion.at_once && completion.result.is_ok();
    }

    /// Returns whether the request was carried out at once, and its time.
    pub(crate) fn end(self, clock: &mut Clock) -> (bool, u64) {
        (self.is_hit, clock.now_ns().saturating_sub(self.taken_ns))
    }
}

/// A clock that is looked at once per phase of a connection's turn.
pub(crate) struct Clock {
    start: Instant,
    /// The time of this phase, if it was asked for.
    now_ns: Option<u64>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { start: Instant::now(), now_ns: None }
    }
}

impl Clock {
    /// Begins a phase: the next question looks at the clock.
    pub fn begin_phase(&mut self) {
        self.now_ns = None;
    }

    /// Begins the timing of a request that is taken in this phase.
    pub fn take(&mut self) -> Timing {
        Timing { taken_ns: self.now_ns(), is_hit: true }
    }

    /// Returns the time of this phase, in nanoseconds since the clock was made.
    fn now_ns(&mut self) -> u64 {
        *self.now_ns.get_or_insert_with(|| self.start.elapsed().as_nanos() as u64)
    }
}

/// Adds to a count that only the calling thread writes. All accesses of such counts are Relaxed:
/// the counts are independent, and publish nothing.
pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

/// Returns the bucket of a time.
fn bucket(ns: u64) -> usize {
    let units = ns / UNIT_NS;
    if units < 4 {
        return units as usize;
    }
    let doublings = units.ilog2() - 2;
    let quarter = (units >> doublings) & 3;
    (4 + 4 * doublings as usize + quarter as usize).min(BUCKETS - 1)
}

/// Returns where a bucket ends, exclusively, as if the last one had an end.
fn end_ns(bucket: usize) -> u64 {
    let (doublings, quarter) = ((bucket / 4).saturating_sub(1), bucket % 4);
    let first = if bucket < 4 { 0 } else { 4 };
    UNIT_NS * ((first + quarter as u64 + 1) << doublings)
}

/// The times of one connection's requests.
#[derive(Default)]
pub(crate) struct Latencies([OnceLock<Box<Times>>; Class::ALL.len()]);

struct Times {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Latencies {
    /// Counts a request. Only the connection's thread calls this.
    pub fn add(&self, class: Class, ns: u64) {
        let times = self.0[class as usize].get_or_init(Box::default);
        add(&times.counts[bucket(ns)], 1);
        add(&times.sum_ns, ns);
        if ns > times.max_ns.load(Relaxed) {
            times.max_ns.store(ns, Relaxed);
        }
    }

    /// Adds the counts to those of other connections.
    pub fn read(&self, into: &mut [Histogram; Class::ALL.len()]) {
        for (times, histogram) in self.0.iter().zip(into) {
            if let Some(times) = times.get() {
                histogram.add(times);
            }
        }
    }
}

impl Default for Times {
    fn default() -> Times {
        let counts = std::array::from_fn(|_| AtomicU64::default());
        Times { counts, sum_ns: AtomicU64::default(), max_ns: AtomicU64::default() }
    }
}

/// The times of requests of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Empty if there was no request.
    counts: Vec<u64>,
    /// The sum of all times, in nanoseconds.
    sum_ns: u64,
    /// The longest time, in nanoseconds.
    max_ns: u64,
}

impl Histogram {
    /// Returns the number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns the longest time. This one is exact.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the number of requests that took less than `time`, which must be a power of two in
    /// microseconds, up to 2^27.
    ///
    /// # Panics
    /// If it is not: no bucket ends there.
    pub fn below(&self, time: Duration) -> u64 {
        let ns = time.as_nanos() as u64;
        let ends = (0..BUCKETS).position(|bucket| end_ns(bucket) == ns).expect("a bucket ends there");
        self.counts.iter().take(ends + 1).sum()
    }

    /// Returns the buckets with requests: where each ends, exclusively, and its requests. The last
    /// possible bucket, which ends at 2^27 µs, also has all longer times.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let ends = (0..BUCKETS).map(|bucket| Duration::from_nanos(end_ns(bucket)));
        ends.zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns a time that this share of the requests (0 to 1) did not exceed: the end of a bucket,
    /// so up to a quarter more than the exact time, and no more than the longest one. None if there
    /// was no request.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut sum = 0;
        let bucket = self.counts.iter().position(|count| {
            sum += count;
            sum >= rank
        })?;
        let has_end = bucket < BUCKETS - 1;
        Some(if has_end { Duration::from_nanos(end_ns(bucket)).min(self.max()) } else { self.max() })
    }

    fn add(&mut self, times: &Times) {
        self.counts.resize(BUCKETS, 0);
        for (sum, count) in self.counts.iter_mut().zip(&times.counts) {
            *sum += count.load(Relaxed);
        }
        self.sum_ns += times.sum_ns.load(Relaxed);
        self.max_ns = self.max_ns.max(times.max_ns.load(Relaxed));
    }
}

impl FromIterator<Duration> for Histogram {
    fn from_iter<T: IntoIterator<Item = Duration>>(times: T) -> Histogram {
        let latencies = Latencies::default();
        times.into_iter().for_each(|time| latencies.add(Class::Hit, time.as_nanos() as u64));
        let mut read = <[Histogram; Class::ALL.len()]>::default();
        latencies.read(&mut read);
        std::mem::take(&mut read[Class::Hit as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_adjoin_and_are_at_most_a_quarter_wide() {
        let mut start = 0;
        for number in 0..BUCKETS {
            let end = end_ns(number);
            assert!(end > start, "bucket {number}");
            for ns in [start, start + (end - start) / 2, end - 1] {
                assert_eq!(bucket(ns), number, "{ns} ns");
            }
            assert!(start < 1000 || 4 * (end - start) <= start, "bucket {number}: {start} to {end}");
            start = end;
        }
        assert_eq!(start, 1000 << 27);
        assert_eq!((bucket(start), bucket(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn a_histogram_has_the_times_up_to_the_width_of_a_bucket() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        let histogram: Histogram = (1..=1000).map(Duration::from_micros).collect();
        assert_eq!((histogram.count(), histogram.sum()), (1000, Duration::from_micros(500_500)));
        assert_eq!(histogram.max(), Duration::from_micros(1000));
        for k in 0..10 {
            assert_eq!(histogram.below(Duration::from_micros(1 << k)), (1 << k) - 1);
        }
        assert_eq!(histogram.below(Duration::from_micros(1 << 27)), 1000);
        for (share, exact) in [(0.001, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = histogram.quantile(share).unwrap().as_nanos() as u64;
            assert!((exact * 1000..=exact * 1250).contains(&found), "{share}: {found} ns");
        }
        let some: Histogram = [300, 400, 1100].map(Duration::from_nanos).into_iter().collect();
        let ends = [(Duration::from_nanos(500), 2), (Duration::from_nanos(1250), 1)];
        assert!(some.buckets().eq(ends), "{some:?}");
        let hung: Histogram = [Duration::from_secs(1000)].into_iter().collect();
        assert_eq!(hung.quantile(0.5), Some(Duration::from_secs(1000)));
        assert_eq!(hung.below(Duration::from_micros(1 << 26)), 0);
    }

    #[test]
    fn a_phase_looks_at_the_clock_once() {
        let mut clock = Clock::default();
        let first = clock.now_ns();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(clock.now_ns(), first);
        clock.begin_phase();
        assert!(clock.now_ns() > first);
    }
}
