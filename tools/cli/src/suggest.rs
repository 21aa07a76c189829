//! "Did you mean": the known word that is nearest to the one that was typed.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A word that an option takes: its name, what it stands for, and its help.
pub type Word<T> = (&'static str, T, &'static str);

/// Parses an option that takes one of these words.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    words: &'static [Word<T>],
) -> impl TypedValueParser<Value = T> {
    let shown = words.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(shown).map(|given| {
        let meant = words.iter().find(|(name, ..)| *name == given);
        meant.expect("a word that clap accepts is one of these").1
    })
}

/// Words further away than this many edits are not suggested.
const EDITS_MAX: usize = 3;

/// The most known words that a message lists.
const LISTED_MAX: usize = 20;

/// Above this number of known words, none is suggested: each is compared with the typed one.
const COMPARED_MAX: usize = 1000;

/// The word of `known` that `typed` was probably meant to be.
pub fn nearest<'k>(typed: &str, known: &[&'k str]) -> Option<&'k str> {
    if known.len() > COMPARED_MAX {
        return None;
    }
    // At most half of a short word may be wrong: "nbd" is no misspelling of "max".
    let edits_max = EDITS_MAX.min(typed.chars().count() / 2);
    let edits = known.iter().map(|word| (strsim::levenshtein(typed, word), *word));
    edits.filter(|(edits, _)| *edits <= edits_max).min().map(|(_, word)| word)
}

/// The end of a sentence about an unknown word: the likely one, then the known ones, at most 20.
pub fn of(typed: &str, known: &[&str]) -> String {
    let mut list = known[..known.len().min(LISTED_MAX)].join(", ");
    if known.len() > LISTED_MAX {
        list += &format!(" and {} more", known.len() - LISTED_MAX);
    }
    match (known.is_empty(), nearest(typed, known)) {
        (true, _) => "there is none".into(),
        (false, Some(word)) => format!("did you mean \"{word}\"? known: {list}"),
        (false, None) => format!("known: {list}"),
    }
}

/// The item of that name. The error is a sentence about items of that kind.
pub fn named<'i, T>(
    kind: &str,
    typed: &str,
    items: &'i [T],
    name: impl Fn(&'i T) -> &'i str,
) -> Result<&'i T, String> {
    items.iter().find(|item| name(item) == typed).ok_or_else(|| {
        let known: Vec<&str> = items.iter().map(&name).collect();
        missing(kind, typed, &known)
    })
}

/// A sentence about a name that no item of that kind has.
pub fn missing(kind: &str, typed: &str, known: &[&str]) -> String {
    format!("no {kind} is called \"{typed}\"; {}", of(typed, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_word_is_recognised_and_a_different_word_is_not() {
        assert_eq!(nearest("polcy", &["name", "policy", "max"]), Some("policy"));
        assert_eq!(nearest("writebak", &["writethrough", "writeback"]), Some("writeback"));
        assert_eq!(nearest("colour", &["name", "policy", "max"]), None);
    }

    #[test]
    fn a_message_about_one_of_ten_thousand_names_stays_short() {
        let names: Vec<String> = (0..10_000).map(|number| format!("p{number}")).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let why = missing("partition", "q", &known);
        assert!(why.len() < 300 && why.ends_with("p19 and 9980 more"), "{why}");
    }
}
