//! What all drivers share: the run, the cache that a case measures, and the interface of a driver.
//!
//! A *stage* (a full cache, a file on a disk) takes longer to set up than a case takes to run, so
//! cases share stages. The next case runs on the same stage if its *scenery*, the keys that the
//! stage depends on, has the same values.
//!
//! Not here: the drivers (`drivers/`), and which contestants are compared at which sizes (suites).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use octavo::disk::Store;
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, PartitionStat};

use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::progress::Listener;
use crate::report::Row;
use crate::rival::Rival;
use crate::turns::{Pace, Plan, Slices, Team, take_turns};

/// The user's options for running a suite.
#[derive(Default)]
pub struct Options {
    /// Runs only to check that everything works, with small memory, small files and few slices. The
    /// figures mean nothing.
    pub quick: bool,
    /// The time for the slices of each case. Default: the time that the case or its driver sets.
    pub time: Option<Duration>,
    /// The path of the file to create on the disk, for cases with `store = "disk"`. The file must
    /// not exist yet, and is removed afterwards.
    pub file: PathBuf,
    /// The program `octavo` itself, for contestants that run in a process of their own.
    pub program: Option<PathBuf>,
    /// Ends the run at the next round, after it has cleaned up.
    pub stop: Arc<AtomicBool>,
    /// Other authors' caches that suites may name.
    pub rivals: Vec<Box<dyn Rival>>,
}

impl Options {
    /// Seconds that a case probably takes, for the estimate of the remaining time.
    pub(crate) fn expected_s(&self, case: &Case) -> f64 {
        /// Setting up and three short slices.
        const QUICK_S: f64 = 1.0;
        /// Most drivers take this long by default.
        const USUAL_S: f64 = 18.0;
        match self.time {
            _ if self.quick => QUICK_S,
            Some(time) => time.as_secs_f64(),
            None => case.seconds.unwrap_or(USUAL_S),
        }
    }

    pub(crate) fn unless_stopped(&self) -> Result<(), Error> {
        // Relaxed: nothing is ordered by this flag.
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::new("interrupted")),
            false => Ok(()),
        }
    }
}

/// The parts of the run that a driver needs.
pub struct Run<'r> {
    /// The suite's name.
    pub suite: &'r str,
    /// The user's options.
    pub options: &'r Options,
    /// Receives progress and warnings.
    pub listener: &'r mut dyn Listener,
    /// The cases that are done, and all cases.
    pub done: (usize, usize),
}

impl Run<'_> {
    /// Tells the user what the case is doing.
    pub fn news(&mut self, case: &Case, news: &str) {
        let (done, of) = self.done;
        self.listener.progress(&format!("[{}/{of}] {}: {news}", done + 1, case.name));
    }

    /// Tells the user that step `step` has begun, and fails if the user wants to stop.
    pub fn step(&mut self, case: &Case, step: &str) -> Result<(), Error> {
        self.news(case, step);
        self.options.unless_stopped()
    }

    /// Returns the time for which a case is measured.
    pub fn time(&self, case: &Case, usual_s: f64) -> Duration {
        self.options.time.unwrap_or(Duration::from_secs_f64(case.seconds.unwrap_or(usual_s)))
    }

    /// Returns the plan of a case. The user's options take precedence over the case's, and those
    /// over the driver's `pace`.
    pub fn plan(&self, case: &Case, pace: Pace, contestants: usize) -> Plan {
        let pace =
            Pace { clock: case.clock.unwrap_or(pace.clock), timed: case.timed.unwrap_or(pace.timed), ..pace };
        let plan = Plan::new(self.options.quick, self.time(case, pace.seconds), pace, contestants);
        Plan { threads: case.threads.0, ..plan }
    }

    /// Lets contestants take turns, and reports each round.
    pub fn compete(&mut self, case: &Case, plan: Plan, teams: &[Team<'_>]) -> Result<Vec<Slices>, Error> {
        take_turns(plan, teams, |round| self.step(case, &format!("round {} of {}", round + 1, plan.rounds)))
    }

    /// Lets contestants take turns at a driver's usual pace. Returns the row of the case.
    pub fn race(&mut self, case: &Case, pace: Pace, teams: &[Team<'_>]) -> Result<(Row, Vec<Slices>), Error> {
        let plan = self.plan(case, pace, teams.len());
        let slices = self.compete(case, plan, teams)?;
        let mut row = Row::new(self.suite, case);
        row.compare(case, plan, teams, &slices);
        Ok((row, slices))
    }
}

/// A stage: runs a case on it, and returns the case's rows.
pub type Stage = Box<dyn FnMut(&Case, &mut Run<'_>) -> Result<Vec<Row>, Error>>;

/// A driver, which runs one kind of case.
pub struct Driver {
    /// The value of the key `driver`.
    pub name: &'static str,
    /// What the driver measures, for people.
    pub purpose: &'static str,
    /// The contestants that it knows, besides rivals.
    pub contestants: &'static [&'static str],
    /// The keys of a case that its stage depends on.
    pub scenery: &'static [&'static str],
    /// Refuses a case that the driver cannot run. The error is a sentence.
    pub check: fn(&Case) -> Result<(), String>,
    /// Returns the memory that a case takes, without metadata and buffers.
    pub memory: fn(&Needs) -> u128,
    /// Sets the stage for a case.
    pub set: fn(&Case, &mut Run<'_>) -> Result<Stage, Error>,
}

/// What the memory of a case depends on. The integers are wide enough for any size in a suite.
pub struct Needs {
    /// Bytes of the cache's frames.
    pub frames: u128,
    /// Bytes of the store, wherever it lies.
    pub whole_file: u128,
    /// Bytes of the store that lie in memory. 0 for a store on a disk.
    pub file: u128,
    /// The cache's share of the file, in percent.
    pub share: u128,
    /// The number of contestants.
    pub contestants: u128,
    /// The number of contestants that are rivals.
    pub rivals: u128,
}

/// Returns the configuration of a cache with frames for `frames_bytes` of pages in one partition.
pub fn cache_config(frames_bytes: u64, buffers_bytes: u64) -> CacheConfig {
    CacheConfig {
        // A page has at most 32 bytes of metadata, directory included, so 1/128 of the frames is
        // enough. The extra 64 KiB round this up by less than a segment.
        memory_max_bytes: frames_bytes + frames_bytes / 128 + (64 << 10) + buffers_bytes,
        buffers_max_bytes: Some(buffers_bytes),
        page_bytes: PAGE_BYTES as u32,
        ..CacheConfig::default()
    }
}

/// Returns the configuration of a partition with the case's policy and mode.
pub fn partition_config(case: &Case) -> PartitionConfig {
    PartitionConfig { policy: case.policy.0, cache_mode: case.mode.0, ..PartitionConfig::new("bench") }
}

/// Returns the offset of a page.
pub const fn offset(page: u64) -> u64 {
    page * PAGE_BYTES as u64
}

/// An object of a cache that is measured. The fields drop in this order: the cache last.
pub struct Subject {
    pub object: Object,
    pub partition: Partition,
    pub cache: Cache,
}

impl Subject {
    /// Opens `store` in a partition of a new cache. If the configuration names the buffer share,
    /// the partition gets nothing of it: every run has the same frames, however much buffers take.
    pub fn new(cache: CacheConfig, partition: PartitionConfig, store: Store) -> Result<Subject, Error> {
        let besides = |share| cache.memory_max_bytes.saturating_sub(share);
        let max_bytes = partition.max_bytes.or(cache.buffers_max_bytes.map(besides));
        let partition = PartitionConfig { max_bytes, ..partition };
        let cache = Cache::new(cache)?;
        let partition = cache.partition(partition)?;
        let object = partition.open(store, "file")?;
        Ok(Subject { object, partition, cache })
    }

    /// Reads the first bytes of pages, so that they become resident.
    pub fn touch(&self, pages: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        let mut bytes = [0; 8];
        Ok(pages.into_iter().try_for_each(|page| self.object.read_at(offset(page), &mut bytes))?)
    }

    /// Runs an action, and returns the partition's counters before and after it.
    pub fn measure<T>(&self, act: impl FnOnce() -> Result<T, Error>) -> Result<(T, Delta), Error> {
        let before = self.partition.stat();
        let done = act()?;
        Ok((done, Delta { before, after: self.partition.stat() }))
    }
}

/// A partition's counters before and after a measurement.
pub struct Delta {
    pub before: PartitionStat,
    pub after: PartitionStat,
}

impl Delta {
    /// Returns the increase of a counter.
    pub fn of(&self, count: fn(&PartitionStat) -> u64) -> u64 {
        count(&self.after) - count(&self.before)
    }

    /// Returns the number of hits.
    pub fn hits(&self) -> u64 {
        self.of(|stat| stat.hits)
    }

    /// Returns the number of misses.
    pub fn misses(&self) -> u64 {
        self.of(|stat| stat.misses)
    }

    /// Returns the share of hits in all accesses. 0 if there was no access.
    pub fn hit_ratio(&self) -> f64 {
        hit_ratio(self.hits(), self.misses())
    }
}

/// Returns the share of hits in all accesses. 0 if there was no access.
pub fn hit_ratio(hits: u64, misses: u64) -> f64 {
    hits as f64 / (hits + misses).max(1) as f64
}
