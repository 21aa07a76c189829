//! `cargo xtask mount`: the suites of others on `octavo mount` and on a plain directory beside it.
//!
//! pjdfstest, fsx, fio with verification, stress-ng's file stressors, and the tests of SQLite and
//! git run in a directory, and on a mount in each cache mode. What ends otherwise on the mount is a
//! difference. Each difference is explained in [`EXPLAINED`], or the command fails.
//!
//! A suite that is not installed is skipped. Not in the gate, because it takes minutes and needs
//! root and programs that Debian does not have.

mod load;
mod suites;
mod trees;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cargo::succeeds;
use crate::program::{self, Folder};
use crate::step::Outcome;
use load::{Endings, Load};
use suites::{SUITES, Suite};

/// Differences that the kernel makes: suite, test, ending on the mount, and why.
const EXPLAINED: &[[&str; 4]] = &[
    [
        "pjdfstest",
        "link::link_count_max",
        "skipped",
        "the C library knows the largest number of links by the file system's type, not of FUSE",
    ],
    ["stress-ng", "fiemap", "skipped", "the kernel has no FIEMAP for file systems of FUSE"],
];

const USAGE: &str = "usage: cargo xtask mount [--operations N] [--seconds N] [--suite NAME].. \
    [--sqlite TREE [--permutation NAME]..] [--git TREE [--script BEGINNING]..] [DIRECTORY]";

/// The longest time until a directory is mounted or unmounted.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the command. Returns true if nothing failed.
pub fn run(words: &[&str], root: &Path) -> bool {
    let outcome = match parse(words) {
        Ok((load, directory)) => prepare_and_compare(root, &load, &directory),
        Err(what) => Outcome::Failed(what),
    };
    program::finish("mount", outcome)
}

fn parse(words: &[&str]) -> Result<(Load, PathBuf), String> {
    let (mut load, mut directory) = (Load::default(), std::env::temp_dir());
    let (mut permutations, mut scripts) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            directory = absolute(word)?;
            continue;
        }
        let value = *words.next().ok_or(USAGE)?;
        match *word {
            "--operations" => load.operations = value.parse().map_err(|_| USAGE)?,
            "--seconds" => load.seconds = value.parse().map_err(|_| USAGE)?,
            "--suite" if SUITES.iter().any(|suite| suite.name == value) => load.only.push(value.into()),
            "--sqlite" => load.sqlite = Some(absolute(value)?),
            "--permutation" => permutations.push(value.to_owned()),
            "--git" => load.git = Some(absolute(value)?),
            "--script" => scripts.push(value.to_owned()),
            _ => return Err(USAGE.into()),
        }
    }
    if !permutations.is_empty() {
        load.permutations = permutations;
    }
    if !scripts.is_empty() {
        load.scripts = scripts;
    }
    Ok((load, directory))
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))
}

fn prepare_and_compare(root: &Path, load: &Load, directory: &Path) -> Outcome {
    let mut suites = Vec::new();
    for suite in SUITES.iter().filter(|suite| load.includes(suite.name)) {
        match (suite.is_here)(load) {
            true => suites.push(suite),
            false => println!("SKIPPED: {}; to get it: {}", suite.name, suite.source),
        }
    }
    if suites.is_empty() {
        return Outcome::Skipped("no suite is installed".into());
    }
    if !succeeds(Command::new("test").args(["-w", "/dev/fuse", "-a", "-O", "/"])) {
        return Outcome::Skipped("it needs /dev/fuse, and root, because suites become other users".into());
    }
    let program = match program::octavo(root) {
        Ok(program) => program,
        Err(outcome) => return outcome,
    };
    let folder = match Folder::new(directory, "mount") {
        Ok(folder) => folder,
        Err(outcome) => return outcome,
    };
    match compare(&program, &suites, load, &folder) {
        Ok(0) => Outcome::Passed,
        Ok(count) => Outcome::Failed(format!("{count} differences are not explained")),
        Err(what) => Outcome::Failed(what),
    }
}

/// Runs all suites in a directory and on mounts. Returns how many differences are not explained.
fn compare(program: &Path, suites: &[&Suite], load: &Load, folder: &Path) -> Result<usize, String> {
    let path = |name: &str| folder.join(name);
    for name in ["plain", "source", "mount", "artifacts"] {
        std::fs::create_dir_all(path(name)).map_err(|error| format!("{}: {error}", path(name).display()))?;
    }
    let plain = run_suites("plain", &path("plain"), suites, load, &path("artifacts"))?;
    let mut unexplained = 0;
    for mode in ["writethrough", "writeback"] {
        let mut mounted = Mounted::start(program, &path("source"), &path("mount"), mode)?;
        let on_mount = run_suites(mode, &path("mount"), suites, load, &path("artifacts"));
        mounted.stop()?;
        unexplained += report(mode, suites, &plain, &on_mount?);
    }
    Ok(unexplained)
}

fn run_suites(
    what: &str,
    directory: &Path,
    suites: &[&Suite],
    load: &Load,
    artifacts: &Path,
) -> Result<Vec<Endings>, String> {
    let mut all = Vec::new();
    for suite in suites {
        let start = Instant::now();
        let endings =
            (suite.run)(directory, load, artifacts).map_err(|why| format!("{}: {why}", suite.name))?;
        let mut counts = BTreeMap::<&str, usize>::new();
        endings.values().for_each(|ending| *counts.entry(ending).or_default() += 1);
        let counts: Vec<String> = counts.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
        println!("{what}: {}: {} ({} s)", suite.name, counts.join(", "), start.elapsed().as_secs());
        all.push(endings);
    }
    Ok(all)
}

/// Prints the differences. Returns how many are not explained.
fn report(mode: &str, suites: &[&Suite], plain: &[Endings], on_mount: &[Endings]) -> usize {
    let mut unexplained = 0;
    for ((suite, plain), on_mount) in suites.iter().zip(plain).zip(on_mount) {
        let names: std::collections::BTreeSet<&String> = plain.keys().chain(on_mount.keys()).collect();
        for name in names {
            let ending = |endings: &Endings| endings.get(name).map_or("ok", String::as_str).to_owned();
            let (expected, found) = (ending(plain), ending(on_mount));
            if expected == found {
                continue;
            }
            let why = EXPLAINED
                .iter()
                .find(|[of, test, ending, _]| *of == suite.name && *test == *name && *ending == found)
                .map(|[_, _, _, why]| *why);
            unexplained += usize::from(why.is_none());
            println!(
                "{mode}: {}: {name}: {found}, {expected} in a plain directory: {}",
                suite.name,
                why.unwrap_or("NOT EXPLAINED")
            );
        }
    }
    unexplained
}

/// A mount, which ends with this.
struct Mounted(Child);

impl Mounted {
    fn start(program: &Path, source: &Path, target: &Path, mode: &str) -> Result<Mounted, String> {
        let mut command = Command::new(program);
        command.arg("mount").arg(source).arg(target).args(["--memory-max", "64MiB"]);
        command.args(["-o", &format!("{mode},suid,dev")]).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut mounted = Mounted(child);
        let start = Instant::now();
        while !succeeds(Command::new("mountpoint").arg("-q").arg(target)) {
            if mounted.0.try_wait().is_ok_and(|ended| ended.is_some()) || start.elapsed() > MOUNT_TIME_MAX {
                return Err(format!("{} was not mounted", target.display()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(mounted)
    }

    /// Unmounts as a service manager does.
    fn stop(&mut self) -> Result<(), String> {
        self.signal();
        let ended = self.0.wait().map_err(|error| error.to_string())?;
        if ended.success() { Ok(()) } else { Err(format!("octavo mount: {ended}")) }
    }

    fn signal(&self) {
        succeeds(Command::new("kill").args(["-TERM", &self.0.id().to_string()]));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal();
            let _ = self.0.wait();
        }
    }
}
