//! `octavo ctl numa` for people: on which node pages lie, and which threads access them.

use serde_json::Value;

use super::tables::{Column, table};
use crate::units::{human_bytes, human_count};

/// The server's answer as tables.
pub fn tables(answer: &Value) -> String {
    let emulated = if answer["emulated"] == true { ", emulated" } else { "" };
    let refused = if answer["refused"] == true { ", and the kernel refuses to bind memory" } else { "" };
    let (nodes, partitions) = (array(&answer["nodes"]), array(&answer["partitions"]));
    // The share of each partition that lies on each node.
    let mut parts = Vec::new();
    for partition in partitions {
        parts
            .extend(array(&partition["nodes"]).iter().zip(nodes).map(|(part, node)| [partition, node, part]));
    }
    let columns: [Column<[&Value; 3]>; 7] = [
        ("PARTITION", |[partition, ..]| text(&partition["name"])),
        ("NODE", |[_, node, _]| number(&node["number"]).to_string()),
        ("SEGMENTS", |[.., part]| number(&part["segments"]).to_string()),
        ("PAGES", |[.., part]| count(&part["pages"])),
        ("TWINS", |[.., part]| count(&part["twins"])),
        ("FRAMES", |[.., part]| share_here(&part["frames"])),
        ("METADATA", |[.., part]| share_here(&part["metadata"])),
    ];
    let twins = match answer["mode"] == "replicate" || answer["mode"] == "auto" {
        true => format!("\n{}", table(1, TWINS, partitions)),
        false => String::new(),
    };
    format!(
        "mode {}{emulated}{refused}\n{}\n{}\n{}{twins}",
        text(&answer["mode"]),
        table(2, NODES, nodes),
        table(1, &columns, &parts),
        table(2, ACCESSES, partitions),
    )
}

const NODES: &[Column<Value>] = &[
    ("NODE", |node| number(&node["number"]).to_string()),
    ("CPUS", |node| ranges(&numbers(&node["cpus"]))),
    ("MEMORY", |node| match number(&node["memory_bytes"]) {
        0 => "-".into(),
        bytes => human_bytes(bytes),
    }),
    ("DISTANCES", |node| {
        numbers(&node["distances"]).iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }),
];

const ACCESSES: &[Column<Value>] = &[
    ("PARTITION", |partition| text(&partition["name"])),
    ("WAY", |partition| text(&partition["way"])),
    ("LOCAL HITS", |partition| count(&partition["local_hits"])),
    ("REMOTE HITS", |partition| count(&partition["remote_hits"])),
    ("REMOTE WRITES", |partition| count(&partition["remote_writes"])),
    ("MESSAGES", |partition| count(&partition["messages"])),
    ("BUNDLES", |partition| count(&partition["bundles"])),
    ("REFUSED", |partition| count(&partition["messages_refused"])),
];

const TWINS: &[Column<Value>] = &[
    ("PARTITION", |partition| text(&partition["name"])),
    ("TWIN HITS", |partition| count(&partition["twin_hits"])),
    ("TWINS MADE", |partition| count(&partition["twins_made"])),
    ("REFRESHED", |partition| count(&partition["twins_refreshed"])),
    ("OVERTAKEN", |partition| count(&partition["twins_overtaken"])),
    ("ELECTIONS", |partition| count(&partition["elections"])),
    ("SWITCHES", |partition| count(&partition["switches"])),
];

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn numbers(value: &Value) -> Vec<u64> {
    array(value).iter().filter_map(Value::as_u64).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn count(value: &Value) -> String {
    human_count(number(value) as f64)
}

/// The share of memory that lies on its own node.
fn share_here(pages: &Value) -> String {
    let here = number(&pages["here"]);
    match here + number(&pages["elsewhere"]) {
        0 => "-".into(),
        touched => format!("{:.1} % here", here as f64 * 100.0 / touched as f64),
    }
}

/// Numbers as ranges: `0-3,8`.
fn ranges(numbers: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::numa::describe;
    use octavo::numa::{NumaMode, TopologySource};
    use octavo::{Cache, CacheConfig, PartitionConfig};
    use serde_json::json;

    #[test]
    fn the_table_has_every_node_and_says_that_it_is_emulated() {
        let config = CacheConfig {
            topology: TopologySource::Emulated { nodes: 3, cores: 2 },
            numa: NumaMode::Partition,
            ..CacheConfig::default()
        };
        let cache = Cache::new(config).unwrap();
        let max_bytes = Some(16 << 20);
        cache.partition(PartitionConfig { max_bytes, ..PartitionConfig::new("p") }).unwrap();
        let answer = describe(&cache);
        assert_eq!(answer["nodes"][2]["cpus"], json!([4, 5]));
        assert_eq!(answer["partitions"][0]["nodes"].as_array().unwrap().len(), 3);
        let table = tables(&answer);
        for word in ["mode partition, emulated\n", "4-5", "WAY", "REMOTE HITS", "METADATA"] {
            assert!(table.contains(word), "{word} is not in\n{table}");
        }
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(share_here(&json!({"here": 3, "elsewhere": 1, "unknown": 9})), "75.0 % here");
    }
}
