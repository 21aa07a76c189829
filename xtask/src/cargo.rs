//! Runs cargo and other programs, and knows the target folders of builds with other flags.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::step::Outcome;

/// Runs cargo in the repository's root with additional environment variables.
pub fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Outcome {
    match command(root, arguments, environment).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Outcome::Failed(format!("cannot run cargo: {error}")),
    }
}

/// Creates a cargo command that has not been started yet.
pub fn command(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Command {
    // `cargo` and not $CARGO, which belongs to this toolchain: miri needs another toolchain.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root);
    for (name, value) in environment {
        command.env(name, value);
    }
    command
}

/// Runs a program, ignores its output, and returns whether it succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the names of the tests that a command lists. An empty list is an error, because a run of
/// no tests would pass.
pub fn listed(list: &mut Command) -> Result<Vec<String>, String> {
    let tests = tests_of(list)?;
    if tests.is_empty() {
        Err("cargo lists no tests, so the run would check nothing".into())
    } else {
        Ok(tests)
    }
}

/// Returns the names of the tests that a command lists, of which there may be none.
pub fn tests_of(list: &mut Command) -> Result<Vec<String>, String> {
    let name = list.get_program().display().to_string();
    let output =
        list.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name} cannot list its tests: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Returns the compiler flags from the environment, with a `--cfg` appended.
pub fn with_cfg(cfg: &str) -> String {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    format!("{flags} --cfg {cfg}").trim_start().to_owned()
}

/// Returns the target folder of builds with other flags. It is inside the usual target folder, so
/// that `cargo clean` removes it.
pub fn target_of(root: &Path, name: &str) -> String {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    target.join(name).display().to_string()
}

/// Builds tests; returns cargo's messages about its artifacts.
pub fn build(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Result<Vec<Value>, String> {
    let options = ["test", "--no-run", "--locked", "--message-format", "json-render-diagnostics"];
    let mut cargo = command(root, &[&options[..], arguments].concat(), environment);
    cargo.stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run {}: {}", arguments.join(" "), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Returns the path of a test program, or of the program `octavo`.
pub fn executable(built: &[Value], name: &str) -> Option<PathBuf> {
    let of_name = |message: &&Value| message["target"]["name"] == name && message["executable"].is_string();
    let is_test = |message: &&Value| message["profile"]["test"] == true;
    let all: Vec<&Value> = built.iter().filter(of_name).collect();
    let wants_test = name != "octavo";
    let message = all.into_iter().find(|message| is_test(message) == wants_test)?;
    Some(PathBuf::from(message["executable"].as_str()?))
}
