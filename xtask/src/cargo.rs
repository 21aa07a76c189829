//! Runs cargo and other programs, and says where builds with other flags lie.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::step::Outcome;

/// Runs cargo in the repository's root with more environment.
pub fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Outcome {
    match command(root, arguments, environment).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Outcome::Failed(format!("cargo cannot be run: {error}")),
    }
}

/// A cargo that has not been started yet.
pub fn command(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Command {
    // `cargo` and not $CARGO, which is this toolchain's: miri needs another one.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root);
    for (name, value) in environment {
        command.env(name, value);
    }
    command
}

/// Runs a program for its exit status alone.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the names of the tests that a command lists. No test at all is an error, because a run
/// of none would pass.
pub fn listed(list: &mut Command) -> Result<Vec<String>, String> {
    let output =
        list.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("building ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let tests: Vec<String> =
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    if tests.is_empty() { Err("there is no test: the models are gone".into()) } else { Ok(tests) }
}

/// The compiler flags of the environment, and a `--cfg`.
pub fn with_cfg(cfg: &str) -> String {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    format!("{flags} --cfg {cfg}").trim_start().to_owned()
}

/// The folder of builds with other flags: inside of the usual one, so that `cargo clean` finds it.
pub fn target_of(root: &Path, name: &str) -> String {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    target.join(name).display().to_string()
}
