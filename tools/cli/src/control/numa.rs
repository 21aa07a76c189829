//! The answer to `numa`: on which node pages lie, and which threads access them from which node.

use octavo::Cache;
use octavo::numa::{NodePages, NodeStat};
use serde_json::{Value, json};

use super::keys::NODE_FIGURES;

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
        NODE_FIGURES.iter().for_each(|figure| all[figure.name] = (figure.of)(partition).into());
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
