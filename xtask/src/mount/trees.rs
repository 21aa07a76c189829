//! Suites that are built from source: the tests of SQLite and of git.
//!
//! Both skip tests, or refuse to run, as root. They run as another user.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::load::{Endings, Load};

/// The user and the group `nobody`, which own the directories of the tests.
const USER: u32 = 65_534;

/// The longest time of one test script or permutation, in seconds, as coreutils' timeout takes it.
const TIME_MAX_SECONDS: &str = "7200";

/// Creates a directory that `nobody` owns.
fn directory_of_user(path: PathBuf) -> Result<PathBuf, String> {
    let create = || {
        std::fs::create_dir(&path)?;
        std::os::unix::fs::chown(&path, Some(USER), Some(USER))
    };
    create().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Runs a program as `nobody`. Returns its standard output, and its errors after it.
fn output_as_user(directory: &Path, home: &Path, words: &[&str]) -> Result<String, String> {
    let user = USER.to_string();
    let mut command = Command::new("timeout");
    command.args([TIME_MAX_SECONDS, "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(words).current_dir(directory);
    for name in ["HOME", "TMPDIR", "SQLITE_TMPDIR", "TEST_OUTPUT_DIRECTORY"] {
        command.env(name, home);
    }
    let output = command.output().map_err(|error| format!("cannot run {}: {error}", words[0]))?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Runs SQLite's tests, whose databases, journals and temporary files are in the directory.
pub fn sqlite(directory: &Path, load: &Load, _: &Path) -> Result<Endings, String> {
    let tree = load.sqlite.as_deref().ok_or("no source tree")?;
    let (program, script) = (tree.join("testfixture"), tree.join("test/permutations.test"));
    let (program, script) = (program.display().to_string(), script.display().to_string());
    let mut endings = Endings::new();
    for permutation in &load.permutations {
        let folder = directory_of_user(directory.join(format!("sqlite-{permutation}")))?;
        let text = output_as_user(&folder, &folder, &[&program, &script, permutation])?;
        let of_permutation = endings_of_sqlite(permutation, &text);
        if of_permutation.is_empty() {
            let lines: Vec<&str> = text.lines().collect();
            return Err(lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        endings.extend(of_permutation);
        std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok(endings)
}

/// Each test is a line `NAME... Ok`; a failure has a line `! NAME expected`. The last lines are
/// missing if the program died.
fn endings_of_sqlite(permutation: &str, text: &str) -> Endings {
    let mut endings = Endings::new();
    for line in text.lines() {
        let name = |name: &str| format!("{permutation} {name}");
        if let Some(test) = line.strip_suffix("... Ok") {
            endings.entry(name(test)).or_insert_with(|| "ok".to_owned());
        } else if let Some((test, _)) = line.strip_prefix("! ").and_then(|line| line.split_once(" expected:"))
        {
            endings.insert(name(test), "FAILED".to_owned());
        }
    }
    if !endings.is_empty() {
        let has_ended = text.lines().any(|line| line.contains(" errors out of "));
        let word = if has_ended { "ok" } else { "FAILED" };
        endings.insert(format!("{permutation} to its end"), word.to_owned());
    }
    endings
}

/// Runs git's tests, whose repositories are in the directory.
pub fn git(directory: &Path, load: &Load, artifacts: &Path) -> Result<Endings, String> {
    let tests = load.git.as_deref().ok_or("no source tree")?.join("t");
    let root = directory_of_user(directory.join("git"))?;
    let results = artifacts.join("git");
    let _ = std::fs::remove_dir_all(&results);
    let results = directory_of_user(results)?;
    let names = std::fs::read_dir(&tests).map_err(|error| format!("{}: {error}", tests.display()))?;
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_wanted = |name: &String| {
        name.ends_with(".sh") && load.scripts.iter().any(|script| name.starts_with(script.as_str()))
    };
    let mut names: Vec<String> = names.filter(is_wanted).collect();
    names.sort();
    let mut endings = Endings::new();
    for name in &names {
        let root = format!("--root={}", root.display());
        let words = ["sh", name, &root, "--no-chain-lint", "--no-bin-wrappers"];
        let text = output_as_user(&tests, &results, &words)?;
        endings.extend(endings_of_git(name.trim_end_matches(".sh"), &text));
    }
    std::fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    if endings.is_empty() { Err("no test ran".into()) } else { Ok(endings) }
}

/// The tests print TAP: `ok 1 - NAME`, `not ok 2 - NAME`, and `1..2` at the end. A test that is
/// known to fail has `known breakage` behind its name.
fn endings_of_git(script: &str, text: &str) -> Endings {
    let mut endings = Endings::new();
    for line in text.lines() {
        let (word, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) if rest.contains("# skip") => ("skipped", rest),
            (Some(rest), _) => ("ok", rest),
            (_, Some(rest)) if rest.contains("known breakage") => ("known breakage", rest),
            (_, Some(rest)) => ("FAILED", rest),
            _ => continue,
        };
        let number = rest.split_whitespace().next().unwrap_or_default();
        endings.insert(format!("{script} {number}"), word.to_owned());
    }
    let has_ended = text.lines().any(|line| line.starts_with("1.."));
    endings.insert(format!("{script} to its end"), if has_ended { "ok" } else { "FAILED" }.to_owned());
    endings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(endings: Endings) -> Vec<(String, String)> {
        endings.into_iter().collect()
    }

    fn pair(name: &str, ending: &str) -> (String, String) {
        (name.to_owned(), ending.to_owned())
    }

    #[test]
    fn endings_are_read_from_the_output_of_sqlite() {
        let text = "io-5.4... Ok\nio-5.5...\n! io-5.5 expected: [8192]\n! io-5.5 got:      [16384]\n\
            1 errors out of 2 tests on vm Linux 64-bit little-endian\n";
        assert_eq!(
            pairs(endings_of_sqlite("wal", text)),
            [pair("wal io-5.4", "ok"), pair("wal io-5.5", "FAILED"), pair("wal to its end", "ok")]
        );
        assert!(endings_of_sqlite("wal", "**** Tests do not work when run as root ****\n").is_empty());
    }

    #[test]
    fn endings_are_read_from_the_output_of_git() {
        let text = "ok 1 - plain\nok 2 # skip dirs (missing X)\nnot ok 3 - bad\n\
            not ok 4 - old # known breakage\n";
        assert_eq!(
            pairs(endings_of_git("t0001-init", text)),
            [
                pair("t0001-init 1", "ok"),
                pair("t0001-init 2", "skipped"),
                pair("t0001-init 3", "FAILED"),
                pair("t0001-init 4", "known breakage"),
                pair("t0001-init to its end", "FAILED"),
            ]
        );
    }
}
