//! The steps of the gate, and those outside it.
//!
//! Cheap steps come first, so that a missing comma is found within seconds. Each model checker has
//! a target folder of its own: each needs different compiler flags, and in a shared folder each
//! would invalidate the other's build.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, command, succeeds, target_of, with_cfg};
use crate::jobs::{self, Job};
use crate::step::{Outcome, Step};
use crate::{dependencies, guest, instructions, layers, miri, models, testing, tidy};

const FMT: Step = Step { name: "fmt", purpose: "the code is formatted", run: fmt };
const TIDY: Step = Step {
    name: "tidy",
    purpose: "imports point down; prose, files, functions and `unsafe` stay within their limits",
    run: tidy_step,
};
const LAYERS: Step = Step {
    name: "layers",
    purpose: "crates depend on each other in one direction, and on few third-party crates",
    run: layers_step,
};
const DEPENDENCIES: Step = Step {
    name: "dependencies",
    purpose: "licences, sources and versions of third-party crates",
    run: dependencies_step,
};
const CLIPPY: Step = Step { name: "clippy", purpose: "no warning in any target", run: clippy };
const DOC: Step =
    Step { name: "doc", purpose: "every public item is documented, and no link is broken", run: doc };
const TEST: Step =
    Step { name: "test", purpose: "unit, integration and documentation tests", run: testing::run };
const UNIT: Step = Step { name: "unit", purpose: "only the unit tests", run: testing::run_units };
const LOOM: Step = Step {
    name: "loom",
    purpose: "the table's and the messages' protocols under all interleavings",
    run: loom,
};
const SHUTTLE: Step =
    Step { name: "shuttle", purpose: "the engine under random interleavings", run: shuttle };
const MIRI: Step =
    Step { name: "miri", purpose: "the table's unsafe code under an interpreter", run: miri::run };
const GUEST: Step = Step {
    name: "guest",
    purpose: "tests in guests with two and with four NUMA nodes (qemu)",
    run: guest::run,
};
const WAYS: Step = Step { name: "ways", purpose: "the table with sets of 8 and of 32 pages", run: ways };
const INSTRUCTIONS: Step = Step {
    name: "instructions",
    purpose: "hits take no more instructions than recorded (valgrind)",
    run: instructions::run,
};

/// The gate, in order. The steps of one line run concurrently; the longest begin first.
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

/// The steps to run during work: three minutes on two processors if everything is already built.
pub const QUICK: &[&[&Step]] = &[&[&FMT], &[&TIDY], &[&LAYERS], &[&DEPENDENCIES], &[&CLIPPY], &[&UNIT]];

/// Steps that take too long for the gate, or depend on more than the repository. They are run
/// before a release.
pub const LONG: &[&Step] = &[
    &Step { name: "deny", purpose: "no dependency has a security advisory (cargo-deny, network)", run: deny },
    &Step {
        name: "miri-memory",
        purpose: "the engine's tests of callers' memory and of owned pins, under an interpreter (minutes)",
        run: miri::run_memory,
    },
    &Step {
        name: "publish",
        purpose: "the engine's crates can be published (packages and builds each of them, network)",
        run: publish,
    },
    &Step {
        name: "package",
        purpose: "the Debian package works as docs/VM.md says, in a clean Debian (minutes, root, network)",
        run: package,
    },
    &Step {
        name: "python-suites",
        purpose: "the wheel in clean environments; suites of fsspec, zarr and others (minutes, network)",
        run: python_suites,
    },
    &Step {
        name: "web",
        purpose: "octavo web in a browser, against a server under load (minutes; chromium, node, fio, network)",
        run: web,
    },
    &Step {
        name: "day",
        purpose: "ten minutes of a server in operation under verified load, with an upgrade and a kill",
        run: day,
    },
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

/// Returns the step of this name. The error is the name.
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

/// Checks for security advisories. Not in the gate: advisories come over the network, and a new one
/// would fail a commit that has not changed.
fn deny(root: &Path) -> Outcome {
    if !succeeds(Command::new("cargo").args(["deny", "--version"])) {
        return Outcome::Failed("cargo-deny is missing: `cargo install --locked cargo-deny`".into());
    }
    cargo(root, &["deny", "check", "advisories"], &[])
}

/// Packages and builds every crate that may be published: those that a program needs to embed the
/// engine. The others say `publish = false`.
fn publish(root: &Path) -> Outcome {
    cargo(root, &["publish", "--dry-run", "--locked", "--allow-dirty", "--workspace"], &[])
}

/// Builds the Debian package, and installs it in a container. See `packaging/check.sh`.
fn package(root: &Path) -> Outcome {
    let run = |program: &str, arguments: &[&str]| match Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
    {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{program}: {status}")),
        Err(error) => Outcome::Failed(format!("{program}: {error}")),
    };
    match run("make", &["deb"]) {
        Outcome::Passed => Outcome::first_bad(
            ["bookworm", "trixie"].map(|release| run("packaging/check.sh", &["--release", release])),
        ),
        failed => failed,
    }
}

fn clippy(root: &Path) -> Outcome {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
}

fn doc(root: &Path) -> Outcome {
    let flags = ("RUSTDOCFLAGS", "-D warnings".to_owned());
    cargo(root, &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"], &[flags])
}

/// Runs the gate's tests of resident memory at full length, one server at a time.
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
    // Half an hour each: reads and writes on a disk, then hits between evictions.
    let outcomes = [
        bench(root, &["memory", "--case", "max_256MiB", "--seconds", "1800"]),
        bench(root, &["churn", "--case", "cliff_90_1", "--seconds", "1800"]),
    ];
    Outcome::first_bad(outcomes)
}

fn day(root: &Path) -> Outcome {
    bench(root, &["day", "--minutes", "10"])
}

/// Runs a benchmark of the release build.
fn bench(root: &Path, words: &[&str]) -> Outcome {
    let program = ["run", "--release", "--locked", "-p", "octavo-cli", "--", "bench"];
    cargo(root, &[&program, words].concat(), &[])
}

/// Runs the table's tests with both numbers of ways, concurrently: each build alone compiles one
/// crate after the other.
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
    models::run("loom", root, &["-p", "octavo-table", "-p", "octavo-message", "--lib"])
}

fn shuttle(root: &Path) -> Outcome {
    let names = ["octavo-table", "octavo-disk", "octavo-message", "octavo", "octavo-async"];
    let packages = names.map(|name| ["-p", name]).concat();
    models::run("shuttle", root, &[&packages[..], &["--lib", "--tests"]].concat())
}

/// Installs the wheel of Python in clean environments, and runs the suites of other projects.
fn python_suites(root: &Path) -> Outcome {
    script(root, "bindings/python/check.sh")
}

/// Runs the page of `octavo web` in a browser. The script says what is missing.
fn web(root: &Path) -> Outcome {
    script(root, "tools/web/browser/check.sh")
}

fn script(root: &Path, path: &str) -> Outcome {
    let script = root.join(path);
    match Command::new(&script).current_dir(root).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{}: {status}", script.display())),
        Err(error) => Outcome::Failed(format!("{}: {error}", script.display())),
    }
}
