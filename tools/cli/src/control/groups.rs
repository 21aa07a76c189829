//! The limits of groups, as operators read and set them. A group is the part of partitions' names
//! before a slash; its limits hold for all of these partitions together.

use octavo::{Cache, Limits, Owed, UNLIMITED, groups_of};
use serde_json::{Value, json};

use super::keys;

/// Whether a group has this name: a partition lies in it, or it has limits.
pub fn exists(cache: &Cache, name: &str) -> bool {
    let has_limits = cache.groups().iter().any(|(group, _)| group == name);
    let holds = |partition: &str| groups_of(partition).any(|group| group == name);
    has_limits || cache.partitions().iter().any(|partition| holds(partition.name()))
}

/// A group's limits; the default if none were set.
pub fn limits(cache: &Cache, name: &str) -> Limits {
    let groups = cache.groups();
    groups.into_iter().find(|(group, _)| group == name).map(|(_, limits)| limits).unwrap_or_default()
}

/// Gives a group new limits, and logs `set`, the words for what is new, as an event. Returns the
/// memory that is still to be freed because a store does not answer. The error is a sentence.
pub fn change(cache: &Cache, name: &str, limits: Limits, set: &str) -> Result<Owed, String> {
    let owed = cache.begin_group(name, limits).map_err(|error| error.to_string())?;
    log::info!(event = "changed"; "group \"{name}\": set {set}");
    keys::go_on_with(&owed, cache);
    Ok(owed)
}

/// A group's limits as the control protocol shows them.
pub fn settings(name: &str, limits: &Limits) -> Value {
    let bound = |bytes: u64| Some(bytes).filter(|bytes| *bytes != UNLIMITED);
    json!({
        "name": name,
        "min": limits.min_bytes,
        "low": limits.low_bytes,
        "high": bound(limits.high_bytes),
        "max": bound(limits.max_bytes),
        "weight": limits.weight,
    })
}
