//! Runs a suite: its cases in order, each on its stage.

use std::time::Instant;

use crate::case::Case;
use crate::drivers;
use crate::error::Error;
use crate::progress::{self, Begun, Listener};
use crate::stage::{Options, Run, Stage};
use crate::suite::Suite;

/// Runs all cases of a suite, in their order. Before it allocates anything, checks that the memory
/// for every case is available.
///
/// # Errors A sentence for the user: a case needs more memory than is available, the user
/// interrupted the run, or a case failed.
pub fn run(suite: &Suite, options: &Options, listener: &mut dyn Listener) -> Result<(), Error> {
    let free = octavo::pressure::PressureSource::linux().sample();
    suite.cases.iter().try_for_each(|case| unless_too_large(case, &free))?;
    let expected: Vec<f64> = suite.cases.iter().map(|case| options.expected_s(case)).collect();
    let started = Instant::now();
    let mut set: Option<(String, Stage)> = None;
    for (number, case) in suite.cases.iter().enumerate() {
        options.unless_stopped()?;
        let done = (number, suite.cases.len());
        let left_s = progress::left_s(&expected, number, started.elapsed());
        listener.begins(&Begun { case: case.name.clone(), done, left_s });
        let mut run = Run { suite: &suite.name, options, listener, done };
        let scenery = drivers::scenery(case);
        // The old stage is dropped before the next one is set: memory may not suffice for both.
        let same = set.take_if(|(known, _)| *known == scenery);
        set = None;
        let (_, stage) = set.insert(match same {
            Some(same) => same,
            None => (scenery, drivers::set(case, &mut run)?),
        });
        let rows = stage(case, &mut run)?;
        rows.iter().for_each(|row| listener.row(row));
    }
    Ok(())
}

/// Refuses a case that needs more memory than the machine and the control groups of this process
/// have available.
fn unless_too_large(case: &Case, free: &octavo::pressure::Sample) -> Result<(), Error> {
    let (needed, available) = (drivers::memory_bytes(case), free.available_bytes.unwrap_or(u64::MAX));
    if needed <= available {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let bound = free.bound_bytes.map_or(String::new(), |bound| format!(" of {:.1} GiB", gib(bound)));
    Err(Error::new(format!(
        "{}: needs {:.1} GiB of memory, but only {:.1} GiB{bound} are available (the minimum of MemAvailable \
         and of what the control groups of this process leave); nothing was allocated. Give the cases less \
         memory with --memory, or choose other cases with --case",
        case.name,
        gib(needed),
        gib(available),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::tests::NeverBegins;

    #[test]
    fn a_suite_that_needs_too_much_memory_is_refused_before_anything_is_allocated() {
        let suite = Suite::find("resize", true).unwrap().with_memory_bytes(1 << 50).unwrap();
        let error = run(&suite, &Options::default(), &mut NeverBegins).unwrap_err().to_string();
        assert!(error.contains("needs 1331200.1 GiB"), "{error}");
        assert!(error.contains("GiB are available") && error.contains("less memory"), "{error}");
    }

    #[test]
    fn a_control_groups_limit_counts_like_the_machines_memory() {
        let case = &Suite::find("hits", false).unwrap().cases[0];
        let left = |available| octavo::pressure::Sample {
            available_bytes: Some(available),
            bound_bytes: Some(4 << 30),
            ..Default::default()
        };
        let error = unless_too_large(case, &left(2 << 30)).unwrap_err().to_string();
        assert!(
            error.contains("single_128: needs 3.6 GiB") && error.contains("2.0 GiB of 4.0 GiB"),
            "{error}"
        );
        assert!(unless_too_large(case, &left(4 << 30)).is_ok());
    }
}
