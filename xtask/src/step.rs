//! A step of the gate, and how it ends.

use std::path::Path;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Passed,
    /// It could not be tried here, and why.
    Skipped(String),
    /// What is wrong.
    Failed(String),
}

impl Outcome {
    /// The outcome of several: the first that did not pass.
    pub fn first_bad(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
    }
}
