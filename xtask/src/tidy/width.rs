//! Checks that prose is at most [`COLUMNS_MAX`] columns wide: Markdown, and the comments of all
//! other files.
//!
//! Lines that cannot be broken are exempt: tables and code blocks of Markdown, and lines that
//! contain only a link.

use super::problem::{Problem, Rule};
use super::scan::Line;

/// The widest line of prose, in characters.
pub const COLUMNS_MAX: usize = 100;

/// Checks a file. `lines` are the lines of a Rust file; empty for all other files.
pub fn check(path: &str, text: &str, lines: &[Line]) -> Vec<Problem> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_shell = path.ends_with(".sh") || text.lines().next().is_some_and(is_shell_headline);
    let wide: Vec<(usize, usize)> = if path.ends_with(".rs") {
        wide_comments(text, |number, _| lines[number].comment.clone())
    } else if path.ends_with(".md") {
        wide_prose(text)
    } else if path.ends_with(".toml") || path.ends_with(".mk") || name == "Makefile" || is_shell {
        wide_comments(text, |_, line| hash_comment(line))
    } else {
        Vec::new()
    };
    wide.into_iter()
        .map(|(line, columns)| {
            Problem::at(Rule::Width, path, line, format!("{columns} columns of prose; {COLUMNS_MAX} fit"))
        })
        .collect()
}

fn is_shell_headline(line: &str) -> bool {
    line.starts_with("#!") && line.ends_with("sh")
}

/// Returns the lines that are too wide and end in a comment: their numbers from 1, and their
/// widths.
fn wide_comments(text: &str, comment: impl Fn(usize, &str) -> Option<String>) -> Vec<(usize, usize)> {
    let wide = text.lines().enumerate().filter(|(number, line)| {
        line.chars().count() > COLUMNS_MAX
            && comment(*number, line).is_some_and(|comment| !is_one_link(comment.trim_start_matches(MARKERS)))
    });
    wide.map(|(number, line)| (number + 1, line.chars().count())).collect()
}

/// The characters before the words of a comment.
const MARKERS: [char; 4] = ['/', '!', '#', ' '];

/// Returns the comment of a line of TOML or shell, from its `#` on.
fn hash_comment(line: &str) -> Option<String> {
    let mut quote = None;
    let mut before = ' ';
    for (at, next) in line.char_indices() {
        match (quote, next) {
            (None, '#') if before.is_whitespace() => return Some(line[at..].to_owned()),
            (None, '"' | '\'') => quote = Some(next),
            (Some(open), _) if open == next && before != '\\' => quote = None,
            _ => {}
        }
        before = next;
    }
    None
}

/// Returns the lines of Markdown that are too wide: their numbers from 1, and their widths.
fn wide_prose(text: &str) -> Vec<(usize, usize)> {
    let mut fence: Option<&str> = None;
    let mut wide = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = line.trim_start();
        let opens = ["```", "~~~"].into_iter().find(|marks| words.starts_with(marks));
        match (fence, opens) {
            (None, Some(_)) => fence = opens,
            (Some(open), Some(closes)) if open == closes => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let columns = line.chars().count();
                let is_table = words.starts_with('|');
                if columns > COLUMNS_MAX && !is_table && !is_one_link(words) {
                    wide.push((number + 1, columns));
                }
            }
        }
    }
    wide
}

/// Returns whether a line contains only a link or a picture, apart from the mark of a list.
fn is_one_link(words: &str) -> bool {
    let words = words.trim().trim_start_matches(['-', '*', '>']).trim_start();
    let words = words.trim_end_matches(['.', ',', ';', ':', ')']);
    let breaks = words.contains(' ');
    let is_address = words.contains("://") && !breaks;
    let is_picture = words.starts_with("<img ") && words.ends_with('>');
    // `[name]: address`, `[text](address)`, `![text](address)`, and a picture that is a link.
    let is_definition = words
        .strip_prefix('[')
        .and_then(|words| words.split_once("]: "))
        .is_some_and(|(_, address)| !address.contains(' '));
    let bare = words.trim_start_matches('!');
    let is_link = bare.starts_with('[')
        && bare.rsplit_once("](").is_some_and(|(text, address)| {
            !address.contains([' ', ')']) && (text.matches('[').count() == 1 || text.starts_with("[!["))
        });
    is_address || is_picture || is_definition || is_link
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use super::*;

    /// Returns the numbers of the lines that are too wide.
    fn wide(path: &str, text: &str) -> Vec<usize> {
        let problems = check(path, text, &scan::lines(text));
        problems.iter().map(|problem| problem.line.expect("a line")).collect()
    }

    fn words(columns: usize) -> String {
        "word ".repeat(columns / 5) + &"x".repeat(columns % 5)
    }

    #[test]
    fn a_wide_comment_is_caught_and_wide_code_is_not() {
        let prose = words(98);
        assert_eq!(wide("a.rs", &format!("//{prose}\n// {prose}\n")), [2]);
        assert_eq!(wide("a.rs", &format!("/// {prose}\n//! {prose}\nlet a = 1; // {prose}\n")), [1, 2, 3]);
        assert_eq!(wide("a.rs", &format!("/*\n{prose} and more\n*/\n")), [2]);
        assert_eq!(wide("a.rs", &format!("let a = \"// {prose}\";\n")), Vec::<usize>::new());
        assert_eq!(wide("a.toml", &format!("# {prose} x\na = \"# {prose}\"\nb = 1 # {prose}\n")), [1, 3]);
        assert_eq!(wide("Makefile", &format!("# {prose} x\n\techo '# {prose}'\n")), [1]);
        assert_eq!(wide("a/run", &format!("#!/usr/bin/env bash\n# {prose} x\n")), [2]);
    }

    #[test]
    fn a_wide_line_of_markdown_is_caught_and_what_cannot_be_broken_is_not() {
        let prose = words(120);
        assert_eq!(wide("a.md", &format!("{prose}\n- {prose}\n> {prose}\n")), [1, 2, 3]);
        assert_eq!(wide("a.md", &format!("| {prose} |\n```text\n{prose}\n```\n{prose}\n")), [5]);
        assert_eq!(wide("a.md", &format!("~~~\n```\n{prose}\n~~~\n{prose}\n")), [5]);
        let address = format!("https://example.org/{}", "x".repeat(100));
        for link in ["{}", "- <{}>", "[text with words]({})", "![text]({}).", "[name]: {}", "[![a](b)]({})"] {
            assert_eq!(wide("a.md", &link.replace("{}", &address)), Vec::<usize>::new(), "{link}");
            assert_eq!(
                wide("a.rs", &format!("/// {}", link.replace("{}", &address))),
                Vec::<usize>::new(),
                "{link}"
            );
        }
        assert_eq!(wide("a.md", &format!("See [text]({address}) and read on.")), [1]);
        assert_eq!(wide("a.rs", &format!("// See {address}")), [1]);
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        assert_eq!(wide("a.md", &"é ".repeat(50)), Vec::<usize>::new());
        assert_eq!(wide("a.md", &"é ".repeat(51)), [1]);
    }
}
