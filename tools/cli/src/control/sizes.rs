//! The verbs `plan` and `resize`: the sizes that the reaper's plan aims at, and sizes that an
//! operator sets for several partitions at once.

use octavo::{Cache, Limits, Owed, Partition};
use serde_json::{Value, json};

use super::keys;
use crate::suggest;
use crate::units::human_bytes;

/// The sizes at which the reaper would stop moving memory if loads stayed as they are.
pub fn plan(cache: &Cache) -> Value {
    let proposal = cache.proposal();
    let partitions = proposal.partitions.iter().map(|one| {
        json!({
            "name": one.name,
            "current_bytes": one.current_bytes,
            "min_bytes": one.min_bytes,
            "max_bytes": one.max_bytes,
            "proposed_bytes": one.proposed_bytes,
            "misses_now": one.misses_now.round(),
            "misses_proposed": one.misses_proposed.round(),
        })
    });
    json!({"total_bytes": proposal.total_bytes, "partitions": partitions.collect::<Vec<Value>>()})
}

/// Sets the `max` of each named partition, and returns the memory that stores keep from being
/// freed. The error is a sentence; then no limit is changed.
pub fn resize(cache: &Cache, sizes: &[(String, u64)]) -> Result<Owed, String> {
    if sizes.is_empty() {
        return Err("there is no size; expected [\"vm1\",BYTES] for each partition".into());
    }
    let mut changes = checked(cache, sizes)?;
    // Those that shrink come first, so that the others find their memory.
    changes.sort_by_key(|(partition, limits)| limits.max_bytes > partition.stat().charged_bytes);
    let mut owed = Owed::default();
    let mut done: Vec<(Partition, Limits)> = Vec::new();
    for (partition, limits) in changes {
        let before = partition.limits();
        match partition.begin_limits(limits) {
            Ok(more) => {
                owed.bytes += more.bytes;
                owed.partitions.extend(more.partitions);
                done.push((partition, before));
            }
            // Another client has changed limits since they were checked.
            Err(error) => {
                for (partition, before) in done {
                    // These limits were valid a moment ago.
                    let _ = partition.begin_limits(before);
                }
                return Err(format!("{error}; nothing was changed"));
            }
        }
    }
    for (partition, _) in &done {
        keys::tell_set(partition, &format!("max={}", partition.limits().max_bytes));
    }
    keys::go_on_with(&owed, cache);
    Ok(owed)
}

/// The new limits of each partition, if all of them can be in force together.
fn checked(cache: &Cache, sizes: &[(String, u64)]) -> Result<Vec<(Partition, Limits)>, String> {
    let partitions = cache.partitions();
    let mut changes = Vec::new();
    for (at, (name, bytes)) in sizes.iter().enumerate() {
        if sizes[..at].iter().any(|(other, _)| other == name) {
            return Err(format!("\"{name}\" is given twice; nothing was changed"));
        }
        let partition = suggest::named("partition", name, &partitions, Partition::name)?;
        let limits = Limits { max_bytes: *bytes, ..partition.limits() };
        partition.check_limits(&limits).map_err(|error| format!("{error}; nothing was changed"))?;
        changes.push((partition.clone(), limits));
    }
    let (sum, total) = (sizes.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes)), total(cache));
    if sum > total {
        return Err(format!(
            "the sizes together are {}, but all partitions together can have {}; nothing was changed",
            human_bytes(sum),
            human_bytes(total)
        ));
    }
    Ok(changes)
}

/// The most bytes for all partitions together.
fn total(cache: &Cache) -> u64 {
    cache.proposal().total_bytes
}
