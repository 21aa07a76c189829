//! Where a word of the configuration stands, and what can be wrong with it.
//!
//! Every complaint about a configuration is a [`Problem`]: a place, a key and a sentence. People
//! see all of a file's problems at once, in the order of the file, each as `file:line:column: key:
//! sentence`.

use std::ops::Range;
use std::sync::OnceLock;

/// The most problems that are shown at once: what people read before they mend the first ones.
const LINES_MAX: usize = 50;

/// The text of a configuration and the name it goes by in messages.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path as the user gave it, or `<default>`.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Where its newlines are, once a place was asked for.
    newlines: OnceLock<Vec<usize>>,
}

/// A word of the configuration: the key it belongs to and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The dotted key, such as `partition.policy`; empty for the file as a whole.
    pub key: String,
    /// The byte at which the word begins.
    pub offset: usize,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Placed<T> {
    /// What the file says.
    pub value: T,
    /// Where it says so.
    pub place: Place,
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What it is about.
    pub place: Place,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Place {
    /// A place from a key and the span of its word.
    pub fn new(key: impl Into<String>, span: Range<usize>) -> Place {
        Place { key: key.into(), offset: span.start }
    }

    /// A problem with the word that stands here.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { place: self.clone(), message: message.into() }
    }
}

impl Source {
    /// A text and its name.
    pub fn new(name: String, text: String) -> Source {
        Source { name, text, newlines: OnceLock::new() }
    }

    /// One line for people: `file:line:column: key: sentence`.
    pub fn line(&self, problem: &Problem) -> String {
        let (line, column) = self.line_and_column(problem.place.offset);
        let key =
            if problem.place.key.is_empty() { String::new() } else { format!("{}: ", problem.place.key) };
        // What the file says is quoted: a terminal must not take it for commands.
        let said = format!("{key}{}", problem.message);
        let said: String = said
            .chars()
            .map(|c| if octavo::is_visible(c) { c.to_string() } else { c.escape_unicode().to_string() })
            .collect();
        format!("{}:{line}:{column}: {said}", self.name)
    }

    /// The problems in the order of the file, one line each: every one once, [`LINES_MAX`] at most,
    /// and then how many are left.
    pub fn lines(&self, mut problems: Vec<Problem>) -> Vec<String> {
        problems.sort_by_key(|problem| problem.place.offset);
        problems.dedup();
        let mut lines: Vec<String> =
            problems.iter().take(LINES_MAX).map(|problem| self.line(problem)).collect();
        let left = problems.len().saturating_sub(LINES_MAX);
        if left > 0 {
            lines.push(format!("{}: {left} more problems", self.name));
        }
        lines
    }

    /// Line and column as editors count them: from one, columns in characters.
    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let end = self.text.floor_char_boundary(offset);
        let line = self.line_of(end);
        let line_start = if line == 1 { 0 } else { self.newlines()[line - 2] + 1 };
        (line, self.text[line_start..end].chars().count() + 1)
    }

    /// The line alone, in logarithmic time: a file may have as many problems as lines.
    pub fn line_of(&self, offset: usize) -> usize {
        self.newlines().partition_point(|newline| *newline < offset) + 1
    }

    fn newlines(&self) -> &[usize] {
        self.newlines.get_or_init(|| self.text.match_indices('\n').map(|(at, _)| at).collect())
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
