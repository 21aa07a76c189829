//! Checks rules about the repository's text that no compiler checks.
//!
//! - [`text`]: names of files, first lines, white space, marks of unfinished work, and the files
//!   that may contain `unsafe`.
//! - [`width`]: prose is at most 100 columns wide.
//! - [`size`]: the length of files and functions.
//! - [`floors`]: imports point down, and never form a cycle.
//!
//! The checked files are those that git tracks or would track. Each rule is a function from text to
//! problems, so that its tests can pass it a bad sample. [`EXCEPTIONS`] lists the exceptions to
//! rules, with their reasons.

mod floors;
mod modules;
mod problem;
mod scan;
mod size;
mod text;
mod width;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use modules::Tree;
use problem::{Problem, Rule};

/// The list of exceptions to rules.
const EXCEPTIONS: &str = "xtask/exceptions.txt";

/// Returns the problems of the repository's text as lines. All lines of a file that are too wide
/// are reported in one line.
pub fn check(root: &Path) -> Vec<String> {
    match problems(root) {
        Ok(problems) => told(problems),
        Err(error) => vec![error],
    }
}

fn problems(root: &Path) -> Result<Vec<Problem>, String> {
    let paths = tracked(root)?;
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let list = |path: &str| read(path).ok_or_else(|| format!("cannot read {path}"));
    let unsafe_files = text::unsafe_files(&list(text::UNSAFE_FILES)?);
    let (crates, mut problems) = floors::parse(&list(floors::FLOORS)?);
    let exceptions = list(EXCEPTIONS)?;

    let test_files = check_crates(&paths, &crates, &read, &mut problems);
    for path in &paths {
        let Some(text) = read(path) else { continue };
        let lines = if path.ends_with(".rs") { scan::lines(&text) } else { Vec::new() };
        problems.extend(text::check(path, &text, &lines, &unsafe_files));
        problems.extend(width::check(path, &text, &lines));
        let is_test = test_files.contains(path) || path.split('/').any(|folder| folder == "tests");
        if path.ends_with(".rs") && !is_test {
            problems.extend(size::check(path, &text));
        }
    }
    for path in unsafe_files.iter().filter(|path| !paths.contains(path)) {
        problems.push(Problem::whole(
            Rule::Text,
            text::UNSAFE_FILES,
            format!("{path} does not exist: remove it from the list"),
        ));
    }
    Ok(except(problems, &exceptions))
}

/// Checks the imports of all crates. Returns the files that are compiled for tests only.
fn check_crates(
    paths: &[String],
    crates: &[floors::Floors],
    read: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> BTreeSet<String> {
    let mut test_files = BTreeSet::new();
    let mut folders = BTreeSet::new();
    let is_root = |path: &&String| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    for root in paths.iter().filter(is_root) {
        let folder = root.rsplit_once("/src/").map_or("", |(folder, _)| folder);
        folders.insert(folder);
        let tree = Tree::read(root, read);
        let none = floors::Floors::of(folder);
        let own = crates.iter().find(|floors| floors.folder == folder).unwrap_or(&none);
        problems.extend(floors::check(own, &tree));
        test_files.extend(tree.test_files);
    }
    for stale in crates.iter().filter(|floors| !folders.contains(floors.folder.as_str())) {
        let what = format!("[{}] is not the folder of a crate", stale.folder);
        problems.push(Problem::whole(Rule::Floor, floors::FLOORS, what));
    }
    test_files
}

/// Removes the problems that the list of exceptions allows. An exception that allows nothing is a
/// problem.
fn except(mut problems: Vec<Problem>, exceptions: &str) -> Vec<Problem> {
    for (number, line) in exceptions.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut wrong =
            |what: &str| problems.push(Problem::at(Rule::Text, EXCEPTIONS, number + 1, what.into()));
        let parts = line.split_once(": ").and_then(|(what, _)| what.split_once(' '));
        let Some((word, path)) = parts else {
            wrong("an exception must have the form \"RULE PATH: REASON\"");
            continue;
        };
        let rule = Rule::ALL.iter().find(|(rule, known)| *known == word && *rule != Rule::Text);
        let Some((rule, _)) = rule else {
            wrong("no rule that allows exceptions has this name");
            continue;
        };
        let before = problems.len();
        problems.retain(|problem| problem.rule != *rule || problem.path != path);
        if problems.len() == before {
            let what = "this exception is no longer needed: remove it".into();
            problems.push(Problem::at(Rule::Text, EXCEPTIONS, number + 1, what));
        }
    }
    problems
}

/// Formats the problems as lines of text. All lines of a file that are too wide are reported in one
/// line.
fn told(mut problems: Vec<Problem>) -> Vec<String> {
    problems
        .sort_by(|one, other| (one.rule, &one.path, one.line).cmp(&(other.rule, &other.path, other.line)));
    let mut told: Vec<String> = Vec::new();
    let mut wide: Option<(String, Vec<String>)> = None;
    let end = |wide: &mut Option<(String, Vec<String>)>, told: &mut Vec<String>| {
        if let Some((path, lines)) = wide.take() {
            let most = width::COLUMNS_MAX;
            told.push(format!("[width] {path}: wider than {most} columns: {}", lines.join(" ")));
        }
    };
    for problem in problems {
        if let (Rule::Width, Some(line)) = (problem.rule, problem.line) {
            match &mut wide {
                Some((path, lines)) if *path == problem.path => lines.push(line.to_string()),
                _ => {
                    end(&mut wide, &mut told);
                    wide = Some((problem.path, vec![line.to_string()]));
                }
            }
            continue;
        }
        end(&mut wide, &mut told);
        told.push(format!("[{}] {problem}", problem.rule.word()));
    }
    end(&mut wide, &mut told);
    told
}

/// Returns the paths of all files that git tracks or would track, sorted.
fn tracked(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut paths: Vec<String> = output
        .stdout
        .split(|byte| *byte == 0)
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect();
    paths.retain(|path| !path.is_empty() && root.join(path).is_file());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        assert_eq!(check(&crate::root()).join("\n"), "");
    }

    fn wide(path: &str, line: usize) -> Problem {
        Problem::at(Rule::Width, path, line, String::new())
    }

    #[test]
    fn an_exception_excuses_its_rule_in_its_file_and_must_excuse_something() {
        let left = |exceptions: &str| {
            let long = Problem::whole(Rule::Lines, "a.rs", "long".into());
            told(except(vec![wide("a.rs", 1), long, wide("b.rs", 2)], exceptions))
        };
        let b = "[width] b.rs: wider than 100 columns: 2";
        assert_eq!(left("# Text\nwidth a.rs: a reason\n"), [b, "[lines] a.rs: long"]);
        let stale = "[text] xtask/exceptions.txt:1: this exception is no longer needed: remove it";
        assert_eq!(left("cycle a.rs: a reason")[0], stale);
        for wrong in ["width a.rs", "text a.rs: a reason", "shape a.rs: a reason"] {
            assert_eq!(left(wrong).len(), 4, "{wrong}");
        }
    }

    #[test]
    fn wide_lines_of_a_file_are_told_together() {
        let problems = vec![wide("b.rs", 1), wide("a.rs", 7), wide("a.rs", 3)];
        let said = ["[width] a.rs: wider than 100 columns: 3 7", "[width] b.rs: wider than 100 columns: 1"];
        assert_eq!(told(problems), said);
    }

    #[test]
    fn a_crate_that_is_gone_is_caught() {
        let (crates, mut problems) = floors::parse("[gone]");
        check_crates(&["c/src/lib.rs".into()], &crates, &|_| Some(String::new()), &mut problems);
        assert_eq!(told(problems), ["[floor] xtask/floors.txt: [gone] is not the folder of a crate"]);
    }
}
