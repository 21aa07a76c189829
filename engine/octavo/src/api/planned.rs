//! What the reaper would do in the end if loads stayed as they are: the sizes that its plan aims at,
//! and the misses at each.
//!
//! Not here: the plan (`octavo_share`), its snapshot of the cache (`control/plan.rs`).

use octavo_share::{Pace, UNLIMITED};

use super::cache::Cache;
use crate::config::Limits;
use crate::control::{Partition, Picture};
use crate::error::Error;
use crate::sync::lock;

/// The sizes that the reaper's plan aims at. All sizes include metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The most bytes for all partitions together.
    pub total_bytes: u64,
    /// The partitions, in the order of creation.
    pub partitions: Vec<Proposed>,
}

/// The size that the plan aims at for one partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposed {
    /// The partition's name.
    pub name: String,
    /// Bytes that are charged to it now.
    pub current_bytes: u64,
    /// Its `min`.
    pub min_bytes: u64,
    /// Its `max`; `None` without one.
    pub max_bytes: Option<u64>,
    /// Bytes that it would have.
    pub proposed_bytes: u64,
    /// Recent misses that its curve predicts at the current size; recent counts weigh more.
    pub misses_now: f64,
    /// Recent misses that its curve predicts at the proposed size.
    pub misses_proposed: f64,
}

impl Cache {
    /// Returns the sizes at which the reaper would stop moving memory if loads stayed as they are
    /// now, by the miss curves that it has measured ([`Partition::miss_curve`]). Changes nothing.
    /// Waits about one second at most, for resizes in progress.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// cache.partition(PartitionConfig::new("app"))?;
    /// let proposal = cache.proposal();
    /// let sum: u64 = proposal.partitions.iter().map(|one| one.proposed_bytes).sum();
    /// assert!(proposal.partitions[0].name == "app" && sum <= proposal.total_bytes);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn proposal(&self) -> Proposal {
        self.core().shared.unless_forked(|| {
            let _alone = lock(&self.core().ledger.planning);
            let picture = Picture::of(self.core(), 1.0);
            let targets = picture.state.targets(&Pace::default());
            let mut proposal = Proposal { total_bytes: picture.state.total_bytes, partitions: Vec::new() };
            for (number, partition) in picture.partitions.iter().enumerate() {
                let (Some(partition), Some(leaf)) = (partition, &picture.state.nodes[number].leaf) else {
                    continue;
                };
                let (inner, limits) = (&partition.inner, partition.limits());
                let fixed_bytes = lock(&inner.costs).fixed_bytes();
                let bytes = |granules_bytes: u64| {
                    picture.segments(partition, granules_bytes) * inner.segment_bytes() + fixed_bytes
                };
                proposal.total_bytes += fixed_bytes;
                proposal.partitions.push(Proposed {
                    name: partition.name().to_owned(),
                    current_bytes: bytes(leaf.current_bytes),
                    min_bytes: limits.min_bytes,
                    max_bytes: Some(limits.max_bytes).filter(|max| *max != UNLIMITED),
                    proposed_bytes: bytes(targets[number]),
                    misses_now: leaf.curve.misses_at(leaf.current_bytes),
                    misses_proposed: leaf.curve.misses_at(targets[number]),
                });
            }
            proposal
        })
    }
}

impl Partition {
    /// Checks limits as [`begin_limits`](Self::begin_limits) does, and changes nothing.
    ///
    /// # Errors
    /// [`Error::Config`] if they would be refused; [`Error::Forked`].
    pub fn check_limits(&self, limits: &Limits) -> Result<(), Error> {
        self.core.shared.check_process()?;
        let _alone = lock(&self.core.ledger.planning);
        self.check_new_limits(limits)
    }
}
