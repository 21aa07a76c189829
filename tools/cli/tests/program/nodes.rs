//! `octavo ctl numa` on the machine's own nodes, compared with what the kernel says about the
//! server.
//!
//! `cargo xtask guest` runs this on machines with several nodes, and says in `OCTAVO_NODES` how
//! many.

use serde_json::{Value, json};

use crate::nbd_client::Client;
use crate::server::{Setup, assert_has, served};

/// A small part of the cache, so that no set runs out of ways.
const DISK_BYTES: usize = 4 << 20;

/// Pages of a process that prefer a node: how many are there, and how many elsewhere
/// (`/proc/PID/numa_maps`).
fn kernel_says(pid: u32, number: u64) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap();
    let (mut here, mut elsewhere) = (0, 0);
    for line in text.lines().filter(|line| line.contains(&format!(" prefer:{number} "))) {
        for (node, pages) in
            line.split_whitespace().filter_map(|word| word.strip_prefix('N')?.split_once('='))
        {
            let pages: u64 = pages.parse().unwrap();
            *(if node == number.to_string() { &mut here } else { &mut elsewhere }) += pages;
        }
    }
    (here, elsewhere)
}

fn sum(node: &Value, what: &str) -> u64 {
    ["frames", "metadata"].iter().map(|part| node[*part][what].as_u64().unwrap()).sum()
}

#[test]
fn ctl_numa_agrees_with_the_kernel_about_the_server() {
    for mode in ["partition", "message"] {
        let cache = format!("numa = \"{mode}\"");
        let (_directory, server) =
            served(&Setup { cache: &cache, disk_bytes: DISK_BYTES as u64, ..Setup::default() });
        let mut client = Client::connect(&server.nbd, "disk")
            .unwrap_or_else(|error| panic!("{mode}: {error}\n{}", server.log()));
        let content: Vec<u8> = (0..DISK_BYTES).map(|at| (at / 4096) as u8).collect();
        for (at, piece) in content.chunks(1 << 20).enumerate() {
            client.write((at << 20) as u64, piece);
        }
        assert_eq!(client.flush(), 0);
        for _ in 0..2 {
            let read = (0..DISK_BYTES >> 20).flat_map(|at| client.read((at << 20) as u64, 1 << 20));
            assert!(read.eq(content.iter().copied()));
        }

        let told = server.ctl_json(&["numa"]);
        assert_has(&told, json!({"mode": mode, "emulated": false, "refused": false}));
        let nodes = told["nodes"].as_array().unwrap();
        if let Ok(expected) = std::env::var("OCTAVO_NODES") {
            assert_eq!(nodes.len().to_string(), expected, "{told:#}");
        }
        let partition = &told["partitions"][0];
        let pages: u64 =
            partition["nodes"].as_array().unwrap().iter().map(|node| node["pages"].as_u64().unwrap()).sum();
        assert_eq!(pages, DISK_BYTES as u64 / 4096, "{told:#}");
        // A single node's memory is bound to nothing, and the kernel has no second place for it.
        for (node, lies) in nodes.iter().zip(partition["nodes"].as_array().unwrap()) {
            let number = node["number"].as_u64().unwrap();
            let told_of = (sum(lies, "here"), sum(lies, "elsewhere"));
            assert!(
                told_of.0 >= lies["pages"].as_u64().unwrap() && told_of.1 == 0,
                "node {number}: {told:#}"
            );
            if nodes.len() > 1 {
                assert_eq!(told_of, kernel_says(server.pid(), number), "node {number}: {told:#}");
                assert!(lies["pages"].as_u64().unwrap() > 0, "{told:#}");
            }
        }
        let of = |key: &str| partition[key].as_u64().unwrap();
        if nodes.len() > 1 {
            assert!(of("local_hits") > 0, "{told:#}");
            assert_eq!(of("messages") > 0, mode == "message", "{told:#}");
            // The thread that serves a client reads pages of all nodes, or has them read. A thread
            // that has just migrated does not know its node for a while.
            assert_eq!(10 * of("remote_hits") > of("local_hits"), mode == "partition", "{told:#}");
        }
    }
}
