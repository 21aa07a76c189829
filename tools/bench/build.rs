//! Tells the crate the commit that it is built from.

use std::process::Command;

fn main() {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=OCTAVO_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    // Every commit and every switch of branches writes there; a path that does not exist would rebuild each time.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=src");
}
