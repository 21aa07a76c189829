//! What the server looks like from outside: each second its memory, descriptors, hits and dirty
//! bytes, kept by minute; and its events.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::control::ask;
use super::state::{Sentences, State};
use crate::statistics::Histogram;

const SECOND: Duration = Duration::from_secs(1);

/// The samples of a minute.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Minute {
    /// Since the day's begin, from 1.
    pub minute: u64,
    pub requests: u64,
    pub p99_us: f64,
    /// Hits of all lookups of pages; 0 without lookups.
    pub hit_ratio: f64,
    pub resident_max_bytes: u64,
    /// Resident memory without the pages of the program's file.
    pub anonymous_max_bytes: u64,
    pub dirty_max_bytes: u64,
    pub descriptors_max: u64,
}

/// All samples.
#[derive(Default)]
pub struct Samples {
    pub minutes: Vec<Minute>,
    pub count: u64,
    /// Samples that the server did not answer, such as after a kill.
    pub missed: u64,
    /// How many events of each kind the server has had.
    pub events: BTreeMap<String, u64>,
    /// The texts of those that are warnings or errors.
    pub warnings: Sentences,
    now: Minute,
    hits: u64,
    lookups: u64,
    before: Counters,
}

/// The server's counters at the last sample.
#[derive(Clone, Copy, Default)]
struct Counters {
    pid: u64,
    hits: u64,
    misses: u64,
    event: u64,
}

impl Samples {
    /// Takes a sample each second until `is_over`. `say` gets a line each minute.
    pub fn take(socket: &Path, state: &State, is_over: &dyn Fn() -> bool, say: &dyn Fn(&str)) -> Samples {
        let mut samples = Samples::default();
        let mut next = SECOND;
        while !state_pauses(state, next, is_over) {
            samples.sample(socket, state);
            // Seconds that a slow answer has taken are left out.
            next = state.begun.elapsed().max(next) + SECOND;
            if state.begun.elapsed().as_secs() / 60 > samples.minutes.len() as u64 {
                say(&samples.end_minute(state));
            }
        }
        samples.sample(socket, state);
        samples.end_minute(state);
        samples
    }

    fn sample(&mut self, socket: &Path, state: &State) {
        let processes = state.processes().clone();
        let now = &mut self.now;
        let resident = Resident::of(&processes);
        now.resident_max_bytes = now.resident_max_bytes.max(resident.all_bytes);
        now.anonymous_max_bytes = now.anonymous_max_bytes.max(resident.anonymous_bytes);
        let descriptors = processes.iter().map(|pid| descriptors(*pid)).sum();
        now.descriptors_max = now.descriptors_max.max(descriptors);
        match ask(socket, json!({"do": "stat"})) {
            Ok(stat) => self.count(&stat),
            Err(_) => self.missed += 1,
        }
        let events = ask(socket, json!({"do": "events", "after": self.before.event}));
        self.note_events(&events.unwrap_or_default(), state.begun.elapsed().as_secs());
        self.count += 1;
    }

    fn count(&mut self, stat: &Value) {
        let empty = Vec::new();
        let partitions = stat["partitions"].as_array().unwrap_or(&empty);
        let sum =
            |key: &str| -> u64 { partitions.iter().filter_map(|partition| partition[key].as_u64()).sum() };
        let (pid, hits, misses) = (stat["pid"].as_u64().unwrap_or(0), sum("hits"), sum("misses"));
        if pid != self.before.pid {
            // Another server counts from zero, and numbers its events from 1.
            self.before = Counters { pid, ..Counters::default() };
        }
        // The sums decrease when a partition is removed.
        let (more_hits, more_misses) =
            (hits.saturating_sub(self.before.hits), misses.saturating_sub(self.before.misses));
        self.hits += more_hits;
        self.lookups += more_hits + more_misses;
        self.before = Counters { hits, misses, ..self.before };
        self.now.dirty_max_bytes = self.now.dirty_max_bytes.max(sum("dirty_bytes"));
    }

    fn note_events(&mut self, answer: &Value, at_s: u64) {
        for event in answer["events"].as_array().into_iter().flatten() {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            self.before.event = event["number"].as_u64().unwrap_or(self.before.event);
            *self.events.entry(text("kind")).or_default() += 1;
            if text("level") != "info" {
                self.warnings.add(format!("after {at_s} s: {}: {}", text("kind"), text("text")));
            }
        }
    }

    /// Ends a minute. Returns a line about it.
    fn end_minute(&mut self, state: &State) -> String {
        let times = std::mem::replace(&mut state.times().minute, Histogram::new());
        let minute = Minute {
            minute: self.minutes.len() as u64 + 1,
            requests: times.count(),
            p99_us: times.percentile_ns(0.99) / 1e3,
            hit_ratio: self.hits as f64 / self.lookups.max(1) as f64,
            ..self.now
        };
        self.minutes.push(minute);
        (self.now, self.hits, self.lookups) = (Minute::default(), 0, 0);
        format!(
            "minute {} of {}: {} requests, p99 {:.0} us, hits {:.1} %, resident {}, dirty {}, lost {}",
            minute.minute,
            state.length.as_secs().div_ceil(60),
            minute.requests,
            minute.p99_us,
            100.0 * minute.hit_ratio,
            octavo_draw::bytes(minute.resident_max_bytes),
            octavo_draw::bytes(minute.dirty_max_bytes),
            state.lost().count
        )
    }
}

/// Waits until a time of the day. Returns whether `is_over` instead.
fn state_pauses(state: &State, at: Duration, is_over: &dyn Fn() -> bool) -> bool {
    let left = at.saturating_sub(state.begun.elapsed());
    let begun = Instant::now();
    while begun.elapsed() < left {
        if is_over() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    is_over()
}

/// The resident memory of processes, and of a file of pages between them: an upgrade's pages are in
/// memory, but not in a process.
pub struct Resident {
    pub all_bytes: u64,
    /// Without the pages of the program's file.
    pub anonymous_bytes: u64,
}

impl Resident {
    pub fn of(processes: &[u32]) -> Resident {
        let (mut all_bytes, mut anonymous_bytes) = (0, 0);
        for (number, pid) in (1..).zip(processes) {
            // Pages move from the last process to the file, and on to the first: each place is
            // looked at before the one from which pages come to it.
            if number == processes.len() {
                let between = processes.iter().find_map(|pid| file_of_pages(*pid)).unwrap_or(0);
                all_bytes += between;
                anonymous_bytes += between;
            }
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let bytes = |key: &str| -> u64 {
                let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
                line.map_or(0, |kib| kib.parse::<u64>().unwrap_or(0) << 10)
            };
            all_bytes += bytes("Rss:");
            anonymous_bytes += bytes("Anonymous:");
        }
        Resident { all_bytes, anonymous_bytes }
    }
}

fn file_of_pages(pid: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().find_map(|descriptor| {
        let link = std::fs::read_link(descriptor.path()).ok()?;
        let is_pages = link.to_string_lossy().contains("octavo-pages");
        is_pages.then(|| Some(std::fs::metadata(descriptor.path()).ok()?.blocks() * 512))?
    })
}

fn descriptors(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64)
}
