//! The settings of a day, and what its threads share: the current event, the times of requests,
//! and what went wrong.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::{Event, Phase, Schedule};
use crate::statistics::Histogram;

/// What a day is made of.
pub struct Settings {
    /// The program `octavo`.
    pub program: PathBuf,
    /// The directory for disks and sockets. It must not exist; it is removed if nothing was wrong.
    pub directory: PathBuf,
    /// How long the day lasts.
    pub length: Duration,
    /// The seed of schedule and load.
    pub seed: u64,
    /// The user wants the day to end, with a report so far.
    pub stop: Arc<AtomicBool>,
}

/// The most sentences of a kind that are kept; later ones are only counted.
const SENTENCES_MAX: usize = 100;

/// How often a pause looks whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// Sentences, of which the first are kept.
#[derive(Default)]
pub struct Sentences {
    pub kept: Vec<String>,
    pub count: u64,
}

impl Sentences {
    pub fn add(&mut self, sentence: String) {
        self.count += 1;
        if self.kept.len() < SENTENCES_MAX {
            self.kept.push(sentence);
        }
    }
}

/// The times and counts of requests.
pub struct Times {
    /// Requests since the last minute.
    pub minute: Histogram,
    /// By phase, without an event.
    pub phases: Vec<Histogram>,
    /// By event, in any phase.
    pub events: Vec<Histogram>,
    pub blocks_checked: u64,
    pub blocks_written: u64,
    pub flushes: u64,
    /// Requests that a failing store refused.
    pub refused: u64,
}

impl Times {
    fn new() -> Times {
        let some = |count: usize| (0..count).map(|_| Histogram::new()).collect();
        Times {
            minute: Histogram::new(),
            phases: some(Phase::ALL.len()),
            events: some(Event::ALL.len()),
            blocks_checked: 0,
            blocks_written: 0,
            flushes: 0,
            refused: 0,
        }
    }
}

/// The state of a day.
pub struct State {
    pub schedule: Schedule,
    pub begun: Instant,
    /// How long the day lasts.
    pub length: Duration,
    /// The user wants the day to end.
    stop: Arc<AtomicBool>,
    /// The load ends.
    is_over: AtomicBool,
    /// The number of the current event, from 1; 0: none.
    event: AtomicUsize,
    /// How often the server was killed. Counted before each kill, so that a client whose connection
    /// breaks finds the kill here.
    kills: AtomicU64,
    /// Whether the store that fails may refuse writes.
    is_failing: AtomicBool,
    /// The server's processes: during an upgrade, the old and the new one.
    processes: Mutex<Vec<u32>>,
    times: Mutex<Times>,
    /// Blocks that are not what they must be.
    lost: Mutex<Sentences>,
    /// Steps and requests that failed.
    troubles: Mutex<Sentences>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked ends the run in any case.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub fn new(settings: &Settings) -> State {
        State {
            schedule: Schedule::new(settings.seed, settings.length),
            begun: Instant::now(),
            length: settings.length,
            stop: Arc::clone(&settings.stop),
            is_over: AtomicBool::new(false),
            event: AtomicUsize::new(0),
            kills: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            processes: Mutex::new(Vec::new()),
            times: Mutex::new(Times::new()),
            lost: Mutex::new(Sentences::default()),
            troubles: Mutex::new(Sentences::default()),
        }
    }

    pub fn is_interrupted(&self) -> bool {
        self.stop.load(SeqCst)
    }

    pub fn end_load(&self) {
        self.is_over.store(true, SeqCst);
    }

    pub fn is_load_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    pub fn set_event(&self, event: Option<Event>) {
        let number = event.and_then(|event| Event::ALL.iter().position(|one| *one == event));
        self.event.store(number.map_or(0, |number| number + 1), SeqCst);
    }

    pub fn event(&self) -> Option<Event> {
        self.event.load(SeqCst).checked_sub(1).map(|number| Event::ALL[number])
    }

    pub fn announce_kill(&self) {
        self.kills.fetch_add(1, SeqCst);
    }

    pub fn kills(&self) -> u64 {
        self.kills.load(SeqCst)
    }

    pub fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, SeqCst);
    }

    pub fn is_failing(&self) -> bool {
        self.is_failing.load(SeqCst)
    }

    pub fn processes(&self) -> MutexGuard<'_, Vec<u32>> {
        locked(&self.processes)
    }

    pub fn times(&self) -> MutexGuard<'_, Times> {
        locked(&self.times)
    }

    pub fn lost(&self) -> MutexGuard<'_, Sentences> {
        locked(&self.lost)
    }

    pub fn troubles(&self) -> MutexGuard<'_, Sentences> {
        locked(&self.troubles)
    }

    /// Notes something that failed and should not have.
    pub fn trouble(&self, what: String) {
        let at = self.begun.elapsed().as_secs();
        self.troubles().add(format!("after {at} s: {what}"));
    }

    /// Notes a block of a disk that is not what it must be.
    pub fn lose(&self, path: &Path, block: u64, wrong: impl std::fmt::Display) {
        let (at, path) = (self.begun.elapsed().as_secs(), path.display());
        self.lost().add(format!("after {at} s: {path}: block {block} {wrong}"));
    }

    /// Waits until a time of the day, the user's interruption, or `is_so`. Returns whether `is_so`.
    pub fn pause_until(&self, at: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        loop {
            if is_so() {
                return true;
            }
            if self.begun.elapsed() >= at || self.is_interrupted() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }
}
