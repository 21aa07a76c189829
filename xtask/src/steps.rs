//! What the gate consists of.
//!
//! Cheap steps come first, so that a missing comma costs seconds. Each model checker builds into a
//! folder of its own: they need other flags, and would otherwise throw each other's builds away.

use std::path::Path;

use crate::cargo::{cargo, command, listed, succeeds, target_of, with_cfg};
use crate::jobs::{self, Job};
use crate::step::{Outcome, Step};
use crate::{dependencies, guest, instructions, layers, miri, testing, tidy};

const FMT: Step = Step { name: "fmt", purpose: "the code is formatted", run: fmt };
const TIDY: Step = Step {
    name: "tidy",
    purpose: "imports point down, prose fits its columns, files and functions their lengths, `unsafe` its list",
    run: tidy_step,
};
const LAYERS: Step =
    Step { name: "layers", purpose: "crates depend in one direction and on little", run: layers_step };
const DEPENDENCIES: Step = Step {
    name: "dependencies",
    purpose: "licences, sources and versions of other people's crates",
    run: dependencies_step,
};
const CLIPPY: Step = Step { name: "clippy", purpose: "no warning in any target", run: clippy };
const DOC: Step =
    Step { name: "doc", purpose: "every public item is documented, every link leads somewhere", run: doc };
const TEST: Step =
    Step { name: "test", purpose: "unit, integration and documentation tests", run: testing::run };
const UNIT: Step = Step { name: "unit", purpose: "unit tests alone", run: testing::run_units };
const LOOM: Step = Step {
    name: "loom",
    purpose: "the table's and the messages' protocols under all interleavings",
    run: loom,
};
const SHUTTLE: Step =
    Step { name: "shuttle", purpose: "the engine under random interleavings", run: shuttle };
const MIRI: Step =
    Step { name: "miri", purpose: "the table's unsafe code under an interpreter", run: miri::run };
const GUEST: Step =
    Step { name: "guest", purpose: "kernels with two and with four NUMA nodes (qemu)", run: guest::run };
const WAYS: Step = Step { name: "ways", purpose: "the table with sets of 8 and of 32 pages", run: ways };
const INSTRUCTIONS: Step = Step {
    name: "instructions",
    purpose: "hits take no more instructions than recorded (valgrind)",
    run: instructions::run,
};

/// The gate, in its order. The steps of one line run side by side; the longest begin first.
pub const GATE: &[&[&Step]] = &[
    &[&FMT],
    &[&TIDY],
    &[&LAYERS],
    &[&DEPENDENCIES],
    &[&CLIPPY],
    &[&DOC],
    &[&TEST],
    &[&SHUTTLE, &LOOM, &MIRI, &GUEST, &WAYS, &INSTRUCTIONS],
];

/// What to run while one works: three minutes on two processors once all is built.
pub const QUICK: &[&[&Step]] = &[&[&FMT], &[&TIDY], &[&LAYERS], &[&DEPENDENCIES], &[&CLIPPY], &[&UNIT]];

/// What takes too long for the gate, or depends on more than the repository. Run before a release.
pub const LONG: &[&Step] = &[
    &Step { name: "deny", purpose: "no dependency has a security advisory (cargo-deny, network)", run: deny },
    &Step {
        name: "resident",
        purpose: "memory_max bounds the process through 100,000 connections and 40,000 threads (minutes)",
        run: resident,
    },
    &Step {
        name: "churn-hour",
        purpose: "memory_max bounds the process through an hour of reads, writes and evictions",
        run: churn_hour,
    },
];

/// A step by its word; the error is the word.
pub fn by_name(name: &str) -> Result<&'static Step, &str> {
    let all = GATE.iter().chain(QUICK).copied().flatten().chain(LONG);
    all.copied().find(|step| step.name == name).ok_or(name)
}

fn fmt(root: &Path) -> Outcome {
    cargo(root, &["fmt", "--all", "--check"], &[])
}

fn tidy_step(root: &Path) -> Outcome {
    found(tidy::check(root))
}

fn layers_step(root: &Path) -> Outcome {
    layers::metadata(root).map_or_else(Outcome::Failed, |metadata| found(layers::check(&metadata)))
}

fn dependencies_step(root: &Path) -> Outcome {
    dependencies::metadata(root)
        .map_or_else(Outcome::Failed, |metadata| found(dependencies::check(&metadata)))
}

fn found(problems: Vec<String>) -> Outcome {
    if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(problems.join("\n")) }
}

/// Advisories come over the network, and a new one fails a commit that has not changed.
fn deny(root: &Path) -> Outcome {
    if !succeeds(std::process::Command::new("cargo").args(["deny", "--version"])) {
        return Outcome::Failed("cargo-deny is missing: `cargo install --locked cargo-deny`".into());
    }
    cargo(root, &["deny", "check", "advisories"], &[])
}

fn clippy(root: &Path) -> Outcome {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
}

fn doc(root: &Path) -> Outcome {
    let flags = ("RUSTDOCFLAGS", "-D warnings".to_owned());
    cargo(root, &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"], &[flags])
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
    Outcome::first_bad(outcomes)
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
    Outcome::first_bad(outcomes)
}

/// Both numbers of ways side by side: each build is one crate after the other.
fn ways(root: &Path) -> Outcome {
    let job = |ways: &str| {
        let flags = with_cfg(&format!("octavo_ways=\"{ways}\""));
        let target = target_of(root, &format!("ways-{ways}"));
        let arguments = ["test", "-p", "octavo-table", "--lib", "--tests", "--locked"];
        let command = command(root, &arguments, &[("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target)]);
        Job { name: format!("{ways} ways"), command }
    };
    jobs::run_all(vec![job("8"), job("32")], 2)
}

fn loom(root: &Path) -> Outcome {
    under("loom", root, &["-p", "octavo-table", "-p", "octavo-message", "--lib"])
}

fn shuttle(root: &Path) -> Outcome {
    let packages = ["-p", "octavo-table", "-p", "octavo-disk", "-p", "octavo-message", "-p", "octavo"];
    under("shuttle", root, &[&packages[..], &["--lib", "--tests"]].concat())
}

/// Runs the tests that exist under a model checker's `--cfg`. A warning in one is an error, as it
/// is everywhere else.
fn under(checker: &str, root: &Path, packages: &[&str]) -> Outcome {
    let arguments = [&["test", "--profile", "models", "--locked"], packages].concat();
    let flags = with_cfg(checker) + " -D warnings";
    let environment = [("RUSTFLAGS", flags), ("CARGO_TARGET_DIR", target_of(root, checker))];
    let mut list = command(root, &arguments, &environment);
    match listed(list.args(["--", "--list"])) {
        Ok(tests) => println!("{} models", tests.len()),
        Err(why) => return Outcome::Failed(format!("under --cfg {checker}: {why}")),
    }
    cargo(root, &arguments, &environment)
}
