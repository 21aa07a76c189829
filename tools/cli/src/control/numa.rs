//! `octavo ctl numa`: where pages lie and whose pages are read, as JSON and for people.

use octavo::Cache;
use octavo::numa::{NodePages, NodeStat, PartitionNumaStat};
use serde_json::{Value, json};

use crate::units::{aligned, human_bytes, human_count};

/// A figure of a partition that only grows.
pub struct Count {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub what: &'static str,
    /// Its value.
    pub of: fn(&PartitionNumaStat) -> u64,
}

macro_rules! counts {
    ($($name:ident: $what:literal,)*) => {
        &[$(Count { name: stringify!($name), what: $what, of: |stat| stat.$name }),*]
    };
}

/// All that is counted of nodes.
pub const COUNTS: &[Count] = counts![
    local_hits: "Pages that threads found on their own node",
    remote_hits: "Pages that threads found on another node",
    remote_writes: "Pages of another node that were written",
    messages: "Requests that went to another node",
    bundles: "Bundles that requests went to another node in",
    messages_refused: "Requests whose queue was full",
    twin_hits: "Pages found in a copy on the thread's own node",
    twins_made: "Copies that were made",
    twins_refreshed: "Copies that were made anew after a write",
    twins_overtaken: "Copies that writes have overtaken",
    elections: "Pages that had left and came back from a copy",
    switches: "Pages that went to the node that writes them",
    way_changes: "Times that another way to other nodes' pages was chosen",
];

/// What a server knows about nodes.
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

/// The same for people.
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

/// How much of some memory lies where it belongs.
fn share_here(pages: &Value) -> String {
    let number = |key: &str| pages[key].as_u64().unwrap_or(0);
    match number("here") + number("elsewhere") {
        0 => "-".into(),
        touched => format!("{:.1} % here", number("here") as f64 * 100.0 / touched as f64),
    }
}

/// `0-3,8`.
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
    use octavo::numa::{NumaMode, TopologySource};
    use octavo::{CacheConfig, PartitionConfig};

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
