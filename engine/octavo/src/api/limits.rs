//! Limits of partitions and groups: checks them, stores them, and resizes the partitions that
//! exceed them.
//!
//! Not here: the arithmetic of limits (`octavo_share`), plans (`control/plan.rs`).

use super::cache::Cache;
use crate::config::Limits;
use crate::control::{self, Core, Owed, Partition, Stop};
use crate::error::Error;
use crate::name::{groups_of, has_empty_level};
use crate::state::events::MoveReason;
use crate::sync::{Arc, lock};

impl Cache {
    /// Returns the groups that have limits of their own, in the order of their names.
    pub fn groups(&self) -> Vec<(String, Limits)> {
        self.core().shared.unless_forked(|| self.core().ledger.groups().into_iter().collect())
    }

    /// Sets the limits of the group `name`. A group consists of all present and future partitions
    /// whose names begin with the group's name and a slash.
    ///
    /// The call waits until the stores of the group's partitions have taken the dirty pages that
    /// must leave, however long that takes; [`begin_group`](Self::begin_group) waits about one
    /// second at most.
    ///
    /// # Errors
    /// [`Error::Config`] if the name or the limits are invalid, or a partition has this name;
    /// [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("host/vm1"))?;
    /// cache.set_group("host", Limits { max_bytes: 16 << 20, ..Limits::default() })?;
    /// assert!(partition.stat().charged_bytes <= 16 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn set_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.store_group_limits(name, limits)?;
        // `planning` is free while this call waits for a store of the group, so the reaper can
        // still resize other partitions. A partition whose store refuses writes keeps its memory.
        while let Some(held_up) = self.enforce_group_max(name).into_iter().next() {
            if held_up.catch_up().is_err() {
                break;
            }
        }
        self.replan();
        Ok(())
    }

    /// Sets a group's limits as [`set_group`](Self::set_group) does, but waits about one second at
    /// most for stores that do not answer. Returns the memory that the group still owes; the reaper
    /// or [`settle`](Self::settle) takes it later.
    ///
    /// # Errors
    /// The errors of [`set_group`](Self::set_group).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig, PolicyName};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("host/vm1"))?;
    /// let owed = cache.begin_group("host", Limits { max_bytes: 16 << 20, ..Limits::default() })?;
    /// assert!(owed.is_nothing(), "no store had to take dirty pages");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn begin_group(&self, name: &str, limits: Limits) -> Result<Owed, Error> {
        self.store_group_limits(name, limits)?;
        let held_up = self.enforce_group_max(name);
        self.replan();
        let is_inside = |partition: &Partition| groups_of(partition.name()).any(|group| group == name);
        let inside = self.partitions().into_iter().filter(is_inside);
        let charged: u64 = inside.map(|partition| partition.stat().charged_bytes).sum();
        let bytes = if held_up.is_empty() { 0 } else { charged.saturating_sub(limits.max_bytes) };
        Ok(Owed::by(&held_up, bytes))
    }

    fn store_group_limits(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.core().shared.check_process()?;
        let wrong = |why: String| Error::Config(format!("group {name:?}: {why}"));
        crate::check_name(name).map_err(wrong)?;
        limits.validate().map_err(wrong)?;
        if name.is_empty() || has_empty_level(name) || self.core().find(name).is_some() {
            return Err(wrong(
                "the name of a group must have no empty level, and no partition may have the same name"
                    .into(),
            ));
        }
        let _alone = lock(&self.core().ledger.planning);
        self.core().ledger.set_group(name, limits);
        Ok(())
    }

    /// Takes the memory above the group's `max` from its partitions. Returns the partitions of the
    /// group whose stores have not answered.
    fn enforce_group_max(&self, name: &str) -> Vec<Partition> {
        let planning = lock(&self.core().ledger.planning);
        let mut held_up =
            control::enforce_max(self.core(), planning.turn(self.core().crew(), MoveReason::Limit));
        held_up.retain(|other| groups_of(other.name()).any(|group| group == name));
        held_up
    }

    /// Runs a reaper period with the group's new limits. Later periods make the remaining changes.
    fn replan(&self) {
        if self.core().shared.reaps() {
            control::period(self.core(), true);
        }
    }

    /// Continues resizes that stopped because stores did not answer. Returns the memory that is
    /// still owed. A cache with a reaper needs no call: the reaper does the same in every period.
    pub fn settle(&self) -> Owed {
        self.core().shared.unless_forked(|| {
            let planning = lock(&self.core().ledger.planning);
            let turn = planning.turn(self.core().crew(), MoveReason::Limit);
            let held_up = control::continue_resizes(self.core(), turn);
            let beyond = held_up.iter().map(|partition| partition.inner.beyond(&partition.limits())).sum();
            Owed::by(&held_up, beyond)
        })
    }
}

/// What all partitions together are promised.
impl Core {
    /// Returns the sum of the `min` limits of all partitions except `but`.
    pub(super) fn promised_bytes(self: &Arc<Self>, but: Option<&str>) -> u64 {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        others.map(|partition| partition.limits().min_bytes).sum()
    }

    /// Checks that all partitions together can be promised `bytes` as their `min` limits. The error
    /// is the text of a message.
    pub(super) fn check_promise(&self, bytes: u64) -> Result<(), String> {
        let most = self.shared.budget.max_bytes() - self.shared.reserve.max_bytes();
        if bytes <= most {
            return Ok(());
        }
        Err(format!(
            "all partitions' min together are {bytes} bytes, but memory_max leaves only {most} for them"
        ))
    }

    /// Returns the bytes that a partition gets for its `min`. That is `rounded`, its `min` rounded
    /// up to whole segments, if the `min` limits of all other partitions (`but` excepted) could be
    /// rounded up too; otherwise `min_bytes`, which the caller rounds down.
    pub(super) fn min_to_have(self: &Arc<Self>, but: Option<&str>, min_bytes: u64, rounded: u64) -> u64 {
        if self.rounded_minimums_fit(but, rounded) { rounded } else { min_bytes }
    }

    /// Whether the `min` limits of all partitions except `but` fit beside `rounded` bytes, if each
    /// is rounded up to whole segments.
    pub(super) fn rounded_minimums_fit(self: &Arc<Self>, but: Option<&str>, rounded: u64) -> bool {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        let all = others.map(|partition| partition.inner.bytes_with_min(&partition.limits()));
        self.check_promise(all.fold(rounded, u64::saturating_add)).is_ok()
    }
}

impl Partition {
    /// Changes the partition's limits. Resizes the partition immediately if it has more than `max`
    /// or less than `min`.
    ///
    /// The call waits until the partition's stores have taken the dirty pages that must leave,
    /// however long that takes; [`begin_limits`](Self::begin_limits) waits about one second at
    /// most.
    ///
    /// # Errors
    /// [`Error::Config`] if the limits are invalid, if all `min` limits together exceed the memory
    /// for partitions, or if `max` is too small for a segment, or more than four times the
    /// partition's first `max` (allowed if the partition can grow to half of `memory_max` anyway);
    /// [`Error::NoMemory`] or [`Error::Io`] if the resize fails; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// partition.set_limits(Limits { max_bytes: 16 << 20, ..partition.limits() })?;
    /// assert!(partition.stat().charged_bytes <= 16 << 20);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn set_limits(&self, limits: Limits) -> Result<(), Error> {
        self.store_limits(limits)?;
        // `planning` is free while this call waits for the partition's own store, so the reaper can
        // still resize other partitions.
        while !self.enforce_limits(limits)?.is_nothing() {
            self.catch_up()?;
        }
        Ok(())
    }

    /// Changes the partition's limits as [`set_limits`](Self::set_limits) does, but waits about one
    /// second at most for a store that does not answer. The new limits are in force when the call
    /// returns. Memory that the partition still holds above `max` is returned as [`Owed`]. The
    /// reaper takes it in later periods; a cache without a reaper takes it in
    /// [`Cache::settle`].
    ///
    /// # Errors
    /// The errors of [`set_limits`](Self::set_limits).
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig, Limits, PartitionConfig, PolicyName};
    /// # let cache = Cache::new(CacheConfig { reaper: false, ..CacheConfig::default() })?;
    /// # let partition = cache.partition(PartitionConfig::new("app"))?;
    /// let limits = Limits { max_bytes: 16 << 20, ..partition.limits() };
    /// assert!(partition.begin_limits(limits)?.is_nothing(), "no store had to take dirty pages");
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn begin_limits(&self, limits: Limits) -> Result<Owed, Error> {
        self.store_limits(limits)?;
        self.enforce_limits(limits)
    }

    fn store_limits(&self, limits: Limits) -> Result<(), Error> {
        self.core.shared.check_process()?;
        let _alone = lock(&self.core.ledger.planning);
        self.check_new_limits(&limits)?;
        self.inner.store_limits(limits);
        Ok(())
    }

    /// Checks limits. The caller holds `planning`.
    pub(super) fn check_new_limits(&self, limits: &Limits) -> Result<(), Error> {
        let core = &self.core;
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", self.name()));
        limits.validate().map_err(wrong)?;
        self.inner.check_max(limits.max_bytes).map_err(wrong)?;
        let promised = core.promised_bytes(Some(self.name())).saturating_add(limits.min_bytes);
        core.check_promise(promised).map_err(wrong)
    }

    /// Resizes, in a turn, a partition that has more than its new `max` or less than its new `min`.
    fn enforce_limits(&self, limits: Limits) -> Result<Owed, Error> {
        let core = &self.core;
        let planning = lock(&core.ledger.planning);
        let turn = planning.turn(core.crew(), MoveReason::Limit);
        let charged = self.stat().charged_bytes;
        let resized = if charged > limits.max_bytes {
            self.resize_in_turn(self.inner.segments_within(limits.max_bytes), turn)
        } else if charged < limits.min_bytes {
            let rounded = self.inner.bytes_with_min(&limits);
            let wanted = core.min_to_have(Some(self.name()), limits.min_bytes, rounded);
            let left = control::make_room(core, turn, &limits, wanted - charged, 0);
            let grown = self.resize_in_turn(self.inner.segments_within(charged + left), turn);
            control::enforce_max(core, turn);
            grown
        } else {
            Ok(())
        };
        Ok(match Stop::is_complete(resized)? {
            true => Owed::default(),
            false => Owed::by(std::slice::from_ref(self), self.inner.beyond(&limits)),
        })
    }
}
