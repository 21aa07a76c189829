//! Random reads by threads of several nodes, through caches that differ in which node holds a page:
//! figure 5 of HotStorage '12, on emulated nodes.
//!
//! Each thread belongs to a node and has `depth` reads in flight. The caches hold a share of the
//! file. `direct` reads without any cache, into memory of the thread's own node. `shared` is one
//! cache that knows no nodes, with all pages on node 0, where a first thread would have touched
//! them. `partition` divides the pages among the nodes; `message` has workers of a page's node read
//! it. The distance is that of a machine of PaCaR's table, and is spent by spinning: every figure
//! is *emulated*.

use octavo::numa::{NumaMode, RemoteCost, TopologySource, sit};
use octavo::{CacheConfig, PartitionConfig};

use crate::case::{Call, Case};
use crate::drivers::misses::{Direct, Queued, fill};
use crate::drivers::nodes;
use crate::error::Error;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Driver, Run, Subject, cache_config, hit_ratio, partition_config};
use crate::stream;
use crate::turns::{Pace, Team, Worker};

pub const DRIVER: Driver = Driver {
    name: "crossing",
    purpose: "random reads by threads of several emulated nodes",
    contestants: &["direct", "shared", "partition", "message"],
    scenery: &["store", "file", "policy", "share", "machine"],
    check,
    memory: |needs| needs.file + needs.whole_file * needs.share * needs.contestants / 100,
    set: |case, run| {
        let caches = Caches::new(case, run)?;
        Ok(Box::new(move |case, run| caches.run(case, run).map(|row| vec![row])))
    },
};

/// The nodes of the emulated machine. Threads share them in turn.
const NODES: u32 = 4;

/// The caches, and the names of their hit ratios in rows.
const SIDES: [(&str, &str); 3] =
    [("shared", "shared_hit_ratio"), ("partition", "partition_hit_ratio"), ("message", "message_hit_ratio")];

fn check(case: &Case) -> Result<(), String> {
    if case.call != Call::Queue || !(1..=1024).contains(&case.depth.0) {
        return Err("crossing has the call queue, with a depth of at most 1024".into());
    }
    if case.file.0 < 64 << 20 || !(1..=95).contains(&case.share.0) {
        return Err("crossing needs a file of at least 64MiB, and a share of 1 to 95".into());
    }
    Ok(())
}

/// A file, and three caches over it.
struct Caches {
    sides: Vec<Subject>,
    scratch: Scratch,
}

impl Caches {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<Caches, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let side = |name| -> Result<Subject, Error> {
            let cache = CacheConfig {
                topology: TopologySource::Emulated { nodes: NODES, cores: 1 },
                numa: if name == "message" { NumaMode::Message } else { NumaMode::Partition },
                remote_cost: Some(RemoteCost { machine: case.machine.0, spent: true }),
                ..cache_config(scratch.file_bytes * u64::from(case.share.0) / 100, 32 << 20)
            };
            let node = (name == "shared").then_some(0);
            let partition = PartitionConfig { node, ..partition_config(case) };
            let subject = Subject::new(cache, partition, scratch.open()?)?;
            let pages = stream::pages(&case.workload, scratch.pages(), 99 << 32)?;
            fill(&subject, case.depth.0, pages)?;
            Ok(subject)
        };
        let mut sides = Vec::new();
        for (name, _) in SIDES {
            run.news(case, &format!("filling {name}"));
            sides.push(side(name)?);
        }
        Ok(Caches { sides, scratch })
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        let (scratch, depth) = (&self.scratch, case.depth.0);
        let team = |name| {
            let side = SIDES.iter().zip(&self.sides).find(|((known, _), _)| *known == name);
            Team::boxed(name, move |thread| -> Result<Box<dyn Worker>, Error> {
                sit(thread as u32);
                // All contestants read the same pages, and differ in nothing else.
                let pages = stream::pages(&case.workload, scratch.pages(), thread as u64 + 1)?;
                Ok(match side {
                    Some((_, subject)) => Box::new(Queued::<false>::new(subject, depth, pages)?),
                    None => Box::new(Direct::new(&scratch.store, depth, pages, false)?),
                })
            })
        };
        let teams: Vec<Team<'_>> = case.contestants.iter().map(|name| team(&**name)).collect();
        let before: Vec<_> = self.sides.iter().map(|side| side.partition.stat()).collect();
        // As in `misses`: the kernel's workers need processors too, and here also the workers of
        // the nodes.
        let pace = Pace { pinned: false, ..Pace::new(15.0, 250) };
        let (mut row, _) = run.race(case, pace, &teams)?;
        row.add("emulated", true);
        row.add("queue_depth", depth);
        row.add("file_bytes", scratch.file_bytes);
        row.add("o_direct", scratch.o_direct);
        for ((side, before), (_, key)) in self.sides.iter().zip(&before).zip(SIDES) {
            let after = side.partition.stat();
            row.add(key, hit_ratio(after.hits - before.hits, after.misses - before.misses));
        }
        let stat = self.sides[2].cache.numa_stat().partitions.remove(0);
        row.add("messages_per_bundle", stat.messages as f64 / stat.bundles.max(1) as f64);
        row.notes.push(nodes::note(case));
        Ok(row)
    }
}
