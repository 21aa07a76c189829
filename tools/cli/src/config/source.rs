//! The text of a configuration, and the problems in it.
//!
//! Every problem is shown as `file:line:column: key: sentence`. All problems of a file are shown
//! together, in the order in which they occur in it.

use std::collections::BTreeMap;

/// Most problems shown for one file: people fix these before they read more.
const PROBLEMS_MAX: usize = 50;

/// A text, the name that messages give it, and where its lines and keys begin.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path as the user gave it, or `<default>`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Byte offsets of the newlines. A line is found in logarithmic time: a file may have as many
    /// problems as lines.
    newlines: Vec<usize>,
    /// Dotted keys such as `cache.io`, by the byte offsets where the key and its value begin.
    pub(super) keys: BTreeMap<usize, String>,
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Byte offset of the word that is wrong.
    pub offset: usize,
    /// The key, what is wrong with it, and what is expected.
    pub message: String,
}

impl Source {
    /// A text and its name.
    pub fn new(name: String, text: String) -> Source {
        let newlines = text.match_indices('\n').map(|(at, _)| at).collect();
        Source { name, text, newlines, keys: BTreeMap::new() }
    }

    /// A problem with the word at a byte offset, which belongs to the last key before it.
    pub fn problem(&self, offset: usize, message: impl AsRef<str>) -> Problem {
        let key = self.keys.range(..=offset).next_back().map(|(_, key)| format!("{key}: "));
        Problem { offset, message: key.unwrap_or_default() + message.as_ref() }
    }

    /// One line: `file:line:column: key: sentence`.
    pub fn line(&self, problem: &Problem) -> String {
        let (line, column) = self.line_and_column(problem.offset);
        // A message quotes the file. Escape characters that could control a terminal.
        let visible =
            |c: char| if octavo::is_visible(c) { c.to_string() } else { c.escape_unicode().to_string() };
        let message: String = problem.message.chars().map(visible).collect();
        format!("{}:{line}:{column}: {message}", self.name)
    }

    /// The first [`PROBLEMS_MAX`] problems in the order of the file, each once and on a line of its
    /// own, and then a line with the number of the remaining ones.
    pub fn lines(&self, mut problems: Vec<Problem>) -> Vec<String> {
        problems.sort_by_key(|problem| problem.offset);
        problems.dedup();
        let left = problems.len().saturating_sub(PROBLEMS_MAX);
        let mut lines: Vec<String> =
            problems.iter().take(PROBLEMS_MAX).map(|problem| self.line(problem)).collect();
        if left > 0 {
            lines.push(format!("{}: {left} more problems", self.name));
        }
        lines
    }

    /// Line and column of a byte offset as editors count them: from one, columns in characters.
    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let end = self.text.floor_char_boundary(offset);
        let line = self.line_of(end);
        let start = if line == 1 { 0 } else { self.newlines[line - 2] + 1 };
        (line, self.text[start..end].chars().count() + 1)
    }

    /// The line of a byte offset, counted from one.
    pub fn line_of(&self, offset: usize) -> usize {
        self.newlines.partition_point(|newline| *newline < offset) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let source = Source::new("f".into(), "ab\näöü = 1\n".into());
        assert_eq!(source.line_and_column(0), (1, 1));
        assert_eq!(source.line_and_column(3), (2, 1));
        assert_eq!(source.line_and_column(source.text.find('=').unwrap()), (2, 5));
        assert_eq!(source.line_and_column(10_000), (3, 1));
    }
}
