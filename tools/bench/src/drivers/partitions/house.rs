//! Tenants and their cache: one partition for all, or one partition each.

use std::time::{Duration, Instant};

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, PolicyName};

use super::work::{Access, Work};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::stage::{hit_ratio, offset};

/// The way in which tenants share the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One partition for all tenants.
    Unified,
    /// A partition for each tenant, sized by the reaper.
    Utility,
}

/// Accesses of a tenant in a turn.
const TURN: usize = 32;

/// Tenants, and the cache over their stores.
pub struct House {
    pub cache: Cache,
    tenants: Vec<Tenant>,
    sharing: Sharing,
    page: AlignedBytes,
}

/// Abandons the objects: the next house uses the same stores.
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

/// The counts of some periods.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Hits and misses, by tenant.
    pub counts: Vec<(u64, u64)>,
    /// The time of all accesses, by tenant.
    pub times: Vec<Duration>,
    /// Bytes of frames and metadata of each tenant's partition, at the end of each period. Empty
    /// for one partition.
    pub sizes: Vec<Vec<u64>>,
    /// Bytes that moved between partitions, by period.
    pub moved: Vec<u64>,
}

impl Done {
    /// Returns the hit ratio of all tenants.
    pub fn hit_ratio(&self) -> f64 {
        hit_ratio(self.counts.iter().map(|(hits, _)| hits).sum(), self.misses())
    }

    /// Returns the misses of all tenants.
    pub fn misses(&self) -> u64 {
        self.counts.iter().map(|(_, misses)| misses).sum()
    }

    /// Returns the hit ratio of one tenant.
    pub fn hit_ratio_of(&self, tenant: usize) -> f64 {
        hit_ratio(self.counts[tenant].0, self.counts[tenant].1)
    }

    /// Returns the accesses of one tenant per second of its own time.
    pub fn rate_of(&self, tenant: usize) -> f64 {
        let (hits, misses) = self.counts[tenant];
        (hits + misses) as f64 / self.times[tenant].as_secs_f64().max(1e-9)
    }

    /// Returns the accesses of all tenants per second. Tenants run one after the other.
    pub fn rate(&self) -> f64 {
        let accesses: u64 = self.counts.iter().map(|(hits, misses)| hits + misses).sum();
        accesses as f64 / self.times.iter().sum::<Duration>().as_secs_f64().max(1e-9)
    }
}

/// The settings of a house.
pub struct Plan {
    pub sharing: Sharing,
    /// Bytes of frames and metadata of all tenants.
    pub memory_bytes: u64,
    pub policy: PolicyName,
    pub ahead_bytes: u64,
    pub seed: u64,
}

/// Returns the configuration of a cache with `memory_bytes` for frames and metadata. Its segments
/// have 2 MiB, or less if the memory is small.
pub fn config(memory_bytes: u64) -> CacheConfig {
    let buffers_bytes = 4 << 20;
    let most = (memory_bytes / 32).max(64 << 10);
    CacheConfig {
        memory_max_bytes: memory_bytes + buffers_bytes,
        buffers_max_bytes: Some(buffers_bytes),
        segment_bytes: (1 << most.ilog2()).min(2 << 20),
        page_bytes: PAGE_BYTES as u32,
        ..CacheConfig::default()
    }
}

impl House {
    /// Creates a house without resident pages.
    pub fn new(plan: &Plan, tenants: Vec<(&Store, Work)>) -> Result<House, Error> {
        // No background threads: `run` ends periods by a number of accesses.
        let repeatable =
            CacheConfig { background: false, seed: Some(plan.seed), ..config(plan.memory_bytes) };
        let cache = Cache::new(repeatable)?;
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

    /// Changes the work of a tenant.
    pub fn give_work(&mut self, tenant: usize, work: Work) {
        self.tenants[tenant].work = work;
    }

    /// Runs some periods. In each, every tenant makes `accesses`, in turns. Calls `news` after each
    /// period, with the number of the period. An error of `news` ends the run.
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
                    tenant.object.read_at(offset(page), &mut self.page)?;
                    content::check(page, 0, &self.page, "read by a tenant")?;
                }
                Access::Write(page) => {
                    content::fill(page, &mut self.page);
                    tenant.object.write_at(offset(page), &self.page)?;
                }
            }
        }
        let time = begun.elapsed();
        let after = tenant.partition.stat();
        Ok(((after.hits - before.hits, after.misses - before.misses), time))
    }

    /// Returns the bytes of frames and metadata of each tenant's partition.
    pub fn sizes(&self) -> Vec<u64> {
        self.tenants.iter().map(|tenant| tenant.partition.stat().charged_bytes).collect()
    }

    /// Returns the bytes of a tenant's resident pages.
    pub fn resident_bytes(&self, tenant: usize) -> u64 {
        let object = &self.tenants[tenant].object;
        let pages = object.len_bytes() / PAGE_BYTES as u64;
        offset((0..pages).filter(|page| object.is_resident(offset(*page))).count() as u64)
    }
}
