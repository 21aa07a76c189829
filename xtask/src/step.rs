//! Steps and how they are run: one after the other, each under a headline and with its time, until
//! one fails.

use std::path::Path;
use std::time::{Duration, Instant};

/// A part of the gate.
pub struct Step {
    /// The word on the command line.
    pub name: &'static str,
    /// What it shows, for people.
    pub purpose: &'static str,
    /// Does it, in the repository's root.
    pub run: fn(&Path) -> Outcome,
}

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Passed,
    /// It could not be tried here, and why.
    Skipped(String),
    /// What is wrong.
    Failed(String),
}

/// Runs steps until one fails; true if none did.
pub fn run(steps: &[&Step], root: &Path) -> bool {
    let mut times: Vec<(&str, &str, Duration)> = Vec::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let begun = Instant::now();
    for step in steps {
        println!("\n=== {}: {}", step.name, step.purpose);
        let step_begun = Instant::now();
        let outcome = (step.run)(root);
        let time = step_begun.elapsed();
        let word = match &outcome {
            Outcome::Passed => {
                passed += 1;
                "passed"
            }
            Outcome::Skipped(why) => {
                skipped += 1;
                println!("SKIPPED: {why}");
                "SKIPPED"
            }
            Outcome::Failed(what) => {
                failed += 1;
                println!("{what}");
                "FAILED"
            }
        };
        println!("=== {}: {word} in {:.1} s", step.name, time.as_secs_f64());
        times.push((step.name, word, time));
        if failed > 0 {
            break;
        }
    }
    println!();
    for (name, word, time) in &times {
        println!("{name:<12} {word:<8} {:>7.1} s", time.as_secs_f64());
    }
    let left = steps.len() - times.len();
    if left > 0 {
        println!("{left} steps were not run");
    }
    println!("gate: {skipped} skipped, {:.0} s", begun.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_stops_the_gate_and_a_skipped_one_does_not() {
        fn step(run: fn(&Path) -> Outcome) -> Step {
            Step { name: "s", purpose: "p", run }
        }
        let passes = step(|_| Outcome::Passed);
        let skips = step(|_| Outcome::Skipped("no tool".into()));
        let fails = step(|_| Outcome::Failed("wrong".into()));
        let never = step(|_| panic!("a step ran after a failed one"));
        assert!(run(&[&passes, &skips, &passes], Path::new(".")));
        assert!(!run(&[&passes, &fails, &never], Path::new(".")));
    }
}
