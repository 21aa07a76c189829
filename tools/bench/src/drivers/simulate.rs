//! Hit ratios of policies by cache size, through the simulator (HotStorage '12, Figure 6). The
//! contestants are the simulator's policies.

use std::sync::atomic::AtomicBool;

use octavo_sim::plan::Policy;
use octavo_sim::simulate::{Plan, Trace, simulate};

use crate::Error;
use crate::case::{Case, Value};
use crate::content::PAGE_BYTES;
use crate::drivers::{Run, Stage};
use crate::report::Row;

/// Accesses of a run, for each page of the file; the first ones fill the cache.
const ACCESSES_PER_PAGE: u64 = 10;

/// Pages of a set.
const WAYS: u32 = 16;

/// Nothing lasts from case to case.
pub struct Simulator;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    case.contestants.iter().try_for_each(|name| Policy::named(name).map(drop))
}

impl Stage for Simulator {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let pages = case.file.0 / PAGE_BYTES as u64;
        let requests = pages * ACCESSES_PER_PAGE;
        let line = case.workload.line(pages, 1, requests);
        let named = case.contestants.iter().map(|name| Policy::named(name));
        let policies = named.collect::<Result<Vec<_>, _>>().map_err(Error::new)?.concat();
        // A share of the file and not of the pages that the accesses happen to touch, so that sizes are the
        // same for all workloads.
        let capacity = format!("{}p", (pages * u64::from(case.share.0) / 100).max(1));
        let plan = Plan {
            policies,
            capacities: vec![capacity.parse().map_err(Error::new)?],
            ways: vec![WAYS],
            page_bytes: PAGE_BYTES as u64,
            seed: 1,
            jobs: case.threads.0,
            scratch: std::env::temp_dir(),
        };
        let trace = Trace { name: line.clone(), open: Box::new(|| octavo_sim::generate::parse(&line)) };
        let stop = AtomicBool::new(false);
        let found = simulate(&trace, &plan, &stop, &mut |progress| {
            run.news(case, &format!("{} accesses", progress.requests));
        });
        let rows = found.map_err(Error::at("the simulator"))?.into_iter().map(|found| {
            let mut row = Row::new(run.suite, case);
            row.case = format!("{}_{}", case.name, found.policy);
            row.fact("who", Value::Text(found.policy.into()));
            row.number("hit_ratio", 1.0 - found.miss_ratio);
            row.count("cache_pages", found.capacity_pages);
            row.count("accesses", found.requests);
            row
        });
        Ok(rows.collect())
    }
}
