//! Creates partitions, one or many at once, and divides the free memory among them.
//!
//! A creation of many partitions looks at those that exist once, not once for each newcomer: 10,000
//! partitions are created in one plan.
//!
//! Not here: how neighbours give memory (`control/reaper.rs`), how a partition divides its memory
//! (`state/sizes.rs`).

use octavo_share::spread;

use super::cache::Cache;
use crate::config::{Limits, PartitionConfig, check_page_bytes};
use crate::control::{self, Names, Partition, Turn};
use crate::error::Error;
use crate::state::events::MoveReason;
use crate::state::partition::PartitionInner;
use crate::state::sizes::too_little;
use crate::sync::lock;

/// A partition that is to be created: its configuration has passed the checks.
struct Newcomer {
    config: PartitionConfig,
    /// The smallest size that it can have, in bytes.
    least: u64,
    /// The size that it asks for, in bytes: all that is free, if `u64::MAX`.
    wanted: u64,
}

impl Cache {
    /// Creates a partition. Its memory is charged immediately, but taken from the system only as
    /// pages arrive. If other partitions hold that memory and the cache has a reaper, they give the
    /// new partition a fair share. A name such as `host/vm1/disk0` puts the partition into the
    /// groups `host` and `host/vm1`.
    ///
    /// # Errors
    /// [`Error::Config`] if the name or the limits are invalid, or the name is taken by a
    /// partition or a group; [`Error::NoMemory`] if not even one segment fits;
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let config = PartitionConfig {
    ///     cache_mode: CacheMode::Writeback,
    ///     max_bytes: Some(16 << 20),
    ///     ..PartitionConfig::new("host/vm1/disk0")
    /// };
    /// let partition = cache.partition(config)?;
    /// assert_eq!(partition.name(), "host/vm1/disk0");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn partition(&self, config: PartitionConfig) -> Result<Partition, Error> {
        self.create(vec![config]).pop().expect("a result for each configuration")
    }

    /// Creates many partitions, as [`partition`](Self::partition) does one, but with one division
    /// of the memory for all of them: the time grows with their number, not with its square.
    /// Memory that does not suffice for the sizes that all of them ask for is shared by weight.
    /// Returns a result for each configuration, in their order; the refusal of one does not affect
    /// the others.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Error, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let made = cache.create(vec![PartitionConfig::new("vm1"), PartitionConfig::new("vm2")]);
    /// let made = made.into_iter().collect::<Result<Vec<_>, Error>>()?;
    /// assert!(made[0].stat().charged_bytes.abs_diff(made[1].stat().charged_bytes) <= 4 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn create(&self, configs: Vec<PartitionConfig>) -> Vec<Result<Partition, Error>> {
        let core = self.core();
        if core.shared.is_forked() {
            return configs.iter().map(|_| Err(Error::Forked)).collect();
        }
        let planning = lock(&core.ledger.planning);
        let turn = planning.turn(core.crew(), MoveReason::NewPartition);
        let mut admission =
            Admission { cache: self, names: Names::new(), promised: core.promised_bytes(None) };
        let admitted: Vec<_> = configs.into_iter().map(|config| admission.admit(config, turn)).collect();
        let newcomers: Vec<&Newcomer> = admitted.iter().flatten().collect();
        if newcomers.is_empty() {
            return admitted
                .into_iter()
                .map(|admitted| Err(admitted.err().expect("none is admitted")))
                .collect();
        }
        let mut starts = self.starts(&newcomers, turn).into_iter();
        let mut create = |newcomer: Newcomer| {
            let start = starts.next().expect("a size for each newcomer");
            // Without a reaper, the first that asks for all memory gets it.
            let start = start.unwrap_or_else(|| core.shared.budget.left_bytes());
            Ok(core.add(&PartitionInner::new(&core.shared, newcomer.config, start)?))
        };
        let made = admitted.into_iter().map(|admitted| admitted.and_then(&mut create)).collect();
        // A group may have been above its limit for a moment, but without effect: the new
        // partitions have no page yet. (If a neighbour's store does not answer, the reaper shrinks
        // that neighbour later.)
        control::enforce_max(core, turn);
        made
    }

    /// Returns the size at which each newcomer starts, in bytes. `None`: all that is left when its
    /// turn comes.
    fn starts(&self, newcomers: &[&Newcomer], turn: Option<Turn<'_>>) -> Vec<Option<u64>> {
        let core = self.core();
        let minima = self.minima(newcomers);
        if !core.shared.reaps() {
            let left = core.shared.budget.left_bytes();
            let start = |(newcomer, min): (&&Newcomer, u64)| {
                (newcomer.wanted != u64::MAX).then(|| newcomer.wanted.max(min.min(left)))
            };
            return newcomers.iter().zip(minima).map(start).collect();
        }
        // A promised minimum is available from the beginning.
        let asks: Vec<u64> =
            newcomers.iter().zip(&minima).map(|(newcomer, min)| newcomer.wanted.max(*min)).collect();
        let floors: Vec<u64> =
            newcomers.iter().zip(&minima).map(|(newcomer, min)| newcomer.least.max(*min)).collect();
        let weights: Vec<u64> = newcomers.iter().map(|newcomer| newcomer.config.weight.into()).collect();
        let whole = |parts: &[u64]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        let least = whole(&newcomers.iter().map(|newcomer| newcomer.least).collect::<Vec<_>>());
        let limits = Limits {
            min_bytes: whole(&minima),
            weight: u32::try_from(whole(&weights)).unwrap_or(u32::MAX),
            ..Limits::default()
        };
        let room = control::make_room(core, turn, &limits, whole(&asks), least);
        if let [_] = newcomers {
            return vec![Some(room)];
        }
        let rest = room.saturating_sub(whole(&floors));
        let lacks: Vec<u64> = asks.iter().zip(&floors).map(|(ask, floor)| ask - floor).collect();
        let more = spread(rest, &weights, &lacks, 1);
        floors.iter().zip(more).map(|(floor, more)| Some(floor + more)).collect()
    }

    /// Returns the bytes that each newcomer gets for its `min`: whole segments, if the minimums of
    /// all partitions fit so, and otherwise the `min` itself.
    fn minima(&self, newcomers: &[&Newcomer]) -> Vec<u64> {
        let core = self.core();
        let rounded =
            |newcomer: &&Newcomer| PartitionInner::new_bytes_with_min(&core.shared, &newcomer.config);
        let rounded: Vec<u64> = newcomers.iter().map(rounded).collect();
        let all = rounded.iter().fold(0u64, |sum, min| sum.saturating_add(*min));
        if core.rounded_minimums_fit(None, all) {
            return rounded;
        }
        newcomers.iter().map(|newcomer| newcomer.config.min_bytes).collect()
    }
}

/// Checks the configurations of new partitions, one after the other.
struct Admission<'c> {
    cache: &'c Cache,
    /// The names of those that have passed.
    names: Names,
    /// The sum of the `min` of all partitions, these included.
    promised: u64,
}

impl Admission<'_> {
    /// Checks a configuration against the cache and those that have passed before it.
    fn admit(&mut self, config: PartitionConfig, turn: Option<Turn<'_>>) -> Result<Newcomer, Error> {
        let core = self.cache.core();
        let name = config.name.as_str();
        let wrong = |why: String| Error::Config(format!("partition {name:?}: {why}"));
        crate::check_name(name).map_err(wrong)?;
        config.limits().validate().map_err(wrong)?;
        config.page_bytes.map_or(Ok(()), check_page_bytes).map_err(wrong)?;
        let least = PartitionInner::least_bytes(&core.shared, &config);
        if let Some(max) = config.max_bytes.filter(|max| *max < least) {
            return Err(wrong(too_little(max, least)));
        }
        if crate::name::has_empty_level(name) {
            return Err(wrong("the name has an empty level: two slashes in a row, or one at the end".into()));
        }
        let other = control::excluding(&self.names, name).map(str::to_owned).or_else(|| core.excluding(name));
        if let Some(other) = other {
            if other == name {
                return Err(Error::Config(format!("there is a partition {name:?} already")));
            }
            return Err(wrong(format!(
                "this partition and the partition {other:?} exclude each other: one would be a group of the other"
            )));
        }
        let promised = self.promised.saturating_add(config.min_bytes);
        core.check_promise(promised).map_err(wrong)?;
        self.make_bounce_pool(turn, &config)?;
        let wanted = config.start_bytes.or(config.max_bytes).unwrap_or(u64::MAX);
        let wanted = wanted.min(config.max_bytes.unwrap_or(u64::MAX)).max(least);
        self.promised = promised;
        self.names.insert(name.to_owned(), 0);
        Ok(Newcomer { config, least, wanted })
    }

    /// Creates the bounce pages of a new partition's page size, before pages take the memory.
    fn make_bounce_pool(&self, turn: Option<Turn<'_>>, config: &PartitionConfig) -> Result<(), Error> {
        let core = self.cache.core();
        let shared = &core.shared;
        let page_bytes = config.page_bytes.unwrap_or(shared.config.page_bytes) as usize;
        let needed = shared.bounces.bytes_for(page_bytes);
        if needed > 0 {
            control::take_from_pages(core, turn, needed);
        }
        shared.bounces.of(page_bytes).map(drop)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::CacheConfig;

    fn cache(memory_max_bytes: u64) -> Cache {
        Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() }).unwrap()
    }

    #[test]
    fn partitions_that_are_created_together_share_the_memory_by_weight() {
        let cache = cache(256 << 20);
        let config = |name: &str, weight| PartitionConfig { weight, ..PartitionConfig::new(name) };
        let small = PartitionConfig { max_bytes: Some(16 << 20), ..PartitionConfig::new("small") };
        let made = cache.create(vec![config("one", 100), small, config("two", 200)]);
        let charged: Vec<u64> =
            made.into_iter().map(|partition| partition.unwrap().stat().charged_bytes).collect();
        assert!(charged[1] <= 16 << 20 && charged[1] >= 12 << 20, "{charged:?}");
        assert!((charged[0] * 2).abs_diff(charged[2]) <= 8 << 20, "{charged:?}");
        let stat = cache.stat();
        assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
        assert!(charged.iter().sum::<u64>() >= 200 << 20, "{charged:?}");
    }

    #[test]
    fn the_refusal_of_one_partition_does_not_affect_the_others() {
        let cache = cache(64 << 20);
        let names = ["host/vm1", "", "host", "host/vm1", "host/vm2", "host//vm3"];
        let config = |name: &str| PartitionConfig { max_bytes: Some(8 << 20), ..PartitionConfig::new(name) };
        let made = cache.create(names.into_iter().map(config).collect());
        let told: Vec<Result<String, String>> = made
            .into_iter()
            .map(|made| made.map(|partition| partition.name().into()).map_err(|error| error.to_string()))
            .collect();
        assert_eq!(told[0].as_deref(), Ok("host/vm1"));
        assert!(told[2].as_ref().is_err_and(|why| why.contains("exclude each other")), "{told:?}");
        assert!(told[3].as_ref().is_err_and(|why| why.contains("already")), "{told:?}");
        assert_eq!(told[4].as_deref(), Ok("host/vm2"));
        assert!(told[5].as_ref().is_err_and(|why| why.contains("empty level")), "{told:?}");
        assert_eq!(cache.find("host/vm2").unwrap().name(), "host/vm2");
        assert!(cache.find("host").is_none());
        let named: Vec<String> = cache.partitions().iter().map(|other| other.name().to_owned()).collect();
        assert!(named.starts_with(&["host/vm1".to_owned()]) && named.ends_with(&["host/vm2".to_owned()]));
    }

    #[test]
    fn together_partitions_are_promised_no_more_than_the_cache_can_keep() {
        let cache = cache(64 << 20);
        let config = |name: &str| PartitionConfig { min_bytes: 24 << 20, ..PartitionConfig::new(name) };
        let made = cache.create(vec![config("a"), config("b"), config("c")]);
        assert!(made[0].is_ok() && made[1].is_ok());
        assert!(made[2].as_ref().is_err_and(|error| error.to_string().contains("min together")));
        for partition in made.into_iter().flatten() {
            assert!(partition.stat().charged_bytes >= 24 << 20);
        }
    }

    #[test]
    fn newcomers_get_their_share_from_partitions_that_have_all_memory() {
        let cache = cache(128 << 20);
        let old = cache.partition(PartitionConfig::new("old")).unwrap();
        let made = cache.create(vec![PartitionConfig::new("a"), PartitionConfig::new("b")]);
        let charged: Vec<u64> =
            made.into_iter().map(|partition| partition.unwrap().stat().charged_bytes).collect();
        assert!(charged.iter().all(|bytes| *bytes >= 24 << 20), "{charged:?}");
        assert!(old.stat().charged_bytes >= 24 << 20);
        let stat = cache.stat();
        assert!(stat.memory_charged_bytes <= stat.memory_max_bytes);
    }
}
