//! Rules about the text of the repository that no compiler knows.
//!
//! Files are those that git tracks or would track: generated and ignored ones are nobody's
//! business. Each rule is a function from a path and a text to problems, so that a test can show it
//! a bad sample.

use std::path::Path;
use std::process::Command;

/// The list of files that may hold `unsafe`, one path a line.
const UNSAFE_FILES: &str = "xtask/unsafe-files.txt";

/// Files that may be longer than [`LINES_MAX`], and why.
const LONG_FILES: &[(&str, &str)] = &[];

/// At so many lines, a file is asked why.
const LINES_MAX: usize = 800;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "misc", "helper", "helpers"];

/// Marks of unfinished work. In pieces, so that this file does not hold them itself.
const MARKS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("dbg", "!("),
];

/// Everything that is wrong with the repository's text, a sentence each.
pub fn check(root: &Path) -> Vec<String> {
    let paths = match tracked(root) {
        Ok(paths) => paths,
        Err(error) => return vec![error],
    };
    let allowed = match std::fs::read_to_string(root.join(UNSAFE_FILES)) {
        Ok(text) => unsafe_files(&text),
        Err(error) => return vec![format!("{UNSAFE_FILES}: {error}")],
    };
    let mut problems = Vec::new();
    for path in &paths {
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        problems.extend(check_text(path, text, &allowed));
    }
    for path in allowed.iter().filter(|path| !paths.contains(path)) {
        problems.push(format!("{UNSAFE_FILES}: {path} is not there"));
    }
    problems
}

/// Everything that is wrong with one file.
fn check_text(path: &str, text: &str, allowed: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if path.ends_with(".rs") {
        problems.extend(name(path));
        problems.extend(headline(path, text));
        problems.extend(length(path, text));
        problems.extend(unsafety(path, text, allowed));
    }
    if path.ends_with(".rs") || path.ends_with(".toml") {
        problems.extend(marks(path, text));
    }
    if path == "CHANGELOG.md"
        && !text.lines().any(|line| line.starts_with("## ") && line.contains("Unreleased"))
    {
        problems.push(format!("{path}: there is no section \"## Unreleased\" on top"));
    }
    problems.extend(spaces(path, text));
    problems
}

fn tracked(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git cannot be run: {error}"))?;
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

fn unsafe_files(text: &str) -> Vec<String> {
    let paths = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    paths.map(str::to_owned).collect()
}

fn name(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let file = parts.pop()?.trim_end_matches(".rs");
    parts.push(file);
    let empty = parts.into_iter().find(|part| EMPTY_NAMES.contains(part))?;
    Some(format!("{path}: \"{empty}\" says nothing about what is inside"))
}

fn headline(path: &str, text: &str) -> Option<String> {
    let found = text.lines().next().is_some_and(|line| line.starts_with("//! "));
    (!found).then(|| format!("{path}:1: the first line says what the file is, as `//! ...`"))
}

fn length(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let excused = LONG_FILES.iter().any(|(long, _)| *long == path);
    (lines > LINES_MAX && !excused)
        .then(|| format!("{path}: {lines} lines; split it, or excuse it in xtask/src/tidy.rs"))
}

/// Both ways: `unsafe` outside the list, and a listed file without any.
fn unsafety(path: &str, text: &str, allowed: &[String]) -> Option<String> {
    let line = text.lines().position(|line| code(line).is_some_and(holds_unsafe));
    match (line, allowed.iter().any(|allowed| allowed == path)) {
        (Some(line), false) => {
            Some(format!("{path}:{}: `unsafe`, and the file is not in {UNSAFE_FILES}", line + 1))
        }
        (None, true) => Some(format!("{path}: holds no `unsafe` any more; remove it from {UNSAFE_FILES}")),
        _ => None,
    }
}

/// The part of a line that is neither comment nor string, roughly: good enough for one word.
fn code(line: &str) -> Option<String> {
    let line = line.split("//").next()?.replace("\\\"", "");
    let outside = line.split('"').step_by(2).collect::<Vec<_>>();
    Some(outside.join(" "))
}

/// `unsafe` as a word of its own; lints such as `unsafe_code` are other words.
fn holds_unsafe(code: String) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
}

fn marks(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(number, line)| {
            let mark = MARKS.iter().find(|mark| line.contains(**mark))?;
            Some(format!("{path}:{}: {mark}: do it, or write it down as an issue", number + 1))
        })
        .collect()
}

fn spaces(path: &str, text: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(format!("{path}:{}: white space at the end of the line", number + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(format!("{path}: no newline at the end"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! What it is.\n\nfn f() {}\n";

    fn problems(path: &str, text: &str) -> Vec<String> {
        check_text(path, text, &["a/allowed.rs".to_owned()])
    }

    fn one(path: &str, text: &str, expected: &str) {
        let problems = problems(path, text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    }

    #[test]
    fn the_repository_is_tidy() {
        assert_eq!(check(&crate::root()).join("\n"), "");
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
    fn a_file_too_long_is_caught() {
        one("a/b.rs", &format!("{GOOD}{}", "fn f() {}\n".repeat(800)), "803 lines");
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
