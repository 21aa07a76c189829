//! NUMA: the cost of pages that lie on another node, by mode, on emulated nodes. Every figure is
//! *emulated*.
//!
//! One thread sits on node 1 and accesses random resident pages in batches, to read and to write.
//! The contestants differ in which node holds a page, and which node's thread accesses it: `local`
//! has all pages on node 1, and is the ideal; `off` has all on node 0, where a loader would have
//! touched them first; `partition`, `message`, `replicate` and `auto` divide them among both nodes.
//! The distance is that of a machine of PaCaR's table.
//!
//! There are two clocks. *Virtual time* multiplies counts (lines waited for, bytes moved, messages)
//! by fixed prices. It repeats exactly, and counts the work of all threads, as if every core were
//! always busy. *Emulated wall time* lets threads spend the distance. With fewer processors than
//! emulated cores, workers and callers share processors, so messages look worse than they are.

use std::time::Instant;

use octavo::numa::{BUNDLE_NS, LETTER_NS, NumaMode, sit};
use octavo::{CacheConfig, Op, Queue, Read, Request};
use octavo_random::{Random, mix, scale};

use crate::case::{Call, Case};
use crate::content::PAGE_BYTES;
use crate::drivers::nodes::{self, Counted, Taken};
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run, Subject, offset};

pub const DRIVER: Driver = Driver {
    name: "numa",
    purpose: "the cost of pages on another emulated node",
    contestants: &["local", "off", "partition", "message", "replicate", "auto"],
    scenery: &[],
    check: |case| match case.call {
        Call::Batch if case.reads.0 < 100 => Err("call = \"batch\" reads only; writes need \"queue\"".into()),
        Call::Batch | Call::Queue => Ok(()),
        other => Err(format!("call = \"{}\": batch or queue are possible", other.name())),
    },
    memory: |needs| needs.frames * 4,
    set: |_, _| Ok(Box::new(rows)),
};

/// Requests per page before those that are counted, for modes that learn: `replicate` copies pages,
/// `auto` chooses a mode. With writes they need more requests, until written pages have moved to
/// their writers.
const WARM_UP: u64 = 200;
const WARM_UP_WRITTEN: u64 = 1_000;

/// The cache of a contestant.
struct Side {
    queue: Queue,
    subject: Subject,
    pages: u64,
}

impl Side {
    fn new(name: &str, case: &Case, spent: bool) -> Result<Side, Error> {
        let mode = match name {
            "message" => NumaMode::Message,
            "replicate" => NumaMode::Replicate,
            "auto" => NumaMode::Auto,
            _ => NumaMode::Partition,
        };
        let node = match name {
            "local" => Some(1),
            "off" => Some(0),
            _ => None,
        };
        // Few enough pages that every set has room.
        let pages = case.memory.0 / PAGE_BYTES as u64 / 4;
        // No background threads: a cleaner and a reaper would take part whenever they run, and
        // virtual time would not repeat.
        let config = CacheConfig { background: false, ..nodes::config(case, mode, spent) };
        let subject = nodes::filled(config, node, pages)?;
        Ok(Side { queue: subject.cache.queue()?, subject, pages })
    }

    /// Runs one batch of the case.
    fn batch(&mut self, case: &Case, random: &mut Random) -> Result<(), Error> {
        let (bytes, pages) = (case.bytes.0 as usize, self.pages);
        let mut draw_offset = || {
            let drawn = random.next_u64();
            let skip = scale(mix(drawn), (PAGE_BYTES / bytes) as u64) * bytes as u64;
            offset(scale(drawn, pages)) + skip
        };
        if case.call == Call::Batch {
            let mut buffers = vec![0; bytes * case.batch.0];
            let mut reads: Vec<Read<'_>> =
                buffers.chunks_mut(bytes).map(|buffer| Read { offset: draw_offset(), buffer }).collect();
            return Ok(self.subject.object.read_batch(&mut reads)?);
        }
        let requests: Vec<Request> = (0..case.batch.0 as u64)
            .map(|number| {
                let (offset, len, buffer) = (draw_offset(), bytes, vec![0; bytes].into());
                let op = match case.reads.has(mix(offset ^ number)) {
                    true => Op::Read { offset, len, buffer },
                    false => Op::Write { offset, len, buffer, durable: false },
                };
                Request { user_data: number, op }
            })
            .collect();
        self.queue.submit(&self.subject.object, requests);
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

/// Runs a contestant by both clocks, on a thread of its own that sits on node 1.
fn run_one(name: &str, case: &Case, operations: u64) -> Result<Taken, Error> {
    let batches = operations.div_ceil(case.batch.0 as u64);
    let operations = (batches * case.batch.0 as u64) as f64;
    nodes::on_own_thread(|| {
        sit(1);
        let mut counted = Side::new(name, case, false)?;
        let mut random = Random::new(7);
        if matches!(name, "replicate" | "auto") {
            let each = if case.reads.0 < 100 { WARM_UP_WRITTEN } else { WARM_UP };
            let batches = counted.pages * each / case.batch.0 as u64;
            for number in 0..batches {
                // The reaper's period, about 16 times.
                if number.is_multiple_of((batches / 16).max(1)) {
                    counted.subject.cache.balance();
                }
                counted.batch(case, &mut random)?;
            }
        }
        let cache = counted.subject.cache.clone();
        let did = Counted::measure(&cache, operations, || {
            (0..batches).try_for_each(|_| counted.batch(case, &mut random))
        })?;
        drop((counted, cache));
        let mut timed = Side::new(name, case, true)?;
        timed.batch(case, &mut random)?;
        let began = Instant::now();
        for _ in 0..batches {
            timed.batch(case, &mut random)?;
        }
        let wall_ns = began.elapsed().as_nanos() as f64 / operations;
        let traffic = did.traffic();
        let (messages, bundles) = (did.of(|stat| stat.messages), did.of(|stat| stat.bundles));
        let per_bundle = if bundles > 0.0 { messages / bundles } else { 0.0 };
        let mut figures = vec![
            ("emulated_wall_ns", wall_ns.into()),
            ("remote_lines_waited", (traffic.remote_waits as f64 / 12.0 / operations).into()),
            ("remote_bytes", (traffic.remote_bytes as f64 / operations).into()),
            ("messages_per_bundle", per_bundle.into()),
        ];
        figures.extend(did.ways());
        let virtual_ns = did.request_ns(case, &traffic) + messages * LETTER_NS + bundles * BUNDLE_NS;
        Ok(Taken { virtual_ns, figures })
    })
}

fn rows(case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    // A number of operations and not a time, so that virtual time repeats.
    let operations = if run.options.quick { 4_000 } else { 60_000 };
    let ideal_ns = run_one("local", case, operations)?.virtual_ns;
    nodes::rows(case, run, ideal_ns, |name| run_one(name, case, operations))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn virtual_times_repeat_and_have_the_order_of_the_model() {
        let case = Suite::quick_case("numa", "read_100_64_2x-xeon-4410y");
        let take = |name: &str| run_one(name, &case, 2000).unwrap().virtual_ns;
        let [local, off, partition, message] = ["local", "off", "partition", "message"].map(take);
        assert_eq!([local, off, partition, message], ["local", "off", "partition", "message"].map(take));
        assert!(local < partition && partition < off, "{local} {partition} {off}");
        assert!(message > local, "{message}");
    }

    #[test]
    fn auto_is_as_good_as_the_best_mode_in_every_case() {
        let modes = ["partition", "message", "replicate"];
        nodes::assert_auto_is_best("numa", &modes, |_| 2.0, |name, case| run_one(name, case, 6_000));
    }

    /// The cleaner used to write pages meanwhile, more of them on a busy machine.
    #[test]
    fn modes_that_learn_take_the_same_virtual_time_in_every_run() {
        let case = Suite::quick_case("numa", "mixed_90_32_2x-epyc-7301").with_memory_bytes(4 << 20);
        let take = |name: &str| run_one(name, &case, 2000).unwrap().virtual_ns;
        for name in ["replicate", "auto"] {
            assert_eq!(take(name), take(name), "{name}");
        }
    }

    #[test]
    fn remote_writes_travel_as_messages_too() {
        let case = Suite::quick_case("numa", "mixed_50_32_2x-epyc-7301");
        let message = run_one("message", &case, 1000).unwrap();
        assert!(message.figure("messages_per_bundle") > 4.0, "{message:?}");
        let direct = run_one("partition", &case, 1000).unwrap();
        let waited = |taken: &Taken| taken.figure("remote_lines_waited");
        assert!(waited(&direct) > waited(&message));
    }
}
