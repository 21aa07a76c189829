//! NUMA: what a page costs that lies on another node, by mode, on nodes that are made up. Every
//! figure is *emulated*.
//!
//! One thread sits on node 1 and asks for random pages that are all cached, in batches, some to
//! read and some to write. The contestants differ in where pages lie and who gets them:
//! `local`, all on node 1, is what there is to gain; `off`, all on node 0, where a loader touched
//! them first; `partition`, `message`, `replicate` and `auto`, divided among both. What distance
//! costs is a machine's of PaCaR's table.
//!
//! Two clocks. *Virtual time* adds up what was counted (lines waited for, bytes moved, messages) by
//! fixed prices: it repeats to the last digit, and counts the work of all threads, as if every core
//! had enough to do. *Emulated wall time* lets threads spend the distance as they go; with fewer
//! processors than emulated cores, workers and callers share them, so messages look worse than they
//! are.

use std::time::Instant;

use octavo::disk::Store;
use octavo::numa::{
    BUNDLE_NS, LETTER_NS, LocalMemory, Machine, NumaMode, PartitionNumaStat, RemoteCost, TopologySource, sit,
};
use octavo::{Cache, CacheConfig, Object, Op, PartitionConfig, Queue, Read, Request};

use crate::Error;
use crate::case::{Call, Case};
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::report::Row;

/// Who can run.
pub const CONTESTANTS: &[&str] = &["local", "off", "partition", "message", "replicate", "auto"];

/// So many requests a page come before those that are counted, where something is learned of them:
/// copies are made, and `auto` chooses; a page that is written now and then takes longer until it
/// goes where it is written.
const WARM_UP: u64 = 200;
const WARM_UP_WRITTEN: u64 = 1_000;

/// What the processor does for a request besides waiting for memory, in nanoseconds: a guess from
/// one node, rounded.
const REQUEST_NS: f64 = 25.0;

/// Nothing lasts from case to case.
pub struct Field;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    match case.call {
        Call::Batch if case.reads.0 < 100 => Err("call = \"batch\" reads only; writes need \"queue\"".into()),
        Call::Batch | Call::Queue => Ok(()),
        other => Err(format!("call = \"{}\": batch or queue are possible", other.name())),
    }
}

/// A cache as one contestant has it.
struct Side {
    object: Object,
    cache: Cache,
    queue: Queue,
    pages: u64,
}

/// What one contestant took.
#[derive(Debug)]
struct Taken {
    virtual_ns: f64,
    wall_ns: f64,
    remote_waits: f64,
    remote_bytes: f64,
    messages_per_bundle: f64,
    /// What was done in the end, and how often `auto` chose something else.
    way: &'static str,
    way_changes: u64,
}

impl Side {
    fn new(name: &str, case: &Case, machine: Machine, spent: bool) -> Result<Side, Error> {
        let buffers_bytes = 16 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: case.memory.0 + case.memory.0 / 64 + (1 << 20) + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            topology: TopologySource::Emulated { nodes: 2, cores: 1 },
            numa: match name {
                "message" => NumaMode::Message,
                "replicate" => NumaMode::Replicate,
                "auto" => NumaMode::Auto,
                _ => NumaMode::Partition,
            },
            remote_cost: Some(RemoteCost { machine, spent }),
            // Pages lie in the same places in every run.
            seed: Some(1),
            ..CacheConfig::default()
        })?;
        let node = match name {
            "local" => Some(1),
            "off" => Some(0),
            _ => None,
        };
        let partition = cache.partition(PartitionConfig {
            node,
            cache_mode: octavo::CacheMode::Writeback,
            ..PartitionConfig::new("bench")
        })?;
        // Few enough that no set is short of ways.
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        let object = partition.open(Store::memory("store", pages * PAGE_BYTES as u64), "store")?;
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..pages {
            object.read_at(number * PAGE_BYTES as u64, &mut page)?;
        }
        let queue = cache.queue()?;
        Ok(Side { object, cache, queue, pages })
    }

    fn stat(&self) -> PartitionNumaStat {
        self.cache.numa_stat().partitions.remove(0)
    }

    /// One batch of the case.
    fn batch(&mut self, case: &Case, random: &mut dyn Iterator<Item = u64>) -> Result<(), Error> {
        let (bytes, pages) = (case.bytes.0 as usize, self.pages);
        let mut next = || random.next().expect("an endless stream");
        let mut offsets = || {
            let random = next();
            let skip = content::below(content::mix(random), (PAGE_BYTES / bytes) as u64) * bytes as u64;
            content::below(random, pages) * PAGE_BYTES as u64 + skip
        };
        if case.call == Call::Batch {
            let mut buffers = vec![0; bytes * case.batch.0];
            let mut reads: Vec<Read<'_>> =
                buffers.chunks_mut(bytes).map(|buffer| Read { offset: offsets(), buffer }).collect();
            return Ok(self.object.read_batch(&mut reads)?);
        }
        let requests: Vec<Request> = (0..case.batch.0 as u64)
            .map(|number| {
                let (offset, len, buffer) = (offsets(), bytes, vec![0; bytes].into());
                let is_read = content::below(content::mix(offset ^ number), 100) < u64::from(case.reads.0);
                let op = match is_read {
                    true => Op::Read { offset, len, buffer },
                    false => Op::Write { offset, len, buffer, durable: false },
                };
                Request { user_data: number, op }
            })
            .collect();
        self.queue.submit(&self.object, requests);
        let mut result = Ok(());
        while self.queue.pending() > 0 {
            self.queue.wait(1, |completion| {
                if let Err(error) = completion.result {
                    result = Err(error.into());
                }
            });
        }
        result
    }
}

/// Runs a contestant by both clocks, on a thread of its own, which sits on node 1.
fn run_one(name: &str, case: &Case, operations: u64) -> Result<Taken, Error> {
    let machine = Machine::named(&case.machine.0).ok_or_else(|| Error::new("no such machine"))?;
    let batches = operations.div_ceil(case.batch.0 as u64);
    let operations = (batches * case.batch.0 as u64) as f64;
    let act = || -> Result<Taken, Error> {
        sit(1);
        let mut counted = Side::new(name, case, machine, false)?;
        let mut random = content::random(7);
        if matches!(name, "replicate" | "auto") {
            let each = if case.reads.0 < 100 { WARM_UP_WRITTEN } else { WARM_UP };
            for _ in 0..counted.pages * each / case.batch.0 as u64 {
                counted.batch(case, &mut random)?;
            }
        }
        let before = counted.stat();
        for _ in 0..batches {
            counted.batch(case, &mut random)?;
        }
        let after = counted.stat();
        let of = |get: fn(&PartitionNumaStat) -> u64| (get(&after) - get(&before)) as f64;
        let traffic = octavo::numa::Traffic {
            local_waits: after.traffic.local_waits - before.traffic.local_waits,
            remote_waits: after.traffic.remote_waits - before.traffic.remote_waits,
            local_bytes: after.traffic.local_bytes - before.traffic.local_bytes,
            remote_bytes: after.traffic.remote_bytes - before.traffic.remote_bytes,
        };
        let (messages, bundles) = (of(|stat| stat.messages), of(|stat| stat.bundles));
        let virtual_ns = machine.memory_ns(&traffic, LocalMemory::VIRTUAL)
            + operations * REQUEST_NS
            + messages * LETTER_NS
            + bundles * BUNDLE_NS;
        drop(counted);
        let mut timed = Side::new(name, case, machine, true)?;
        timed.batch(case, &mut random)?;
        let began = Instant::now();
        for _ in 0..batches {
            timed.batch(case, &mut random)?;
        }
        Ok(Taken {
            virtual_ns: virtual_ns / operations,
            wall_ns: began.elapsed().as_nanos() as f64 / operations,
            remote_waits: traffic.remote_waits as f64 / 12.0 / operations,
            remote_bytes: traffic.remote_bytes as f64 / operations,
            messages_per_bundle: if bundles > 0.0 { messages / bundles } else { 0.0 },
            way: after.way,
            way_changes: after.way_changes - before.way_changes,
        })
    };
    std::thread::scope(|scope| scope.spawn(act).join().map_err(|_| Error::new("a thread panicked"))?)
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        // By count and not by time, so that virtual time repeats.
        let operations = if run.options.quick { 4_000 } else { 60_000 };
        let ideal = run_one("local", case, operations)?;
        let mut rows = Vec::new();
        for name in &case.contestants {
            run.options.unless_stopped()?;
            run.news(case, &format!("{name}, {}", case.machine.0));
            let taken = run_one(name, case, operations)?;
            let mut row = Row::new(run.suite, case);
            row.case = format!("{}_{name}", case.name);
            row.clock = "virtual";
            row.fact("who", crate::case::Value::Text(name.clone()));
            row.fact("emulated", crate::case::Value::Flag(true));
            row.number("emulated_virtual_ns", taken.virtual_ns);
            row.number("emulated_of_ideal", ideal.virtual_ns / taken.virtual_ns);
            row.number("emulated_wall_ns", taken.wall_ns);
            row.number("remote_lines_waited", taken.remote_waits);
            row.number("remote_bytes", taken.remote_bytes);
            row.number("messages_per_bundle", taken.messages_per_bundle);
            row.fact("way", crate::case::Value::Text(taken.way.into()));
            row.number("way_changes", taken.way_changes as f64);
            row.notes.push(format!("emulated: nodes are made up, distance is that of {}", case.machine.0));
            rows.push(row);
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    fn case(name: &str) -> Case {
        let suite = Suite::find("numa", true).unwrap();
        let case = suite.cases.iter().find(|case| case.name == name);
        case.unwrap_or_else(|| panic!("{name} is none of {:?}", suite.cases)).clone()
    }

    #[test]
    fn virtual_time_repeats_and_is_in_the_order_that_the_model_says() {
        let case = case("read_100_64_2x-xeon-4410y").with_memory_bytes(8 << 20);
        let take = |name: &str| run_one(name, &case, 2000).unwrap().virtual_ns;
        let [local, off, partition, message] = ["local", "off", "partition", "message"].map(take);
        assert_eq!([local, off, partition, message], ["local", "off", "partition", "message"].map(take));
        assert!(local < partition && partition < off, "{local} {partition} {off}");
        assert!(message > local, "{message}");
    }

    #[test]
    fn what_is_chosen_is_as_good_as_the_best_one_in_every_case() {
        for case in &Suite::find("numa", true).unwrap().cases {
            let case = case.clone().with_memory_bytes(8 << 20);
            let take = |name: &str| run_one(name, &case, 6_000).unwrap();
            let taken = ["partition", "message", "replicate"].map(|name| take(name).virtual_ns);
            let (best, auto) = (taken.into_iter().fold(f64::INFINITY, f64::min), take("auto"));
            let (name, more) = (&case.name, (auto.virtual_ns / best - 1.0) * 100.0);
            println!("{name}: {taken:.1?}, {auto:.1?}: {more:+.2} %");
            assert!(more < 2.0, "{name}: {more:+.2} %");
        }
    }

    #[test]
    fn what_is_written_from_afar_travels_too() {
        let case = case("mixed_50_32_2x-epyc-7301").with_memory_bytes(8 << 20);
        let message = run_one("message", &case, 1000).unwrap();
        assert!(message.messages_per_bundle > 4.0, "{}", message.messages_per_bundle);
        let direct = run_one("partition", &case, 1000).unwrap();
        assert!(direct.remote_waits > message.remote_waits);
    }
}
