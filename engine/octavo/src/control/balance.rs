//! Compares the pressure on a partition's nodes.
//!
//! Not here: how pressure is judged (`state/nodes/balance.rs`), how entries move (`resize.rs`).

use octavo_table::SegmentIndex;

use crate::state::nodes::{Pressure, TIMES, Verdict, judge};
use crate::state::partition::PartitionInner;
use crate::sync::lock;

/// Fewest sampled arrivals that a comparison needs.
const ARRIVALS_MIN: f64 = 512.0;

/// In one period, at most one entry in this many moves (but a partition may always move one).
const STEP: usize = 32;

impl PartitionInner {
    /// Reads the clocks of sample sets on all nodes, and compares the nodes if enough arrivals have
    /// been counted. If `TIMES` comparisons in a row found the same hot and cold node, returns the
    /// verdict and the number of entries that should move from the hot node to the cold one.
    pub fn look_at_nodes(&self) -> Option<(Verdict, usize)> {
        if self.places.nodes == 1 {
            return None;
        }
        let mut looks = lock(&self.balance.0);
        let looks = &mut *looks;
        looks.clocks.resize(self.table.shape().segments_max as usize, None);
        let mut nodes = vec![Pressure::default(); self.places.nodes as usize];
        for (number, begun) in looks.clocks.iter_mut().enumerate() {
            let segment = SegmentIndex(number as u32);
            if !self.table.is_live(segment) {
                *begun = None;
                continue;
            }
            let (clocks, full) = self.table.clocks(segment);
            let begun = begun.get_or_insert(clocks);
            let node = &mut nodes[self.node_of_segment(segment).0 as usize];
            for at in 0..clocks.len() {
                node.add(if full[at] { clocks[at].wrapping_sub(begun[at]) } else { 0 });
            }
        }
        if nodes.iter().map(|node| node.arrivals).sum::<f64>() < ARRIVALS_MIN {
            return None;
        }
        let verdict = judge(&nodes);
        looks.clocks.clear();
        let nodes = |verdict: Verdict| (verdict.hot, verdict.cold);
        let is_same = verdict.is_some() && verdict.map(nodes) == looks.verdict.map(nodes);
        looks.times = if is_same { looks.times + 1 } else { 1 };
        looks.verdict = verdict;
        let verdict = verdict.filter(|_| looks.times >= TIMES)?;
        let entries = self.table.entries_of_node(verdict.hot);
        let all: usize = self.table.entries_per_segment().iter().sum();
        let most = (all / STEP).max(1);
        Some((verdict, ((entries as f64 * verdict.excess / 2.0) as usize).clamp(1, most)))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_table::NodeId;

    use super::*;
    use crate::disk::Store;
    use crate::numa::{NumaMode, TopologySource};
    use crate::position::PageIndex;
    use crate::{Cache, CacheConfig, Limits, Object, Partition, PartitionConfig};

    const PAGE: u64 = 4096;
    const PAGES: u64 = 8192;

    /// Creates a cache without threads, so only the test's own calls act. A segment has 128 pages.
    fn scene(nodes: u32, segments: u64) -> (Cache, Partition, Object) {
        let config = CacheConfig {
            memory_max_bytes: 32 << 20,
            segment_bytes: 128 * PAGE,
            topology: TopologySource::Emulated { nodes, cores: 1 },
            numa: NumaMode::Partition,
            background: false,
            seed: Some(3),
            ..CacheConfig::default()
        };
        let cache = Cache::new(config).unwrap();
        let partition = PartitionConfig { policy: crate::PolicyName::Lru, ..PartitionConfig::new("p") };
        let partition = cache.partition(partition).unwrap();
        partition.resize_segments(segments as u32).unwrap();
        // Fix the partition's size, so that the reaper does not change it.
        let charged = partition.stat().charged_bytes;
        partition
            .set_limits(Limits { min_bytes: charged, max_bytes: charged, ..partition.limits() })
            .unwrap();
        let object = partition.open(Store::memory("disk", PAGES * PAGE), "disk").unwrap();
        (cache, partition, object)
    }

    /// Returns `count` pages that belong to a node at the start.
    fn pages_of(partition: &Partition, object: &Object, node: u32, count: usize) -> Vec<u64> {
        let is_there =
            |page: &u64| partition.inner.node_of(object.inner.tag(PageIndex(*page))) == NodeId(node);
        let pages: Vec<u64> = (0..PAGES).filter(is_there).take(count).collect();
        assert_eq!(pages.len(), count);
        pages
    }

    /// Runs `periods` reaper periods, with 8,000 reads of random pages before each. Returns the hit
    /// ratio of each period.
    fn run(cache: &Cache, partition: &Partition, object: &Object, pages: &[u64], periods: usize) -> Vec<f64> {
        let mut state = 7u64;
        let period = |_| {
            let before = partition.stat();
            for _ in 0..8000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let page = pages[(state >> 33) as usize % pages.len()];
                object.read_at(page * PAGE, &mut [0]).unwrap();
            }
            let after = partition.stat();
            cache.balance();
            (after.hits - before.hits) as f64 / 8000.0
        };
        (0..periods).map(period).collect()
    }

    fn entries(partition: &Partition, nodes: u32) -> Vec<usize> {
        (0..nodes).map(|node| partition.inner.table.entries_of_node(NodeId(node))).collect()
    }

    #[test]
    fn a_crowded_node_gives_entries_away_until_both_nodes_are_balanced() {
        let (cache, partition, object) = scene(2, 16);
        let begin = entries(&partition, 2);
        assert_eq!(begin[0], begin[1]);
        // Each node has room for 1,024 pages. The test reads 1.5 times as many on node 0, and a
        // quarter as many on node 1.
        let mut pages = pages_of(&partition, &object, 0, 1536);
        pages.extend(pages_of(&partition, &object, 1, 256));
        let ratios = run(&cache, &partition, &object, &pages, 60);
        let (first, last) = (ratios[1], ratios[55..].iter().sum::<f64>() / 5.0);
        let end = entries(&partition, 2);
        println!("hit ratio {first:.3} before, {last:.3} after; entries {begin:?}, then {end:?}");
        assert!(last > first + 0.1, "{first} {last}: {ratios:?}");
        assert!(end[0] < begin[0] && end.iter().sum::<usize>() == begin.iter().sum::<usize>(), "{end:?}");
        run(&cache, &partition, &object, &pages, 20);
        let rest = entries(&partition, 2);
        assert!(rest[0].abs_diff(end[0]) <= 16, "{end:?} {rest:?}");
    }

    #[test]
    fn an_even_load_moves_nothing() {
        for nodes in [2, 3, 4] {
            let (cache, partition, object) = scene(nodes, 12);
            let begin = entries(&partition, nodes);
            run(&cache, &partition, &object, &(0..3000).collect::<Vec<_>>(), 30);
            assert_eq!(entries(&partition, nodes), begin);
        }
    }

    #[test]
    fn a_node_with_a_segment_less_takes_fewer_pages() {
        let (cache, partition, object) = scene(2, 5);
        let pages: Vec<u64> = (0..900).collect();
        let ratios = run(&cache, &partition, &object, &pages, 60);
        let (first, last) = (ratios[1], ratios[55..].iter().sum::<f64>() / 5.0);
        let end = entries(&partition, 2);
        println!("hit ratio {first:.3} before, {last:.3} after; entries {end:?}");
        // 640 of 900 pages fit, however they are divided: uniform reads of them hit as often before
        // as after, but for chance (half a percent in 8,000 reads).
        assert!(end[0] > end[1] && (last - first).abs() < 0.01, "{end:?}: {first} {last}");
    }

    #[test]
    fn a_node_under_pressure_gets_the_next_segment_and_the_other_gives_the_first() {
        let (cache, partition, object) = scene(2, 16);
        let mut pages = pages_of(&partition, &object, 1, 1536);
        pages.extend(pages_of(&partition, &object, 0, 100));
        run(&cache, &partition, &object, &pages, 5);
        let verdict = partition.inner.balance.verdict().unwrap();
        assert_eq!((verdict.hot, verdict.cold), (NodeId(1), NodeId(0)));
        let segments =
            || cache.numa_stat().partitions[0].nodes.iter().map(|n| n.segments).collect::<Vec<_>>();
        partition.resize_segments(18).unwrap();
        assert_eq!(segments(), [8, 10]);
        partition.resize_segments(16).unwrap();
        assert_eq!(segments(), [8, 8], "the node with a quarter more memory gives the first segment");
    }

    #[test]
    fn differences_by_chance_are_no_pressure() {
        let node = |each: [u16; 4]| {
            let mut node = Pressure::default();
            (0..4).for_each(|_| each.into_iter().for_each(|arrivals| node.add(arrivals)));
            node
        };
        assert_eq!(judge(&[node([30; 4]), node([31; 4])]), None);
        assert_eq!(judge(&[node([1, 0, 0, 0]), node([0; 4])]), None, "few arrivals");
        assert_eq!(judge(&[node([0, 0, 0, 200]), node([25; 4])]), None, "a set that is unlucky");
        let verdict = judge(&[node([10; 4]), node([30; 4]), Pressure::default(), node([20; 4])]).unwrap();
        assert_eq!((verdict.hot, verdict.cold), (NodeId(1), NodeId(0)));
        assert!((verdict.excess - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(judge(&[Pressure::default(), node([50; 4])]), None, "no node to give to");
    }

    #[test]
    fn a_partition_that_is_recorded_keeps_its_entries() {
        let (cache, partition, object) = scene(2, 16);
        let begin = entries(&partition, 2);
        let _recording = partition.record(octavo_recording::WHOLE).unwrap();
        let mut pages = pages_of(&partition, &object, 0, 1536);
        pages.extend(pages_of(&partition, &object, 1, 256));
        run(&cache, &partition, &object, &pages, 3);
        assert_eq!(entries(&partition, 2), begin);
    }
}
