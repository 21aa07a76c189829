//! Random reads by threads of several nodes, through caches that differ in where pages lie and who
//! gets them: figure 5 of HotStorage '12 on emulated nodes.
//!
//! Each thread sits on a node of its own and keeps so many reads in flight, of a file of which the
//! caches have room for a share. `direct` reads past any cache, into memory of its own node;
//! `shared` is one cache that does not know nodes, all on node 0, where its owner came first;
//! `partition` divides it among the nodes; `message` has pages read by workers of their node.
//! Distance is that of a machine of PaCaR's table, and is spent by spinning: every figure is
//! *emulated*.

use std::time::Duration;

use octavo::numa::{Machine, NumaMode, RemoteCost, TopologySource, sit};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig};

use crate::Error;
use crate::case::{Call, Case, Value};
use crate::clock::Clock;
use crate::content::PAGE_BYTES;
use crate::drivers::misses::{Cached, Direct};
use crate::drivers::{Run, Stage};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stream;
use crate::turns::{Plan, Team, Worker};

/// Who can run.
pub const CONTESTANTS: &[&str] = &["direct", "shared", "partition", "message"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "file", "policy", "share", "machine"];

/// The emulated machine: more threads than nodes share them.
const NODES: u32 = 4;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    if Machine::named(&case.machine.0).is_none() {
        return Err(format!("machine = \"{}\": there is no such one", case.machine.0));
    }
    if case.call != Call::Queue || !(1..=1024).contains(&case.depth.0) {
        return Err("reads across nodes are asked for by queue, up to 1024 in flight".into());
    }
    if case.file.0 < 64 << 20 || !(1..=95).contains(&case.share.0) {
        return Err("file: 64MiB at least are needed, and a share of 1 to 95 in a hundred".into());
    }
    Ok(())
}

/// A file, and caches before it.
pub struct Field {
    sides: Vec<Side>,
    scratch: Scratch,
}

/// A cache as one contestant has it.
struct Side {
    name: &'static str,
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    cache: Cache,
}

impl Side {
    fn new(name: &'static str, case: &Case, scratch: &Scratch) -> Result<Side, Error> {
        let machine = Machine::named(&case.machine.0).ok_or_else(|| Error::new("no such machine"))?;
        let frames_bytes = scratch.file_bytes * u64::from(case.share.0) / 100;
        let buffers_bytes = 32 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: frames_bytes + frames_bytes / 128 + (64 << 10) + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            page_bytes: PAGE_BYTES as u32,
            topology: TopologySource::Emulated { nodes: NODES, cores: 1 },
            numa: if name == "message" { NumaMode::Message } else { NumaMode::Partition },
            remote_cost: Some(RemoteCost { machine, spent: true }),
            ..CacheConfig::default()
        })?;
        let partition = cache.partition(PartitionConfig {
            policy: case.policy.0,
            node: (name == "shared").then_some(0),
            ..PartitionConfig::new("bench")
        })?;
        let object = partition.open(scratch.open()?, "file")?;
        Ok(Side { name, object, partition, cache })
    }

    /// Reads until every frame has most likely held two pages.
    fn fill(&self, case: &Case, pages: stream::Pages) -> Result<(), Error> {
        let stat = self.partition.stat();
        let enough = stat.fills + stat.max_bytes / PAGE_BYTES as u64 * 2;
        let mut reader = Cached::new(&self.object, &self.cache, case.depth.0, pages)?;
        while self.partition.stat().resident_bytes < stat.max_bytes && self.partition.stat().fills < enough {
            reader.turn(None)?;
        }
        reader.settle()
    }
}

impl Field {
    /// Makes them.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let mut sides = Vec::new();
        for name in ["shared", "partition", "message"] {
            run.news(case, &format!("filling {name}"));
            let side = Side::new(name, case, &scratch)?;
            side.fill(case, stream::pages(&case.workload, scratch.pages(), 99 << 32)?)?;
            sides.push(side);
        }
        Ok(Field { sides, scratch })
    }
}

/// A contestant's threads.
struct Readers<'t> {
    name: &'t str,
    /// None: past any cache.
    side: Option<&'t Side>,
    field: &'t Field,
    case: &'t Case,
}

impl Team for Readers<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        sit(thread as u32);
        // The same pages for all, so that they differ in nothing else.
        let seed = thread as u64 + 1;
        let pages = stream::pages(&self.case.workload, self.field.scratch.pages(), seed)?;
        let depth = self.case.depth.0;
        Ok(match self.side {
            Some(side) => Box::new(Cached::new(&side.object, &side.cache, depth, pages)?),
            None => Box::new(Direct::new(&self.field.scratch.store, depth, pages, false)?),
        })
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let team = |name: &'_ String| -> Box<dyn Team + '_> {
            let name = CONTESTANTS.iter().find(|known| *known == name).expect("`check` knows all");
            let side = self.sides.iter().find(|side| side.name == *name);
            Box::new(Readers { name, side, field: self, case })
        };
        let teams: Vec<Box<dyn Team + '_>> = case.contestants.iter().map(team).collect();
        let teams: Vec<&dyn Team> = teams.iter().map(|team| &**team).collect();
        let plan = run.plan(case, (15.0, Duration::from_millis(250), Clock::Wall), teams.len());
        // As for `misses`: the kernel's workers, and here those of nodes, want processors too.
        let plan = Plan { pinned: false, ..plan };
        let before: Vec<_> = self.sides.iter().map(|side| side.partition.stat()).collect();
        let slices = run.compete(case, plan, &teams)?;
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        row.fact("emulated", Value::Flag(true));
        row.count("queue_depth", case.depth.0 as u64);
        row.count("file_bytes", self.scratch.file_bytes);
        row.fact("o_direct", Value::Flag(self.scratch.o_direct));
        let ratio = |(side, before): (&Side, &octavo::PartitionStat)| {
            let after = side.partition.stat();
            let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
            hits as f64 / (hits + misses).max(1) as f64
        };
        for (key, at) in [("shared_hit_ratio", 0), ("partition_hit_ratio", 1), ("message_hit_ratio", 2)] {
            row.number(key, ratio((&self.sides[at], &before[at])));
        }
        let told = self.sides[2].cache.numa_stat().partitions.remove(0);
        row.number("messages_per_bundle", told.messages as f64 / told.bundles.max(1) as f64);
        row.notes.push(format!("emulated: nodes are made up, distance is that of {}", case.machine.0));
        Ok(vec![row])
    }
}
