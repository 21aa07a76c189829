//! Measures how fast sizes follow a change of phase, and how much they change without one.

use octavo::disk::Store;

use super::goal::{Goal, judge};
use super::house::{Done, House, Plan, Sharing};
use super::work;
use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::stage::Run;

/// Periods of a phase.
pub const PERIODS: usize = 96;

/// The goal: sizes follow a change within this many periods.
pub const FOLLOWED_WITHIN: usize = 24;

/// Sizes have followed when each is this close to its final size, as a share of all memory.
const NEAR: f64 = 0.1;

/// The goal: under a stationary load at most this share of all memory moves in a period, on
/// average.
pub const MOVED_MAX: f64 = 0.02;

/// Sizes have settled after this many periods.
const SETTLED: usize = 32;

fn accesses(memory_bytes: u64) -> usize {
    (memory_bytes / PAGE_BYTES as u64 / 4).max(256) as usize
}

/// Creates the two tenants of both experiments, and returns how many pages each reads. The pages of
/// the first would fill an eighth of the memory, those of the second seven tenths. Both read by the
/// case's workload.
fn house(case: &Case, stores: [&Store; 2], seed: u64) -> Result<(House, [u64; 2]), Error> {
    let memory_pages = case.memory.0 / PAGE_BYTES as u64;
    let (memory_bytes, ahead_bytes) = (case.memory.0, case.ahead.0);
    let plan = Plan { sharing: Sharing::Utility, memory_bytes, policy: case.policy.0, ahead_bytes, seed };
    let (few, most) = (memory_pages / 8, memory_pages * 7 / 10);
    let tenants = vec![
        (stores[0], work::pattern(&case.workload, few, seed)?),
        (stores[1], work::pattern(&case.workload, 3 * most, seed + 1)?),
    ];
    Ok((House::new(&plan, tenants)?, [few, 3 * most]))
}

/// Runs a phase, changes the roles, and runs another phase. Returns both.
pub fn two_phases(
    case: &Case,
    stores: [&Store; 2],
    seed: u64,
    news: &mut dyn FnMut(usize) -> Result<(), Error>,
) -> Result<[Done; 2], Error> {
    let (mut house, [few, many]) = house(case, stores, seed)?;
    let accesses = accesses(case.memory.0);
    let first = house.run(PERIODS, accesses, news)?;
    house.give_work(0, work::pattern(&case.workload, many, seed + 2)?);
    house.give_work(1, work::pattern(&case.workload, few, seed + 3)?);
    let second = house.run(PERIODS, accesses, news)?;
    Ok([first, second])
}

/// Returns the number of periods until all sizes stay near their means of the last quarter.
pub fn periods_until_at_rest(done: &Done, memory_bytes: u64) -> usize {
    let tenants = done.sizes[0].len();
    let late = &done.sizes[done.sizes.len() * 3 / 4..];
    let rest: Vec<f64> = (0..tenants)
        .map(|tenant| late.iter().map(|sizes| sizes[tenant] as f64).sum::<f64>() / late.len() as f64)
        .collect();
    let is_far = |sizes: &Vec<u64>| {
        sizes.iter().zip(&rest).any(|(size, rest)| (*size as f64 - rest).abs() > NEAR * memory_bytes as f64)
    };
    done.sizes.iter().rposition(is_far).map_or(0, |last| last + 1)
}

/// Returns the share of the memory that moved in a period, on average and at most, after sizes have
/// settled.
pub fn moved(done: &Done, memory_bytes: u64) -> (f64, f64) {
    let late = &done.moved[SETTLED..];
    let most = late.iter().max().copied().unwrap_or(0);
    let mean = late.iter().sum::<u64>() as f64 / late.len().max(1) as f64;
    (mean / memory_bytes as f64, most as f64 / memory_bytes as f64)
}

/// Measures how fast sizes follow a change of roles.
pub fn phases(case: &Case, stores: [&Store; 2], run: &mut Run<'_>, row: &mut Row) -> Result<(), Error> {
    let mut news = |period| run.step(case, &format!("period {period}"));
    let [before, after] = two_phases(case, stores, 1, &mut news)?;
    let figure = periods_until_at_rest(&after, case.memory.0) as f64;
    let goal = Goal::Below(FOLLOWED_WITHIN as f64 + 1.0);
    judge(row, ("periods_to_follow", "periods_to_follow_goal"), figure, goal);
    for (name, done) in [("bytes_before", &before), ("bytes_after", &after)] {
        row.add(name, done.sizes[PERIODS - 1][0]);
    }
    row.add("hit_ratio_before", before.hit_ratio());
    row.add("hit_ratio", after.hit_ratio());
    Ok(())
}

/// Measures how much memory moves without a change.
pub fn stationary(case: &Case, stores: [&Store; 2], run: &mut Run<'_>, row: &mut Row) -> Result<(), Error> {
    let (mut house, _) = house(case, stores, 1)?;
    let mut news = |period| run.step(case, &format!("period {period}"));
    let done = house.run(PERIODS, accesses(case.memory.0), &mut news)?;
    let (mean, most) = moved(&done, case.memory.0);
    judge(row, ("moved_per_period", "moved_per_period_goal"), mean, Goal::Below(MOVED_MAX));
    row.add("moved_per_period_max", most);
    row.add("hit_ratio", done.hit_ratio());
    Ok(())
}
