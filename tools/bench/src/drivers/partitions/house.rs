//! Tenants and their cache: one partition for all, or one for each.

use std::time::{Duration, Instant};

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, PolicyName};

use super::work::{Access, Work};
use crate::Error;
use crate::content::{self, PAGE_BYTES};

/// How the memory is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One cache for all.
    Unified,
    /// A partition for each, sized by the reaper.
    Utility,
}

/// Accesses of a tenant before it is the next one's turn.
const TURN: usize = 32;

/// Tenants, and the cache before their files.
pub struct House {
    pub cache: Cache,
    tenants: Vec<Tenant>,
    sharing: Sharing,
    page: AlignedBytes,
}

/// The stores are the next house's.
impl Drop for House {
    fn drop(&mut self) {
        for tenant in &self.tenants {
            tenant.object.abandon();
        }
    }
}

struct Tenant {
    partition: Partition,
    object: Object,
    work: Work,
}

/// What tenants did in some periods.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Pages that were there and pages that were not, by tenant.
    pub counts: Vec<(u64, u64)>,
    /// The time that their accesses took, by tenant.
    pub times: Vec<Duration>,
    /// Frames and metadata of each tenant's partition at the end of each period; empty where there
    /// is one for all.
    pub sizes: Vec<Vec<u64>>,
    /// Bytes that partitions gave away, by period.
    pub moved: Vec<u64>,
}

impl Done {
    /// Hits of all through accesses of all.
    pub fn hit_ratio(&self) -> f64 {
        let sum = self.counts.iter().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
        sum.0 as f64 / (sum.0 + sum.1).max(1) as f64
    }

    /// Misses of all.
    pub fn misses(&self) -> u64 {
        self.counts.iter().map(|(_, misses)| misses).sum()
    }

    /// One tenant's.
    pub fn hit_ratio_of(&self, tenant: usize) -> f64 {
        let (hits, misses) = self.counts[tenant];
        hits as f64 / (hits + misses).max(1) as f64
    }

    /// Accesses per second of one tenant's own time.
    pub fn rate_of(&self, tenant: usize) -> f64 {
        let (hits, misses) = self.counts[tenant];
        (hits + misses) as f64 / self.times[tenant].as_secs_f64().max(1e-9)
    }

    /// Accesses per second of all, one after the other.
    pub fn rate(&self) -> f64 {
        let accesses: u64 = self.counts.iter().map(|(hits, misses)| hits + misses).sum();
        accesses as f64 / self.times.iter().sum::<Duration>().as_secs_f64().max(1e-9)
    }
}

/// What a house is built of.
pub struct Plan {
    pub sharing: Sharing,
    /// Bytes of frames and metadata for all tenants together.
    pub memory_bytes: u64,
    pub policy: PolicyName,
    pub ahead_bytes: u64,
    pub seed: u64,
}

/// Segments of 2 MiB, or less where the memory is small.
pub fn segment_bytes(memory_bytes: u64) -> u64 {
    let most = (memory_bytes / 32).max(64 << 10);
    (1 << most.ilog2()).min(2 << 20)
}

impl House {
    /// Without memory in use yet.
    pub fn new(plan: &Plan, tenants: Vec<(&Store, Work)>) -> Result<House, Error> {
        let buffers = 4 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: plan.memory_bytes + buffers,
            buffers_max_bytes: Some(buffers),
            segment_bytes: segment_bytes(plan.memory_bytes),
            page_bytes: PAGE_BYTES as u32,
            // The end of a period is said by who counts accesses.
            background: false,
            seed: Some(plan.seed),
            ..CacheConfig::default()
        })?;
        let count = tenants.len() as u64;
        let config = |name: &str, bytes| PartitionConfig {
            policy: plan.policy,
            read_ahead_max_bytes: plan.ahead_bytes,
            start_bytes: Some(bytes),
            ..PartitionConfig::new(name)
        };
        let mut of_all = None;
        let mut made = Vec::new();
        for (number, (store, work)) in tenants.into_iter().enumerate() {
            let name = format!("tenant{number}");
            let partition = match (plan.sharing, &of_all) {
                (Sharing::Unified, Some(partition)) => Partition::clone(partition),
                (Sharing::Unified, None) => cache.partition(config("all", plan.memory_bytes))?,
                (Sharing::Utility, _) => cache.partition(config(&name, plan.memory_bytes / count))?,
            };
            of_all = Some(partition.clone());
            let object = partition.open(store.clone(), &name)?;
            made.push(Tenant { partition, object, work });
        }
        Ok(House { cache, tenants: made, sharing: plan.sharing, page: AlignedBytes::new(PAGE_BYTES) })
    }

    /// Gives a tenant other work.
    pub fn give_work(&mut self, tenant: usize, work: Work) {
        self.tenants[tenant].work = work;
    }

    /// So many periods, in each of which every tenant makes so many accesses, in turns. `news` is
    /// called after each, and may end it all.
    pub fn run(
        &mut self,
        periods: usize,
        accesses: usize,
        news: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Done, Error> {
        let count = self.tenants.len();
        let mut done =
            Done { counts: vec![(0, 0); count], times: vec![Duration::ZERO; count], ..Done::default() };
        for period in 0..periods {
            for _ in 0..accesses.div_ceil(TURN) {
                for number in 0..count {
                    let ((hits, misses), time) = self.turn(number)?;
                    done.counts[number].0 += hits;
                    done.counts[number].1 += misses;
                    done.times[number] += time;
                }
            }
            if self.sharing == Sharing::Utility {
                let before = self.cache.reaper_stat().moved_bytes;
                self.cache.balance();
                done.moved.push(self.cache.reaper_stat().moved_bytes - before);
                done.sizes.push(self.sizes());
            }
            self.cache.clean()?;
            news(period)?;
        }
        Ok(done)
    }

    fn turn(&mut self, number: usize) -> Result<((u64, u64), Duration), Error> {
        let tenant = &mut self.tenants[number];
        let before = tenant.partition.stat();
        let begun = Instant::now();
        for access in tenant.work.by_ref().take(TURN) {
            match access {
                Access::Read(page) => {
                    tenant.object.read_at(page * PAGE_BYTES as u64, &mut self.page)?;
                    if !content::is_right(page, 0, &self.page) {
                        return Err(Error::new(format!("wrong bytes in page {page} of tenant {number}")));
                    }
                }
                Access::Write(page) => {
                    content::fill(page, &mut self.page);
                    tenant.object.write_at(page * PAGE_BYTES as u64, &self.page)?;
                }
            }
        }
        let time = begun.elapsed();
        let after = tenant.partition.stat();
        Ok(((after.hits - before.hits, after.misses - before.misses), time))
    }

    /// Frames and metadata of each tenant's partition.
    pub fn sizes(&self) -> Vec<u64> {
        self.tenants.iter().map(|tenant| tenant.partition.stat().charged_bytes).collect()
    }

    /// Bytes of a tenant's pages that are there.
    pub fn resident_bytes(&self, tenant: usize) -> u64 {
        let object = &self.tenants[tenant].object;
        let pages = object.len_bytes() / PAGE_BYTES as u64;
        let there = (0..pages).filter(|page| object.is_resident(page * PAGE_BYTES as u64));
        there.count() as u64 * PAGE_BYTES as u64
    }
}
