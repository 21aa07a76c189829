//! Writes every dirty page of some objects and syncs each of them, as long as it makes progress.
//!
//! Objects are synced concurrently.
//! - An object whose sync fails is retried. It is given up when none of its dirty bytes has been
//!   written for `timeout`, or when no later sync can succeed.
//! - The drain gives up the remaining objects when, for `timeout`, none of their bytes was written,
//!   none of them finished, and one has dirty bytes. It names them. So the drain waits for a slow
//!   disk, and gives up a dead one once no other remaining object makes progress.
//! - The drain waits without limit for a store that has all bytes and is making them durable: its
//!   progress is not visible, and some stores take minutes. (A second signal ends this wait, too.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use octavo::{Cache, Object};
use serde::{Deserialize, Serialize};

use crate::lock::lock;
use crate::units::human_bytes;

/// Threads that sync: enough to keep several disks busy.
const SYNCERS_MAX: usize = 8;

/// How often dirty bytes are checked and reported.
const TICK: Duration = Duration::from_millis(500);

/// Pause before a store that refused is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// How long a sync that was given up may take to return with its error.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How long the end of the process waits for stores to be released.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// An object that could not be drained, or synced.
#[derive(Serialize, Deserialize)]
pub struct Refusal {
    /// The object, if its sync has returned; `None` if it hangs.
    #[serde(skip)]
    pub object: Option<Object>,
    /// Its name.
    pub name: String,
    /// Dirty bytes that are not in its store.
    pub dirty_bytes: u64,
    /// Why, in a sentence.
    pub reason: String,
}

/// Dirty bytes of all partitions.
pub fn dirty_bytes(cache: &Cache) -> u64 {
    cache.partitions().iter().map(|partition| partition.stat().dirty_bytes).sum()
}

/// Dirty bytes of these objects.
fn dirty_bytes_of(objects: &[Object]) -> u64 {
    Object::stats_of(objects).iter().map(|stat| stat.dirty_bytes).sum()
}

/// How long drains may make no progress. A reload changes it.
#[derive(Default)]
pub struct Timeout(AtomicU64);

impl Timeout {
    /// The timeout for drains that begin now.
    pub fn get(&self) -> Duration {
        // Relaxed: one number, which publishes nothing.
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Sets the timeout. Configurations have durations in whole milliseconds.
    pub fn set(&self, timeout: Duration) {
        // Relaxed: as in `get`.
        self.0.store(timeout.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Every object of every partition.
pub fn objects(cache: &Cache) -> Vec<Object> {
    cache.partitions().iter().flat_map(|partition| partition.objects()).collect()
}

/// Drains these objects. Looks at their dirty bytes twice a second, and calls `progress` with them
/// whenever they have changed. Returns the objects that it gave up.
///
/// A look walks over the dirty pages of the partitions, and so does not follow each object that is
/// finished: the time of the drain grows with the objects, not with their square.
pub fn drain(objects: Vec<Object>, timeout: Duration, mut progress: impl FnMut(u64)) -> Vec<Refusal> {
    let all = objects.clone();
    let mut open: Vec<Option<Object>> = objects.iter().cloned().map(Some).collect();
    let mut open_count = open.len();
    let mut refusals = Vec::new();
    let due = Instant::now();
    let waiting = objects
        .into_iter()
        .enumerate()
        .map(|(index, object)| Waiting { index, object, due, refused: None })
        .collect();
    let work = Arc::new(Work { waiting: Mutex::new(waiting), timeout, gave_up: AtomicBool::new(false) });
    let (done, finished) = channel();
    for _ in 0..open_count.min(SYNCERS_MAX) {
        let (work, done) = (Arc::clone(&work), done.clone());
        std::thread::spawn(move || work.run(&done));
    }
    drop(done);

    let mut told = u64::MAX;
    let mut written = u64::MAX;
    let (started, mut tells_syncs) = (Instant::now(), false);
    let mut moved = Instant::now();
    'looks: while open_count > 0 {
        let looked = Instant::now();
        let dirty = dirty_bytes_of(&all);
        if dirty != told {
            progress(dirty);
            told = dirty;
        }
        let left: Vec<Object> = open.iter().flatten().cloned().collect();
        let written_now = left.iter().map(Object::pages_written).sum();
        let only_syncs = || dirty_bytes_of(&left) == 0;
        if written_now != written || dirty == 0 || moved.elapsed() >= timeout && only_syncs() {
            written = written_now;
            moved = Instant::now();
        }
        if dirty == 0 && !tells_syncs && started.elapsed() >= 2 * TICK {
            tells_syncs = true;
            log::info!("everything is written; waiting for the stores to make it durable");
        }
        // Relaxed: only this thread writes it.
        let gave_up = work.gave_up.load(Ordering::Relaxed);
        if !gave_up && moved.elapsed() >= timeout {
            // Relaxed: a flag alone; nothing is published with it.
            work.gave_up.store(true, Ordering::Relaxed);
            moved = Instant::now();
            continue;
        }
        if gave_up && moved.elapsed() >= LAST_WORD {
            break;
        }
        // What has ended, until the next look.
        let next_look = looked + TICK.min(timeout.max(Duration::from_millis(1)));
        let mut is_over = false;
        while open_count > 0 && !is_over {
            match finished.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok((index, result)) => {
                    let object = open[index].take();
                    open_count -= 1;
                    match (result, object) {
                        (Err(reason), Some(object)) => refusals.push(refusal(object, reason)),
                        _ if !gave_up => moved = Instant::now(),
                        _ => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) => is_over = true,
                Err(RecvTimeoutError::Disconnected) => break 'looks,
            }
        }
    }
    for object in open.into_iter().flatten() {
        let reason = "its store does not answer".to_owned();
        refusals.push(Refusal { object: None, ..refusal(object, reason) });
    }
    if refusals.is_empty() && told != 0 && dirty_bytes_of(&all) == 0 {
        progress(0);
    }
    refusals
}

/// Syncs every object once, concurrently, and waits as long as the stores take. Returns the objects
/// that refused.
pub fn sync(cache: &Cache) -> Vec<Refusal> {
    let (objects, refusals) = (Mutex::new(VecDeque::from(objects(cache))), Mutex::new(Vec::new()));
    let next = || lock(&objects).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..lock(&objects).len().min(SYNCERS_MAX) {
            scope.spawn(|| {
                while let Some(object) = next() {
                    if let Err(error) = object.sync()
                        && !matches!(error, octavo::Error::Closed { .. })
                    {
                        lock(&refusals).push(refusal(object, sentence(&error)));
                    }
                }
            });
        }
    });
    refusals.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Closes all objects, which have no dirty bytes, and so releases the locks on their stores. When
/// the process ends without that, the kernel keeps a lock until it has taken down the process's
/// rings, and the next server has to wait.
pub fn close(cache: &Cache) {
    let objects = objects(cache);
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        for object in objects {
            if let Err(error) = object.close() {
                log::debug!("{}: {error}", object.name());
            }
        }
        let _ = done.send(());
    });
    // A store that hangs now keeps its lock.
    let _ = is_done.recv_timeout(CLOSE_MAX);
}

fn refusal(object: Object, reason: String) -> Refusal {
    let stat = object.stat();
    let mut reason = without_name(object.name(), &reason).to_owned();
    if let (true, Some(error)) = (stat.failed, &stat.writeback_error) {
        // The engine's error says that the object failed; the write-back error says why.
        reason = format!("{reason} ({})", without_name(object.name(), error));
    }
    Refusal { name: object.name().to_owned(), dirty_bytes: stat.dirty_bytes, reason, object: Some(object) }
}

/// The engine's sentence about an object without the object's name, for a line that names it.
pub fn without_name<'s>(name: &str, sentence: &'s str) -> &'s str {
    sentence.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(sentence)
}

/// What giving up an object loses, or several ones without dirty bytes.
pub struct Loss {
    /// The name of the first one.
    pub name: String,
    /// A sentence, which names the object.
    pub line: String,
}

/// Gives up objects that cannot be drained, and says what that loses. Those without dirty bytes can
/// be as many as a mount has files: all that have one reason share a line.
pub fn lost(refusals: Vec<Refusal>) -> Vec<Loss> {
    const UNSYNCED: &str = "what was written without a sync may not be durable";
    let mut losses = Vec::new();
    let mut clean: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Refusal { object, name, dirty_bytes, reason } in refusals {
        let bytes = object.map_or(dirty_bytes, |object| object.abandon());
        if bytes == 0 {
            clean.entry(reason).or_default().push(name);
            continue;
        }
        let line =
            format!("\"{name}\": {reason}: {bytes} bytes lost ({}), and {UNSYNCED}", human_bytes(bytes));
        losses.push(Loss { name, line });
    }
    for (reason, names) in clean {
        let count = names.len();
        let Some(name) = names.into_iter().next() else { continue };
        let others = match count - 1 {
            0 => String::new(),
            1 => " and another one".to_owned(),
            others => format!(" and {others} others"),
        };
        let line = format!("\"{name}\"{others}: {reason}: {UNSYNCED}");
        losses.push(Loss { name, line });
    }
    losses
}

/// Why a sync has failed, for people who have no object to abandon.
fn sentence(error: &octavo::Error) -> String {
    match error {
        octavo::Error::Failed { .. } => "an earlier sync of its store failed".to_owned(),
        error => error.to_string(),
    }
}

/// An object whose sync is pending.
struct Waiting {
    index: usize,
    object: Object,
    due: Instant,
    refused: Option<Refused>,
}

/// An object whose last try failed.
struct Refused {
    reason: String,
    /// Its fewest dirty bytes so far, and since when it has had them.
    dirty_bytes: u64,
    since: Instant,
}

/// What the syncing threads share: the pending objects, and whether to stop retrying.
struct Work {
    waiting: Mutex<VecDeque<Waiting>>,
    timeout: Duration,
    gave_up: AtomicBool,
}

impl Work {
    /// Syncs pending objects until none is left. An object that refuses goes to the end of the
    /// queue, so that it does not delay others. The thread that put it there continues with the
    /// queue, so the object is taken again.
    fn run(&self, done: &Sender<(usize, Result<(), String>)>) {
        while let Some(mut waiting) = self.next() {
            let result = match (self.is_due(waiting.due), &waiting.refused) {
                (false, Some(refused)) => Err(refused.reason.clone()),
                _ => match waiting.object.sync() {
                    // An export that was removed in the meantime was synced before it was closed.
                    Ok(()) | Err(octavo::Error::Closed { .. }) => Ok(()),
                    Err(error)
                        if hopeless(&waiting.object)
                            || waiting.has_refused_for(self.timeout, &sentence(&error)) =>
                    {
                        Err(sentence(&error))
                    }
                    Err(_) => {
                        waiting.due = Instant::now() + RETRY;
                        lock(&self.waiting).push_back(waiting);
                        continue;
                    }
                },
            };
            if done.send((waiting.index, result)).is_err() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Waiting> {
        lock(&self.waiting).pop_front()
    }

    /// Sleeps until `due`. False: the drain was given up before.
    fn is_due(&self, due: Instant) -> bool {
        // Relaxed: a flag alone, which is polled.
        while !self.gave_up.load(Ordering::Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(RETRY / 10));
        }
        false
    }
}

impl Waiting {
    /// Records a failed try. True: none of the object's dirty bytes was written for `timeout`.
    fn has_refused_for(&mut self, timeout: Duration, reason: &str) -> bool {
        let dirty_bytes = self.object.stat().dirty_bytes;
        let since = match &self.refused {
            Some(refused) if refused.dirty_bytes <= dirty_bytes => refused.since,
            Some(_) => Instant::now(),
            None => {
                let name = self.object.name();
                log::warn!("\"{name}\" refuses: {}; trying again", without_name(name, reason));
                Instant::now()
            }
        };
        let least = self.refused.as_ref().map_or(dirty_bytes, |refused| refused.dirty_bytes.min(dirty_bytes));
        self.refused = Some(Refused { reason: reason.to_owned(), dirty_bytes: least, since });
        since.elapsed() >= timeout
    }
}

/// Whether nothing is left to write and no sync of this object can ever succeed.
fn hopeless(object: &Object) -> bool {
    let stat = object.stat();
    stat.failed && stat.dirty_bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::{CacheConfig, PartitionConfig, disk};

    /// Each clean file of a store that did not answer had a line: "0 bytes lost (0 B)".
    #[test]
    fn files_without_dirty_bytes_share_a_line_that_says_what_may_not_be_durable() {
        let refusal = |name: &str, dirty_bytes: u64, reason: &str| Refusal {
            object: None,
            name: name.to_owned(),
            dirty_bytes,
            reason: reason.to_owned(),
        };
        let silent = "its store does not answer";
        let refusals = vec![
            refusal("a", 0, silent),
            refusal("b", 4096, silent),
            refusal("c", 0, silent),
            refusal("d", 0, "no space"),
            refusal("e", 0, silent),
        ];
        let lines: Vec<String> = lost(refusals).into_iter().map(|loss| loss.line).collect();
        let expected = [
            "\"b\": its store does not answer: 4096 bytes lost (4 KiB), and what was written without a sync may \
             not be durable",
            "\"a\" and 2 others: its store does not answer: what was written without a sync may not be durable",
            "\"d\": no space: what was written without a sync may not be durable",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_stores_of_closed_objects_are_free_while_the_process_lives() {
        let path = std::env::temp_dir().join(format!("octavo-drain-{}", std::process::id()));
        let options = disk::OpenOptions { create_len_bytes: Some(1 << 20), ..disk::OpenOptions::default() };
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let store = disk::Store::open(&path, &options).unwrap();
        let object = partition.open(store, "disk").unwrap();
        object.read_at(0, &mut [0; 4096]).unwrap();
        assert!(disk::Store::open(&path, &options).is_err());
        close(&cache);
        let begun = Instant::now();
        let mut opened = disk::Store::open(&path, &options);
        // A ring may let its handle go a little later.
        while opened.is_err() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(RETRY);
            opened = disk::Store::open(&path, &options);
        }
        std::fs::remove_file(&path).unwrap();
        opened.unwrap();
    }
}
