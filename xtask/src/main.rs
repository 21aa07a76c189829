//! `cargo xtask`: runs the gate, which is the same for people and CI, or single steps of it.
//!
//! Each step is a [`step::Step`]. `ci` runs all steps of [`steps::GATE`] and stops at the first one
//! that fails. Repeated review comments become checks in [`tidy`], [`layers`] or [`dependencies`],
//! which also run as unit tests.

#![forbid(unsafe_code)]

mod archive;
mod cargo;
mod dependencies;
mod fuzz;
mod gate;
mod guest;
mod instructions;
mod jobs;
mod kernel;
mod layers;
mod miri;
mod models;
mod mount;
mod program;
mod step;
mod steps;
mod testing;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use step::Step;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let passed = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            help();
            true
        }
        ["fuzz", words @ ..] => fuzz::run(words, &root()),
        ["vm", words @ ..] => vm::run(words, &root()),
        ["mount", words @ ..] => mount::run(words, &root()),
        ["ci"] => gate::run(steps::GATE, &root()),
        ["quick"] => gate::run(steps::QUICK, &root()),
        [gate::ALONE, name] => {
            let step = steps::by_name(name);
            return step.map_or(ExitCode::from(2), |step| gate::run_alone(step, &root()));
        }
        names => {
            let steps: Result<Vec<&Step>, &str> = names.iter().map(|name| steps::by_name(name)).collect();
            match steps {
                Ok(steps) => gate::run(&steps.iter().map(std::slice::from_ref).collect::<Vec<_>>(), &root()),
                Err(unknown) => {
                    eprintln!("xtask: there is no step \"{unknown}\"; `cargo xtask help` lists them");
                    return ExitCode::from(2);
                }
            }
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn help() {
    let list = |steps: &[&Step]| {
        for step in steps {
            println!("  {:<12} {}", step.name, step.purpose);
        }
    };
    let words = |stages: &[&[&Step]]| -> String {
        stages.concat().iter().map(|step| step.name).collect::<Vec<_>>().join(", ")
    };
    println!(
        "cargo xtask quick           runs the quick steps, in at most three minutes: {}",
        words(steps::QUICK)
    );
    println!(
        "cargo xtask ci              runs the gate, which every commit must pass: all steps of the next list"
    );
    println!("cargo xtask STEP [STEP..]   runs single steps of the gate:");
    list(&steps::GATE.concat());
    println!("cargo xtask STEP [STEP..]   runs steps that are not a part of the gate:");
    list(steps::LONG);
    println!("cargo xtask vm              runs guests on vhost-user disks (qemu, minutes)");
    println!("cargo xtask mount [--suite NAME].. [OPTION..] [DIRECTORY]");
    println!(
        "                            runs pjdfstest, fsx, fio, stress-ng, SQLite and git on mounts (root)"
    );
    println!("cargo xtask fuzz [--seconds N] [TARGET..]");
    println!("                            fuzzes the code that parses traces and other untrusted input");
}

/// Returns the repository's root: the parent of this crate's folder.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}
