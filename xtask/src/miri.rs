//! The table's tests under miri, which finds undefined behaviour in unsafe code.
//!
//! Miri runs one test at a time, so several of it run side by side with a part of the tests each.

use std::path::Path;
use std::process::Command;

use crate::cargo::{listed, succeeds, target_of};
use crate::jobs::{self, Job};
use crate::step::Outcome;

/// How long each part may take, in seconds. The whole gate should take twelve minutes.
const SECONDS_MAX: u32 = 480;

/// Runs all tests of the table's library.
pub fn run(root: &Path) -> Outcome {
    if let Err(why) = install() {
        return Outcome::Skipped(why);
    }
    let tests = match listed(&mut interpreted(root, &["--list"])) {
        Ok(tests) => tests,
        Err(why) => return Outcome::Failed(why),
    };
    let parts_count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4);
    let part = |number: usize| -> Job {
        let names: Vec<&str> = tests.iter().skip(number).step_by(parts_count).map(String::as_str).collect();
        let name = format!("miri, part {} of {parts_count}", number + 1);
        Job { name, command: interpreted(root, &[&["--exact"], &names[..]].concat()) }
    };
    match jobs::run_all((0..parts_count).map(part).collect(), parts_count) {
        // What `timeout` exits with.
        Outcome::Failed(what) if what.contains("exit status: 124") => Outcome::Failed(format!(
            "{what}\nmiri took more than {SECONDS_MAX} s: make its tests smaller under cfg(miri)"
        )),
        outcome => outcome,
    }
}

/// A run of the table's tests under miri. `words` go to the tests.
fn interpreted(root: &Path, words: &[&str]) -> Command {
    let environment = [
        ("RUSTUP_TOOLCHAIN", "nightly".to_owned()),
        ("CARGO_TARGET_DIR", target_of(root, "miri")),
        // Miri has no optimizations and warns of a profile that asks for them.
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0".to_owned()),
        // Tests look at the clock.
        ("MIRIFLAGS", "-Zmiri-disable-isolation".to_owned()),
    ];
    // `timeout` ends the whole group of processes; killing cargo alone would leave its children
    // running.
    let mut bounded = Command::new("timeout");
    bounded.arg(format!("{SECONDS_MAX}")).arg("cargo");
    bounded
        .args(["miri", "test", "-p", "octavo-table", "--lib", "--locked", "--"])
        .args(words)
        .current_dir(root)
        .envs(environment);
    bounded
}

/// Makes sure of a nightly toolchain with miri, installed by rustup if it is missing. The error
/// says why there is none.
fn install() -> Result<(), String> {
    let present = || succeeds(Command::new("cargo").args(["+nightly", "miri", "--version"]));
    if present() {
        return Ok(());
    }
    println!("miri is missing; asking rustup for it");
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal", "-c", "miri", "-c", "rust-src"]);
    if install.status().is_ok_and(|status| status.success()) && present() {
        Ok(())
    } else {
        Err("there is no nightly toolchain with miri, and rustup cannot install one".into())
    }
}
