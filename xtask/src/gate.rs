//! Runs steps: stage by stage, until a step fails. Prints each step's headline and time.
//!
//! A stage of one step runs in this process. The steps of a longer stage run concurrently, each in
//! a process of its own ([`run_alone`]), and the output of a step is printed when the step has
//! ended.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::jobs::{self, Ended, Job};
use crate::step::{Outcome, Step};

/// The word that makes this program run one step and nothing else.
pub const ALONE: &str = "--alone";

/// The exit status of a step that was skipped.
const SKIPPED: u8 = 3;

/// The steps that have run so far, with their outcomes and times.
#[derive(Default)]
struct Tally {
    times: Vec<(&'static str, &'static str, Duration)>,
}

impl Tally {
    fn count(&self, word: &str) -> usize {
        self.times.iter().filter(|(_, said, _)| *said == word).count()
    }

    /// Records and prints the outcome of a step, whose output has been printed. Returns true if the
    /// step did not fail.
    fn end(&mut self, step: &Step, outcome: &Outcome, time: Duration) -> bool {
        let word = match outcome {
            Outcome::Passed => "passed",
            Outcome::Skipped(_) => "SKIPPED",
            Outcome::Failed(_) => "FAILED",
        };
        println!("=== {}: {word} in {:.1} s", step.name, time.as_secs_f64());
        self.times.push((step.name, word, time));
        !matches!(outcome, Outcome::Failed(_))
    }
}

/// Runs stages until a step fails. Returns true if no step failed.
pub fn run(stages: &[&[&Step]], root: &Path) -> bool {
    let begun = Instant::now();
    let mut tally = Tally::default();
    for stage in stages {
        let passed = match stage {
            [step] => run_here(step, root, &mut tally),
            steps => run_side_by_side(steps, &mut tally, command),
        };
        if !passed {
            break;
        }
    }
    println!();
    for (name, word, time) in &tally.times {
        println!("{name:<12} {word:<8} {:>7.1} s", time.as_secs_f64());
    }
    let left = stages.iter().map(|stage| stage.len()).sum::<usize>() - tally.times.len();
    if left > 0 {
        println!("{left} steps were not run");
    }
    let failed = tally.count("FAILED");
    println!("gate: {} skipped, {:.0} s", tally.count("SKIPPED"), begun.elapsed().as_secs_f64());
    println!("{} passed, {failed} failed", tally.count("passed"));
    failed == 0
}

fn run_here(step: &Step, root: &Path, tally: &mut Tally) -> bool {
    headline(step);
    let begun = Instant::now();
    let outcome = (step.run)(root);
    say(&outcome);
    tally.end(step, &outcome, begun.elapsed())
}

/// Runs one step of a stage, in a process of its own.
pub fn run_alone(step: &Step, root: &Path) -> ExitCode {
    let outcome = (step.run)(root);
    say(&outcome);
    match outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Skipped(_) => ExitCode::from(SKIPPED),
        Outcome::Failed(_) => ExitCode::FAILURE,
    }
}

fn headline(step: &Step) {
    println!("\n=== {}: {}", step.name, step.purpose);
}

fn say(outcome: &Outcome) {
    match outcome {
        Outcome::Passed => {}
        Outcome::Skipped(why) => println!("SKIPPED: {why}"),
        Outcome::Failed(what) => println!("{what}"),
    }
}

fn run_side_by_side(steps: &[&Step], tally: &mut Tally, command: impl Fn(&Step) -> Command) -> bool {
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    println!("\n=== concurrently: {}", names.join(" "));
    let jobs = steps.iter().map(|step| Job { name: step.name.to_owned(), command: command(step) });
    let mut passed = true;
    jobs::run(jobs.collect(), jobs::lanes(), |ended: Ended| {
        let step = steps.iter().find(|step| step.name == ended.name).expect("every job is a step");
        headline(step);
        jobs::print(&ended.output);
        let outcome = match ended.status {
            Ok(status) if status.success() => Outcome::Passed,
            Ok(status) if status.code() == Some(SKIPPED.into()) => Outcome::Skipped(String::new()),
            Ok(status) => Outcome::Failed(status.to_string()),
            Err(error) => {
                println!("cannot run xtask: {error}");
                Outcome::Failed(error.to_string())
            }
        };
        passed &= tally.end(step, &outcome, ended.time);
        passed
    });
    passed
}

/// Creates a command that runs this program again, for one step. The path stays valid when a build
/// replaces the program.
fn command(step: &Step) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([ALONE, step.name]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, run: fn(&Path) -> Outcome) -> Step {
        Step { name, purpose: "p", run }
    }

    #[test]
    fn a_failing_step_stops_the_gate_and_a_skipped_one_does_not() {
        let passes = step("a", |_| Outcome::Passed);
        let skips = step("b", |_| Outcome::Skipped("no tool".into()));
        let fails = step("c", |_| Outcome::Failed("wrong".into()));
        let never = step("d", |_| panic!("a step ran after a failed one"));
        assert!(run(&[&[&passes], &[&skips], &[&passes]], Path::new(".")));
        assert!(!run(&[&[&passes], &[&fails], &[&never]], Path::new(".")));
    }

    #[test]
    fn steps_side_by_side_pass_skip_and_fail_by_their_exit_status() {
        let [passes, skips, fails] = ["0", "3", "1"].map(|name| step(name, |_| panic!("it ran here")));
        let exits = |step: &Step| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exit {}", step.name)]);
            shell
        };
        let mut tally = Tally::default();
        assert!(run_side_by_side(&[&passes, &skips], &mut tally, exits));
        assert_eq!((tally.count("passed"), tally.count("SKIPPED"), tally.count("FAILED")), (1, 1, 0));
        assert!(!run_side_by_side(&[&passes, &fails], &mut tally, exits));
        assert_eq!((tally.count("passed"), tally.count("SKIPPED"), tally.count("FAILED")), (2, 1, 1));
    }
}
