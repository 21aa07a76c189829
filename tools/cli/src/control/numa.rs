//! The answer to `numa`: on which node pages lie, and which threads access them from which node.

use octavo::Cache;
use octavo::numa::{NodePages, NodeStat, PartitionNumaStat};
use serde_json::{Value, json};

/// A counter of a partition.
pub struct Count {
    /// Its name.
    pub name: &'static str,
    /// What it means, in a few words.
    pub what: &'static str,
    /// Its value.
    pub of: fn(&PartitionNumaStat) -> u64,
}

macro_rules! counts {
    ($($name:ident: $what:literal,)*) => {
        &[$(Count { name: stringify!($name), what: $what, of: |stat| stat.$name }),*]
    };
}

/// All counters of accesses between nodes.
pub const COUNTS: &[Count] = counts![
    local_hits: "Pages that threads found on their own node",
    remote_hits: "Pages that threads found on another node",
    remote_writes: "Writes to pages of another node",
    messages: "Requests sent to another node",
    bundles: "Bundles of requests sent to another node",
    messages_refused: "Requests not sent because the queue was full",
    twin_hits: "Pages found in a copy on the thread's own node",
    twins_made: "Copies made",
    twins_refreshed: "Copies refreshed after a write",
    twins_overtaken: "Copies made stale by a write",
    elections: "Evicted pages restored from a copy",
    switches: "Pages moved to the node that writes them",
    way_changes: "Changes of the way in which pages of other nodes are accessed",
];

/// The server's nodes, and where each partition's memory lies on them.
pub fn describe(cache: &Cache) -> Value {
    let stat = cache.numa_stat();
    let where_pages_lie = |pages: &NodePages| json!({"here": pages.here, "elsewhere": pages.elsewhere, "unknown": pages.unknown});
    let on_node = |node: &NodeStat| {
        json!({
            "segments": node.segments, "pages": node.pages, "twins": node.twins,
            "frames": where_pages_lie(&node.frames), "metadata": where_pages_lie(&node.metadata),
        })
    };
    let nodes = stat.topology.nodes.iter().map(|node| {
        json!({
            "number": node.number, "cpus": node.cpus, "memory_bytes": node.memory_bytes,
            "distances": node.distances,
        })
    });
    let partitions = stat.partitions.iter().map(|partition| {
        let mut all = json!({
            "name": partition.name,
            "way": partition.way,
            "nodes": partition.nodes.iter().map(on_node).collect::<Vec<Value>>(),
        });
        COUNTS.iter().for_each(|count| all[count.name] = (count.of)(partition).into());
        all
    });
    json!({
        "mode": stat.mode,
        "emulated": stat.topology.is_emulated,
        "refused": stat.refused,
        "nodes": nodes.collect::<Vec<Value>>(),
        "partitions": partitions.collect::<Vec<Value>>(),
    })
}
