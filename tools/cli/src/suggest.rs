//! "Did you mean": the known word that is nearest to what somebody typed.

/// Words further away than this many edits are not suggested.
const EDITS_MAX: usize = 3;

/// The word of `known` that `typed` was probably meant to be.
pub fn nearest<'k>(typed: &str, known: &[&'k str]) -> Option<&'k str> {
    // Half of a short word may not be wrong: "nbd" is no misspelling of "max".
    let edits_max = EDITS_MAX.min(typed.chars().count() / 2);
    known
        .iter()
        .map(|word| (edits(typed, word), *word))
        .filter(|(edits, _)| *edits <= edits_max)
        .min()
        .map(|(_, word)| word)
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

/// Levenshtein's distance, by one row of the table.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_word_and_a_stranger_does_not() {
        assert_eq!(nearest("polcy", &["name", "policy", "max"]), Some("policy"));
        assert_eq!(nearest("writebak", &["writethrough", "writeback"]), Some("writeback"));
        assert_eq!(nearest("colour", &["name", "policy", "max"]), None);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
