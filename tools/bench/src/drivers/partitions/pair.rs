//! One cache against partitions: a random and a sequential reader, and a build beside a sequential
//! reader.

use octavo::disk::Store;

use super::house::{Done, House, Plan, Sharing};
use super::work::{self, Work};
use super::{Goal, judge};
use crate::Error;
use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::drivers::Run;
use crate::report::Row;

/// Periods until sizes have settled, and those that count.
const SETTLING: usize = 48;
const COUNTED: usize = 24;

/// What one way of sharing did, and what the second tenant had of the memory.
pub struct Outcome {
    pub done: Done,
    pub second_bytes: u64,
}

/// Runs two tenants until all is settled, and then counts.
pub fn settle_and_count(
    plan: &Plan,
    tenants: Vec<(&Store, Work)>,
    news: &mut dyn FnMut(usize) -> Result<(), Error>,
) -> Result<Outcome, Error> {
    let mut house = House::new(plan, tenants)?;
    // In a period each reads an eighth of the memory.
    let accesses = (plan.memory_bytes / PAGE_BYTES as u64 / 8).max(256) as usize;
    house.run(SETTLING, accesses, news)?;
    let done = house.run(COUNTED, accesses, news)?;
    Ok(Outcome { done, second_bytes: house.resident_bytes(1) })
}

fn plan(case: &Case, sharing: Sharing, memory_bytes: u64) -> Plan {
    Plan { sharing, memory_bytes, policy: case.policy.0, ahead_bytes: case.ahead.0, seed: 1 }
}

/// The paper's experiment.
pub fn random_and_sequential(
    case: &Case,
    stores: [&Store; 2],
    run: &mut Run<'_>,
    row: &mut Row,
) -> Result<(), Error> {
    let pages = case.file.0 / PAGE_BYTES as u64;
    let mut by = |sharing| {
        let plan = plan(case, sharing, case.memory.0);
        let tenants =
            vec![(stores[0], work::pattern(&case.workload, pages, 1)?), (stores[1], work::sequential(pages))];
        settle_and_count(&plan, tenants, &mut |period| {
            run.news(case, &format!("{sharing:?}: period {period}"));
            run.options.unless_stopped()
        })
    };
    let (unified, utility) = (by(Sharing::Unified)?, by(Sharing::Utility)?);
    row.number("hit_ratio_unified", unified.done.hit_ratio());
    row.number("hit_ratio", utility.done.hit_ratio());
    let gain = utility.done.hit_ratio() - unified.done.hit_ratio();
    judge(row, ("hit_ratio_gain", "hit_ratio_gain_goal"), gain, Goal::AtLeast(0.09));
    row.number("random_hit_ratio_unified", unified.done.hit_ratio_of(0));
    row.number("random_hit_ratio", utility.done.hit_ratio_of(0));
    row.count("sequential_cache_bytes_unified", unified.second_bytes);
    row.count("sequential_cache_bytes", utility.second_bytes);
    let less = unified.second_bytes as f64 / utility.second_bytes.max(PAGE_BYTES as u64) as f64;
    judge(row, ("sequential_cache_fell", "sequential_cache_fell_goal"), less, Goal::AtLeast(10.0));
    let speed = utility.done.rate_of(1) / unified.done.rate_of(1);
    judge(row, ("sequential_speed_ratio", "sequential_speed_goal"), speed, Goal::AtLeast(0.98));
    row.number("speed_ratio", utility.done.rate() / unified.done.rate());
    Ok(())
}

/// A build in a cache that it shares with a sequential reader, and in a partition of its own in 80
/// % of the memory.
pub fn build(case: &Case, stores: [&Store; 2], run: &mut Run<'_>, row: &mut Row) -> Result<(), Error> {
    let pages = case.file.0 / PAGE_BYTES as u64;
    let mut by = |sharing, memory_bytes| {
        let plan = plan(case, sharing, memory_bytes);
        let tenants = vec![(stores[0], work::build(pages, 1)), (stores[1], work::sequential(pages))];
        settle_and_count(&plan, tenants, &mut |period| {
            run.news(case, &format!("{sharing:?}: period {period}"));
            run.options.unless_stopped()
        })
    };
    let less = case.memory.0 / 5 * 4;
    let (unified, utility) = (by(Sharing::Unified, case.memory.0)?, by(Sharing::Utility, less)?);
    row.count("memory_bytes_utility", less);
    row.number("build_hit_ratio_unified", unified.done.hit_ratio_of(0));
    row.number("build_hit_ratio", utility.done.hit_ratio_of(0));
    let gain = utility.done.hit_ratio_of(0) - unified.done.hit_ratio_of(0);
    judge(row, ("build_hit_ratio_gain", "build_hit_ratio_gain_goal"), gain, Goal::AtLeast(0.0));
    let gain = utility.done.hit_ratio() - unified.done.hit_ratio();
    judge(row, ("hit_ratio_gain", "hit_ratio_gain_goal"), gain, Goal::AtLeast(0.0));
    let speed = utility.done.rate() / unified.done.rate();
    judge(row, ("speed_ratio", "speed_goal"), speed, Goal::AtLeast(0.98));
    // What the speed would be if only misses took time.
    let misses = unified.done.misses() as f64 / utility.done.misses().max(1) as f64;
    row.number("speed_ratio_by_misses", misses);
    Ok(())
}
