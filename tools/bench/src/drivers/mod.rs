//! What runs cases: a driver sets the stage for a case and lets its contestants take turns there.
//!
//! A stage (a cache that is full, a file on a disk) takes longer to set than a case to run, so the
//! next case goes on with it where it asks for the same one: what a stage depends on is its
//! *scenery*, some of the case's keys. What is not here: who is compared with whom, and how large
//! things are; that is the suite's.

pub mod bounded;
pub mod churn;
pub mod crossing;
pub mod hits;
pub mod locks;
pub mod memory;
pub mod misses;
pub mod nbd;
pub mod numa;
mod partitions;
pub mod resize;
pub mod simulate;
pub mod stores;
pub mod through;
mod twins;
pub mod writeback;
pub mod ycsb;

use std::time::Duration;

use octavo::{Cache, CacheConfig, Partition, PartitionConfig};

use crate::case::{Case, Driver, Place};
use crate::clock::Clock;
use crate::content::PAGE_BYTES;
use crate::report::Row;
use crate::turns::{Plan, Slices, Team, take_turns};
use crate::{Error, Listener, Options};

/// What a run has at hand.
pub struct Run<'r> {
    /// The suite's name.
    pub suite: &'r str,
    /// What the user asked for.
    pub options: &'r Options,
    /// Where news go.
    pub listener: &'r mut dyn Listener,
    /// How many cases are done, and of how many.
    pub done: (usize, usize),
}

/// A stage that is set for cases of one scenery.
pub trait Stage {
    /// Runs a case on it. Some cases make several rows.
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error>;
}

impl Run<'_> {
    /// Says what is going on in a case.
    pub fn news(&mut self, case: &Case, news: &str) {
        let (done, of) = self.done;
        self.listener.progress(&format!("[{}/{of}] {}: {news}", done + 1, case.name));
    }

    /// How long, and how often.
    pub fn plan(
        &self,
        case: &Case,
        (seconds, slice, clock): (f64, Duration, Clock),
        contestants: usize,
    ) -> Plan {
        let time = self.options.time.unwrap_or(Duration::from_secs_f64(case.seconds.unwrap_or(seconds)));
        let plan = Plan::new(self.options.quick, time, slice, contestants);
        let timed = case.timed.unwrap_or(false);
        Plan { threads: case.threads.0, clock: case.clock.unwrap_or(clock), timed, ..plan }
    }

    /// Lets teams take turns, and says how far they are.
    pub fn compete(&mut self, case: &Case, plan: Plan, teams: &[&dyn Team]) -> Result<Vec<Slices>, Error> {
        take_turns(plan, teams, |round| {
            self.news(case, &format!("round {} of {}", round + 1, plan.rounds));
            self.options.unless_stopped()
        })
    }
}

/// The contestants that a driver knows, and the keys that its stage depends on.
fn known(driver: Driver) -> (&'static [&'static str], &'static [&'static str]) {
    match driver {
        Driver::Hits => (hits::CONTESTANTS, hits::SCENERY),
        Driver::Misses => (misses::CONTESTANTS, misses::SCENERY),
        Driver::Churn => (churn::CONTESTANTS, churn::SCENERY),
        Driver::Through => (through::CONTESTANTS, through::SCENERY),
        Driver::Ycsb => (ycsb::CONTESTANTS, ycsb::SCENERY),
        Driver::Resize => (resize::CONTESTANTS, resize::SCENERY),
        Driver::Evenness => (&[], &["memory"]),
        Driver::Writeback => (writeback::CONTESTANTS, writeback::SCENERY),
        Driver::Locks => (misses::CONTESTANTS, misses::SCENERY),
        Driver::Simulate => (&[], &[]),
        Driver::Bounded => (bounded::CONTESTANTS, bounded::SCENERY),
        Driver::Stores => (&[], &[]),
        Driver::Memory => (&[], memory::SCENERY),
        Driver::Nbd => (nbd::CONTESTANTS, nbd::SCENERY),
        Driver::Numa => (numa::CONTESTANTS, &[]),
        Driver::Crossing => (crossing::CONTESTANTS, crossing::SCENERY),
        Driver::Twins => (twins::CONTESTANTS, &[]),
        Driver::Partitions => (&[], partitions::SCENERY),
    }
}

/// Figures that rows have beside the keys of their cases, for the axes of pictures.
pub const FACTS: &[&str] = &["segments", "hit_ratio", "who"];

/// A cache whose partition has frames for so many bytes of pages, and the case's policy and mode.
fn cache(case: &Case, frames_bytes: u64, buffers_bytes: u64) -> Result<(Cache, Partition), Error> {
    let cache = Cache::new(CacheConfig {
        // Frames and 28 bytes of metadata for each, rounded up by less than a segment.
        memory_max_bytes: frames_bytes + frames_bytes / 128 + (64 << 10) + buffers_bytes,
        buffers_max_bytes: Some(buffers_bytes),
        page_bytes: PAGE_BYTES as u32,
        ..CacheConfig::default()
    })?;
    let partition = cache.partition(PartitionConfig {
        policy: case.policy.0,
        cache_mode: case.mode.0,
        ..PartitionConfig::new("bench")
    })?;
    Ok((cache, partition))
}

/// Whether a case can be run at all; the error is a sentence.
pub fn check(case: &Case, rivals: &[&str]) -> Result<(), String> {
    let (names, _) = known(case.driver);
    let is_known = |name: &&String| names.contains(&&***name) || rivals.contains(&&***name);
    // The simulator knows its own.
    let unknown = case.contestants.iter().chain(&case.reference).find(|name| !is_known(name));
    if let Some(name) = unknown.filter(|_| case.driver != Driver::Simulate) {
        let all: Vec<&str> = names.iter().chain(rivals).copied().collect();
        return Err(format!(
            "there is no contestant \"{name}\" for {}; there are {}",
            case.driver.name(),
            all.join(", ")
        ));
    }
    if let Some(name) = case.reference.iter().find(|name| !case.contestants.contains(name)) {
        return Err(format!("the reference \"{name}\" is no contestant"));
    }
    if !case.seconds.is_none_or(|seconds| seconds > 0.0 && seconds <= 3600.0) {
        return Err("seconds: up to an hour is possible".into());
    }
    match case.driver {
        Driver::Hits => hits::check(case),
        Driver::Misses | Driver::Locks => misses::check(case),
        Driver::Simulate => simulate::check(case),
        Driver::Churn => churn::check(case),
        Driver::Writeback => writeback::check(case),
        Driver::Numa => numa::check(case),
        Driver::Crossing => crossing::check(case),
        Driver::Bounded => bounded::check(case),
        Driver::Twins => Ok(()),
        Driver::Through
        | Driver::Ycsb
        | Driver::Resize
        | Driver::Evenness
        | Driver::Stores
        | Driver::Memory
        | Driver::Nbd
        | Driver::Partitions => Ok(()),
    }
}

/// Memory that a case takes at most, in bytes: frames, files in memory, arrays and other people's
/// caches. Page cache that the kernel can drop at any time is not counted.
pub fn memory_bytes(case: &Case) -> u64 {
    // Wide enough for any size that a suite may have.
    let (frames, whole_file) = (u128::from(case.memory.0), u128::from(case.file.0));
    let file = if case.store == Place::Disk { 0 } else { whole_file };
    let (own, _) = known(case.driver);
    let contestants = case.contestants.len() as u128;
    let rivals = case.contestants.iter().filter(|name| !own.contains(&&***name)).count() as u128;
    let taken = match case.driver {
        // The store is half as large again, the references read an array, rivals hold the same pages.
        Driver::Hits => frames * 7 / 2 + frames * rivals,
        Driver::Misses | Driver::Locks => file + whole_file / 100,
        Driver::Churn => file + frames * 9 / 4,
        Driver::Through => file + frames * (1 + rivals),
        Driver::Resize => frames * 5 / 4,
        Driver::Ycsb => 2 * file + frames,
        Driver::Memory | Driver::Writeback => file + frames,
        // Linux has two files where it runs in two ways.
        Driver::Bounded => 2 * file + frames * contestants,
        // Frames, the store behind them, and as much for each of the other servers.
        Driver::Nbd => frames * (1 + contestants),
        Driver::Crossing => file + whole_file * u128::from(case.share.0) * contestants / 100,
        Driver::Numa | Driver::Twins => frames * 4,
        Driver::Partitions => 2 * file + frames,
        // Tables without frames.
        Driver::Simulate | Driver::Stores | Driver::Evenness => frames / 50,
    };
    // Metadata, buffers, streams of places, the program itself.
    u64::try_from(taken + taken / 64 + (64 << 20)).unwrap_or(u64::MAX)
}

/// What the stage of a case depends on.
pub fn scenery(case: &Case) -> String {
    let (_, keys) = known(case.driver);
    let values = keys.iter().filter_map(|key| case.value(key));
    values.fold(case.driver.name().to_owned(), |scenery, value| format!("{scenery} {value}"))
}

/// Sets the stage for a case.
pub fn set(case: &Case, run: &mut Run<'_>) -> Result<Box<dyn Stage>, Error> {
    Ok(match case.driver {
        Driver::Hits => Box::new(hits::Field::new(case, run)?),
        Driver::Misses => Box::new(misses::Field::new(case, run)?),
        Driver::Churn => Box::new(churn::Field::new(case, run)?),
        Driver::Through => Box::new(through::Field::new(case, run)?),
        Driver::Ycsb => Box::new(ycsb::Field::new(case, run)?),
        Driver::Resize => Box::new(resize::Field::new(case, run)?),
        Driver::Evenness => Box::new(resize::Evenness),
        Driver::Writeback => Box::new(writeback::Field::new(case, run)?),
        Driver::Locks => Box::new(locks::Field(misses::Field::new(case, run)?)),
        Driver::Simulate => Box::new(simulate::Simulator),
        Driver::Bounded => Box::new(bounded::Field::new(case, run)?),
        Driver::Stores => Box::new(stores::Counter),
        Driver::Memory => Box::new(memory::Field::new(case, run)?),
        Driver::Nbd => Box::new(nbd::Field::new(case, run)?),
        Driver::Numa => Box::new(numa::Field),
        Driver::Crossing => Box::new(crossing::Field::new(case, run)?),
        Driver::Twins => Box::new(twins::Field),
        Driver::Partitions => Box::new(partitions::Field::new(case, run)?),
    })
}
