//! The verbs of the control protocol that concern partitions: show, set, advise, evict, reclaim.
//! Those that concern the sizes of several are in `sizes`.
//!
//! Every answer is JSON and every error a sentence. The names of settings are in `keys`.

use octavo::{Advice, Cache, Object, Owed, Partition, WAYS};
use serde_json::{Value, json};

use super::keys::{self, KEYS};
use super::protocol::{Request, Verb};
use super::{groups, sizes};
use crate::{limits, suggest};

/// The words of `posix_fadvise`.
const ADVICE: [(&str, Advice); 6] = [
    ("normal", Advice::Normal),
    ("sequential", Advice::Sequential),
    ("random", Advice::Random),
    ("willneed", Advice::WillNeed),
    ("dontneed", Advice::DontNeed),
    ("noreuse", Advice::NoReuse),
];

/// Answers a request about partitions.
pub fn answer(verb: Verb, request: &Request, cache: &Cache) -> Result<Value, String> {
    match verb {
        Verb::Partitions => Ok(partitions(cache)),
        Verb::Set => set(cache, request),
        Verb::Mrc => curve(&partition(cache, request)?),
        Verb::Advise => {
            let object = object(cache, request)?;
            let word = request.advice.as_deref().unwrap_or_default();
            let (_, advice) = suggest::named("advice", word, &ADVICE, |(name, _)| name)?;
            let offset = request.offset.unwrap_or(0);
            let len = request.len.unwrap_or(object.len_bytes().saturating_sub(offset));
            object.advise(offset, len, *advice).map_err(|error| error.to_string())?;
            Ok(json!({}))
        }
        Verb::Evict => {
            let partition = partition(cache, request)?;
            let before = partition.stat().resident_bytes;
            match &request.object {
                Some(_) => {
                    let object = object(cache, request)?;
                    object.advise(0, object.len_bytes(), Advice::DontNeed)
                }
                None => partition.evict(),
            }
            .map_err(|error| error.to_string())?;
            Ok(json!({"evicted_bytes": before.saturating_sub(partition.stat().resident_bytes)}))
        }
        Verb::Reclaim => {
            let partition = partition(cache, request)?;
            let bytes = request.bytes.ok_or("the number of bytes is missing")?;
            let (reclaimed, owed) = partition.begin_reclaim(bytes).map_err(|error| error.to_string())?;
            Ok(with_owed(json!({"reclaimed_bytes": reclaimed}), &owed))
        }
        Verb::Sets => {
            let occupancy = partition(cache, request)?.occupancy();
            Ok(json!({
                "ways": WAYS,
                "sets": occupancy.sets,
                "sampled": occupancy.sampled,
                "occupancy": occupancy.occupied,
                "dirty": occupancy.dirty,
            }))
        }
        Verb::Plan => Ok(sizes::plan(cache)),
        Verb::Resize => Ok(with_owed(json!({}), &sizes::resize(cache, &request.sizes)?)),
        Verb::Numa => Ok(crate::control::numa::describe(cache)),
        _ => Err("this verb concerns the whole server".into()),
    }
}

/// Sets values of a partition, or of a group if no partition has the name.
fn set(cache: &Cache, request: &Request) -> Result<Value, String> {
    if request.values.is_empty() {
        return Err("there is nothing to set; expected key=value".into());
    }
    for (at, (name, _)) in request.values.iter().enumerate() {
        if request.values[..at].iter().any(|(other, _)| other == name) {
            return Err(format!("\"{name}\" is given twice; nothing was set"));
        }
    }
    let set: Vec<String> = request.values.iter().map(|(name, text)| format!("{name}={text}")).collect();
    let set = set.join(" ");
    let partition = match (partition(cache, request), &request.partition) {
        (Err(_), Some(group)) if groups::exists(cache, group) => {
            return set_group(cache, group, &request.values, &set);
        }
        (partition, _) => partition?,
    };
    let mut changes = keys::Changes::default();
    for (name, text) in &request.values {
        changes.read(&partition, name, text).map_err(|why| format!("{name}={text}: {why}"))?;
    }
    let owed = changes.make(cache, &partition)?;
    keys::tell_set(&partition, &set);
    Ok(with_owed(settings(&partition), &owed))
}

fn set_group(cache: &Cache, group: &str, values: &[(String, String)], set: &str) -> Result<Value, String> {
    let mut limits = groups::limits(cache, group);
    for (name, text) in values {
        if !limits::NAMES.contains(&name.as_str()) {
            let known = limits::NAMES.join(", ");
            return Err(format!("{name}={text}: a group has only {known}"));
        }
        limits::change(&mut limits, name, text.trim()).map_err(|why| format!("{name}={text}: {why}"))?;
    }
    let owed = groups::change(cache, group, limits, set)?;
    Ok(with_owed(groups::settings(group, &limits), &owed))
}

/// A partition's miss curve. The error is a sentence.
fn curve(partition: &Partition) -> Result<Value, String> {
    let curve = partition.miss_curve().ok_or_else(|| {
        format!(
            "\"{}\" has no miss curve: the partition is too small, or was made without a reaper",
            partition.name()
        )
    })?;
    let is_seen = curve.references >= 1.0;
    let points = curve.points.iter().filter(|_| is_seen).map(|(pages, misses)| {
        let miss_ratio = if curve.references > 0.0 { misses / curve.references } else { 0.0 };
        json!({"bytes": pages * partition.page_bytes(), "misses": misses.round(), "miss_ratio": miss_ratio})
    });
    Ok(json!({
        "partition": partition.name(),
        "policy": partition.stat().policy,
        "current_bytes": partition.stat().max_bytes,
        "references": curve.references.round(),
        "has_seen": is_seen,
        "sampled": curve.sampled.round(),
        "rate": curve.rate,
        "points": points.collect::<Vec<Value>>(),
    }))
}

/// Adds to an answer the memory that is still to be freed because a store does not answer.
fn with_owed(mut answer: Value, owed: &Owed) -> Value {
    if !owed.is_nothing() {
        answer["owed_bytes"] = owed.bytes.into();
        answer["held_up"] = owed.partitions.clone().into();
    }
    answer
}

/// All partitions and groups with their settings.
fn partitions(cache: &Cache) -> Value {
    let partitions: Vec<Value> = cache.partitions().iter().map(settings).collect();
    let groups = cache.groups();
    let groups = groups.iter().map(|(name, limits)| groups::settings(name, limits));
    let reaper = cache.reaper_stat();
    json!({
        "partitions": partitions,
        "groups": groups.collect::<Vec<Value>>(),
        "reaper": {"periods": reaper.periods, "moved_bytes": reaper.moved_bytes, "allowed_bytes": reaper.allowed_bytes,
                   "held_up": reaper.held_up},
    })
}

/// A partition's settings, by name, except those with several lines.
fn settings(partition: &Partition) -> Value {
    let mut values = serde_json::Map::new();
    values.insert("name".into(), partition.name().into());
    for key in KEYS.iter().filter(|key| !["stat", "mrc", "objects"].contains(&key.name)) {
        let Some(text) = key.text(partition) else { continue };
        let value = match text.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) if key.name != "policy" && text == limits::NO_BOUND => Value::Null,
            Err(_) => text.into(),
        };
        values.insert(key.name.into(), value);
    }
    Value::Object(values)
}

fn partition(cache: &Cache, request: &Request) -> Result<Partition, String> {
    let name = request.partition.as_deref().ok_or("the name of the partition is missing")?;
    suggest::named("partition", name, &cache.partitions(), Partition::name).cloned()
}

fn object(cache: &Cache, request: &Request) -> Result<Object, String> {
    let partition = partition(cache, request)?;
    let name = request.object.as_deref().ok_or("the name of the export is missing")?;
    suggest::named("export of this partition", name, &partition.objects(), Object::name).cloned()
}
