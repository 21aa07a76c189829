//! The names of a partition's settings and figures: one list for the control protocol, the control
//! file system and the metrics, so that all use the same words.
//!
//! The words are those of Linux's cgroup v2 where it has them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use octavo::numa::PartitionNumaStat;
use octavo::{Cache, Limits, Owed, Partition, PartitionStat, PolicyName};
use octavo_block::ExportStat;
use prometheus_client::metrics::MetricType;

use crate::{limits, suggest};

/// A setting of a partition.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it means, in a few words.
    pub what: &'static str,
    /// Reads its value as text, by its name. None: it is write-only.
    get: Option<fn(&Partition, &str) -> String>,
    /// Sets it from a text. The error is a sentence. None: it is read-only.
    set: Option<Set>,
}

/// Adds the new value of a setting, by its name, to the changes.
type Set = fn(&mut Changes, &Partition, &str, &str) -> Result<(), String>;

impl Key {
    /// A limit.
    const fn limit(name: &'static str, what: &'static str) -> Key {
        let get = |partition: &Partition, name: &str| {
            limits::text(&partition.limits(), name).expect("the name is that of a limit")
        };
        Key { name, what, get: Some(get), set: Some(Changes::limit) }
    }

    /// A figure, which cannot be set.
    const fn figure(name: &'static str, what: &'static str, get: fn(&Partition, &str) -> String) -> Key {
        Key { name, what, get: Some(get), set: None }
    }

    /// Whether its value can be read.
    pub fn is_readable(&self) -> bool {
        self.get.is_some()
    }

    /// Whether its value can be written.
    pub fn is_writable(&self) -> bool {
        self.set.is_some()
    }

    /// Its value as text, if it can be read.
    pub fn text(&self, partition: &Partition) -> Option<String> {
        self.get.map(|get| get(partition, self.name))
    }
}

/// New values that were parsed and not yet applied: all of them are applied, or none.
#[derive(Default)]
pub struct Changes {
    limits: Option<Limits>,
    policy: Option<PolicyName>,
    /// `Some(None)`: the default.
    dirty_max_bytes: Option<Option<u64>>,
    reclaim_bytes: Option<u64>,
}

impl Changes {
    /// New limits, and perhaps a new policy.
    pub fn new(limits: Limits, policy: Option<PolicyName>) -> Changes {
        Changes { limits: Some(limits), policy, ..Changes::default() }
    }

    /// Parses a value by name. The error is a sentence.
    pub fn read(&mut self, partition: &Partition, name: &str, text: &str) -> Result<(), String> {
        let set = key(name)?.set.ok_or_else(|| format!("\"{name}\" can only be read"))?;
        set(self, partition, name, text.trim())
    }

    /// Applies all changes without waiting for stores that do not answer, and returns the memory
    /// that is still to be freed because of them. The error is a sentence; then no change was
    /// applied.
    pub fn make(self, cache: &Cache, partition: &Partition) -> Result<Owed, String> {
        let before = partition.limits();
        let mut owed = Owed::default();
        if let Some(limits) = self.limits {
            owed = partition.begin_limits(limits).map_err(|error| error.to_string())?;
            go_on_with(&owed, cache);
        }
        if let Some(policy) = self.policy
            && let Err(why) = follow(partition, policy)
        {
            if self.limits.is_some() {
                // These limits were valid a moment ago.
                let _ = partition.begin_limits(before);
            }
            return Err(why);
        }
        if let Some(bytes) = self.dirty_max_bytes {
            partition.set_dirty_max(bytes);
        }
        // Last: a reclaim is an action, and its failure must not undo the settings.
        match self.reclaim_bytes {
            Some(bytes) => {
                partition.begin_reclaim(bytes).map(|(_, owed)| owed).map_err(|error| error.to_string())
            }
            None => Ok(owed),
        }
    }

    fn limit(&mut self, partition: &Partition, name: &str, text: &str) -> Result<(), String> {
        limits::change(self.limits.get_or_insert(partition.limits()), name, text)
    }
}

/// Pause between two attempts to free the memory that is still owed.
const SETTLE_PERIOD: Duration = Duration::from_secs(1);

/// Starts a thread that continues to free memory until nothing is owed; a cache without a reaper
/// would not do that. There is at most one such thread.
pub fn go_on_with(owed: &Owed, cache: &Cache) {
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    // Relaxed: a flag that keeps a second thread from starting; nothing is published with it.
    if owed.is_nothing() || GOES_ON.swap(true, Ordering::Relaxed) {
        return;
    }
    let cache = cache.clone();
    let settle = move || {
        while !cache.settle().is_nothing() {
            std::thread::sleep(SETTLE_PERIOD);
        }
        GOES_ON.store(false, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("settle".into()).spawn(settle) {
        log::warn!("cannot start the thread that gives back memory that a store holds up: {error}");
        GOES_ON.store(false, Ordering::Relaxed);
    }
}

/// Sets a policy. The error is a sentence.
fn follow(partition: &Partition, policy: PolicyName) -> Result<(), String> {
    match partition.begin_policy(policy) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("the partition is being resized and its store does not answer; set the policy when it does"
                .into())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// All settings.
pub const KEYS: &[Key] = &[
    Key::figure("current", "bytes charged to the partition: frames and metadata", |partition, _| {
        partition.stat().charged_bytes.to_string()
    }),
    Key::limit("min", "bytes that are never taken from the partition"),
    Key::limit("low", "bytes that are taken from the partition last"),
    Key::limit("high", "bytes beyond which it holds only memory that no other partition can use"),
    Key::limit("max", "bytes that the partition never exceeds"),
    Key::limit("weight", "how much its misses count compared with others', from 1 to 10000 [default: 100]"),
    Key {
        name: "policy",
        what: "the eviction policy",
        get: Some(|partition, _| partition.stat().policy.into()),
        set: Some(|changes, _, _, text| {
            let policy = suggest::named("policy", text, &PolicyName::ALL, |policy| policy.name())?;
            changes.policy = Some(*policy);
            Ok(())
        }),
    },
    Key {
        name: "dirty_max",
        what: "most bytes of dirty pages; auto: two fifths of its frames",
        get: Some(|partition, _| partition.stat().dirty_max_bytes.to_string()),
        set: Some(|changes, _, _, text| {
            changes.dirty_max_bytes = Some(if text == "auto" { None } else { Some(limits::bytes(text)?) });
            Ok(())
        }),
    },
    Key {
        name: "reclaim",
        what: "write-only: gives about this many bytes back to the system",
        get: None,
        set: Some(|changes, _, _, text| {
            changes.reclaim_bytes = Some(limits::bytes(text)?);
            Ok(())
        }),
    },
    Key::figure("stat", "its figures, one per line", |partition, _| {
        let stat = partition.stat();
        FIGURES.iter().map(|figure| format!("{} {}\n", figure.name, (figure.of)(&stat))).collect()
    }),
    Key::figure("mrc", "sizes in bytes and its recent misses at each, one size per line", |partition, _| {
        let (page_bytes, curve) = (partition.page_bytes(), partition.miss_curve().unwrap_or_default());
        let points = curve.points.iter();
        points.map(|(pages, misses)| format!("{} {misses:.0}\n", pages * page_bytes)).collect()
    }),
    Key::figure("objects", "its objects, one per line", |partition, _| {
        partition.objects().iter().map(|object| object.name().to_owned() + "\n").collect()
    }),
];

/// The settings that can be written, one per line, for help.
pub fn help() -> String {
    let lines =
        KEYS.iter().filter(|key| key.is_writable()).map(|key| format!("  {:<10} {}", key.name, key.what));
    format!("Settings:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// A figure of a partition, of its accesses between nodes, or of an export.
pub struct Figure<S = PartitionStat> {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Whether it is a counter, which only grows, or a gauge.
    pub kind: MetricType,
    /// Its value.
    pub of: fn(&S) -> u64,
}

macro_rules! figures {
    ($($kind:ident $name:ident $(. $part:ident)?, $what:literal;)*) => {
        &[$(Figure {
            name: concat!(stringify!($name) $(, "_", stringify!($part))?),
            what: $what,
            kind: MetricType::$kind,
            of: |stat| stat.$name $(.$part)?,
        }),*]
    };
}

/// All figures.
pub const FIGURES: &[Figure] = figures![
    Counter hits, "requested pages that were resident";
    Counter misses, "requested pages that were not resident";
    Counter fills, "pages read from a store";
    Counter bypasses, "pages served without caching them";
    Counter evictions.capacity, "pages evicted for another page";
    Counter evictions.resize, "pages evicted because the partition was resized";
    Counter evictions.discard, "pages evicted because their range was discarded";
    Counter evictions.write, "pages evicted because a write bypassed them";
    Counter writebacks, "dirty pages written back";
    Counter writeback_ios, "I/Os that wrote them back";
    Counter read_errors, "pages that could not be read";
    Counter write_errors, "writes that failed";
    Counter sync_errors, "syncs that a store refused";
    Counter ghost_hits, "misses of pages that their set remembered (ghosts)";
    Counter ahead_used, "pages read ahead and then requested";
    Counter ahead_wasted, "pages read ahead and evicted before a request";
    Gauge resident_bytes, "bytes of resident pages";
    Gauge dirty_oldest_ms, "age of the oldest dirty byte in milliseconds, at most";
    Gauge dirty_bytes, "bytes of dirty pages";
    Gauge dirty_max_bytes, "most bytes of dirty pages";
    Gauge max_bytes, "bytes of frames";
    Gauge charged_bytes, "bytes of frames and metadata";
    Counter requests_read, "read requests";
    Counter requests_write, "write requests";
    Counter requests_sync, "syncs";
    Counter read_bytes, "bytes read";
    Counter written_bytes, "bytes written";
];

/// All figures of an export except its requests, which are counted by kind.
pub const EXPORT_FIGURES: &[Figure<ExportStat>] = figures![
    Gauge connections, "NBD clients connected now";
    Gauge in_flight, "requests received and not yet answered";
    Counter errors, "requests answered with an error";
    Counter read_bytes, "bytes that clients read";
    Counter written_bytes, "bytes that clients wrote";
    Counter broken, "times that a guest's ring was given up because it broke the rules";
];

/// All figures of accesses between nodes.
pub const NODE_FIGURES: &[Figure<PartitionNumaStat>] = figures![
    Counter local_hits, "pages that threads found on their own node";
    Counter remote_hits, "pages that threads found on another node";
    Counter remote_writes, "writes to pages of another node";
    Counter messages, "requests sent to another node";
    Counter bundles, "bundles of requests sent to another node";
    Counter messages_refused, "requests not sent because the queue was full";
    Counter twin_hits, "pages found in a copy on the thread's own node";
    Counter twins_made, "copies made";
    Counter twins_refreshed, "copies refreshed after a write";
    Counter twins_overtaken, "copies made stale by a write";
    Counter elections, "evicted pages restored from a copy";
    Counter switches, "pages moved to the node that writes them";
    Counter way_changes, "changes of the way in which pages of other nodes are accessed";
];

/// The setting called `name`. The error lists the known names.
pub fn key(name: &str) -> Result<&'static Key, String> {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    KEYS.iter()
        .find(|key| key.name == name)
        .ok_or_else(|| format!("there is no setting \"{name}\"; {}", suggest::of(name, &names)))
}

/// Sets a value by name. The error is a sentence.
pub fn set(cache: &Cache, partition: &Partition, name: &str, text: &str) -> Result<Owed, String> {
    let mut changes = Changes::default();
    changes.read(partition, name, text)?;
    let owed = changes.make(cache, partition)?;
    tell_set(partition, &format!("{name}={text}"));
    Ok(owed)
}

/// Logs, as an event, what an operator has set.
pub fn tell_set(partition: &Partition, set: &str) {
    let name = partition.name();
    log::info!(event = "changed", partition = name; "partition \"{name}\": set {set}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::{CacheConfig, PartitionConfig};

    #[test]
    fn every_setting_that_can_be_written_accepts_the_value_it_shows() {
        let config = CacheConfig { background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        for key in KEYS {
            let Some(before) = key.text(&partition).filter(|_| key.is_writable()) else { continue };
            super::set(&cache, &partition, key.name, &before).unwrap();
            assert_eq!(key.text(&partition).unwrap(), before, "{}", key.name);
            assert!(super::set(&cache, &partition, key.name, "nonsense").is_err(), "{}", key.name);
        }
        for (name, text, word) in [
            ("maximum", "1", "max"),
            ("current", "1", "can only be read"),
            ("policy", "lur", "lru"),
            ("min", "8GiB", "min together"),
            ("weight", "0", "weight is 0"),
        ] {
            let error = set(&cache, &partition, name, text).unwrap_err();
            assert!(error.contains(word), "{name}={text}: {error}");
        }
        let text = |name: &str| key(name).unwrap().text(&partition).unwrap();
        set(&cache, &partition, "max", "16MiB").unwrap();
        assert_eq!(text("max"), (16 << 20).to_string());
        assert!(text("current").parse::<u64>().unwrap() <= 16 << 20);
        set(&cache, &partition, "policy", "car").unwrap();
        assert_eq!(text("policy"), "car");
        assert_eq!(text("stat").lines().count(), FIGURES.len());
    }
}
