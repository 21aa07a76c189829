//! Tests under miri, which finds undefined behaviour in unsafe code: those of the table in the
//! gate, those of the engine's memory in a step of their own.
//!
//! Miri runs one test at a time, so several instances run concurrently, each with a part of the
//! tests.

use std::path::Path;
use std::process::Command;

use crate::cargo::{listed, succeeds, target_of};
use crate::jobs::{self, Job};
use crate::step::Outcome;

/// The longest time that one part may take, in seconds. A longer part would make the gate too slow.
const SECONDS_MAX: u32 = 480;

/// Runs all tests of the table's library.
pub fn run(root: &Path) -> Outcome {
    if let Err(why) = install() {
        return Outcome::Skipped(why);
    }
    run_in_parts(root, "octavo-table", &[])
}

/// Runs the engine's tests of memory that callers own and of owned pins: memory is freed as soon as
/// its request has completed, and a pin outlives its cache.
pub fn run_memory(root: &Path) -> Outcome {
    if let Err(why) = install() {
        return Outcome::Failed(why);
    }
    run_in_parts(root, "octavo", &["memory::owned", "memory::pieces", "owned_pin"])
}

/// Runs the library tests of a package whose names contain one of `words`, or all.
fn run_in_parts(root: &Path, package: &str, words: &[&str]) -> Outcome {
    let tests = match listed(&mut interpreted(root, package, &[words, &["--list"]].concat())) {
        Ok(tests) => tests,
        Err(why) => return Outcome::Failed(why),
    };
    let parts_count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4);
    let part = |number: usize| -> Job {
        let names: Vec<&str> = tests.iter().skip(number).step_by(parts_count).map(String::as_str).collect();
        let name = format!("miri, part {} of {parts_count}", number + 1);
        Job { name, command: interpreted(root, package, &[&["--exact"], &names[..]].concat()) }
    };
    match jobs::run_all((0..parts_count).map(part).collect(), parts_count) {
        // The exit status of `timeout` when the time is over.
        Outcome::Failed(what) if what.contains("exit status: 124") => Outcome::Failed(format!(
            "{what}\nmiri took more than {SECONDS_MAX} s: make its tests smaller under cfg(miri)"
        )),
        outcome => outcome,
    }
}

/// Returns a command that runs the library tests of a package under miri. `words` are arguments of
/// the test program.
fn interpreted(root: &Path, package: &str, words: &[&str]) -> Command {
    let environment = [
        ("RUSTUP_TOOLCHAIN", "nightly".to_owned()),
        ("CARGO_TARGET_DIR", target_of(root, "miri")),
        // Miri does not optimize, and warns if the profile asks for it.
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0".to_owned()),
        // Tests read the clock, which isolation forbids.
        ("MIRIFLAGS", "-Zmiri-disable-isolation".to_owned()),
    ];
    // `timeout` ends the whole group of processes; killing cargo alone would leave its children
    // running.
    let mut bounded = Command::new("timeout");
    bounded.arg(format!("{SECONDS_MAX}")).arg("cargo");
    bounded
        .args(["miri", "test", "-p", package, "--lib", "--locked", "--"])
        .args(words)
        .current_dir(root)
        .envs(environment);
    bounded
}

/// Ensures that a nightly toolchain with miri is installed, through rustup if it is missing. The
/// error says why that failed.
fn install() -> Result<(), String> {
    let present = || succeeds(Command::new("cargo").args(["+nightly", "miri", "--version"]));
    if present() {
        return Ok(());
    }
    println!("miri is missing; installing it with rustup");
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal", "-c", "miri", "-c", "rust-src"]);
    if install.status().is_ok_and(|status| status.success()) && present() {
        Ok(())
    } else {
        Err("there is no nightly toolchain with miri, and rustup cannot install one".into())
    }
}
