//! What the gate consists of.
//!
//! Cheap steps come first, so that a missing comma costs seconds. Each model checker builds into a
//! directory of its own: they need other flags, and would otherwise throw each other's builds away.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::step::{Outcome, Step};
use crate::{guest, instructions, layers, tidy};

/// The gate, in its order.
pub const GATE: &[Step] = &[
    Step { name: "fmt", purpose: "the code is formatted", run: fmt },
    Step {
        name: "tidy",
        purpose: "imports point down, prose fits its columns, files and functions their lengths, `unsafe` its list",
        run: tidy_step,
    },
    Step { name: "layers", purpose: "crates depend in one direction and on little", run: layers_step },
    Step {
        name: "deny",
        purpose: "licences, advisories and sources of dependencies (cargo-deny)",
        run: deny,
    },
    Step { name: "clippy", purpose: "no warning in any target", run: clippy },
    Step { name: "doc", purpose: "every public item is documented, every link leads somewhere", run: doc },
    Step { name: "test", purpose: "unit, integration and documentation tests", run: test },
    Step { name: "guest", purpose: "kernels with two and with four NUMA nodes (qemu)", run: guest::run },
    Step { name: "ways", purpose: "the table with sets of 8 and of 32 pages", run: ways },
    Step {
        name: "instructions",
        purpose: "hits take no more instructions than recorded (valgrind)",
        run: instructions::run,
    },
    Step { name: "loom", purpose: "the slot's protocol under all interleavings", run: loom },
    Step { name: "shuttle", purpose: "the engine under random interleavings", run: shuttle },
    Step { name: "miri", purpose: "the table's unsafe code under an interpreter", run: miri },
];

/// What takes too long for the gate. Run before a release.
pub const LONG: &[Step] = &[
    Step {
        name: "resident",
        purpose: "memory_max bounds the process through 100,000 connections and 40,000 threads (minutes)",
        run: resident,
    },
    Step {
        name: "churn-hour",
        purpose: "memory_max bounds the process through an hour of reads, writes and evictions",
        run: churn_hour,
    },
];

/// The gate has twenty minutes in all.
const MIRI_SECONDS_MAX: u32 = 480;

/// A step by its word; the error is the word.
pub fn by_name(name: &str) -> Result<&'static Step, &str> {
    GATE.iter().chain(LONG).find(|step| step.name == name).ok_or(name)
}

fn fmt(root: &Path) -> Outcome {
    cargo(root, &["fmt", "--all", "--check"], &[])
}

fn tidy_step(root: &Path) -> Outcome {
    found(tidy::check(root))
}

fn layers_step(root: &Path) -> Outcome {
    match layers::metadata(root) {
        Ok(metadata) => found(layers::check(&metadata)),
        Err(error) => Outcome::Failed(error),
    }
}

fn deny(root: &Path) -> Outcome {
    if !succeeds(Command::new("cargo").args(["deny", "--version"])) {
        return Outcome::Skipped("cargo-deny is not installed; `cargo install --locked cargo-deny`".into());
    }
    // Advisories come over the network; a gate without one still checks the rest.
    if !succeeds(Command::new("cargo").args(["deny", "fetch", "db"]).current_dir(root)) {
        println!("advisories cannot be fetched; checking everything else");
        return cargo(root, &["deny", "check", "licenses", "bans", "sources"], &[]);
    }
    cargo(root, &["deny", "check"], &[])
}

fn clippy(root: &Path) -> Outcome {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
}

fn doc(root: &Path) -> Outcome {
    let flags = ("RUSTDOCFLAGS", "-D warnings".to_owned());
    cargo(root, &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"], &[flags])
}

fn test(root: &Path) -> Outcome {
    cargo(root, &["test", "--workspace", "--locked"], &[])
}

/// The gate's tests of resident memory at full length, one server at a time.
fn resident(root: &Path) -> Outcome {
    let environment = [
        ("OCTAVO_RESIDENT_CONNECTIONS", "100000".to_owned()),
        ("OCTAVO_RESIDENT_THREADS", "40000".to_owned()),
    ];
    let tests = [("octavo-cli", "program"), ("octavo", "engine")];
    let outcomes = tests.map(|(package, binary)| {
        let words = ["test", "-p", package, "--test", binary, "--locked", "resident", "--"];
        cargo(root, &[&words[..], &["--nocapture", "--test-threads=1"]].concat(), &environment)
    });
    outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
}

fn churn_hour(root: &Path) -> Outcome {
    let bench = |words: &[&str]| {
        let program = ["run", "--release", "--locked", "-p", "octavo-cli", "--", "bench"];
        cargo(root, &[&program, words].concat(), &[])
    };
    // Half an hour each: reads and writes through a disk, then hits among evictions.
    let outcomes = [
        bench(&["memory", "--case", "max_256MiB", "--seconds", "1800"]),
        bench(&["churn", "--case", "cliff_90_1", "--seconds", "1800"]),
    ];
    outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
}

fn ways(root: &Path) -> Outcome {
    for ways in ["8", "32"] {
        let flags = with_cfg(&format!("octavo_ways=\"{ways}\""));
        let environment =
            [("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target_of(root, &format!("ways-{ways}")))];
        match cargo(root, &["test", "-p", "octavo-table", "--lib", "--tests", "--locked"], &environment) {
            Outcome::Passed => {}
            other => return other,
        }
    }
    Outcome::Passed
}

fn loom(root: &Path) -> Outcome {
    let arguments = ["test", "-p", "octavo-table", "-p", "octavo-message", "--release", "--lib", "--locked"];
    under("loom", root, &arguments)
}

fn shuttle(root: &Path) -> Outcome {
    let packages = ["-p", "octavo-table", "-p", "octavo-disk", "-p", "octavo-message", "-p", "octavo"];
    let arguments = [&["test"], &packages[..], &["--release", "--lib", "--tests", "--locked"]].concat();
    under("shuttle", root, &arguments)
}

/// Miri runs one test at a time: so several of it, with a part of the tests each.
fn miri(root: &Path) -> Outcome {
    if let Err(why) = install_miri() {
        return Outcome::Skipped(why);
    }
    let tests = match listed(&mut interpreted(root, &["--list"])) {
        Ok(tests) => tests,
        Err(why) => return Outcome::Failed(why),
    };
    let parts_count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4);
    let part = |number| tests.iter().skip(number).step_by(parts_count).map(String::as_str).collect();
    let parts: Vec<Vec<&str>> = (0..parts_count).map(part).collect();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let running: Vec<_> =
            parts.iter().map(|names| scope.spawn(|| run_interpreted(root, names))).collect();
        running.into_iter().map(|part| part.join().expect("a part does not panic")).collect()
    });
    outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
}

/// Runs these tests, and says what they said when they have ended.
fn run_interpreted(root: &Path, names: &[&str]) -> Outcome {
    let output = interpreted(root, &[&["--exact"], names].concat()).output();
    if let Ok(output) = &output {
        print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    match output.map(|output| output.status) {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) if status.code() == Some(124) => Outcome::Failed(format!(
            "miri took more than {MIRI_SECONDS_MAX} s: make its tests smaller under cfg(miri)"
        )),
        Ok(status) => Outcome::Failed(format!("cargo miri: {status}")),
        Err(error) => Outcome::Failed(format!("timeout cannot be run: {error}")),
    }
}

/// The table's tests under miri, with these words for them.
fn interpreted(root: &Path, words: &[&str]) -> Command {
    let environment = [
        ("RUSTUP_TOOLCHAIN", "nightly".to_owned()),
        ("CARGO_TARGET_DIR", target_of(root, "miri")),
        // The table is position-independent and may look at its memory through any pointer to it.
        ("MIRIFLAGS", "-Zmiri-disable-isolation".to_owned()),
    ];
    // `timeout` ends the whole group of processes; killing cargo alone would leave its children
    // running.
    let mut bounded = Command::new("timeout");
    bounded.arg(format!("{MIRI_SECONDS_MAX}")).arg("cargo");
    bounded
        .args(["miri", "test", "-p", "octavo-table", "--lib", "--locked", "--"])
        .args(words)
        .current_dir(root)
        .envs(environment);
    bounded
}

/// A nightly toolchain with miri, installed if rustup can; the error is why there is none.
fn install_miri() -> Result<(), String> {
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

/// Runs the tests that exist under a model checker's `--cfg`.
fn under(checker: &str, root: &Path, arguments: &[&str]) -> Outcome {
    let flags = with_cfg(checker);
    let environment = [("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target_of(root, checker))];
    let mut list = command(root, arguments, &environment);
    match listed(list.args(["--", "--list"])) {
        Ok(tests) => println!("{} models", tests.len()),
        Err(why) => return Outcome::Failed(format!("under --cfg {checker}: {why}")),
    }
    cargo(root, arguments, &environment)
}

/// The tests that a command lists. None at all is an error: they would pass.
fn listed(list: &mut Command) -> Result<Vec<String>, String> {
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

/// The caller's flags for the compiler, and a `--cfg`.
fn with_cfg(cfg: &str) -> String {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    format!("{flags} --cfg {cfg}").trim_start().to_owned()
}

/// A directory for builds with other flags, beside the usual one.
pub fn target_of(root: &Path, name: &str) -> String {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    target.join(name).display().to_string()
}

fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Outcome {
    match command(root, arguments, environment).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Outcome::Failed(format!("cargo cannot be run: {error}")),
    }
}

fn command(root: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Command {
    // `cargo`, not $CARGO: that one is this toolchain's, and miri needs another.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root);
    for (name, value) in environment {
        command.env(name, value);
    }
    command
}

/// Runs something for its exit status alone.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn found(problems: Vec<String>) -> Outcome {
    if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(problems.join("\n")) }
}
