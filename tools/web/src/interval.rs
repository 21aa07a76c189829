//! What happened in one interval: the differences of the counters, and the amounts at its end.
//!
//! Figures since the server's start are not kept: a ratio of totals hides every change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stat::{PartitionStat, Stat, Times};

/// One interval of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    /// Its number, from 1; a gap is an interval that was lost.
    pub number: u64,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// How long it was, in milliseconds.
    pub length_ms: u64,
    /// Amounts of the server at its end.
    pub memory_max_bytes: u64,
    /// What partitions may hold: less than the limit while the system is short of memory.
    pub memory_allowed_bytes: u64,
    /// Memory charged to partitions.
    pub memory_charged_bytes: u64,
    /// Memory of buffers.
    pub buffers_used_bytes: u64,
    /// Resident memory of the process.
    pub resident_bytes: Option<u64>,
    /// The share of the last ten seconds in which some process waited for memory.
    pub memory_stalled_ratio: Option<f64>,
    /// Clients connected.
    pub connections: u64,
    /// Bytes that the reaper moved between partitions in the interval.
    pub moved_bytes: u64,
    /// Each partition.
    pub partitions: Vec<Row>,
}

/// One partition in one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Counters: what happened in the interval.
    pub counts: Counts,
    /// Amounts at its end.
    pub amounts: Amounts,
    /// How long requests took, by kind. A kind without requests is absent.
    pub latency: BTreeMap<String, Lasted>,
}

/// What happened in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub bypasses: u64,
    pub fills: u64,
    pub evictions: u64,
    pub writebacks: u64,
    pub errors: u64,
    pub ghost_hits: u64,
    pub requests: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// What a partition has at the end of an interval; `None`: without a limit, or not reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Amounts {
    pub charged_bytes: u64,
    pub resident_bytes: u64,
    pub dirty_bytes: u64,
    pub dirty_oldest_ms: Option<u64>,
    pub allowed_bytes: u64,
    pub min: u64,
    pub low: u64,
    pub high: Option<u64>,
    pub max: Option<u64>,
}

/// How long the requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lasted {
    /// Requests.
    pub count: u64,
    /// The sum of their times.
    pub sum_ns: u64,
    /// The end of each bucket in nanoseconds, exclusive, and its requests.
    pub buckets: Vec<(u64, u64)>,
}

impl Interval {
    /// The interval between two reports of the same server.
    pub fn between(before: &Stat, after: &Stat) -> Interval {
        let none = PartitionStat::default();
        let row = |after: &PartitionStat| {
            let before = before.partitions.iter().find(|before| before.name == after.name);
            Row::between(before.unwrap_or(&none), after)
        };
        Interval {
            memory_max_bytes: after.cache.memory_max_bytes,
            memory_allowed_bytes: after.memory_allowed_bytes,
            memory_charged_bytes: after.cache.memory_charged_bytes,
            buffers_used_bytes: after.cache.buffers_used_bytes,
            resident_bytes: after.resident_bytes,
            memory_stalled_ratio: after.memory_stalled_ratio,
            connections: after.connections,
            moved_bytes: after.moved_bytes.saturating_sub(before.moved_bytes),
            partitions: after.partitions.iter().map(row).collect(),
            ..Interval::default()
        }
    }

    /// Makes this interval longer by the one that follows it.
    pub fn append(&mut self, later: &Interval) {
        let before = std::mem::replace(self, later.clone());
        self.length_ms += before.length_ms;
        self.moved_bytes += before.moved_bytes;
        for row in &mut self.partitions {
            if let Some(before) = before.partitions.iter().find(|before| before.name == row.name) {
                row.counts.add(&before.counts);
                for (kind, times) in &before.latency {
                    row.latency.entry(kind.clone()).or_default().add(times);
                }
            }
        }
    }
}

impl Row {
    fn between(before: &PartitionStat, after: &PartitionStat) -> Row {
        // A partition that was removed and added again counts from 0.
        let change = |names: &[&str]| {
            let sum = |stat: &PartitionStat| names.iter().map(|name| stat.figure(name)).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let evictions = ["evictions_capacity", "evictions_resize", "evictions_discard", "evictions_write"];
        let counts = Counts {
            hits: change(&["hits"]),
            misses: change(&["misses"]),
            bypasses: change(&["bypasses"]),
            fills: change(&["fills"]),
            evictions: change(&evictions),
            writebacks: change(&["writebacks"]),
            errors: change(&["read_errors", "write_errors", "sync_errors"]),
            ghost_hits: change(&["ghost_hits"]),
            requests: change(&["requests_read", "requests_write", "requests_sync"]),
            read_bytes: change(&["read_bytes"]),
            written_bytes: change(&["written_bytes"]),
        };
        let limits = &after.limits;
        let amounts = Amounts {
            charged_bytes: after.charged_bytes,
            resident_bytes: after.resident_bytes,
            dirty_bytes: after.dirty_bytes,
            dirty_oldest_ms: after.dirty_oldest_ms,
            allowed_bytes: after.max_bytes,
            min: limits.min,
            low: limits.low,
            high: limits.high,
            max: limits.max,
        };
        let none = Times::default();
        let lasted = after.times.iter().map(|(kind, times)| {
            let before = before.times.get(kind).unwrap_or(&none);
            (kind.clone(), Lasted::between(before, times))
        });
        let latency = lasted.filter(|(_, lasted)| lasted.count > 0).collect();
        Row { name: after.name.clone(), counts, amounts, latency }
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.bypasses += other.bypasses;
        self.fills += other.fills;
        self.evictions += other.evictions;
        self.writebacks += other.writebacks;
        self.errors += other.errors;
        self.ghost_hits += other.ghost_hits;
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

impl Lasted {
    fn between(before: &Times, after: &Times) -> Lasted {
        let change = |(end, count): (&u64, &u64)| {
            (*end, count.saturating_sub(before.buckets.get(end).copied().unwrap_or(0)))
        };
        Lasted {
            count: after.count.saturating_sub(before.count),
            sum_ns: after.sum_ns.saturating_sub(before.sum_ns),
            buckets: after.buckets.iter().map(change).filter(|(_, count)| *count > 0).collect(),
        }
    }

    fn add(&mut self, other: &Lasted) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        let mut buckets: BTreeMap<u64, u64> = self.buckets.iter().copied().collect();
        for (end, count) in &other.buckets {
            *buckets.entry(*end).or_default() += count;
        }
        self.buckets = buckets.into_iter().collect();
    }
}
