//! Tenants of one memory: in one shared cache, or in partitions that the reaper sizes by the value
//! of a page to each (Sharma, Kulkarni, Shenoy, "Per-VM Page Cache Partitioning for Cloud Computing
//! Platforms", COMSNETS '16).
//!
//! Every tenant has a file of its own; reads and writes are real. Rows have goals beside their
//! figures. Except in `isolation` a period is a number of operations, and the benchmark calls the
//! reaper at its end, so that hit ratios and sizes repeat.
//!
//! | experiment | what tenants do |
//! |---|---|
//! | `pair` | a random and a sequential reader: one cache, and partitions |
//! | `build` | a build beside a sequential reader: one cache, and partitions in 80 % of it |
//! | `phases` | two tenants change roles: how many periods until the sizes have followed |
//! | `stationary` | the same two without a change: how much memory moves in a period |
//! | `isolation` | a neighbour with `min` beside a scanner, with a partition or without a cache |

mod goal;
mod house;
mod isolation;
mod pair;
mod sizes;
mod work;

use octavo::disk::Store;

use crate::case::{Case, Experiment};
use crate::error::Error;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Driver, Run};

pub const DRIVER: Driver = Driver {
    name: "partitions",
    purpose: "tenants in one cache and in partitions",
    contestants: &[],
    scenery: &["store", "file"],
    check: |_| Ok(()),
    memory: |needs| 2 * needs.file + needs.frames,
    set: |case, run| {
        let files = [Scratch::new(case, "", run)?, Scratch::new(case, "-2", run)?];
        Ok(Box::new(move |case, run| row(&files, case, run).map(|row| vec![row])))
    },
};

fn row(files: &[Scratch; 2], case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let stores: [&Store; 2] = [&files[0].store, &files[1].store];
    let mut row = Row::new(run.suite, case);
    match case.experiment {
        Experiment::Pair => pair::random_and_sequential(case, stores, run, &mut row)?,
        Experiment::Build => pair::build(case, stores, run, &mut row)?,
        Experiment::Phases => sizes::phases(case, stores, run, &mut row)?,
        Experiment::Stationary => sizes::stationary(case, stores, run, &mut row)?,
        Experiment::Isolation => isolation::run(case, files, run, &mut row)?,
    }
    Ok(row)
}

#[cfg(test)]
mod tests;
