//! `cargo xtask python`: the tests of the Python package. They need `python3` of at least 3.11 and
//! nothing from a package index: tests that need numpy or fsspec are skipped without them.
//!
//! `bindings/python/check.sh` (`cargo xtask python-suites`) installs the wheel, and runs these
//! tests and suites of other projects with it.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, succeeds, target_of};
use crate::program::{self, Folder};
use crate::step::Outcome;

/// The folder of the package.
const PACKAGE: &str = "bindings/python";

/// Builds the module and the program, and runs the tests with a package made of them.
pub fn run(root: &Path) -> Outcome {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let is_new = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !succeeds(Command::new(&python).args(["-c", is_new])) {
        return Outcome::Skipped(format!("{python} of at least 3.11 is missing"));
    }
    let octavo = match program::octavo(root) {
        Ok(octavo) => octavo,
        Err(outcome) => return outcome,
    };
    match cargo(root, &["build", "--locked", "-p", "octavo-python"], &[]) {
        Outcome::Passed => {}
        other => return other,
    }
    let folder = match Folder::new(&std::env::temp_dir(), "python") {
        Ok(folder) => folder,
        Err(outcome) => return outcome,
    };
    if let Err(error) = lay_out(root, &folder) {
        return Outcome::Failed(format!("{}: {error}", folder.display()));
    }
    let tests = ["-m", "unittest", "discover", "-t", ".", "-s", "tests"];
    let status = Command::new(&python)
        .args(tests)
        .current_dir(root.join(PACKAGE))
        .env("PYTHONPATH", &*folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OCTAVO_PROGRAM", octavo)
        .status();
    match status {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{python} {}: {status}", tests.join(" "))),
        Err(error) => Outcome::Failed(format!("cannot run {python}: {error}")),
    }
}

/// Makes the package `octavo` in a folder, as a wheel would install it.
fn lay_out(root: &Path, folder: &Path) -> std::io::Result<()> {
    let package = folder.join("octavo");
    std::fs::create_dir(&package)?;
    for entry in std::fs::read_dir(root.join(PACKAGE).join("python/octavo"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), package.join(entry.file_name()))?;
        }
    }
    std::fs::copy(target_of(root, "debug/lib_octavo.so"), package.join("_octavo.abi3.so"))?;
    Ok(())
}

/// Installs the wheel in clean environments, and runs the suites of other projects.
pub fn run_suites(root: &Path) -> Outcome {
    let script = root.join(PACKAGE).join("check.sh");
    match Command::new(&script).current_dir(root).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{}: {status}", script.display())),
        Err(error) => Outcome::Failed(format!("{}: {error}", script.display())),
    }
}
