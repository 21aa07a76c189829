//! Statistics of NUMA nodes: on which node each page lies, and how many accesses were local or
//! remote.
//!
//! Not here: the structs (`numa/figures.rs`), how accesses are counted (`pages/nodes`).

use octavo_table::{NodeId, SegmentIndex};

use super::cache::Cache;
use crate::control::Partition;
use crate::numa::{NodePages, NodeStat, NumaStat, PartitionNumaStat};
use crate::state::counters::Count;
use crate::state::partition::PartitionInner;

/// Most kernel pages that one query asks about; this many take some milliseconds. Of a larger
/// range, the query asks about every n-th page.
const LOOKS_MAX: usize = 1 << 14;

/// Size of the kernel's pages, in bytes.
const PAGE: usize = 4096;

impl PartitionInner {
    fn node_stat(&self, node: NodeId) -> NodeStat {
        let segments: Vec<SegmentIndex> =
            self.table.segments().filter(|segment| self.node_of_segment(*segment) == node).collect();
        let numa = &self.shared.numa;
        let number = (!numa.topology.is_emulated).then(|| numa.topology.nodes[node.0 as usize].number);
        let every = |bytes: usize| (bytes / PAGE).div_ceil(LOOKS_MAX).max(1) * PAGE;
        let pages_of = |at: *mut u8, bytes: usize, step: usize| {
            (0..bytes).step_by(step).map(move |offset| at.wrapping_add(offset))
        };
        let (_, segment_bytes) = self.frames.segment(SegmentIndex(0));
        let step = every(segments.len() * segment_bytes);
        let frames: Vec<*mut u8> = segments
            .iter()
            .map(|segment| self.frames.segment(*segment))
            .flat_map(|(at, bytes)| pages_of(at, bytes, step))
            .collect();
        let base = self.metadata.base().as_ptr();
        let metadata: Vec<*mut u8> = match segments.is_empty() {
            true => Vec::new(),
            false => self
                .places
                .metadata(self.table.shape())
                .filter(|(lies_on, _)| *lies_on == node)
                .flat_map(|(_, range)| {
                    pages_of(base.wrapping_add(range.start), range.len(), every(range.len()))
                })
                .collect(),
        };
        NodeStat {
            segments: segments.len() as u64,
            pages: segments.iter().map(|segment| self.table.pages_in_segment(*segment) as u64).sum(),
            twins: segments.iter().map(|segment| self.table.copies_in_segment(*segment).1 as u64).sum(),
            frames: NodePages::ask(&frames, number),
            metadata: NodePages::ask(&metadata, number),
        }
    }
}

impl Partition {
    fn numa_stat(&self) -> PartitionNumaStat {
        let inner = &self.inner;
        let nodes = if inner.places.counted { inner.shared.numa.topology.nodes.len() as u32 } else { 1 };
        let nodes = (0..nodes).map(|node| inner.node_stat(NodeId(node))).collect();
        PartitionNumaStat { nodes, ..self.counts() }
    }

    /// Returns the partition's counts of local and remote accesses. `nodes` stays empty: what each
    /// node holds is left out, so the call is cheap enough to make often. `None` if there is only
    /// one node.
    pub fn numa_counts(&self) -> Option<PartitionNumaStat> {
        self.inner.places.counted.then(|| self.counts())
    }

    fn counts(&self) -> PartitionNumaStat {
        let inner = &self.inner;
        PartitionNumaStat {
            name: self.name().into(),
            nodes: Vec::new(),
            way: inner.way().name(),
            way_changes: inner.auto.changes(),
            local_hits: inner.counters.sum(Count::LocalHits),
            remote_hits: inner.counters.sum(Count::RemoteHits),
            remote_writes: inner.counters.sum(Count::RemoteWrites),
            messages: inner.counters.sum(Count::Messages),
            bundles: inner.counters.sum(Count::Bundles),
            messages_refused: inner.counters.sum(Count::MessagesRefused),
            twin_hits: inner.counters.sum(Count::TwinHits),
            twins_made: inner.counters.sum(Count::TwinsMade),
            twins_refreshed: inner.counters.sum(Count::TwinsRefreshed),
            twins_overtaken: inner.counters.sum(Count::TwinsOvertaken),
            elections: inner.counters.sum(Count::Elections),
            switches: inner.counters.sum(Count::Switches),
            traffic: inner.traffic(),
        }
    }
}

impl Cache {
    /// Returns on which nodes the kernel has put the partitions' pages, and how many accesses were
    /// local or remote. The call asks the kernel about thousands of pages, so do not make it often;
    /// [`Partition::numa_counts`] is cheap.
    pub fn numa_stat(&self) -> NumaStat {
        let numa = &self.core().shared.numa;
        NumaStat {
            mode: numa.mode.name(),
            topology: numa.topology.clone(),
            refused: numa.refused.load(std::sync::atomic::Ordering::Relaxed),
            partitions: self.partitions().iter().map(Partition::numa_stat).collect(),
        }
    }
}
