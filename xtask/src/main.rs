//! `cargo xtask`: the gate that people and CI share, and its parts by name.
//!
//! Every part is a [`step::Step`]; `ci` runs all of [`steps::GATE`] and stops at the first that
//! fails. What a reviewer would say twice becomes a check in [`tidy`], [`layers`] or
//! [`dependencies`], which are also plain tests.

#![forbid(unsafe_code)]

mod cargo;
mod dependencies;
mod fuzz;
mod gate;
mod guest;
mod instructions;
mod jobs;
mod layers;
mod miri;
mod step;
mod steps;
mod testing;
mod tidy;

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
    println!("cargo xtask quick           while you work, at most three minutes: {}", words(steps::QUICK));
    println!("cargo xtask ci              before you commit: the gate, which is all of these steps");
    println!("cargo xtask STEP [STEP..]   some of them:");
    list(&steps::GATE.concat());
    println!("cargo xtask STEP [STEP..]   what is not a part of the gate:");
    list(steps::LONG);
    println!("cargo xtask fuzz [--seconds N] [TARGET..]");
    println!("                            fuzzers of what reads traces");
}

/// The repository's root: this crate's parent.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}
