//! `cargo xtask fuzz [--seconds N] [TARGET]`: runs libFuzzer on the code that parses untrusted
//! input.
//!
//! Not a part of the gate, because it runs for a given time. Targets are the files of
//! `fuzz/targets`, and seeds lie in `fuzz/seeds`. The corpus of a run stays in the build folder, so
//! that the next run continues from it. cargo-fuzz is not needed: this module sets the same flags.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{succeeds, target_of};
use crate::step::Outcome;

/// The default time of each target, in seconds.
const SECONDS: u32 = 60;

/// Coverage of edges and compared values for libFuzzer, and the checks of a debug build. The
/// purpose of the address sanitizer is to intercept `memcmp`: it shows libFuzzer the compared
/// bytes, without which libFuzzer hardly ever guesses a word.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address --cfg fuzzing -Cdebug-assertions -Coverflow-checks \
    -Ccodegen-units=1";

/// Runs the named targets, or all. Returns true if no target failed.
pub fn run(words: &[&str], root: &Path) -> bool {
    match parse(words, &targets(root)).map(|(targets, seconds)| fuzz(root, &targets, seconds)) {
        Ok(Outcome::Passed) => {
            println!("fuzz: no failures found");
            true
        }
        Ok(Outcome::Skipped(why)) => {
            println!("SKIPPED: {why}");
            true
        }
        Ok(Outcome::Failed(what)) | Err(what) => {
            println!("fuzz: {what}");
            false
        }
    }
}

/// Returns the targets and the seconds for each; the error is a sentence.
fn parse(words: &[&str], known: &[String]) -> Result<(Vec<String>, u32), String> {
    let (mut wanted, mut seconds) = (Vec::new(), SECONDS);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if *word == "--seconds" {
            let count = words.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
            seconds = count.ok_or("--seconds: expected a whole number of at least 1")?;
        } else if known.iter().any(|target| target == word) {
            wanted.push((*word).to_owned());
        } else {
            return Err(format!("there is no target \"{word}\"; the targets are {}", known.join(", ")));
        }
    }
    Ok((if wanted.is_empty() { known.to_vec() } else { wanted }, seconds))
}

/// Returns the names of the files in `fuzz/targets`.
fn targets(root: &Path) -> Vec<String> {
    let files = std::fs::read_dir(root.join("fuzz/targets")).into_iter().flatten().flatten();
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut targets: Vec<String> = files.filter_map(|file| name(file.path())).collect();
    targets.sort();
    targets
}

fn fuzz(root: &Path, targets: &[String], seconds: u32) -> Outcome {
    for (tool, arguments) in [("cargo", &["+nightly", "--version"][..]), ("c++", &["--version"])] {
        if !succeeds(Command::new(tool).args(arguments)) {
            return Outcome::Skipped(format!("`{tool} {}` does not run", arguments.join(" ")));
        }
    }
    let Some(host) = host() else {
        return Outcome::Failed("`rustc -vV` does not name the host's target triple".into());
    };
    let folder = PathBuf::from(target_of(root, "fuzz"));
    let mut build = Command::new("cargo");
    // With an explicit --target, programs that run during the build are compiled without FLAGS. Not
    // --locked: a new dependency of the simulator must not require a change of this folder's lock
    // file.
    build.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &host]);
    for target in targets {
        build.args(["--bin", target]);
    }
    build.current_dir(root).env("RUSTUP_TOOLCHAIN", "nightly").env("CARGO_TARGET_DIR", &folder);
    match build.env("RUSTFLAGS", FLAGS).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Outcome::Failed(format!("the build failed: {status}")),
        Err(error) => return Outcome::Failed(format!("cannot run cargo: {error}")),
    }
    for target in targets {
        println!("\n=== {target}: {seconds} s");
        let program = folder.join(&host).join("release").join(target);
        if let Err(what) = run_one(&program, root, &folder, target, seconds) {
            return Outcome::Failed(format!("{target}: {what}"));
        }
    }
    Outcome::Passed
}

/// Runs one target. The error names the folder of the input that made it fail.
fn run_one(program: &Path, root: &Path, folder: &Path, target: &str, seconds: u32) -> Result<(), String> {
    let corpus = folder.join("corpus").join(target);
    let found = folder.join("found").join(target);
    for folder in [&corpus, &found] {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut command = Command::new(program);
    // The leak detector traces the process, which containers forbid.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", found.display()));
    // Inputs may be longer than the longest line, and none may take 10 seconds or 2 GiB.
    command.args([
        "-max_len=65536",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-verbosity=0",
        "-print_final_stats=1",
    ]);
    command.arg(&corpus);
    let seeds = root.join("fuzz/seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{status}; the input that caused it is in {}", found.display())),
        Err(error) => Err(format!("cannot run {}: {error}", program.display())),
    }
}

/// Returns the target triple of this machine.
fn host() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_and_its_time_are_understood_and_a_wrong_one_is_reported() {
        let known = ["arc".to_owned(), "spc".to_owned()];
        assert_eq!(parse(&[], &known), Ok((known.to_vec(), SECONDS)));
        assert_eq!(parse(&["--seconds", "5", "spc"], &known), Ok((vec!["spc".to_owned()], 5)));
        assert!(parse(&["scp"], &known).is_err_and(|said| said.contains("the targets are arc, spc")));
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--seconds", "x"]] {
            assert!(parse(wrong, &known).is_err());
        }
    }

    #[test]
    fn every_target_is_built_by_the_manifest_and_every_seed_has_a_target() {
        let root = crate::root();
        let targets = targets(&root);
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        assert!(targets.len() >= 12, "{targets:?}");
        for target in &targets {
            assert!(manifest.contains(&format!("path = \"targets/{target}.rs\"")), "{target}");
        }
        for seeds in std::fs::read_dir(root.join("fuzz/seeds")).unwrap().flatten() {
            assert!(targets.contains(&seeds.file_name().into_string().unwrap()), "{seeds:?}");
        }
    }
}
