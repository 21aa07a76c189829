//! Other programs: whether they are installed, and running them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether all programs are installed. If one is missing, prints so, or fails if they are required.
pub fn present(programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| find(program).is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    let why = format!("{} not installed; `make test` installs what the tests need", missing.join(", "));
    skip(&why)
}

/// Prints why a test is skipped, or fails if all tests are required. Returns false.
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

/// Runs a line of shell in a directory.
pub fn shell(directory: &Path, line: &str) -> Output {
    Command::new("/bin/sh").args(["-c", line]).current_dir(directory).output().unwrap()
}

/// The same for a line that must succeed; what it printed.
pub fn shell_succeeds(directory: &Path, line: &str) -> String {
    let output = shell(directory, line);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{line}\n{said}\n{}", text(&output.stderr));
    said
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program's path. Programs such as mkfs are in directories that only root's PATH has.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(program)).find(|path| path.is_file())
}
