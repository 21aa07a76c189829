//! Utility-based sharing: one partition per tenant, resized at the end of each period by the
//! engine's own plan.

use octavo_share::{Limits, Node, Pace, State};
use octavo_table::Shape;

use super::mix::{Mix, Sizes, Tenant};
use super::partition::Partition;

/// Partitions that the engine's plan resizes during the run.
pub(super) struct Utility {
    pub partitions: Vec<Partition>,
    limits: Vec<Limits>,
    total_bytes: u64,
    page_bytes: u64,
    granule_bytes: u64,
    period: u64,
    pace: Pace,
    requests: u64,
    /// References that the monitors saw since their counts last decayed.
    news: u64,
    pub history: Vec<Sizes>,
}

/// How often the monitors' rings are drained between two plans, as a server's thread does.
const DRAINS: u64 = 16;

impl Utility {
    pub fn new(tenants: &[Tenant<'_>], mix: &Mix, period: u64) -> Utility {
        let sets = mix.sets_per_segment(tenants.len() as u64);
        let segments = (mix.pages / (sets * 16)).max(tenants.len() as u64);
        let shape = Shape { segments_max: segments as u32, sets_per_segment: sets as u32 };
        let live = (segments / tenants.len() as u64) as u32;
        let partitions = (0..tenants.len() as u64).map(|tenant| {
            Partition::new(mix.policy, shape, live, mix.page_bytes, mix.seed.wrapping_add(tenant))
        });
        let granule_bytes = sets * 16 * mix.page_bytes;
        Utility {
            partitions: partitions.collect(),
            limits: tenants.iter().map(|tenant| tenant.limits).collect(),
            total_bytes: segments * granule_bytes,
            page_bytes: mix.page_bytes,
            granule_bytes,
            period,
            pace: mix.pace,
            requests: 0,
            news: 0,
            history: Vec::new(),
        }
    }

    pub fn access(&mut self, tenant: u16, page: u64) {
        self.partitions[usize::from(tenant)].access(page);
        self.requests += 1;
        if self.requests.is_multiple_of((self.period / DRAINS).max(1)) {
            self.news += self.drain();
        }
        if self.requests.is_multiple_of(self.period) {
            self.plan();
        }
    }

    fn drain(&self) -> u64 {
        self.partitions.iter().map(Partition::drain).sum()
    }

    fn plan(&mut self) {
        self.news += self.drain();
        let (granule_bytes, keep) = (self.granule_bytes, self.pace.keep_after(self.news));
        if keep < 1.0 {
            self.news = 0;
        }
        let leaves = self.partitions.iter_mut().map(|partition| partition.look(granule_bytes, keep));
        let node = |(leaf, limits): (_, &Limits)| Node { parent: None, limits: *limits, leaf: Some(leaf) };
        let nodes = leaves.zip(&self.limits).map(node);
        let state = State { total_bytes: self.total_bytes, granule_bytes, nodes: nodes.collect() };
        let mut moved = 0;
        for resize in state.plan(&self.pace) {
            let partition = &mut self.partitions[resize.node];
            let segments = (resize.to_bytes / granule_bytes) as u32;
            moved +=
                u64::from(partition.segments().saturating_sub(segments)) * granule_bytes / self.page_bytes;
            partition.resize(segments);
        }
        let pages = self.pages();
        let pages_bytes = pages.iter().map(|pages| pages * self.page_bytes).collect();
        self.history.push(Sizes { requests: self.requests, pages, pages_bytes, moved });
    }

    fn pages(&self) -> Vec<u64> {
        let bytes =
            |partition: &Partition| u64::from(partition.segments()) * self.granule_bytes / self.page_bytes;
        self.partitions.iter().map(bytes).collect()
    }

    /// Returns the mean sizes over all periods.
    pub fn mean_pages(&self) -> Vec<u64> {
        if self.history.is_empty() {
            return self.pages();
        }
        let sum = |tenant: usize| self.history.iter().map(|sizes| sizes.pages[tenant]).sum::<u64>();
        (0..self.partitions.len()).map(|tenant| sum(tenant) / self.history.len() as u64).collect()
    }
}
