//! Where a word of the configuration stands, and what can be wrong with it.
//!
//! Every complaint about a configuration is a [`Problem`]: a place, a key and a sentence. People see all of a
//! file's problems at once, in the order of the file, each as `file:line:column: key: sentence`.

use std::ops::Range;

/// The text of a configuration and the name it goes by in messages.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path as the user gave it, or `<default>`.
    pub name: String,
    /// The whole text.
    pub text: String,
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
#[derive(Clone, Debug)]
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
    /// One line for people: `file:line:column: key: sentence`.
    pub fn line(&self, problem: &Problem) -> String {
        let (line, column) = self.line_and_column(problem.place.offset);
        let key =
            if problem.place.key.is_empty() { String::new() } else { format!("{}: ", problem.place.key) };
        format!("{}:{line}:{column}: {key}{}", self.name, problem.message)
    }

    /// All problems, one line each, in the order of the file.
    pub fn lines(&self, mut problems: Vec<Problem>) -> Vec<String> {
        problems.sort_by_key(|problem| problem.place.offset);
        problems.iter().map(|problem| self.line(problem)).collect()
    }

    /// Line and column as editors count them: from one, columns in characters.
    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let source = Source { name: "f".into(), text: "ab\näöü = 1\n".into() };
        assert_eq!(source.line_and_column(0), (1, 1));
        assert_eq!(source.line_and_column(3), (2, 1));
        assert_eq!(source.line_and_column(source.text.find('=').unwrap()), (2, 5));
        assert_eq!(source.line_and_column(10_000), (3, 1));
    }
}
