//! A problem that a check finds: the broken rule, the file, the line, and a description.

use std::fmt;

/// The rule that a problem breaks. The list of exceptions names a rule by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The rules of [`text`](super::text), which have no exceptions.
    Text,
    Width,
    Lines,
    Function,
    Floor,
    Cycle,
}

impl Rule {
    /// All rules, with their words.
    pub const ALL: [(Rule, &str); 6] = [
        (Rule::Text, "text"),
        (Rule::Width, "width"),
        (Rule::Lines, "lines"),
        (Rule::Function, "function"),
        (Rule::Floor, "floor"),
        (Rule::Cycle, "cycle"),
    ];

    /// Returns the word of the rule.
    pub fn word(self) -> &'static str {
        Rule::ALL.iter().find(|(rule, _)| *rule == self).map_or("", |(_, word)| word)
    }
}

/// One problem of a file.
#[derive(Debug)]
pub struct Problem {
    pub rule: Rule,
    pub path: String,
    /// Counted from 1. None if the problem concerns the whole file.
    pub line: Option<usize>,
    pub what: String,
}

impl Problem {
    /// Creates a problem of one line.
    pub fn at(rule: Rule, path: &str, line: usize, what: String) -> Problem {
        Problem { rule, path: path.to_owned(), line: Some(line), what }
    }

    /// Creates a problem of a file as a whole.
    pub fn whole(rule: Rule, path: &str, what: String) -> Problem {
        Problem { rule, path: path.to_owned(), line: None, what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: {}", self.path, self.what),
            None => write!(formatter, "{}: {}", self.path, self.what),
        }
    }
}
