//! `cargo xtask`: the gate that people and CI share, and its parts by name.
//!
//! Every part is a [`step::Step`]; `ci` runs them all in the order of [`steps::GATE`], and stops at
//! the first that fails. What a reviewer would say twice becomes a check in [`tidy`] or [`layers`],
//! which are also plain tests.

#![forbid(unsafe_code)]

mod fuzz;
mod guest;
mod instructions;
mod layers;
mod step;
mod steps;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let steps: Vec<&step::Step> = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            help();
            return ExitCode::SUCCESS;
        }
        ["fuzz", words @ ..] => {
            return if fuzz::run(words, &root()) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        ["ci"] => steps::GATE.iter().collect(),
        names => match names.iter().map(|name| steps::by_name(name)).collect() {
            Ok(steps) => steps,
            Err(unknown) => {
                eprintln!("xtask: there is no step \"{unknown}\"; `cargo xtask help` lists them");
                return ExitCode::from(2);
            }
        },
    };
    if step::run(&steps, &root()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn help() {
    println!("cargo xtask ci              the gate: all steps in this order");
    println!("cargo xtask STEP [STEP..]   some of them:");
    for step in steps::GATE {
        println!("  {:<12} {}", step.name, step.purpose);
    }
    println!("cargo xtask STEP [STEP..]   what takes longer, and is not a part of the gate:");
    for step in steps::LONG {
        println!("  {:<12} {}", step.name, step.purpose);
    }
    println!("cargo xtask fuzz [--seconds N] [TARGET..]");
    println!("                            fuzzers of what reads traces; not a part of the gate");
}

/// The repository's root: this crate's parent.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}
