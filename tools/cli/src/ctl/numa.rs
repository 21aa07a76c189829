//! `octavo ctl numa` for people: on which node pages lie, and which threads access them.

use serde_json::Value;

use crate::units::{aligned, human_bytes, human_count};

/// The server's answer as tables.
pub fn table(answer: &Value) -> String {
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let array = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<String>>();
    let emulated = if answer["emulated"] == true { ", emulated" } else { "" };
    let refused = if answer["refused"] == true { ", and the kernel refuses to bind memory" } else { "" };
    let mut nodes = vec![row(&["NODE", "CPUS", "MEMORY", "DISTANCES"])];
    for node in array(answer, "nodes") {
        let numbers = |key| array(&node, key).iter().filter_map(Value::as_u64).collect::<Vec<u64>>();
        let words = |numbers: Vec<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let memory = match number(&node, "memory_bytes") {
            0 => "-".into(),
            bytes => human_bytes(bytes),
        };
        let cpus = ranges(&numbers("cpus"));
        nodes.push(vec![number(&node, "number").to_string(), cpus, memory, words(numbers("distances"))]);
    }
    let mut rows = vec![row(&["PARTITION", "NODE", "SEGMENTS", "PAGES", "TWINS", "FRAMES", "METADATA"])];
    let mut hits = vec![row(&[
        "PARTITION",
        "WAY",
        "LOCAL HITS",
        "REMOTE HITS",
        "REMOTE WRITES",
        "MESSAGES",
        "BUNDLES",
        "REFUSED",
    ])];
    let mut twins = vec![row(&[
        "PARTITION",
        "TWIN HITS",
        "TWINS MADE",
        "REFRESHED",
        "OVERTAKEN",
        "ELECTIONS",
        "SWITCHES",
    ])];
    for partition in array(answer, "partitions") {
        let name = partition["name"].as_str().unwrap_or_default().to_owned();
        for (at, node) in array(&partition, "nodes").iter().enumerate() {
            let number_of_node = number(&answer["nodes"][at], "number").to_string();
            let mut cells = vec![name.clone(), number_of_node, number(node, "segments").to_string()];
            cells.extend(["pages", "twins"].map(|key| human_count(number(node, key) as f64)));
            cells.extend(["frames", "metadata"].map(|key| share_here(&node[key])));
            rows.push(cells);
        }
        let keys = ["local_hits", "remote_hits", "remote_writes", "messages", "bundles", "messages_refused"];
        let counts = |keys: &[&str]| -> Vec<String> {
            let counts = keys.iter().map(|key| human_count(number(&partition, key) as f64));
            std::iter::once(name.clone()).chain(counts).collect()
        };
        let mut counted = counts(&keys);
        counted.insert(1, partition["way"].as_str().unwrap_or_default().to_owned());
        hits.push(counted);
        let keys = ["twin_hits", "twins_made", "twins_refreshed", "twins_overtaken", "elections", "switches"];
        twins.push(counts(&keys));
    }
    format!(
        "mode {}{emulated}{refused}\n{}\n{}\n{}{}",
        answer["mode"].as_str().unwrap_or_default(),
        aligned(&nodes, 2),
        aligned(&rows, 1),
        aligned(&hits, 2),
        if answer["mode"] == "replicate" || answer["mode"] == "auto" {
            format!("\n{}", aligned(&twins, 1))
        } else {
            String::new()
        }
    )
}

/// The share of memory that lies on its own node.
fn share_here(pages: &Value) -> String {
    let number = |key: &str| pages[key].as_u64().unwrap_or(0);
    match number("here") + number("elsewhere") {
        0 => "-".into(),
        touched => format!("{:.1} % here", number("here") as f64 * 100.0 / touched as f64),
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
        let table = table(&answer);
        for word in ["mode partition, emulated\n", "4-5", "WAY", "REMOTE HITS", "METADATA"] {
            assert!(table.contains(word), "{word} is not in\n{table}");
        }
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(share_here(&json!({"here": 3, "elsewhere": 1, "unknown": 9})), "75.0 % here");
    }
}
