//! A step of the gate, and how it ends.

use std::path::Path;

/// A part of the gate.
pub struct Step {
    /// The name on the command line.
    pub name: &'static str,
    /// What the step checks, for people.
    pub purpose: &'static str,
    /// Runs the step in the repository's root.
    pub run: fn(&Path) -> Outcome,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The step found no problem.
    Passed,
    /// The step could not run on this machine. Contains the reason.
    Skipped(String),
    /// The step found problems, or could not run. Contains their descriptions.
    Failed(String),
}

impl Outcome {
    /// Returns the first outcome that is not `Passed`, or `Passed` if there is none.
    pub fn first_bad(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
    }
}
