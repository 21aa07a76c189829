//! NUMA: the gain of copying pages to the nodes that read them, for each part of the mechanism, on
//! two emulated nodes. Every figure is *emulated*.
//!
//! One thread sits on the nodes in turn, as the case's `load` says, and accesses one page at a
//! time, so every count repeats. `partition` divides pages among the nodes and copies none.
//! `replicate` copies pages that are read from another node; each of its variants leaves out one
//! part. `auto` chooses. *Virtual time* is the price of all counted memory accesses, as in `numa`,
//! plus fixed prices for each request and for each page read from the store. The *ideal* is
//! `partition`'s own run with all memory at local prices. The *gain* is the share of the way from
//! `partition` to the ideal.

use octavo::CacheConfig;
use octavo::numa::{NumaMode, Replication, Traffic, sit};
use octavo_random::{Random, mix, scale};

use crate::case::{Case, Load};
use crate::content::PAGE_BYTES;
use crate::drivers::nodes::{self, Counted, Taken};
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run, Subject, offset};

pub const DRIVER: Driver = Driver {
    name: "twins",
    purpose: "copies of pages on emulated nodes",
    contestants: &[
        "partition",
        "replicate",
        "without_refresh",
        "without_election",
        "without_yielding",
        "without_weighing",
        "without_switching",
        "every_fourth",
        "auto",
    ],
    scenery: &[],
    check: |_| Ok(()),
    memory: |needs| needs.frames * 4,
    set: |_, _| Ok(Box::new(rows)),
};

/// The price of a page that is read from the store, in nanoseconds: an estimate, rounded.
const FILL_NS: f64 = 10_000.0;

/// Runs before the one that is counted: `replicate` copies pages, `auto` chooses a mode.
const WARM_UPS: u32 = 3;

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

/// The cache of a contestant.
struct Side {
    subject: Subject,
    /// The pages that are accessed.
    pages: Vec<u64>,
}

impl Side {
    fn new(name: &str, case: &Case) -> Result<Side, Error> {
        let mode = match name {
            "partition" => NumaMode::Partition,
            "auto" => NumaMode::Auto,
            _ => NumaMode::Replicate,
        };
        // No background threads: the run repeats.
        let config = CacheConfig {
            replication: replication(name),
            background: false,
            ..nodes::config(case, mode, false)
        };
        let frames = case.memory.0 / PAGE_BYTES as u64;
        // Few enough pages that every set has room, or twice as many as frames.
        let count = if case.load == Load::Pressure { frames * 2 } else { frames / 4 };
        sit(0);
        let subject = nodes::filled(config, None, count)?;
        let is_accessed =
            |number: &u64| case.load != Load::Own || subject.object.node_of(offset(*number)) == 1;
        let pages = (0..count).filter(is_accessed).collect();
        Ok(Side { subject, pages })
    }

    fn run(&self, case: &Case, requests: u64, random: &mut Random, moved: bool) -> Result<(), Error> {
        let (bytes, object) = (case.bytes.0 as usize, &self.subject.object);
        let mut buffer = vec![0; bytes];
        for number in 0..requests {
            let drawn = random.next_u64();
            let page = self.pages[scale(drawn, self.pages.len() as u64) as usize];
            let drawn = mix(drawn);
            let skip = scale(drawn, (PAGE_BYTES / bytes) as u64) * bytes as u64;
            let drawn = mix(drawn);
            // The reaper's period, 16 times a run.
            if number.is_multiple_of(requests / 16) {
                self.subject.cache.balance();
            }
            sit(match case.load {
                Load::Near | Load::Own | Load::Pressure => 1,
                Load::Both => (mix(drawn) & 1) as u32,
                Load::Moving => u32::from(moved && number >= requests / 2),
            });
            let at = offset(page) + skip;
            match case.reads.has(drawn) {
                true => object.read_at(at, &mut buffer)?,
                false => object.write_at(at, &buffer)?,
            }
        }
        Ok(())
    }
}

/// Runs a contestant. Also returns its virtual time with all memory at local prices.
fn run_one(name: &str, case: &Case, requests: u64) -> Result<(Taken, f64), Error> {
    nodes::on_own_thread(|| {
        let side = Side::new(name, case)?;
        let mut random = Random::new(7);
        for _ in 0..WARM_UPS {
            side.run(case, requests, &mut random, false)?;
        }
        let mut run = || side.run(case, requests, &mut random, true);
        let (did, pages) =
            side.subject.measure(|| Counted::measure(&side.subject.cache, requests as f64, &mut run))?;
        let traffic = did.traffic();
        let all_local = Traffic {
            local_waits: traffic.local_waits + traffic.remote_waits,
            local_bytes: traffic.local_bytes + traffic.remote_bytes,
            ..Traffic::default()
        };
        let fills = pages.of(|stat| stat.fills) as f64 / requests as f64;
        let time = |traffic: &Traffic| did.request_ns(case, traffic) + fills * FILL_NS;
        let mut figures = vec![
            ("twin_hits", did.of(|stat| stat.twin_hits).into()),
            ("copies", did.of(|stat| stat.twins_made + stat.twins_refreshed).into()),
            ("overtaken", did.of(|stat| stat.twins_overtaken).into()),
            ("elections", did.of(|stat| stat.elections).into()),
            ("switches", did.of(|stat| stat.switches).into()),
            ("fills", fills.into()),
        ];
        figures.extend(did.ways());
        Ok((Taken { virtual_ns: time(&traffic), figures }, time(&all_local)))
    })
}

fn rows(case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    let requests = if run.options.quick { 60_000 } else { 400_000 };
    let (apart, ideal_ns) = run_one("partition", case, requests)?;
    nodes::rows(case, run, ideal_ns, |name| {
        let mut taken = if name == "partition" { apart.clone() } else { run_one(name, case, requests)?.0 };
        let gain = (apart.virtual_ns - taken.virtual_ns) / (apart.virtual_ns - ideal_ns).max(1e-9);
        taken.figures.insert(0, ("emulated_gain", gain.into()));
        Ok(taken)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    fn take(case: &str, name: &str) -> (Taken, f64) {
        run_one(name, &Suite::quick_case("twins", case), 40_000).unwrap()
    }

    fn gain(case: &str) -> f64 {
        let ((apart, ideal_ns), (with, _)) = (take(case, "partition"), take(case, "replicate"));
        println!("{case}: {apart:?}, {with:?}");
        (apart.virtual_ns - with.virtual_ns) / (apart.virtual_ns - ideal_ns)
    }

    #[test]
    fn replication_reaches_most_of_the_ideal_if_pages_are_mostly_read() {
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
    fn replication_costs_at_most_one_percent_if_it_cannot_help() {
        for case in
            ["twins_near_10_2x-xeon-4410y", "twins_both_50_2x-xeon-4410y", "twins_own_99_2x-xeon-4410y"]
        {
            let [apart, with] = ["partition", "replicate"].map(|name| take(case, name).0.virtual_ns);
            assert!(with < apart * 1.01, "{case}: {with} of {apart}");
        }
    }

    #[test]
    fn auto_is_as_good_as_the_better_mode_in_every_case() {
        // Here, mains must move first, and `auto` may change its mode meanwhile.
        let most = |name: &str| if name.starts_with("twins_moving_50") { 10.0 } else { 2.0 };
        nodes::assert_auto_is_best("twins", &["partition", "replicate"], most, |name, case| {
            // Pages that are written rarely need longer until they have moved to their writers.
            let requests = if case.reads.0 == 90 { 200_000 } else { 60_000 };
            run_one(name, case, requests).map(|(taken, _)| taken)
        });
    }

    #[test]
    fn twins_evict_no_page() {
        let case = Suite::quick_case("twins", "twins_pressure_99_2x-xeon-4410y");
        // Which pages are evicted differs a little by chance: after 80,000 requests by 0.2 % of the
        // fills.
        let [apart, with] = ["partition", "replicate"].map(|name| run_one(name, &case, 320_000).unwrap().0);
        assert!(with.figure("fills") <= apart.figure("fills") * 1.001, "{with:?} {apart:?}");
        assert!(with.virtual_ns <= apart.virtual_ns * 1.001, "{with:?} {apart:?}");
    }
}
