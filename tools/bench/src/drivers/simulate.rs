//! Simulated hit ratios of policies by cache size (HotStorage '12, Figure 6). The contestants are
//! the simulator's policies.

use std::sync::atomic::AtomicBool;

use octavo_sim::plan::Policy;
use octavo_sim::simulate::{Plan, Trace, simulate};

use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run};

pub const DRIVER: Driver = Driver {
    name: "simulate",
    purpose: "hit ratios of policies, simulated",
    contestants: &[],
    scenery: &[],
    check: |case| case.contestants.iter().try_for_each(|name| Policy::named(name).map(drop)),
    // Tables without frames.
    memory: |needs| needs.frames / 50,
    set: |_, _| Ok(Box::new(rows)),
};

/// Accesses of a run per page of the file. The first ones fill the cache.
const ACCESSES_PER_PAGE: u64 = 10;

/// The pages of a set.
const WAYS: u32 = 16;

fn rows(case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    let pages = case.file.0 / PAGE_BYTES as u64;
    let requests = pages * ACCESSES_PER_PAGE;
    let line = case.workload.line(pages, 1, requests);
    let named = case.contestants.iter().map(|name| Policy::named(name));
    let policies = named.collect::<Result<Vec<_>, _>>().map_err(Error::new)?.concat();
    // A share of the file, not of the pages that are accessed, so that all workloads have the same
    // sizes.
    let capacity = format!("{}p", (pages * u64::from(case.share.0) / 100).max(1));
    let plan = Plan {
        policies,
        capacities: vec![capacity.parse().map_err(Error::new)?],
        ways: vec![WAYS],
        page_bytes: PAGE_BYTES as u64,
        seed: 1,
        jobs: case.threads.0,
        scratch: std::env::temp_dir(),
        memory_bytes: None,
    };
    let trace = Trace { name: line.clone(), open: Box::new(|| octavo_sim::generate::parse(&line)) };
    let stop = AtomicBool::new(false);
    let found = simulate(&trace, &plan, &stop, &mut |progress| {
        run.news(case, &format!("{} accesses", progress.requests));
    });
    let rows = found.map_err(Error::at("the simulator"))?.into_iter().map(|found| {
        let mut row = Row::of_contestant(run.suite, case, found.policy);
        row.add("hit_ratio", 1.0 - found.miss_ratio);
        row.add("cache_pages", found.capacity_pages);
        row.add("accesses", found.requests);
        row
    });
    Ok(rows.collect())
}
