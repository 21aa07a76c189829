//! The suites: how each runs in a directory, and how its output is read.

use std::path::Path;
use std::process::Command;

use super::load::{Endings, Load};
use super::trees;
use crate::cargo::succeeds;

/// A suite. A suite that is a program has the program's name.
pub struct Suite {
    pub name: &'static str,
    /// How to get it.
    pub source: &'static str,
    /// Whether it can run here.
    pub is_here: fn(&Load) -> bool,
    /// Runs the suite in a directory. The last argument is a directory elsewhere, for what the
    /// suite leaves. Tests that end well may be missing in what it returns.
    pub run: fn(&Path, &Load, &Path) -> Result<Endings, String>,
}

pub const SUITES: &[Suite] = &[
    Suite {
        name: "pjdfstest",
        source: "cargo install pjdfstest",
        is_here: |_| runs("pjdfstest", "--help"),
        run: pjdfstest,
    },
    Suite { name: "fsx", source: "cargo install fsx", is_here: |_| runs("fsx", "--version"), run: fsx },
    Suite { name: "fio", source: "apt install fio", is_here: |_| runs("fio", "--version"), run: fio },
    Suite {
        name: "stress-ng",
        source: "apt install stress-ng",
        is_here: |_| runs("stress-ng", "--version"),
        run: stress_ng,
    },
    Suite {
        name: "sqlite",
        source: "--sqlite DIRECTORY, a built source tree (docs/MOUNT-TESTS.md)",
        is_here: |load| load.sqlite.is_some(),
        run: trees::sqlite,
    },
    Suite {
        name: "git",
        source: "--git DIRECTORY, a built source tree (docs/MOUNT-TESTS.md)",
        is_here: |load| load.git.is_some(),
        run: trees::git,
    },
];

fn runs(program: &str, question: &str) -> bool {
    succeeds(Command::new(program).arg(question))
}

/// Three users that every Debian has.
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]
";

/// All operations of fsx.
const FSX: &str = "[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 3
copy_file_range = 5
";

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs a program in a directory. Returns whether it succeeded, and both of its outputs.
fn output(program: &str, directory: &Path, arguments: &[&str]) -> Result<(bool, String), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn pjdfstest(directory: &Path, _: &Load, artifacts: &Path) -> Result<Endings, String> {
    let config = artifacts.join("pjdfstest.toml");
    write(&config, PJDFSTEST)?;
    let (_, text) = output("pjdfstest", directory, &["-c", &config.display().to_string()])?;
    let endings = endings_of_pjdfstest(&text);
    if endings.is_empty() { Err(text) } else { Ok(endings) }
}

/// Lines have the name of a test and how it ended.
fn endings_of_pjdfstest(text: &str) -> Endings {
    let mut endings = Endings::new();
    for line in text.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
        if let [name, ending @ ("ok" | "FAILED" | "skipped")] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        {
            endings.insert(name.to_owned(), ending.to_owned());
        }
    }
    endings
}

/// Returns an ending, with the last lines of a failure's output on standard output.
fn ending(name: &str, succeeded: bool, text: &str) -> (String, String) {
    if !succeeded {
        let lines: Vec<&str> = text.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(20)..].join("\n"));
    }
    (name.to_owned(), if succeeded { "ok" } else { "FAILED" }.to_owned())
}

fn fsx(directory: &Path, load: &Load, artifacts: &Path) -> Result<Endings, String> {
    let mut endings = Endings::new();
    // A small file, and one as long as the mount's memory.
    for (name, length, most) in [("small", 256 << 10, 32 << 10), ("large", 64 << 20, 256 << 10)] {
        let config = artifacts.join(format!("fsx-{name}.toml"));
        write(&config, &format!("flen = {length}\n[opsize]\nmin = 1\nmax = {most}\n{FSX}"))?;
        for seed in ["1", "2"] {
            let (operations, config) = (load.operations.to_string(), config.display().to_string());
            let kept = artifacts.display().to_string();
            let arguments = ["-P", &kept, "-f", &config, "-N", &operations, "-S", seed, "file"];
            let (succeeded, text) = output("fsx", directory, &arguments)?;
            endings.extend([ending(&format!("{name}, seed {seed}"), succeeded, &text)]);
        }
    }
    Ok(endings)
}

fn fio(directory: &Path, _: &Load, _: &Path) -> Result<Endings, String> {
    let mut endings = Endings::new();
    for (engine, depth) in [("psync", "1"), ("libaio", "16"), ("mmap", "1")] {
        for pattern in ["randwrite", "write"] {
            let name = format!("{engine} {pattern}");
            let arguments = [
                "--name=verified".to_owned(),
                format!("--ioengine={engine}"),
                format!("--iodepth={depth}"),
                format!("--rw={pattern}"),
                "--size=48m".to_owned(),
                "--bsrange=4k-64k".to_owned(),
                "--verify=crc32c".to_owned(),
                "--verify_fatal=1".to_owned(),
                "--fallocate=none".to_owned(),
                "--end_fsync=1".to_owned(),
                "--unlink=1".to_owned(),
            ];
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let (succeeded, text) = output("fio", directory, &arguments)?;
            endings.extend([ending(&name, succeeded, &text)]);
        }
    }
    Ok(endings)
}

fn stress_ng(directory: &Path, load: &Load, _: &Path) -> Result<Endings, String> {
    let (seconds, path) = (format!("{}s", load.seconds), directory.display().to_string());
    let arguments = ["--class", "filesystem", "--sequential", "1", "--timeout", &seconds, "--verify"];
    let (succeeded, text) =
        output("stress-ng", directory, &[&arguments[..], &["--temp-path", &path]].concat())?;
    let mut endings = endings_of_stress_ng(&text);
    // Its status is not 0 if the kernel lacks what a single stressor needs.
    let has_ended = succeeded || text.contains("successful run completed");
    endings.extend([ending("all stressors", has_ended, &text)]);
    Ok(endings)
}

/// Lines begin with the program, a level, the process in brackets and the stressor.
fn endings_of_stress_ng(text: &str) -> Endings {
    let mut endings = Endings::new();
    for line in text.lines() {
        let Some((head, rest)) = line.split_once("] ") else { continue };
        let Some((name, _)) = rest.split_once(':') else { continue };
        let is_skipped = rest.contains("skipping") || rest.contains("skipped");
        if head.contains(" fail:") {
            endings.insert(name.to_owned(), "FAILED".to_owned());
        } else if is_skipped && !name.contains(' ') {
            endings.entry(name.to_owned()).or_insert_with(|| "skipped".to_owned());
        }
    }
    endings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_read_from_the_output_of_the_suites() {
        let text = "open::etxtbsy        FAILED\n\tcalled `unwrap` ok\nlink::max   skipped\nlink::a ok\n\
            Summary: 1 failed, 1 skipped\n";
        let endings: Vec<(String, String)> = endings_of_pjdfstest(text).into_iter().collect();
        let pair = |name: &str, ending: &str| (name.to_owned(), ending.to_owned());
        assert_eq!(
            endings,
            [pair("link::a", "ok"), pair("link::max", "skipped"), pair("open::etxtbsy", "FAILED")]
        );
        let text = "stress-ng: info:  [17] fiemap: not supported, skipping stressor\n\
            stress-ng: fail:  [18] hdd: read differs\nstress-ng: info:  [17] passed: 3: hdd (3)\n";
        let endings: Vec<(String, String)> = endings_of_stress_ng(text).into_iter().collect();
        assert_eq!(endings, [pair("fiemap", "skipped"), pair("hdd", "FAILED")]);
    }
}
