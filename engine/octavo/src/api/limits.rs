//! Limits of partitions and groups: what they were promised, and how it is kept when it changes.

use super::cache::Cache;
use crate::config::Limits;
use crate::control::{self, Owed, Partition, Stop};
use crate::error::Error;
use crate::sync::lock;

impl Cache {
    /// The limits of groups that were given some. A group without has none of its own.
    pub fn groups(&self) -> Vec<(String, Limits)> {
        if self.core().shared.is_forked() {
            return Vec::new();
        }
        self.core().ledger.groups().into_iter().collect()
    }

    /// Bounds a group of partitions, those whose names begin with its name and a slash, now or
    /// later.
    ///
    /// Waits for the stores of those in it as long as they take: [`Self::begin_group`] does not.
    pub fn set_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.name_group(name, limits)?;
        // Others get their turns while a store of the group's is waited for. One that refuses keeps
        // what it has, as ever.
        while let Some(held_up) = self.keep_group(name).into_iter().next() {
            if held_up.catch_up().is_err() {
                break;
            }
        }
        self.follow_group();
        Ok(())
    }

    /// [`Self::set_group`] that waits for stores that do not answer about a second at most, as
    /// [`Self::begin_limits`].
    pub fn begin_group(&self, name: &str, limits: Limits) -> Result<Owed, Error> {
        self.name_group(name, limits)?;
        let held_up = self.keep_group(name);
        self.follow_group();
        let is_inside =
            |partition: &Partition| control::groups_of(partition.name()).any(|group| group == name);
        let inside = self.partitions().into_iter().filter(is_inside);
        let charged: u64 = inside.map(|partition| partition.stat().charged_bytes).sum();
        let partitions: Vec<String> = held_up.iter().map(|partition| partition.name().to_owned()).collect();
        let bytes = if partitions.is_empty() { 0 } else { charged.saturating_sub(limits.max_bytes) };
        Ok(Owed { bytes, partitions })
    }

    fn name_group(&self, name: &str, limits: Limits) -> Result<(), Error> {
        self.core().shared.check_process()?;
        let wrong = |why: String| Error::Config(format!("group {name:?}: {why}"));
        crate::check_name(name).map_err(wrong)?;
        limits.validate().map_err(wrong)?;
        if name.is_empty()
            || control::has_empty_level(name)
            || self.partitions().iter().any(|other| other.name() == name)
        {
            return Err(wrong("this is no name of a group".into()));
        }
        let _alone = lock(&self.core().ledger.planning);
        self.core().ledger.set_group(name, limits);
        Ok(())
    }

    /// Takes what lies beyond a group's bound; returns those in it whose stores hold that up.
    fn keep_group(&self, name: &str) -> Vec<Partition> {
        let planning = lock(&self.core().ledger.planning);
        let mut held_up = control::keep_bounds(self.core(), planning.turn(self.core().crew()));
        held_up.retain(|other| control::groups_of(other.name()).any(|group| group == name));
        held_up
    }

    /// What else changes with a group's limits comes with the next steps.
    fn follow_group(&self) {
        if self.core().shared.reaps() {
            control::period(self.core(), true);
        }
    }

    /// What all partitions but one were promised by their `min`.
    pub(super) fn promised_bytes(&self, but: Option<&str>) -> u64 {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        others.map(|partition| partition.limits().min_bytes).sum()
    }

    /// Whether so much can be promised to all together; the error is a sentence.
    pub(super) fn check_promise(&self, bytes: u64) -> Result<(), String> {
        let most = self.core().shared.budget.max_bytes() - self.core().shared.reserve.max_bytes();
        if bytes <= most {
            return Ok(());
        }
        Err(format!("all partitions' min together are {bytes} bytes, and memory_max leaves {most} for them"))
    }

    /// The bytes that a partition has for a `min`: `rounded` up to whole segments, where all
    /// others' `min` could be rounded up, too, else down.
    pub(super) fn min_to_have(&self, but: Option<&str>, min_bytes: u64, rounded: u64) -> u64 {
        let others = self.partitions().into_iter().filter(|partition| Some(partition.name()) != but);
        let all = others.map(|partition| partition.inner.bytes_with_min(&partition.limits()));
        let all = all.fold(rounded, u64::saturating_add);
        if self.check_promise(all).is_ok() { rounded } else { min_bytes }
    }

    /// Changes what a partition was promised. It is resized at once where it has more than `max` or
    /// less than `min`.
    ///
    /// Waits for the partition's stores as long as they take: [`Self::begin_limits`] does not.
    pub fn set_limits(&self, partition: &Partition, limits: Limits) -> Result<(), Error> {
        self.keep_limits(partition, limits)?;
        // Others get their turns while its own store is waited for.
        while !self.follow_limits(partition, limits)?.is_nothing() {
            partition.catch_up()?;
        }
        Ok(())
    }

    /// [`Self::set_limits`] that waits for a store that does not answer about a second at most. The
    /// limits hold from then on; what is beyond `max` still
    /// is owed. The reaper goes on with it once a period; a cache without one does so in
    /// [`Self::settle`].
    pub fn begin_limits(&self, partition: &Partition, limits: Limits) -> Result<Owed, Error> {
        self.keep_limits(partition, limits)?;
        self.follow_limits(partition, limits)
    }

    fn keep_limits(&self, partition: &Partition, limits: Limits) -> Result<(), Error> {
        self.core().shared.check_process()?;
        let wrong = |why: String| Error::Config(format!("partition {:?}: {why}", partition.name()));
        limits.validate().map_err(wrong)?;
        partition.inner.check_max(limits.max_bytes).map_err(wrong)?;
        let _alone = lock(&self.core().ledger.planning);
        let promised = self.promised_bytes(Some(partition.name())).saturating_add(limits.min_bytes);
        self.check_promise(promised).map_err(wrong)?;
        partition.inner.keep_limits(limits);
        Ok(())
    }

    /// Resizes a partition that is beyond its new limits, in a turn.
    fn follow_limits(&self, partition: &Partition, limits: Limits) -> Result<Owed, Error> {
        let planning = lock(&self.core().ledger.planning);
        let turn = planning.turn(self.core().crew());
        let charged = partition.stat().charged_bytes;
        let resized = if charged > limits.max_bytes {
            partition.resize_in_turn(partition.inner.segments_within(limits.max_bytes), turn)
        } else if charged < limits.min_bytes {
            let rounded = partition.inner.bytes_with_min(&limits);
            let wanted = self.min_to_have(Some(partition.name()), limits.min_bytes, rounded);
            let left = control::make_room(self.core(), turn, &limits, wanted - charged, 0);
            let grown = partition.resize_in_turn(partition.inner.segments_within(charged + left), turn);
            control::keep_bounds(self.core(), turn);
            grown
        } else {
            Ok(())
        };
        match resized {
            Ok(()) => Ok(Owed::default()),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::HeldUp) => Ok(Owed {
                bytes: partition.inner.beyond(&limits),
                partitions: vec![partition.name().to_owned()],
            }),
        }
    }

    /// Goes on with what is owed because stores did not answer, and returns what still is. The
    /// reaper does so by itself.
    pub fn settle(&self) -> Owed {
        if self.core().shared.is_forked() {
            return Owed::default();
        }
        let planning = lock(&self.core().ledger.planning);
        let held_up = control::go_on(self.core(), planning.turn(self.core().crew()));
        Owed {
            bytes: held_up.iter().map(|partition| partition.inner.beyond(&partition.limits())).sum(),
            partitions: held_up.iter().map(|partition| partition.name().to_owned()).collect(),
        }
    }
}
