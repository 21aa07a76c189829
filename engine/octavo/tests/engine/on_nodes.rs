//! A machine with several NUMA nodes: the kernel confirms where memory lies and where threads run.
//!
//! `cargo xtask guest` runs these tests in guests of two and of four nodes, and passes the number
//! of nodes in `OCTAVO_NODES`. On a machine with one node they print `SKIP`. New tests of placement
//! use [`machine`], [`addresses`], [`kernel::nodes_of`] and [`on`].

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use octavo::numa::{Node, NodeStat, NumaMode, Replication, Topology, TopologySource};
use octavo::{Cache, CacheConfig, CacheMode, Object, Partition};

use crate::fixture::{PAGE, bytes_at, until};
use crate::numa::{PAGES, read_all, read_all_in_batches, stat};
use crate::{kernel, numa};

/// The machine's nodes, if it has several.
fn machine() -> Option<Topology> {
    let topology = TopologySource::Machine.topology();
    let nodes = topology.nodes.len();
    if let Ok(expected) = std::env::var("OCTAVO_NODES") {
        assert_eq!(nodes.to_string(), expected, "{topology:?}");
    }
    if nodes == 1 {
        println!("SKIP: this machine has one node");
        return None;
    }
    Some(topology)
}

/// A cache on the nodes of this machine. Nothing grows, shrinks or moves in the background.
fn config(mode: NumaMode) -> CacheConfig {
    CacheConfig { topology: TopologySource::Machine, background: false, ..numa::config(mode, 1, 1) }
}

/// Runs `act` on a thread that is bound to a node.
fn on<T: Send>(node: &Node, act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        kernel::stay_on(&node.cpus);
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// The addresses of the frames of an object's resident pages.
fn addresses(object: &Object, pages: impl Iterator<Item = u64>) -> Vec<(u64, *const u8)> {
    let pages = pages.filter(|page| object.is_resident(page * PAGE));
    pages.filter_map(|page| Some((page, object.pin(page * PAGE).unwrap()?.as_ptr()))).collect()
}

/// The pages of an object by the node on which the kernel reports them.
fn pages_by_node(object: &Object) -> BTreeMap<u32, Vec<u64>> {
    let (pages, addresses): (Vec<u64>, Vec<*const u8>) = addresses(object, 0..PAGES).into_iter().unzip();
    let mut by_node: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (page, node) in pages.into_iter().zip(kernel::nodes_of(&addresses)) {
        by_node.entry(node.expect("a page that is pinned was touched")).or_default().push(page);
    }
    by_node
}

fn read(object: &Object, pages: &[u64]) {
    for page in pages {
        assert_eq!(bytes_at(object, page * PAGE, 8), page.to_le_bytes());
    }
}

/// Asserts that the cache and the kernel agree on the node of every page, and that memory bound to
/// a node lies there.
fn assert_placed(topology: &Topology, cache: &Cache, object: &Object) {
    let by_node = pages_by_node(object);
    assert!(!cache.numa_stat().refused);
    let before = stat(cache);
    for (node, told) in topology.nodes.iter().zip(&before.nodes) {
        let pages = by_node.get(&node.number).map_or(&[][..], Vec::as_slice);
        assert_eq!(told.pages, pages.len() as u64, "on node {}", node.number);
        assert_eq!((told.frames.elsewhere, told.metadata.elsewhere), (0, 0), "of node {}", node.number);
        assert!(told.frames.here >= told.pages, "{told:?}");
        assert_eq!(told.metadata.here > 0, told.segments > 0, "{told:?}");
        // Threads of a node have local hits on exactly the pages that the kernel reports there.
        on(node, || read(object, pages));
    }
    let after = stat(cache);
    assert_eq!(after.remote_hits, before.remote_hits);
    assert_eq!(after.local_hits - before.local_hits, by_node.values().map(|pages| pages.len() as u64).sum());
    assert_bound(topology, object, &by_node);
}

/// Asserts that the address range of each page prefers the node of the page, and that a range that
/// prefers a node has all of its pages there.
fn assert_bound(topology: &Topology, object: &Object, by_node: &BTreeMap<u32, Vec<u64>>) {
    let areas = kernel::areas();
    for node in &topology.nodes {
        for area in areas.iter().filter(|area| area.prefers == Some(node.number)) {
            assert!(area.pages.keys().all(|on| *on == node.number), "{area:?}");
        }
        let pages = by_node.get(&node.number).into_iter().flatten().copied();
        for (page, at) in addresses(object, pages) {
            let area = areas.iter().rfind(|area| area.start <= at as usize).unwrap();
            assert_eq!(area.prefers, Some(node.number), "page {page} at {at:?}: {area:?}");
        }
    }
}

/// A scene whose pages are all touched first by a thread of `node`.
fn scene_from(node: &Node, config: CacheConfig) -> (Cache, Partition, Object) {
    on(node, || numa::scene(config))
}

#[test]
fn processors_belong_to_the_nodes_that_the_kernel_reports() {
    let Some(topology) = machine() else { return };
    for node in &topology.nodes {
        for cpu in &node.cpus {
            let cpu = *cpu;
            let there = std::thread::spawn(move || {
                kernel::stay_on(&[cpu]);
                kernel::here()
            });
            assert_eq!(there.join().unwrap(), (cpu, node.number));
        }
        let at_home = node.distances.iter().filter(|distance| **distance == 10).count();
        assert!(node.memory_bytes > 0 && at_home == 1, "{node:?}");
    }
}

#[test]
fn pages_and_metadata_lie_on_their_nodes_whichever_thread_touches_them_first() {
    let Some(topology) = machine() else { return };
    for loader in [&topology.nodes[0], topology.nodes.last().unwrap()] {
        let (cache, _partition, object) = scene_from(loader, config(NumaMode::Partition));
        let told = stat(&cache);
        assert!(told.nodes.iter().all(|node| node.pages > PAGES / 8), "{told:?}");
        assert_placed(&topology, &cache, &object);
    }
    // Without NUMA all pages lie on the node whose thread touched them first.
    let last = topology.nodes.last().unwrap();
    let (_cache, _partition, object) = scene_from(last, config(NumaMode::Off));
    assert_eq!(pages_by_node(&object).into_keys().collect::<Vec<_>>(), [last.number]);
}

#[test]
fn copies_lie_where_pages_are_read_and_pages_where_they_are_written() {
    let Some(topology) = machine() else { return };
    let (first, last) = (&topology.nodes[0], topology.nodes.last().unwrap());
    let replication = Replication { switch_writes: 2, ..Replication::default() };
    let config = CacheConfig { replication, ..config(NumaMode::Replicate) };
    let (cache, _partition, object) = on(first, || numa::scene_of(config, CacheMode::Writeback));
    // 1. Copies on every node but the first, which has read all pages. The kernel reports their
    //    memory on the node of the reader, and every read of a copy is local.
    let loaded = stat(&cache);
    on(last, || read_all(&object));
    let told = stat(&cache);
    let (own, others) = told.nodes.split_last().unwrap();
    assert!(own.twins > loaded.nodes[others.len()].twins, "{loaded:?} {told:?}");
    let are_as_before = |(now, before): (&NodeStat, &NodeStat)| now.twins == before.twins;
    assert!(others.iter().zip(&loaded.nodes).all(are_as_before), "{loaded:?} {told:?}");
    assert!(told.nodes.iter().all(|node| node.frames.elsewhere == 0), "{told:?}");
    on(last, || read_all(&object));
    let again = stat(&cache);
    // With four nodes not all copies fit: copies are evicted for other copies.
    assert!(again.twin_hits - told.twin_hits >= own.twins / 4 * 3, "{again:?}");
    // 2. Mains move to the node that writes them. Most find a free way there.
    let before = pages_by_node(&object)[&last.number].len();
    on(last, || numa::write_all(&object, 3));
    let after = pages_by_node(&object)[&last.number].len();
    let switches = cache.numa_stat().partitions[0].switches as usize;
    println!("{before} pages on node {}, {after} after {switches} came", last.number);
    assert!(after == before + switches && after as u64 > PAGES / 4 * 3);
    assert_placed(&topology, &cache, &object);
    // 3. They move back.
    on(first, || numa::write_all(&object, 3));
    assert!(pages_by_node(&object)[&first.number].len() as u64 > PAGES / 4 * 3);
    assert_placed(&topology, &cache, &object);
}

#[test]
fn segments_lie_on_their_nodes_after_resizes() {
    let Some(topology) = machine() else { return };
    let (cache, partition, object) = scene_from(&topology.nodes[0], config(NumaMode::Partition));
    for segments in [3, 7, 2, 8, 1, 6] {
        partition.resize(segments * ((2 << 20) + (16 << 10)) + (128 << 10)).unwrap();
        // Pages that left with their segment are read again.
        on(&topology.nodes[1], || read_all(&object));
        assert_placed(&topology, &cache, &object);
    }
}

#[test]
fn a_partition_bound_to_one_node_lies_there_completely() {
    let Some(topology) = machine() else { return };
    for node in &topology.nodes {
        let cache = Cache::new(config(NumaMode::Partition)).unwrap();
        let own = octavo::PartitionConfig { node: Some(node.number), ..octavo::PartitionConfig::new("p") };
        let partition = cache.partition(own).unwrap();
        let store = octavo::disk::Store::memory("disk", PAGES * PAGE);
        let object = partition.open(store, "disk").unwrap();
        on(&topology.nodes[0], || object.read_at(0, &mut vec![0; (PAGES * PAGE) as usize]).unwrap());
        assert_eq!(pages_by_node(&object).into_keys().collect::<Vec<_>>(), [node.number]);
        let told = stat(&cache);
        let elsewhere = told.nodes.iter().map(|node| node.frames.elsewhere + node.metadata.elsewhere);
        assert_eq!(elsewhere.sum::<u64>(), 0, "{told:?}");
    }
}

#[test]
fn pages_that_another_program_moved_away_are_reported() {
    let Some(topology) = machine() else { return };
    let (cache, _partition, object) = scene_from(&topology.nodes[0], config(NumaMode::Partition));
    let (home, away) = (&topology.nodes[1], &topology.nodes[0]);
    let moved = pages_by_node(&object).remove(&home.number).unwrap();
    let (_, at): (Vec<u64>, Vec<*const u8>) = addresses(&object, moved.into_iter()).into_iter().unzip();
    let gone =
        kernel::move_to(&at, away.number).into_iter().filter(|node| *node == Some(away.number)).count();
    assert!(gone > at.len() / 2, "the kernel moved {gone} of {}", at.len());
    let told = stat(&cache);
    assert!(told.nodes[1].frames.elsewhere >= gone as u64, "{gone} were moved: {told:?}");
    assert_eq!(told.nodes[0].frames.elsewhere, 0);
}

#[test]
fn workers_stay_on_the_processors_of_their_nodes_and_fill_pages_there() {
    let Some(topology) = machine() else { return };
    let (cache, partition, object) = scene_from(&topology.nodes[0], config(NumaMode::Message));
    // The processors that the kernel allows each worker, once all have started and bound
    // themselves.
    let count: usize = topology.nodes.iter().map(|node| node.cpus.len()).sum();
    let bound = |workers: &[(String, String)]| {
        workers.iter().filter(|(_, cpus)| cpus.parse::<u32>().is_ok()).count() >= count
    };
    let begun = Instant::now();
    until(|| bound(&workers()) || begun.elapsed() > Duration::from_secs(60));
    let workers = workers();
    for (at, node) in topology.nodes.iter().enumerate() {
        let name = format!("octavo-node-{at}");
        // Each processor of the node has a worker, and no other processor has one.
        let own = workers.iter().filter(|(who, _)| *who == name).map(|(_, cpus)| cpus.clone());
        let expected: BTreeSet<String> = node.cpus.iter().map(u32::to_string).collect();
        assert_eq!(own.collect::<BTreeSet<_>>(), expected, "{workers:?}");
    }
    for node in &topology.nodes {
        partition.evict().unwrap();
        let before = (stat(&cache), partition.stat());
        on(node, || {
            read_all_in_batches(&object, 100);
            read_all_in_batches(&object, 100);
        });
        let after = (stat(&cache), partition.stat());
        assert_eq!(after.1.hits - before.1.hits, PAGES);
        let refused = after.0.messages_refused - before.0.messages_refused;
        assert!(after.0.remote_hits - before.0.remote_hits <= refused, "{after:?}");
        let here = pages_by_node(&object)[&node.number].len() as u64;
        assert_eq!(after.0.messages - before.0.messages + refused, 2 * (PAGES - here), "{after:?}");
        assert_placed(&topology, &cache, &object);
    }
}

/// The workers of this process, and the processors that each may use.
fn workers() -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that has just ended has no status.
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, key: &str| {
        status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned()
    };
    statuses
        .map(|status| (field(&status, "Name:"), field(&status, "Cpus_allowed_list:")))
        .filter(|(name, _)| name.starts_with("octavo-node-"))
        .collect()
}

#[test]
fn processor_masks_are_honoured() {
    let Some(topology) = machine() else { return };
    let first = |node: &Node| node.cpus[0];
    let last = topology.nodes.last().unwrap();
    let masks: Vec<Vec<u32>> = vec![
        // One processor of each node; one node alone; the first and the last.
        topology.nodes.iter().map(first).collect(),
        last.cpus.clone(),
        vec![first(&topology.nodes[0]), *last.cpus.last().unwrap()],
    ];
    for mask in masks {
        let said = std::thread::scope(|scope| {
            let child = || {
                kernel::stay_on(&mask);
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "on_nodes::a_process_with_a_mask", "--ignored", "--nocapture"])
                    .output()
                    .unwrap()
            };
            scope.spawn(child).join().unwrap()
        });
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
        let expected: Vec<String> = topology
            .nodes
            .iter()
            .filter_map(|node| {
                let cpus: Vec<u32> = node.cpus.iter().copied().filter(|cpu| mask.contains(cpu)).collect();
                (!cpus.is_empty()).then(|| format!("{}:{cpus:?}", node.number))
            })
            .collect();
        assert!(text.contains(&format!("uses {}\n", expected.join(" "))), "{mask:?}: {expected:?}\n{text}");
    }
}

/// The child process of [`processor_masks_are_honoured`].
#[test]
#[ignore = "a part of another test"]
fn a_process_with_a_mask() {
    let (cache, _partition, object) = numa::scene(config(NumaMode::Message));
    let topology = cache.numa_stat().topology;
    let allowed: Vec<String> = topology.nodes.iter().flat_map(|n| &n.cpus).map(u32::to_string).collect();
    for (name, cpus) in workers() {
        assert!(allowed.contains(&cpus), "{name} may run on {cpus}");
    }
    read_all_in_batches(&object, 100);
    let numbers: Vec<u32> = topology.nodes.iter().map(|node| node.number).collect();
    assert_eq!(pages_by_node(&object).into_keys().collect::<Vec<_>>(), numbers);
    let nodes = topology.nodes.iter().map(|node| format!("{}:{:?}", node.number, node.cpus));
    println!("uses {}", nodes.collect::<Vec<_>>().join(" "));
}
