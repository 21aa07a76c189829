//! Figures for operators: the plan and sizes set by it, how full sets are, the age of dirty data.

use serde_json::{Value, json};

use crate::control_client::ControlClient;
use crate::nbd_client::Client;
use crate::server::{Setup, served, wait_until};

const TWO: &str = "[[partition]]\nname = \"q\"\nmin = \"2MiB\"";

fn numbers(of: &Value) -> Vec<u64> {
    of.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn sets_shows_how_many_sets_have_how_many_ways_in_use() {
    let (_directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(0, &vec![7; 1 << 20]);
    server.ctl_succeed(&["sync"]);
    client.write(0, &[7; 10 * 4096]);
    let answer = server.ctl_json(&["sets", "p"]);
    let (occupancy, dirty) = (numbers(&answer["occupancy"]), numbers(&answer["dirty"]));
    assert_eq!((&answer["ways"], occupancy.len(), dirty.len()), (&json!(16), 17, 17));
    let sampled = answer["sampled"].as_u64().unwrap();
    assert!(sampled > 0 && answer["sets"].as_u64().unwrap() >= sampled, "{answer}");
    assert_eq!((occupancy.iter().sum(), dirty.iter().sum()), (sampled, sampled));
    let pages = |counts: &[u64]| (0..).zip(counts).map(|(ways, sets): (u64, &u64)| ways * sets).sum::<u64>();
    assert_eq!(answer["sets"], sampled, "the sets of 32 MiB are fewer than 4096");
    assert!(pages(&occupancy) >= 250 && pages(&dirty) <= 10, "{answer}");
    let chart = server.ctl_succeed(&["sets", "p"]);
    assert!(chart.starts_with("\"p\": 16 ways a set, ") && chart.contains('#'), "{chart}");
    assert!(server.ctl_fail(1, &["sets", "r"]).contains("no partition is called \"r\"; known: p"));
}

#[test]
fn the_plan_proposes_sizes_within_the_bound_and_apply_sets_them() {
    let (_directory, server) = served(&Setup { listen: TWO, ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    (0..3).for_each(|_| drop(client.read(0, 16 << 20)));
    let plan = server.ctl_json(&["plan"]);
    let partitions = plan["partitions"].as_array().unwrap();
    let names: Vec<&str> = partitions.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{plan}");
    let of = |name: &str, key: &str| {
        partitions.iter().find(|one| one["name"] == name).unwrap()[key].as_u64().unwrap()
    };
    let sum = of("p", "proposed_bytes") + of("q", "proposed_bytes");
    let total = plan["total_bytes"].as_u64().unwrap();
    assert!(sum <= total && total <= 32 << 20, "{plan}");
    assert_eq!((of("q", "min_bytes"), &partitions[0]["max_bytes"]), (2 << 20, &Value::Null), "{plan}");
    let table = server.ctl_succeed(&["plan"]);
    assert!(table.contains("PROPOSED") && table.contains("all together up to "), "{table}");

    let applied = server.ctl_json(&["plan", "--apply"]);
    assert!(applied["applied"].is_object(), "{applied}");
    let settings = server.ctl_json(&["partitions"]);
    for one in settings["partitions"].as_array().unwrap() {
        let proposed =
            applied["partitions"].as_array().unwrap().iter().find(|other| other["name"] == one["name"]);
        assert_eq!(one["max"], proposed.unwrap()["proposed_bytes"], "{settings}");
    }
}

#[test]
fn sizes_are_set_for_all_named_partitions_or_for_none() {
    let (_directory, server) = served(&Setup { listen: TWO, ..Setup::default() });
    let mut control = ControlClient::connect(&server.control);
    let max = || {
        let settings = server.ctl_json(&["partitions"]);
        let of = |name: &str| {
            let all = settings["partitions"].as_array().unwrap();
            all.iter().find(|one| one["name"] == name).unwrap()["max"].clone()
        };
        (of("p"), of("q"))
    };
    let resize = |sizes: Value| json!({"do": "resize", "sizes": sizes});
    for (sizes, why) in [
        (json!([["p", 8 << 20], ["r", 8 << 20]]), "no partition is called \"r\""),
        (json!([["p", 8 << 20], ["q", 1 << 20]]), "min is 2 MiB and max is 1 MiB"),
        (json!([["p", 8 << 20], ["q", 64 << 20]]), "all partitions together can have "),
        (json!([["q", 4 << 20], ["p", 4096]]), "the smallest partition takes"),
        (json!([["p", 8 << 20], ["p", 9 << 20]]), "\"p\" is given twice"),
        (json!([]), "there is no size"),
    ] {
        let answer = control.ask(resize(sizes));
        let said = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(said.contains(why), "{said}");
        assert_eq!(max(), (Value::Null, Value::Null), "{said}");
    }
    let answer = control.succeeds(resize(json!([["q", 16 << 20], ["p", 8 << 20]])));
    assert_eq!(answer, json!({}));
    assert_eq!(max(), ((8 << 20).into(), (16 << 20).into()));
    let current = &server.ctl_json(&["partitions"])["partitions"][0]["current"];
    assert!(current.as_u64().unwrap() <= 8 << 20, "{current}");
}

#[test]
fn latency_counts_requests_and_ios_of_each_partition_by_kind() {
    let (_directory, server) = served(&Setup { listen: TWO, ..Setup::default() });
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.read(0, 4096);
    (0..3).for_each(|_| drop(client.read(0, 4096)));
    client.write(8192, &[1; 4096]);
    assert_eq!(client.flush(), 0);
    let answer = ControlClient::connect(&server.control).succeeds(json!({"do": "latency"}));
    let bounds = numbers(&answer["bounds_us"]);
    assert!(bounds[0] == 1 && bounds.is_sorted(), "{bounds:?}");
    let partition =
        |name: &str| answer["partitions"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    let count = |name: &str, kind: &str| {
        let times = &partition(name)["kinds"][kind];
        let counts = numbers(&times["counts"]);
        assert_eq!(counts.len(), bounds.len());
        assert_eq!(times["count"], counts.iter().sum::<u64>());
        assert!(times["max_us"].as_u64() <= times["sum_us"].as_u64(), "{times}");
        counts.iter().sum::<u64>()
    };
    assert_eq!(count("p", "hit") + count("p", "miss"), 4);
    assert!(count("p", "hit") >= 1 && count("p", "miss") >= 1);
    assert_eq!(["write", "flush", "discard", "bypass"].map(|kind| count("p", kind)), [1, 1, 0, 0]);
    // A read, a write-back and a sync.
    assert!(count("p", "store") >= 3);
    assert_eq!(["hit", "store"].map(|kind| count("q", kind)), [0, 0]);
}

#[test]
fn dirty_data_has_an_age_until_it_is_written() {
    let listen = "metrics = \"127.0.0.1:0\"\nmetrics_hosts = [\"octavo\"]";
    let (_directory, server) = served(&Setup { listen, ..Setup::default() });
    let age = || server.stat()["partitions"][0]["dirty_oldest_ms"].as_u64().unwrap();
    assert_eq!(age(), 0);
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    // The cleaner may write the page at any time: a new one is dirty then.
    wait_until(
        || "no age".into(),
        || {
            client.write(0, &[1; 4096]);
            age() > 0
        },
    );
    server.ctl_succeed(&["sync"]);
    assert_eq!(age(), 0);
    let samples = crate::metrics::scrape(&server.metrics_address());
    assert_eq!(samples["octavo_partition_dirty_oldest_seconds{partition=\"p\"}"], 0.0);
}
