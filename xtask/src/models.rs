//! Tests under a model checker: loom or shuttle.
//!
//! Each model runs in a process of its own, one process per processor. In a shared process, two
//! loom models at once take as long as one after the other: both map and unmap stacks all the time,
//! under the lock of the address space. And a model with a broken step (`broken.rs`) waits for all
//! others there, because the step is broken for the whole process.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cargo::{build, target_of, tests_of, with_cfg};
use crate::jobs::{self, Job};
use crate::step::Outcome;

/// Keeps glibc from returning memory to the kernel: a model allocates and frees the same memory in
/// each of its thousands of runs, and the kernel would clear it each time.
const KEEPS_MEMORY: [(&str, &str); 2] =
    [("MALLOC_TRIM_THRESHOLD_", "33554432"), ("MALLOC_MMAP_THRESHOLD_", "33554432")];

/// Runs the tests that exist under a model checker's `--cfg`. A warning in these tests is an error,
/// as everywhere else.
pub fn run(checker: &str, root: &Path, packages: &[&str]) -> Outcome {
    match jobs_of(checker, root, packages) {
        Ok(jobs) => {
            println!("{} models", jobs.len());
            jobs::run_all(jobs, jobs::lanes())
        }
        Err(why) => Outcome::Failed(format!("under --cfg {checker}: {why}")),
    }
}

/// Builds the tests. Returns a job for each. An empty list is an error, because a run of no tests
/// would pass.
fn jobs_of(checker: &str, root: &Path, packages: &[&str]) -> Result<Vec<Job>, String> {
    let flags = with_cfg(checker) + " -D warnings";
    let environment = [("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target_of(root, checker))];
    let built = build(root, &[&["--profile", "models"], packages].concat(), &environment)?;
    let mut jobs = Vec::new();
    for (program, folder) in programs(&built) {
        // Some programs have no tests under a model checker.
        let tests = tests_of(Command::new(&program).arg("--list"))?;
        jobs.extend(
            tests.into_iter().map(|test| Job { command: model(&program, &folder, &test), name: test }),
        );
    }
    if jobs.is_empty() { Err("there are no models, so the run would check nothing".into()) } else { Ok(jobs) }
}

/// Returns the path of each test program and the folder of its package, from cargo's messages.
fn programs(built: &[Value]) -> Vec<(PathBuf, PathBuf)> {
    let tests = built.iter().filter(|message| message["profile"]["test"] == true);
    tests
        .filter_map(|message| {
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some((PathBuf::from(message["executable"].as_str()?), manifest.parent()?.to_path_buf()))
        })
        .collect()
}

/// Returns a command that runs one test in the folder of its package, as cargo does.
fn model(program: &Path, folder: &Path, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--test-threads", "1"]).current_dir(folder).envs(KEEPS_MEMORY);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_run_each_in_the_folder_of_its_package() {
        let messages = [
            r#"{"profile":{"test":true},"executable":"/t/table-1","manifest_path":"/r/table/Cargo.toml"}"#,
            r#"{"profile":{"test":false},"executable":"/t/octavo","manifest_path":"/r/cli/Cargo.toml"}"#,
            r#"{"profile":{"test":true},"executable":null,"manifest_path":"/r/disk/Cargo.toml"}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let built = messages.map(|message| serde_json::from_str(message).unwrap());
        assert_eq!(programs(&built), [("/t/table-1".into(), "/r/table".into())]);
    }
}
