//! The names under which a partition's settings are read and changed, and its figures are told: one
//! list, so that whoever shows or changes partitions speaks of the same things in the same words.
//!
//! The words are those of Linux's cgroup v2 where it has them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use octavo::{Cache, Limits, Owed, Partition, PartitionStat, PolicyName, UNLIMITED};

use crate::{suggest, units};

/// A setting of a partition.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub what: &'static str,
    /// Its value as text. None: it can only be written.
    pub get: Option<fn(&Partition) -> String>,
    /// Takes a text; the error is a sentence. None: it can only be read.
    pub set: Option<Set>,
}

/// Reads what a setting is to be.
type Set = fn(&mut Changes, &Partition, &str) -> Result<(), String>;

/// What is to be set, read and not yet taken: all of it is taken, or nothing.
#[derive(Default)]
pub struct Changes {
    limits: Option<Limits>,
    policy: Option<PolicyName>,
    /// None in it: the usual one.
    dirty_max_bytes: Option<Option<u64>>,
    reclaim_bytes: Option<u64>,
}

impl Changes {
    /// Reads a value by name; the error is a sentence.
    pub fn read(&mut self, partition: &Partition, name: &str, text: &str) -> Result<(), String> {
        let set = key(name)?.set.ok_or_else(|| format!("\"{name}\" can only be read"))?;
        set(self, partition, text.trim())
    }

    /// Takes all of them, without waiting for a store that does not answer, and tells what is owed
    /// then; the error is a sentence, and then none was taken.
    pub fn make(self, cache: &Cache, partition: &Partition) -> Result<Owed, String> {
        let before = partition.limits();
        let mut owed = Owed::default();
        if let Some(limits) = self.limits {
            owed = cache.begin_limits(partition, limits).map_err(|error| error.to_string())?;
            go_on_with(&owed, cache);
        }
        if let Some(policy) = self.policy
            && let Err(why) = follow(partition, policy)
        {
            if self.limits.is_some() {
                // They were kept a moment ago.
                let _ = cache.begin_limits(partition, before);
            }
            return Err(why);
        }
        if let Some(bytes) = self.dirty_max_bytes {
            partition.set_dirty_max(bytes);
        }
        // The last: it is done and not set, and what it could not do is no reason to undo the others.
        match self.reclaim_bytes {
            Some(bytes) => {
                partition.begin_reclaim(bytes).map(|(_, owed)| owed).map_err(|error| error.to_string())
            }
            None => Ok(owed),
        }
    }

    fn limit(&mut self, partition: &Partition, name: &str, text: &str) -> Result<(), String> {
        change_limit(self.limits.get_or_insert(partition.limits()), name, text)
    }
}

/// Between two looks at what stores hold up.
const SETTLE_PERIOD: Duration = Duration::from_secs(1);

/// Goes on with what is owed, also where the cache has no reaper that does: one thread at a time,
/// which ends with it.
pub fn go_on_with(owed: &Owed, cache: &Cache) {
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing but the thread itself depends on it.
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
        log::warn!("no thread goes on with what a store holds up: {error}");
        GOES_ON.store(false, Ordering::Relaxed);
    }
}

/// Sets a policy; the error is a sentence.
fn follow(partition: &Partition, policy: PolicyName) -> Result<(), String> {
    match partition.begin_policy(policy) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("its size is changing and its store does not answer: the policy can be set when it does"
                .into())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// All settings.
pub const KEYS: &[Key] = &[
    Key {
        name: "current",
        what: "bytes that are charged to it: frames and metadata",
        get: Some(|partition| partition.stat().charged_bytes.to_string()),
        set: None,
    },
    Key {
        name: "min",
        what: "bytes that are never taken from it",
        get: Some(|partition| partition.limits().min_bytes.to_string()),
        set: Some(|changes, partition, text| changes.limit(partition, "min", text)),
    },
    Key {
        name: "low",
        what: "bytes that are taken from it last",
        get: Some(|partition| partition.limits().low_bytes.to_string()),
        set: Some(|changes, partition, text| changes.limit(partition, "low", text)),
    },
    Key {
        name: "high",
        what: "bytes beyond which it has only what nobody else can use",
        get: Some(|partition| bound(partition.limits().high_bytes)),
        set: Some(|changes, partition, text| changes.limit(partition, "high", text)),
    },
    Key {
        name: "max",
        what: "bytes that it never exceeds",
        get: Some(|partition| bound(partition.limits().max_bytes)),
        set: Some(|changes, partition, text| changes.limit(partition, "max", text)),
    },
    Key {
        name: "weight",
        what: "what its misses count for against others', from 1 to 10000; 100 is usual",
        get: Some(|partition| partition.limits().weight.to_string()),
        set: Some(|changes, partition, text| changes.limit(partition, "weight", text)),
    },
    Key {
        name: "policy",
        what: "which page leaves first",
        get: Some(|partition| partition.stat().policy.into()),
        set: Some(|changes, _, text| {
            let names = PolicyName::ALL.map(PolicyName::name);
            let policy = PolicyName::ALL.into_iter().find(|policy| policy.name() == text);
            let policy = policy
                .ok_or_else(|| format!("no policy is called \"{text}\"; {}", suggest::of(text, &names)))?;
            changes.policy = Some(policy);
            Ok(())
        }),
    },
    Key {
        name: "dirty_max",
        what: "most bytes of dirty pages; auto is two fifths of its frames",
        get: Some(|partition| partition.stat().dirty_max_bytes.to_string()),
        set: Some(|changes, _, text| {
            changes.dirty_max_bytes = Some(if text == "auto" { None } else { Some(bytes(text)?) });
            Ok(())
        }),
    },
    Key {
        name: "reclaim",
        what: "written: gives about so many bytes back to the system",
        get: None,
        set: Some(|changes, _, text| {
            changes.reclaim_bytes = Some(bytes(text)?);
            Ok(())
        }),
    },
    Key {
        name: "stat",
        what: "its figures, a line each",
        get: Some(|partition| figures(&partition.stat())),
        set: None,
    },
    Key {
        name: "mrc",
        what: "bytes and the misses that it would have had of late with them, a line each",
        get: Some(curve),
        set: None,
    },
    Key {
        name: "objects",
        what: "its objects, a line each",
        get: Some(|partition| {
            partition.objects().iter().map(|object| object.name().to_owned() + "\n").collect()
        }),
        set: None,
    },
];

/// What can be set, a line each, for help.
pub fn help() -> String {
    let lines =
        KEYS.iter().filter(|key| key.set.is_some()).map(|key| format!("  {:<10} {}", key.name, key.what));
    format!("Settings:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// A figure of a partition.
pub struct Figure {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// It only grows.
    pub is_counter: bool,
    /// Its value.
    pub of: fn(&PartitionStat) -> u64,
}

macro_rules! figures {
    ($($kind:ident $name:ident $(. $part:ident)?, $what:literal;)*) => {
        &[$(Figure {
            name: concat!(stringify!($name) $(, "_", stringify!($part))?),
            what: $what,
            is_counter: figures!(@ $kind),
            of: |stat| stat.$name $(.$part)?,
        }),*]
    };
    (@ counter) => { true };
    (@ gauge) => { false };
}

/// All figures.
pub const FIGURES: &[Figure] = figures![
    counter hits, "pages of requests that were there";
    counter misses, "pages of requests that were not";
    counter fills, "pages read from a store";
    counter bypasses, "pages served past the cache";
    counter evictions.capacity, "pages that left for another";
    counter evictions.resize, "pages that left because the partition changed its size";
    counter evictions.discard, "pages that left because their range went";
    counter evictions.write, "pages that left because a write went elsewhere";
    counter writebacks, "dirty pages written back";
    counter writeback_ios, "writes that took";
    counter read_errors, "pages that could not be read";
    counter write_errors, "writes that failed";
    counter sync_errors, "syncs that a store refused";
    counter ghost_hits, "misses of pages that their set remembered";
    counter ahead_used, "pages read ahead and wanted then";
    counter ahead_wasted, "pages read ahead that left before anybody wanted them";
    gauge resident_bytes, "bytes of pages in the cache";
    gauge dirty_bytes, "bytes of pages that are not in their store yet";
    gauge dirty_max_bytes, "most bytes of dirty pages";
    gauge max_bytes, "bytes of frames";
    gauge charged_bytes, "bytes of frames and metadata";
    counter requests_read, "read requests";
    counter requests_write, "write requests";
    counter requests_sync, "syncs";
    counter read_bytes, "bytes read";
    counter written_bytes, "bytes written";
];

/// The setting of that name; the error says which there are.
pub fn key(name: &str) -> Result<&'static Key, String> {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    KEYS.iter()
        .find(|key| key.name == name)
        .ok_or_else(|| format!("there is no \"{name}\"; {}", suggest::of(name, &names)))
}

/// Sets a value by name; the error is a sentence.
pub fn set(cache: &Cache, partition: &Partition, name: &str, text: &str) -> Result<Owed, String> {
    let mut changes = Changes::default();
    changes.read(partition, name, text)?;
    changes.make(cache, partition)
}

/// A limit by name, as text; `None`: it is none.
pub fn limit_text(limits: &Limits, name: &str) -> Option<String> {
    Some(match name {
        "min" => limits.min_bytes.to_string(),
        "low" => limits.low_bytes.to_string(),
        "high" => bound(limits.high_bytes),
        "max" => bound(limits.max_bytes),
        "weight" => limits.weight.to_string(),
        _ => return None,
    })
}

/// Changes a limit by name to what a text says; the error is a sentence.
pub fn change_limit(limits: &mut Limits, name: &str, text: &str) -> Result<(), String> {
    match name {
        "min" => limits.min_bytes = bytes(text)?,
        "low" => limits.low_bytes = bytes(text)?,
        "high" => limits.high_bytes = bytes(text)?,
        "max" => limits.max_bytes = bytes(text)?,
        "weight" => {
            let weight = text.parse();
            limits.weight =
                weight.map_err(|_| format!("\"{text}\" is no weight: a number from 1 to 10000"))?;
        }
        _ => return Err(format!("\"{name}\" can only be read")),
    }
    Ok(())
}

/// What is written where there is no bound.
pub const NO_BOUND: &str = "max";

/// Bytes, or `max` for no bound.
fn bytes(text: &str) -> Result<u64, String> {
    if text == NO_BOUND { Ok(UNLIMITED) } else { units::size_bytes(text) }
}

fn bound(bytes: u64) -> String {
    if bytes == UNLIMITED { NO_BOUND.into() } else { bytes.to_string() }
}

fn figures(stat: &PartitionStat) -> String {
    FIGURES.iter().map(|figure| format!("{} {}\n", figure.name, (figure.of)(stat))).collect()
}

fn curve(partition: &Partition) -> String {
    let page_bytes = partition.page_bytes();
    let curve = partition.miss_curve().unwrap_or_default();
    let points = curve.points.iter();
    points.map(|(pages, misses)| format!("{} {misses:.0}\n", pages * page_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::{CacheConfig, PartitionConfig};

    #[test]
    fn every_setting_that_can_be_written_takes_what_it_tells() {
        let config = CacheConfig { background: false, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        for key in KEYS {
            let Some((get, _)) = key.get.zip(key.set) else { continue };
            let before = get(&partition);
            super::set(&cache, &partition, key.name, &before).unwrap();
            assert_eq!(get(&partition), before, "{}", key.name);
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
        set(&cache, &partition, "max", "16MiB").unwrap();
        assert_eq!((key("max").unwrap().get.unwrap())(&partition), (16 << 20).to_string());
        assert!((key("current").unwrap().get.unwrap())(&partition).parse::<u64>().unwrap() <= 16 << 20);
        set(&cache, &partition, "policy", "car").unwrap();
        assert_eq!((key("policy").unwrap().get.unwrap())(&partition), "car");
        assert_eq!((key("stat").unwrap().get.unwrap())(&partition).lines().count(), FIGURES.len());
    }
}
