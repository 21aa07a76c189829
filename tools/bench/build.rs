//! Passes the commit and the compiler flags of this build to the crate.

use std::process::Command;

fn main() {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=OCTAVO_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=OCTAVO_FLAGS={}", flags());
    // Every commit and every switch of branches writes there; a path that does not exist would
    // rebuild each time.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=src");
}

/// The compiler, the target, the profile and the flags of this build.
fn flags() -> String {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let compiler = Command::new(variable("RUSTC")).arg("--version").output();
    let compiler = compiler.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let given = variable("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " ");
    format!(
        "{}, {}, {} opt-level={}{}{given}",
        compiler.unwrap_or_default(),
        variable("TARGET"),
        variable("PROFILE"),
        variable("OPT_LEVEL"),
        if given.is_empty() { "" } else { " " },
    )
}
