//! Runs over traces from memory: they are exact, can be interrupted, and give the same results with
//! any number of threads.

use octavo_table::PolicyKind;

use super::*;
use crate::cache::{engine_cache, engine_capacity};
use crate::source::{CHUNK, Pages};

pub(crate) fn trace(name: &str, pages: Vec<u64>) -> Trace<'static> {
    Trace { name: name.into(), open: Box::new(move || Ok(Box::new(Pages::new(pages.clone())))) }
}

pub(crate) fn plan(policies: &[&str], capacities: &[&str]) -> Plan {
    Plan {
        policies: policies.iter().flat_map(|name| Policy::named(name).unwrap()).collect(),
        capacities: capacities.iter().map(|text| text.parse().unwrap()).collect(),
        ways: vec![16],
        page_bytes: 4096,
        seed: 1,
        jobs: 1,
        scratch: std::env::temp_dir(),
        memory_bytes: None,
    }
}

fn without_time(mut rows: Vec<Row>) -> Vec<Row> {
    rows.iter_mut().for_each(|row| row.seconds = 0.0);
    rows
}

/// Returns pages that hit and miss at any size.
fn mixed(len: u64) -> Vec<u64> {
    (0..len).map(|number| if number % 3 == 0 { number % 4000 } else { number * number % 20_011 }).collect()
}

#[test]
fn results_are_exact_and_do_not_depend_on_the_number_of_threads() {
    let trace = trace("mixed", mixed(150_000));
    let mut plan = plan(&["engine"], &["1%", "10%", "500p"]);
    plan.ways = WAYS.to_vec();
    let never = AtomicBool::new(false);
    let one = without_time(simulate(&trace, &plan, &never, &mut |_| ()).unwrap());
    plan.jobs = 5;
    let five = without_time(simulate(&trace, &plan, &never, &mut |_| ()).unwrap());
    assert_eq!(one, five);
    assert_eq!(one.len(), PolicyKind::ALL.len() * 3 * 3);
    for row in &one {
        let Policy::Engine(kind) = Policy::named(row.policy).unwrap()[0] else { panic!("{row:?}") };
        let mut alone = engine_cache(kind, row.ways.unwrap(), row.asked_pages, 1);
        assert_eq!(row.misses, alone.run(&mixed(150_000)), "{row:?}");
        assert_eq!(row.capacity_pages, engine_capacity(row.ways.unwrap(), row.asked_pages));
        assert!(row.complete && row.requests == 150_000, "{row:?}");
    }
}

#[test]
fn an_interrupted_run_keeps_its_counts_and_is_marked_incomplete() {
    let stop = AtomicBool::new(false);
    let mut plan = plan(&["lru", "fifo"], &["1000p"]);
    plan.jobs = 2;
    let mut stop_soon = |progress: Progress<'_>| stop.store(progress.requests >= 100_000, Ordering::Relaxed);
    let rows = simulate(&trace("long", mixed(3_000_000)), &plan, &stop, &mut stop_soon).unwrap();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert!(!row.complete && row.requests >= 100_000 && row.requests < 3_000_000, "{row:?}");
        assert_eq!(row.requests, rows[0].requests);
    }
    let counting =
        simulate(&trace("long", mixed(3_000_000)), &self::plan(&["lru"], &["1%"]), &stop, &mut |_| ());
    assert_eq!(counting.unwrap(), Vec::new());
}

#[test]
fn policies_that_know_the_future_miss_least() {
    let plan = Plan { ways: vec![8, 16], jobs: 2, ..plan(&["all"], &["10%", "500p"]) };
    let rows =
        simulate(&trace("mixed", mixed(100_000)), &plan, &AtomicBool::new(false), &mut |_| ()).unwrap();
    let by_ways = Policy::all().iter().map(|policy| policy.ways_among(&plan.ways).len()).sum::<usize>();
    assert_eq!(rows.len(), 2 * by_ways);
    for capacity in ["10%", "500p"] {
        let of = |policy, ways| {
            let found = |row: &&Row| row.policy == policy && row.ways == ways && row.capacity == capacity;
            rows.iter().find(found).unwrap().misses
        };
        let least = of("global-opt", None);
        for row in rows.iter().filter(|row| row.capacity == capacity) {
            assert!(row.misses >= least || row.capacity_pages > row.asked_pages, "{row:?}");
            let limit = row.ways.filter(|_| row.policy != "set-opt").map(|ways| of("set-opt", Some(ways)));
            assert!(limit.is_none_or(|limit| row.misses >= limit), "{row:?}");
        }
    }
}

#[test]
fn an_error_in_the_middle_of_a_trace_ends_the_run() {
    struct Broken(u32);
    impl Source for Broken {
        fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
            self.0 += 1;
            if self.0 > 9 {
                return Err(SourceError("broken:7: not a number".into()));
            }
            pages.extend(0..CHUNK as u64);
            Ok(())
        }
        fn progress(&self) -> Option<f64> {
            None
        }
    }
    let trace = Trace { name: "broken".into(), open: Box::new(|| Ok(Box::new(Broken(0)))) };
    for (jobs, capacity) in [(1, "10p"), (3, "10p"), (1, "1%")] {
        let plan = Plan { jobs, ..plan(&["lru"], &[capacity]) };
        let error = simulate(&trace, &plan, &AtomicBool::new(false), &mut |_| ()).unwrap_err();
        assert!(error.0.contains("broken:7"), "{error}");
    }
}

#[test]
fn a_trace_without_accesses_is_an_error() {
    for capacity in ["1%", "10p"] {
        let plan = plan(&["lru"], &[capacity]);
        let empty = simulate(&trace("empty", Vec::new()), &plan, &AtomicBool::new(false), &mut |_| ());
        assert!(empty.unwrap_err().0.contains("no accesses"));
    }
}
