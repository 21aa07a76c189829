//! NUMA: what copies of pages on the nodes that read them are worth, part by part, on two nodes
//! that are made up. Every figure is *emulated*.
//!
//! One thread takes seats on the nodes in turn, as the load says, and asks for one page at a time,
//! so every count repeats. `partition` divides pages among the nodes and copies none; `replicate`
//! copies those that are read from afar; its variants leave one part out each; `auto` chooses.
//! *Virtual time* is what memory takes by the counts, as in `numa`, a fixed price for each request,
//! and one for each page that the store was asked for. The *ideal* is `partition`'s own run with
//! every line and byte at the price of local ones; *gain* is the share of the way there from
//! `partition`.

use octavo::disk::Store;
use octavo::numa::{
    LocalMemory, Machine, NumaMode, PartitionNumaStat, RemoteCost, Replication, TopologySource, Traffic, sit,
};
use octavo::{Cache, CacheConfig, Object, PartitionConfig};

use crate::Error;
use crate::case::{Case, Load};
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::report::Row;

/// Who can run.
pub const CONTESTANTS: &[&str] = &[
    "partition",
    "replicate",
    "without_refresh",
    "without_election",
    "without_yielding",
    "without_weighing",
    "without_switching",
    "every_fourth",
    "auto",
];

/// What the processor does for a request besides waiting for memory, and what a page from the store
/// takes, in nanoseconds: guesses, rounded.
const REQUEST_NS: f64 = 25.0;
const FILL_NS: f64 = 10_000.0;

/// So many times as many requests come before those that are counted: copies are made, and `auto`
/// chooses.
const WARM_UPS: u32 = 3;

/// Nothing lasts from case to case.
pub struct Field;

fn replication(name: &str) -> Replication {
    let whole = Replication::default();
    match name {
        "without_refresh" => Replication { refresh: false, ..whole },
        "without_election" => Replication { elect: false, ..whole },
        "without_yielding" => Replication { yields: false, ..whole },
        "without_weighing" => Replication { weighs: false, ..whole },
        "without_switching" => Replication { switch_writes: 0, ..whole },
        "every_fourth" => Replication { threshold: 4, ..whole },
        _ => whole,
    }
}

/// What one contestant took.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Taken {
    virtual_ns: f64,
    /// The same, were every node's memory local.
    ideal_ns: f64,
    twin_hits: f64,
    copies: f64,
    overtaken: f64,
    elections: f64,
    switches: f64,
    fills: f64,
    /// What was done in the end, and how often `auto` chose something else.
    way: &'static str,
    way_changes: u64,
}

struct Side {
    cache: Cache,
    object: Object,
    /// Pages that requests are for.
    pages: Vec<u64>,
}

impl Side {
    fn new(name: &str, case: &Case, machine: Machine) -> Result<Side, Error> {
        let buffers_bytes = 16 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: case.memory.0 + case.memory.0 / 64 + (1 << 20) + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            topology: TopologySource::Emulated { nodes: 2, cores: 1 },
            numa: match name {
                "partition" => NumaMode::Partition,
                "auto" => NumaMode::Auto,
                _ => NumaMode::Replicate,
            },
            replication: replication(name),
            remote_cost: Some(RemoteCost { machine, spent: false }),
            // Pages lie in the same places in every run, and nothing happens by itself.
            seed: Some(1),
            background: false,
            ..CacheConfig::default()
        })?;
        let partition = cache.partition(PartitionConfig {
            cache_mode: octavo::CacheMode::Writeback,
            ..PartitionConfig::new("bench")
        })?;
        let frames = case.memory.0 / PAGE_BYTES as u64;
        // Few enough that no set is short of ways; or twice as many as there is room for.
        let count = if case.load == Load::Pressure { frames * 2 } else { frames / 4 };
        let object = partition.open(Store::memory("store", count * PAGE_BYTES as u64), "store")?;
        sit(0);
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..count {
            object.read_at(number * PAGE_BYTES as u64, &mut page)?;
        }
        let is_asked_for =
            |number: &u64| case.load != Load::Own || object.node_of(number * PAGE_BYTES as u64) == 1;
        let pages = (0..count).filter(is_asked_for).collect();
        Ok(Side { cache, object, pages })
    }

    fn stat(&self) -> PartitionNumaStat {
        self.cache.numa_stat().partitions.remove(0)
    }

    fn run(
        &self,
        case: &Case,
        requests: u64,
        random: &mut dyn Iterator<Item = u64>,
        moved: bool,
    ) -> Result<(), Error> {
        let bytes = case.bytes.0 as usize;
        let mut buffer = vec![0; bytes];
        for number in 0..requests {
            let drawn = random.next().expect("an endless stream");
            let page = self.pages[content::below(drawn, self.pages.len() as u64) as usize];
            let drawn = content::mix(drawn);
            let skip = content::below(drawn, (PAGE_BYTES / bytes) as u64) * bytes as u64;
            let drawn = content::mix(drawn);
            // The reaper comes by.
            if number.is_multiple_of(requests / 16) {
                self.cache.balance();
            }
            sit(match case.load {
                Load::Near | Load::Own | Load::Pressure => 1,
                Load::Both => (content::mix(drawn) & 1) as u32,
                Load::Moving => u32::from(moved && number >= requests / 2),
            });
            let offset = page * PAGE_BYTES as u64 + skip;
            match content::below(drawn, 100) < u64::from(case.reads.0) {
                true => self.object.read_at(offset, &mut buffer)?,
                false => self.object.write_at(offset, &buffer)?,
            }
        }
        Ok(())
    }
}

fn run_one(name: &str, case: &Case, requests: u64) -> Result<Taken, Error> {
    let machine = Machine::named(&case.machine.0).ok_or_else(|| Error::new("no such machine"))?;
    let act = || -> Result<Taken, Error> {
        let side = Side::new(name, case, machine)?;
        let mut random = content::random(7);
        for _ in 0..WARM_UPS {
            side.run(case, requests, &mut random, false)?;
        }
        let (before, fills) = (side.stat(), side.cache.partitions()[0].stat().fills);
        side.run(case, requests, &mut random, true)?;
        let (after, fills) = (side.stat(), side.cache.partitions()[0].stat().fills - fills);
        let count =
            |get: fn(&PartitionNumaStat) -> u64| (get(&after) - get(&before)) as f64 / requests as f64;
        let traffic = Traffic {
            local_waits: after.traffic.local_waits - before.traffic.local_waits,
            remote_waits: after.traffic.remote_waits - before.traffic.remote_waits,
            local_bytes: after.traffic.local_bytes - before.traffic.local_bytes,
            remote_bytes: after.traffic.remote_bytes - before.traffic.remote_bytes,
        };
        let all_local = Traffic {
            local_waits: traffic.local_waits + traffic.remote_waits,
            local_bytes: traffic.local_bytes + traffic.remote_bytes,
            ..Traffic::default()
        };
        let fills = fills as f64 / requests as f64;
        let time = |traffic: &Traffic| {
            machine.memory_ns(traffic, LocalMemory::VIRTUAL) / requests as f64 + REQUEST_NS + fills * FILL_NS
        };
        Ok(Taken {
            virtual_ns: time(&traffic),
            ideal_ns: time(&all_local),
            twin_hits: count(|stat| stat.twin_hits),
            copies: count(|stat| stat.twins_made + stat.twins_refreshed),
            overtaken: count(|stat| stat.twins_overtaken),
            elections: count(|stat| stat.elections),
            switches: count(|stat| stat.switches),
            fills,
            way: after.way,
            way_changes: after.way_changes - before.way_changes,
        })
    };
    std::thread::scope(|scope| scope.spawn(act).join().map_err(|_| Error::new("a thread panicked"))?)
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let requests = if run.options.quick { 60_000 } else { 400_000 };
        let apart = run_one("partition", case, requests)?;
        let mut rows = Vec::new();
        for name in &case.contestants {
            run.options.unless_stopped()?;
            run.news(case, &format!("{name}, {}", case.machine.0));
            let taken = if name == "partition" { apart } else { run_one(name, case, requests)? };
            let mut row = Row::new(run.suite, case);
            row.case = format!("{}_{name}", case.name);
            row.clock = "virtual";
            row.fact("who", crate::case::Value::Text(name.clone()));
            row.fact("emulated", crate::case::Value::Flag(true));
            row.number("emulated_virtual_ns", taken.virtual_ns);
            row.number("emulated_of_ideal", apart.ideal_ns / taken.virtual_ns);
            row.number(
                "emulated_gain",
                (apart.virtual_ns - taken.virtual_ns) / (apart.virtual_ns - apart.ideal_ns).max(1e-9),
            );
            row.number("twin_hits", taken.twin_hits);
            row.number("copies", taken.copies);
            row.number("overtaken", taken.overtaken);
            row.number("elections", taken.elections);
            row.number("switches", taken.switches);
            row.number("fills", taken.fills);
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

    fn take(case: &str, name: &str) -> Taken {
        take_of(case, name, 40_000)
    }

    fn take_of(case: &str, name: &str, requests: u64) -> Taken {
        let suite = Suite::find("twins", true).unwrap();
        let case = suite
            .cases
            .iter()
            .find(|known| known.name == case)
            .unwrap_or_else(|| panic!("{case} is no case"));
        run_one(name, &case.clone().with_memory_bytes(8 << 20), requests).unwrap()
    }

    fn gain(case: &str) -> f64 {
        let (apart, with) = (take(case, "partition"), take(case, "replicate"));
        println!("{case}: {apart:?}, {with:?}");
        (apart.virtual_ns - with.virtual_ns) / (apart.virtual_ns - apart.ideal_ns)
    }

    #[test]
    fn replication_gains_most_of_what_there_is_where_pages_are_mostly_read() {
        for case in
            ["twins_near_100_2x-xeon-4410y", "twins_both_100_2x-epyc-7301", "twins_near_99_2x-xeon-4410y"]
        {
            assert!(gain(case) > 0.8, "{case}: {}", gain(case));
        }
        assert_eq!(
            take("twins_both_99_2x-xeon-4410y", "replicate"),
            take("twins_both_99_2x-xeon-4410y", "replicate")
        );
    }

    #[test]
    fn replication_costs_next_to_nothing_where_it_is_of_no_use() {
        for case in
            ["twins_near_10_2x-xeon-4410y", "twins_both_50_2x-xeon-4410y", "twins_own_99_2x-xeon-4410y"]
        {
            let (apart, with) = (take(case, "partition").virtual_ns, take(case, "replicate").virtual_ns);
            assert!(with < apart * 1.01, "{case}: {with} of {apart}");
        }
    }

    #[test]
    fn what_is_chosen_is_as_good_as_the_better_one_in_every_case() {
        for case in &Suite::find("twins", true).unwrap().cases {
            let case = case.clone().with_memory_bytes(8 << 20);
            // Pages that are written now and then take their time to go where that is.
            let requests = if case.reads.0 == 90 { 200_000 } else { 60_000 };
            let take = |name: &str| run_one(name, &case, requests).unwrap();
            let [apart, with, auto] = ["partition", "replicate", "auto"].map(take);
            let better = apart.virtual_ns.min(with.virtual_ns);
            let (name, more) = (&case.name, (auto.virtual_ns / better - 1.0) * 100.0);
            println!("{name}: {:.1}, {:.1}, {auto:?}: {more:+.2} %", apart.virtual_ns, with.virtual_ns);
            // Where mains have to move first, what is chosen meanwhile may be left again.
            let most = if name.starts_with("twins_moving_50") { 10.0 } else { 2.0 };
            assert!(more < most, "{name}: {more:+.2} %");
        }
    }

    #[test]
    fn twins_cost_no_page_its_place() {
        let case = "twins_pressure_99_2x-xeon-4410y";
        // Which pages leave differs a little by chance: by 80 000 requests still by two thousandths of the
        // fills.
        let [apart, with] = ["partition", "replicate"].map(|name| take_of(case, name, 320_000));
        assert!(with.fills <= apart.fills * 1.001, "{} of {}", with.fills, apart.fills);
        assert!(with.virtual_ns <= apart.virtual_ns * 1.001, "{with:?} {apart:?}");
    }
}
