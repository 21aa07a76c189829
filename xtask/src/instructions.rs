//! Counts the instructions of a hit and of a miss with valgrind's callgrind, so that neither path
//! grows unnoticed.
//!
//! Counts do not depend on the load of the machine. They depend on the compiler and on the copy
//! routine that the processor's features select (valgrind has no AVX-512), so the recorded numbers
//! hold for one compiler on x86-64 with AVX2. Not here: time.

use std::path::Path;
use std::process::Command;

use crate::cargo::{succeeds, target_of};
use crate::step::Outcome;

/// The file of recorded numbers: each line has a path and its instructions per call.
const RECORDED: &str = "xtask/instructions.txt";

/// The fraction by which a path may exceed its recorded number.
const SLACK: f64 = 0.05;

/// As `SLACK`, for calls on many partitions or objects. These allocate, which may differ a little
/// between machines; what grows with the square of their number exceeds this by far.
const SLACK_OF_MANY: f64 = 0.5;

/// The numbers of hits or misses of two runs. The result is the difference of the two runs'
/// instructions, divided by the difference of these numbers. Both are multiples of a batch.
const COUNTS: [u64; 2] = [32_000, 96_000];

/// As `COUNTS`, for the partitions or objects of a call on many of them.
const COUNTS_OF_MANY: [u64; 2] = [500, 2_000];

/// The paths that are calls on many partitions or objects.
const OF_MANY: [&str; 2] = ["create", "stats"];

fn counts(path: &str) -> [u64; 2] {
    if OF_MANY.contains(&path) { COUNTS_OF_MANY } else { COUNTS }
}

fn slack(path: &str) -> f64 {
    if OF_MANY.contains(&path) { SLACK_OF_MANY } else { SLACK }
}

/// Counts the instructions of each recorded path and compares them.
pub fn run(root: &Path) -> Outcome {
    if !succeeds(Command::new("valgrind").arg("--version")) {
        return Outcome::Skipped("valgrind is not installed; `make test` installs it".into());
    }
    if !cfg!(target_arch = "x86_64") || !has_avx2() {
        return Outcome::Skipped("the recorded numbers hold for x86-64 with AVX2".into());
    }
    let recorded = match std::fs::read_to_string(root.join(RECORDED)) {
        Ok(text) => text,
        Err(error) => return Outcome::Failed(format!("{RECORDED}: {error}")),
    };
    let recorded = match parse(&recorded) {
        Ok(recorded) => recorded,
        Err(error) => return Outcome::Failed(format!("{RECORDED}:{error}")),
    };
    // A separate target folder, because code that was built with other flags would change the
    // counts.
    let target = target_of(root, "instructions");
    let build = Command::new("cargo")
        .args(["build", "--release", "--locked", "-p", "octavo-instructions"])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .status();
    if !build.is_ok_and(|status| status.success()) {
        return Outcome::Failed("cannot build octavo-instructions".into());
    }
    let program = Path::new(&target).join("release/octavo-instructions");
    let mut problems = Vec::new();
    for (path, expected) in recorded {
        let counts = counts(&path);
        let [few, many] = counts.map(|count| count_instructions(&program, &path, count));
        let (few, many) = match (few, many) {
            (Ok(few), Ok(many)) => (few, many),
            (Err(error), _) | (_, Err(error)) => return Outcome::Failed(format!("{path}: {error}")),
        };
        let found = many.saturating_sub(few) as f64 / (counts[1] - counts[0]) as f64;
        println!("{path}: {found:.1} instructions a call, {expected:.1} recorded");
        problems.extend(judge(&path, found, expected));
    }
    if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(problems.join("\n")) }
}

fn judge(path: &str, found: f64, expected: f64) -> Option<String> {
    if found < expected * (1.0 - slack(path)) {
        println!("{path} takes fewer instructions than recorded: write {found:.1} to {RECORDED}");
    }
    (found > expected * (1.0 + slack(path))).then(|| {
        format!("{path}: a call takes {found:.1} instructions, but {expected:.1} are recorded in {RECORDED}; reduce them, or record the new number if the change is worth it")
    })
}

/// Parses lines that have a path and a number; `#` begins a comment. The error begins with the
/// number of the line.
fn parse(text: &str) -> Result<Vec<(String, f64)>, String> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let told = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    told.map(|(number, line)| {
        let wrong = || format!("{number}: \"{line}\" is not a path and a number");
        let (path, count) = line.split_once(' ').ok_or_else(wrong)?;
        let count = count.trim().parse::<f64>().ok().filter(|count| *count > 0.0).ok_or_else(wrong)?;
        Ok((path.to_owned(), count))
    })
    .collect()
}

/// Returns the number of instructions of a whole run.
fn count_instructions(program: &Path, path: &str, count: u64) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([path, &count.to_string()])
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {}\n{text}", output.status));
    }
    collected(&text)
        .ok_or_else(|| format!("cannot find callgrind's count in the output of valgrind:\n{text}"))
}

/// Returns the number in a line such as `==1234== Collected : 5678`.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_understood_and_nonsense_is_named_by_its_line() {
        let text = std::fs::read_to_string(crate::root().join(RECORDED)).unwrap();
        let paths: Vec<String> = parse(&text).unwrap().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["single", "watched", "batch", "pin", "write", "miss", "create", "stats"]);
        assert_eq!(parse("# a\n\nsingle"), Err("3: \"single\" is not a path and a number".into()));
        assert!(parse("single -1").is_err());
    }

    #[test]
    fn more_than_the_slack_fails_and_less_does_not() {
        assert!(judge("single", 105.1, 100.0).is_some_and(|problem| problem.contains("105.1")));
        assert!(judge("stats", 149.0, 100.0).is_none() && judge("stats", 151.0, 100.0).is_some());
        assert!(judge("single", 104.9, 100.0).is_none() && judge("single", 50.0, 100.0).is_none());
    }

    #[test]
    fn the_count_is_found_in_what_valgrind_says() {
        assert_eq!(collected("==1== Events    : Ir\n==1== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("==1== nothing"), None);
    }
}
