//! Nodes, as users see them: emulated ones, and the machine's as far as it has any.

use octavo::disk::Store;
use octavo::numa::{NumaMode, TopologySource, sit};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig};

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;

pub fn config(mode: NumaMode, nodes: u32, cores: u32) -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 32 << 20,
        topology: TopologySource::Emulated { nodes, cores },
        numa: mode,
        seed: Some(5),
        ..CacheConfig::default()
    }
}

/// A cache of eight segments, and an object of pages that say their number.
pub fn scene(config: CacheConfig) -> (Cache, Partition, Object) {
    let cache = Cache::new(config).unwrap();
    let bytes = 8 * ((2 << 20) + (16 << 10)) + (128 << 10);
    let config = PartitionConfig { max_bytes: Some(bytes), ..PartitionConfig::new("p") };
    let partition = cache.partition(config).unwrap();
    let object = partition.open(Store::memory("disk", PAGES * PAGE), "disk").unwrap();
    for page in 0..PAGES {
        object.write_at(page * PAGE, &page.to_le_bytes()).unwrap();
        object.read_at(page * PAGE, &mut [0]).unwrap();
    }
    (cache, partition, object)
}

/// Reads every page on a core.
fn read_all_on(seat: u32, object: &Object) {
    std::thread::scope(|scope| {
        let reader = || {
            sit(seat);
            let mut bytes = [0; 8];
            for page in 0..PAGES {
                object.read_at(page * PAGE, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), page);
            }
        };
        scope.spawn(reader).join().unwrap();
    });
}

#[test]
fn pages_are_divided_among_nodes_and_it_is_counted_whose_are_read() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Partition, 2, 2));
    let before = cache.numa_stat().partitions.remove(0);
    assert_eq!(before.nodes.iter().map(|node| node.segments).collect::<Vec<_>>(), [4, 4]);
    assert_eq!(before.nodes.iter().map(|node| node.pages).sum::<u64>(), PAGES);
    // Cores 2 and 3 are node 1's, and core 4 is core 0 again.
    for (seat, node) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        let before = cache.numa_stat().partitions.remove(0);
        read_all_on(seat, &object);
        let after = cache.numa_stat().partitions.remove(0);
        assert_eq!(after.local_hits - before.local_hits, after.nodes[node].pages, "core {seat}");
        assert_eq!(after.remote_hits - before.remote_hits, after.nodes[1 - node].pages, "core {seat}");
    }
    let writes = cache.numa_stat().partitions[0].remote_writes;
    object.write_at(0, &vec![0; (PAGES * PAGE) as usize]).unwrap();
    let after = cache.numa_stat().partitions.remove(0);
    assert_eq!(after.remote_writes - writes, after.nodes[1].pages);
    assert_eq!(partition.stat().hits, after.local_hits + after.remote_hits);
}

#[test]
fn a_partition_keeps_its_nodes_even_while_it_grows_and_shrinks() {
    let (cache, partition, object) = scene(config(NumaMode::Partition, 3, 1));
    for segments in [3, 7, 2, 8, 1, 6] {
        partition.resize(segments * ((2 << 20) + (16 << 10)) + (128 << 10)).unwrap();
        let nodes = &cache.numa_stat().partitions[0].nodes;
        let counts: Vec<u64> = nodes.iter().map(|node| node.segments).collect();
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        read_all_on(0, &object);
    }
}

#[test]
fn a_partition_of_one_node_has_all_its_pages_there() {
    let cache = Cache::new(config(NumaMode::Partition, 4, 1)).unwrap();
    let on = |node| PartitionConfig { node: Some(node), ..PartitionConfig::new("p") };
    let error = cache.partition(on(4)).err().unwrap().to_string();
    assert!(error.contains("no node 4"), "{error}");
    let partition = cache.partition(on(3)).unwrap();
    let object = partition.open(Store::memory("disk", 64 * PAGE), "disk").unwrap();
    object.read_at(0, &mut vec![0; 64 * PAGE as usize]).unwrap();
    let stat = cache.numa_stat().partitions.remove(0);
    assert_eq!(stat.nodes.iter().map(|node| node.pages).collect::<Vec<_>>(), [0, 0, 0, 64]);
    let off = Cache::new(config(NumaMode::Off, 4, 1)).unwrap();
    assert!(off.partition(on(3)).is_err(), "a node without nodes");
}

#[test]
fn one_node_counts_nothing_and_divides_nothing() {
    for config in [config(NumaMode::Off, 2, 2), config(NumaMode::Partition, 1, 4)] {
        let (cache, partition, object) = scene(config);
        read_all_on(3, &object);
        let stat = cache.numa_stat().partitions.remove(0);
        assert_eq!((stat.local_hits, stat.remote_hits, stat.nodes.len()), (0, 0, 1));
        assert!(partition.stat().hits >= PAGES);
    }
}

#[test]
fn this_machines_nodes_are_used_and_what_lies_on_them_is_where_it_belongs() {
    let (cache, _partition, object) =
        scene(CacheConfig { topology: TopologySource::Machine, ..config(NumaMode::Partition, 1, 1) });
    let stat = cache.numa_stat();
    let nodes = &stat.partitions[0].nodes;
    assert_eq!(nodes.len(), stat.topology.nodes.len());
    assert!(nodes.iter().map(|node| node.pages).sum::<u64>() == PAGES);
    for node in nodes.iter().filter(|_| !stat.refused) {
        // Memory may be short on a node, and then lies on another; most does not.
        assert!(node.frames.elsewhere <= node.frames.here, "{node:?}");
        assert!(node.metadata.elsewhere <= node.metadata.here, "{node:?}");
    }
    read_all_on(0, &object);
}
