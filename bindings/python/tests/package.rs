//! The tests of the Python package, by `python3` of at least 3.11, with a package as a wheel would
//! install it. They need nothing from a package index: tests that need numpy or fsspec are skipped
//! without them. In the gate, and not as a step of its own, because cargo builds the module and the
//! server together with all other tests.
//!
//! `cargo xtask python-suites` runs them with the wheel, and suites of other projects.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The folder of cargo's profile, such as `target/debug`.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

/// Makes the package `octavo` in a folder.
fn lay_out(folder: &Path) {
    let package = folder.join("octavo");
    fs::create_dir(&package).unwrap();
    for entry in fs::read_dir(Path::new(HERE).join("python/octavo")).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    fs::copy(built().join("deps/lib_octavo.so"), package.join("_octavo.abi3.so")).unwrap();
}

#[test]
fn the_package_passes_its_own_tests() {
    let is_required = std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_some();
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let is_new = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"];
    if !Command::new(&python).args(is_new).status().is_ok_and(|status| status.success()) {
        assert!(!is_required, "{python} of at least 3.11 is missing");
        return eprintln!("skipped: {python} of at least 3.11 is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let mut tests = Command::new(&python);
    tests.args(["-m", "unittest", "discover", "-t", ".", "-s", "tests"]).current_dir(HERE);
    tests.env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    // The tests of servers are skipped without it: `cargo build -p octavo-cli`.
    let program = built().join("octavo");
    assert!(program.exists() || !is_required, "{} is missing", program.display());
    if program.exists() {
        tests.env("OCTAVO_PROGRAM", program);
    }
    let output = tests.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stderr.contains("Ran ") && !stderr.contains("Ran 0 tests"), "{stderr}");
}
