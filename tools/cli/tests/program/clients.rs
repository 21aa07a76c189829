//! Programs of other people: whether they are here, and running them.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Whether all programs are here. Where one is missing this says so, or fails if they are required.
pub fn present(programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| find(program).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    let why = format!("{} not installed; `make test` installs what the tests need", missing.join(", "));
    skip(&why)
}

/// Says why a test is not run, or fails if everything is required; false, for the caller to return.
pub fn skip(why: &str) -> bool {
    assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none_or(|value| value != "1"), "{why}");
    println!("SKIP: {why}");
    false
}

/// Runs a program and its arguments, one per item; panics with its output if it fails.
pub fn succeed(program: &str, arguments: &[&str]) -> Output {
    let output = run(program, arguments);
    assert!(
        output.status.success(),
        "{program} {}: {}\n{}{}",
        arguments.join(" "),
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Runs a program.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    let path = find(program).unwrap_or_else(|| panic!("{program} is not installed"));
    Command::new(path).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program's path. mkfs and its kind live where only root's PATH looks.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(program)).find(|path| path.is_file())
}
