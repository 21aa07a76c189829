//! Rules about names of files and single lines: first lines, white space, marks of unfinished work,
//! and the files that may contain `unsafe`.

use super::problem::{Problem, Rule};
use super::scan::Line;

/// The list of files that may contain `unsafe`, one path per line.
pub const UNSAFE_FILES: &str = "xtask/unsafe-files.txt";

/// Names of files and folders that say nothing about their content.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "misc", "helper", "helpers"];

/// Marks of unfinished work. Each is in pieces, so that this file does not contain it.
const MARKS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("dbg", "!("),
];

/// Returns the problems of one file. `lines` are the lines of a Rust file; empty for all other
/// files.
pub fn check(path: &str, text: &str, lines: &[Line], allowed: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if path.ends_with(".rs") {
        problems.extend(name(path));
        problems.extend(headline(path, text));
        problems.extend(unsafety(path, lines, allowed));
    }
    if path.ends_with(".rs") || path.ends_with(".toml") {
        problems.extend(marks(path, text));
    }
    if path == "CHANGELOG.md"
        && !text.lines().any(|line| line.starts_with("## ") && line.contains("Unreleased"))
    {
        problems.push(whole(path, "the section \"## Unreleased\" is missing".into()));
    }
    problems.extend(spaces(path, text));
    problems
}

fn whole(path: &str, what: String) -> Problem {
    Problem::whole(Rule::Text, path, what)
}

fn at(path: &str, line: usize, what: String) -> Problem {
    Problem::at(Rule::Text, path, line, what)
}

/// Parses the list of files that may contain `unsafe`. Returns their paths.
pub fn unsafe_files(text: &str) -> Vec<String> {
    let paths = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    paths.map(str::to_owned).collect()
}

fn name(path: &str) -> Option<Problem> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let file = parts.pop()?.trim_end_matches(".rs");
    parts.push(file);
    let empty = parts.into_iter().find(|part| EMPTY_NAMES.contains(part))?;
    Some(whole(path, format!("the name \"{empty}\" says nothing about the content")))
}

fn headline(path: &str, text: &str) -> Option<Problem> {
    let found = text.lines().next().is_some_and(|line| line.starts_with("//! "));
    (!found).then(|| at(path, 1, "the first line must describe the file, as `//! ...`".into()))
}

/// Finds `unsafe` in a file that is not on the list, and a listed file without `unsafe`.
fn unsafety(path: &str, lines: &[Line], allowed: &[String]) -> Option<Problem> {
    let line = lines.iter().position(|line| holds_unsafe(&line.code));
    match (line, allowed.iter().any(|allowed| allowed == path)) {
        (Some(line), false) => Some(at(
            path,
            line + 1,
            format!("`unsafe` is not allowed here: the file is not in {UNSAFE_FILES}"),
        )),
        (None, true) => Some(whole(
            path,
            format!("the file contains no `unsafe` any more; remove it from {UNSAFE_FILES}"),
        )),
        _ => None,
    }
}

/// Returns whether code contains the word `unsafe`. Names of lints such as `unsafe_code` do not
/// count.
fn holds_unsafe(code: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
}

fn marks(path: &str, text: &str) -> Vec<Problem> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(number, line)| {
            let mark = MARKS.iter().find(|mark| line.contains(**mark))?;
            Some(at(path, number + 1, format!("{mark}: finish the work, or open an issue")))
        })
        .collect()
}

fn spaces(path: &str, text: &str) -> Vec<Problem> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.ends_with([' ', '\t', '\r']));
    let mut problems: Vec<Problem> =
        lines.map(|(number, _)| at(path, number + 1, "white space at the end of the line".into())).collect();
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(whole(path, "no newline at the end".into()));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use super::*;

    const GOOD: &str = "//! What it is.\n\nfn f() {}\n";

    fn problems(path: &str, text: &str) -> Vec<String> {
        let problems = check(path, text, &scan::lines(text), &["a/allowed.rs".to_owned()]);
        problems.iter().map(ToString::to_string).collect()
    }

    fn one(path: &str, text: &str, expected: &str) {
        let problems = problems(path, text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    }

    #[test]
    fn a_good_file_passes() {
        assert_eq!(problems("a/b.rs", GOOD), Vec::<String>::new());
    }

    #[test]
    fn unsafe_outside_the_list_is_caught_and_so_is_a_stale_entry() {
        one("a/b.rs", &format!("{GOOD}fn g() {{ unsafe {{ h() }} }}\n"), "a/b.rs:4: `unsafe`");
        one("a/b.rs", &format!("{GOOD}unsafe impl Send for S {{}}\n"), "`unsafe`");
        one("a/b.rs", &format!("{GOOD}#[unsafe(no_mangle)]\n"), "`unsafe`");
        one("a/allowed.rs", GOOD, "no `unsafe` any more");
        assert!(problems("a/allowed.rs", &format!("{GOOD}unsafe fn g() {{}}\n")).is_empty());
        assert!(problems("a/b.rs", &format!("{GOOD}#![forbid(unsafe_code)] // not unsafe\n")).is_empty());
        assert!(problems("a/b.rs", &format!("{GOOD}const S: &str = \"unsafe\";\n")).is_empty());
    }

    #[test]
    fn a_file_without_a_headline_is_caught() {
        one("a/b.rs", "fn f() {}\n", "the first line");
    }

    #[test]
    fn a_name_that_says_nothing_is_caught() {
        one("a/util.rs", GOOD, "\"util\" says nothing");
        one("a/helpers/b.rs", GOOD, "\"helpers\" says nothing");
    }

    #[test]
    fn marks_of_unfinished_work_are_caught() {
        for mark in MARKS {
            one("a/b.rs", &format!("{GOOD}// {mark}\n"), "a/b.rs:4");
        }
    }

    #[test]
    fn white_space_at_the_end_is_caught() {
        one("a/b.rs", &format!("{GOOD}fn g() {{}} \n"), "a/b.rs:4: white space");
        one("a.md", "text", "no newline");
    }

    #[test]
    fn a_changelog_without_unreleased_is_caught() {
        one("CHANGELOG.md", "# Changes\n\n## 1.0\n", "Unreleased");
        assert!(problems("CHANGELOG.md", "# Changes\n\n## Unreleased\n").is_empty());
    }
}
