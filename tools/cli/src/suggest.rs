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

/// The word of `known` that `typed` was probably meant to be.
pub fn nearest<'k>(typed: &str, known: &[&'k str]) -> Option<&'k str> {
    // At most half of a short word may be wrong: "nbd" is no misspelling of "max".
    let edits_max = EDITS_MAX.min(typed.chars().count() / 2);
    let edits = known.iter().map(|word| (strsim::levenshtein(typed, word), *word));
    edits.filter(|(edits, _)| *edits <= edits_max).min().map(|(_, word)| word)
}

/// The end of a sentence about an unknown word: the likely one, then all of them.
pub fn of(typed: &str, known: &[&str]) -> String {
    let list = known.join(", ");
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
        format!("no {kind} is called \"{typed}\"; {}", of(typed, &known))
    })
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
}
