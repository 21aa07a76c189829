//! Builds the workspace's tests once and then runs them concurrently.
//!
//! Many tests wait for a server, a slow disk or a timeout. Running at least two test programs at
//! once keeps the processors busy meanwhile. The longest programs begin first.

use std::path::Path;

use crate::cargo::{cargo, command};
use crate::jobs::{self, Job};
use crate::step::Outcome;

/// The integration tests that take longest, the longest first. Each is a program of its own.
const LONG: [&str; 2] = ["program", "engine"];

/// Runs unit, integration and documentation tests.
pub fn run(root: &Path) -> Outcome {
    let workspace = ["test", "--workspace", "--locked"];
    let built = cargo(root, &[&workspace[..], &["--no-run"]].concat(), &[]);
    if built != Outcome::Passed {
        return built;
    }
    let names = match integration_tests(root) {
        Ok(names) => names,
        Err(why) => return Outcome::Failed(why),
    };
    if let Some(gone) = LONG.iter().find(|long| !names.iter().any(|name| name == *long)) {
        return Outcome::Failed(format!(
            "no integration test is called {gone} any more; correct LONG in {}",
            file!()
        ));
    }
    let others = names.iter().map(String::as_str).filter(|name| !LONG.contains(name));
    let other_words: Vec<&str> = others.flat_map(|name| ["--test", name]).collect();
    let mut jobs: Vec<Job> = LONG.iter().map(|name| job(root, &workspace, &["--test", name])).collect();
    jobs.push(job(root, &workspace, &["--lib", "--bins"]));
    if !other_words.is_empty() {
        jobs.push(job(root, &workspace, &other_words));
    }
    jobs.push(job(root, &workspace, &["--doc"]));
    jobs::run_all(jobs, jobs::lanes())
}

/// Runs only the unit tests.
pub fn run_units(root: &Path) -> Outcome {
    cargo(root, &["test", "--workspace", "--locked", "--lib", "--bins"], &[])
}

fn job(root: &Path, workspace: &[&str], words: &[&str]) -> Job {
    let words = [workspace, words].concat();
    Job { name: format!("cargo {}", words.join(" ")), command: command(root, &words, &[]) }
}

/// Returns the names of all integration tests of the workspace.
fn integration_tests(root: &Path) -> Result<Vec<String>, String> {
    let metadata = crate::layers::metadata(root)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let mut names: Vec<String> =
        tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_tests_are_among_all() {
        let names = integration_tests(&crate::root()).unwrap();
        assert!(names.len() >= 5, "{names:?}");
        assert!(LONG.iter().all(|long| names.iter().any(|name| name == long)), "{names:?}");
    }
}
