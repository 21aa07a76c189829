//! One cache beside partitions: a random and a sequential reader, and a build beside a sequential
//! reader.

use octavo::disk::Store;

use super::goal::{Goal, judge};
use super::house::{Done, House, Plan, Sharing};
use super::work::{self, Work};
use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::stage::Run;

/// The number of periods until sizes have settled, and the number of periods that count.
const SETTLING: usize = 48;
const COUNTED: usize = 24;

/// The counts of one way of sharing, and the bytes of the second tenant's resident pages.
pub struct Outcome {
    pub done: Done,
    pub second_bytes: u64,
}

/// Runs two tenants until sizes have settled, and then counts.
pub fn settle_and_count(
    plan: &Plan,
    tenants: Vec<(&Store, Work)>,
    news: &mut dyn FnMut(usize) -> Result<(), Error>,
) -> Result<Outcome, Error> {
    let mut house = House::new(plan, tenants)?;
    // In a period each tenant reads an eighth of the memory.
    let accesses = (plan.memory_bytes / PAGE_BYTES as u64 / 8).max(256) as usize;
    house.run(SETTLING, accesses, news)?;
    let done = house.run(COUNTED, accesses, news)?;
    Ok(Outcome { done, second_bytes: house.resident_bytes(1) })
}

/// Runs the tenants of an experiment, and reports its periods.
fn measure(
    case: &Case,
    sharing: Sharing,
    memory_bytes: u64,
    tenants: Vec<(&Store, Work)>,
    run: &mut Run<'_>,
) -> Result<Outcome, Error> {
    let plan = Plan { sharing, memory_bytes, policy: case.policy.0, ahead_bytes: case.ahead.0, seed: 1 };
    settle_and_count(&plan, tenants, &mut |period| run.step(case, &format!("{sharing:?}: period {period}")))
}

/// Runs the experiment of the paper.
pub fn random_and_sequential(
    case: &Case,
    stores: [&Store; 2],
    run: &mut Run<'_>,
    row: &mut Row,
) -> Result<(), Error> {
    let pages = case.file.0 / PAGE_BYTES as u64;
    let mut by = |sharing| {
        let random = work::pattern(&case.workload, pages, 1)?;
        let tenants = vec![(stores[0], random), (stores[1], work::sequential(pages))];
        measure(case, sharing, case.memory.0, tenants, run)
    };
    let (unified, utility) = (by(Sharing::Unified)?, by(Sharing::Utility)?);
    row.add("hit_ratio_unified", unified.done.hit_ratio());
    row.add("hit_ratio", utility.done.hit_ratio());
    let gain = utility.done.hit_ratio() - unified.done.hit_ratio();
    judge(row, ("hit_ratio_gain", "hit_ratio_gain_goal"), gain, Goal::AtLeast(0.09));
    row.add("random_hit_ratio_unified", unified.done.hit_ratio_of(0));
    row.add("random_hit_ratio", utility.done.hit_ratio_of(0));
    row.add("sequential_cache_bytes_unified", unified.second_bytes);
    row.add("sequential_cache_bytes", utility.second_bytes);
    let less = unified.second_bytes as f64 / utility.second_bytes.max(PAGE_BYTES as u64) as f64;
    judge(row, ("sequential_cache_fell", "sequential_cache_fell_goal"), less, Goal::AtLeast(10.0));
    let speed = utility.done.rate_of(1) / unified.done.rate_of(1);
    judge(row, ("sequential_speed_ratio", "sequential_speed_goal"), speed, Goal::AtLeast(0.98));
    row.add("speed_ratio", utility.done.rate() / unified.done.rate());
    Ok(())
}

/// Measures a build in a cache that it shares with a sequential reader, and in a partition of its
/// own in 80 % of the memory.
pub fn build(case: &Case, stores: [&Store; 2], run: &mut Run<'_>, row: &mut Row) -> Result<(), Error> {
    let pages = case.file.0 / PAGE_BYTES as u64;
    let mut by = |sharing, memory_bytes| {
        let tenants = vec![(stores[0], work::build(pages, 1)), (stores[1], work::sequential(pages))];
        measure(case, sharing, memory_bytes, tenants, run)
    };
    let less = case.memory.0 / 5 * 4;
    let (unified, utility) = (by(Sharing::Unified, case.memory.0)?, by(Sharing::Utility, less)?);
    row.add("memory_bytes_utility", less);
    row.add("build_hit_ratio_unified", unified.done.hit_ratio_of(0));
    row.add("build_hit_ratio", utility.done.hit_ratio_of(0));
    let gain = utility.done.hit_ratio_of(0) - unified.done.hit_ratio_of(0);
    judge(row, ("build_hit_ratio_gain", "build_hit_ratio_gain_goal"), gain, Goal::AtLeast(0.0));
    let gain = utility.done.hit_ratio() - unified.done.hit_ratio();
    judge(row, ("hit_ratio_gain", "hit_ratio_gain_goal"), gain, Goal::AtLeast(0.0));
    let speed = utility.done.rate() / unified.done.rate();
    judge(row, ("speed_ratio", "speed_goal"), speed, Goal::AtLeast(0.98));
    // The ratio of speeds that would result if only misses took time.
    let misses = unified.done.misses() as f64 / utility.done.misses().max(1) as f64;
    row.add("speed_ratio_by_misses", misses);
    Ok(())
}
