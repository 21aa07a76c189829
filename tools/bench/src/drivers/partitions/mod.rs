//! Tenants of one memory: shared as one cache, or as partitions that the reaper sizes by what a
//! page is worth to each (Sharma, Kulkarni, Shenoy, "Per-VM Page Cache Partitioning for Cloud
//! Computing Platforms", COMSNETS '16).
//!
//! Every tenant has a file of its own, and reads and writes are real. Rows have their goals beside
//! them. Where it does not say otherwise, a period is a number of operations and the reaper is
//! asked for its next steps at its end, so that hit ratios and sizes repeat.
//!
//! | experiment | is |
//! |---|---|
//! | `pair` | a random and a sequential reader: one cache, and partitions |
//! | `build` | a build of many small files beside a sequential reader: one cache, and partitions in 80 % of it |
//! | `phases` | two tenants change roles: how many periods until the sizes have followed |
//! | `stationary` | the same two without a change: how much memory moves in a period |
//! | `isolation` | a neighbour with `min` beside a scanner at full speed, which has a partition or no cache at all |

mod house;
mod isolation;
mod pair;
mod sizes;
mod work;

use crate::Error;
use crate::case::{Case, Experiment, Value};
use crate::drivers::{Run, Stage};
use crate::report::Row;
use crate::scratch::Scratch;

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "file"];

/// Two tenants' files.
pub struct Field {
    files: [Scratch; 2],
}

impl Field {
    /// Makes them.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        Ok(Field { files: [Scratch::new(case, "", run)?, Scratch::new(case, "-2", run)?] })
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let stores = [&self.files[0].store, &self.files[1].store];
        let mut row = Row::new(run.suite, case);
        match case.experiment {
            Experiment::Pair => pair::random_and_sequential(case, stores, run, &mut row)?,
            Experiment::Build => pair::build(case, stores, run, &mut row)?,
            Experiment::Phases => sizes::phases(case, stores, run, &mut row)?,
            Experiment::Stationary => sizes::stationary(case, stores, run, &mut row)?,
            Experiment::Isolation => isolation::run(case, &self.files, run, &mut row)?,
        }
        Ok(vec![row])
    }
}

/// What a figure should be.
#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    Below(f64),
}

/// Puts a figure into a row, and its goal beside it under a name of its own.
fn judge(row: &mut Row, (name, goal_name): (&'static str, &'static str), figure: f64, goal: Goal) {
    let (is_met, text) = match goal {
        Goal::AtLeast(least) => (figure >= least, format!("at least {least}")),
        Goal::Below(most) => (figure < most, format!("below {most}")),
    };
    row.number(name, figure);
    row.fact(goal_name, Value::Text(format!("{text}: {}", if is_met { "met" } else { "MISSED" })));
}

#[cfg(test)]
mod tests;
