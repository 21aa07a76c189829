//! The rule for names of partitions, groups and objects, for the library and everything built on
//! it.
//!
//! Not here: which names are taken (`control/roster.rs`).

/// The most levels of a name. Each level of a partition's name is a group, which every plan
/// visits; paths of files have fewer levels.
const LEVELS_MAX: usize = 64;

/// Characters that Unicode calls letters or marks but that are blank on a screen.
const BLANK: [std::ops::RangeInclusive<char>; 9] = [
    '\u{34f}'..='\u{34f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{e0100}'..='\u{e01ef}',
];

/// Checks that a name is displayed as it is: two names that look alike are equal, and no name
/// rearranges the text around it. Characters that are not [visible](is_visible), a space at
/// either end, and more than 64 levels between slashes are refused. The empty name passes.
///
/// # Errors
/// A sentence that says what is wrong.
///
/// # Examples
/// ```
/// assert!(octavo::check_name("host/vm1 (copy)").is_ok());
/// // A right-to-left override: displayed as "vm1gnp.raw".
/// assert!(octavo::check_name("vm1\u{202e}war.png").is_err());
/// assert!(octavo::check_name("vm1 ").is_err());
/// ```
pub fn check_name(name: &str) -> Result<(), String> {
    if let Some(hidden) = name.chars().find(|character| !is_visible(*character)) {
        return Err(format!(
            "the character U+{:04X} cannot be in a name: it is not visible, or changes how the text around it is shown",
            u32::from(hidden)
        ));
    }
    if name.split('/').count() > LEVELS_MAX {
        return Err(format!("a name has at most {LEVELS_MAX} levels between slashes"));
    }
    match name.trim().len() == name.len() {
        true => Ok(()),
        false => Err("a name cannot begin or end with a space".into()),
    }
}

/// Returns the groups above a partition, outermost first.
///
/// # Examples
/// ```
/// assert!(octavo::groups_of("host/vm1/disk0").eq(["host", "host/vm1"]));
/// ```
pub fn groups_of(name: &str) -> impl Iterator<Item = &str> {
    let slashes = name.char_indices().filter(|(at, c)| *c == '/' && *at > 0);
    slashes.map(|(at, _)| &name[..at])
}

/// Whether a name has an empty level between two slashes, or after the last one.
pub(crate) fn has_empty_level(name: &str) -> bool {
    name.ends_with('/') || groups_of(name).any(|group| group.ends_with('/'))
}

/// Returns whether a character is displayed, on its own or as a part of the character before it.
/// A plain space is visible. Not visible are Unicode's controls, formats (including the
/// bidirectional ones), separators other than the plain space, surrogates, private and
/// unassigned characters, and blank characters.
///
/// # Examples
/// ```
/// assert!(octavo::is_visible('ü') && !octavo::is_visible('\u{200b}'));
/// ```
pub fn is_visible(character: char) -> bool {
    // The standard library escapes exactly these characters when it prints text for people, plus
    // a few that need quoting. Tested behind a letter, so that a combining mark does not count
    // as one that stands alone.
    let text = format!("a{character}");
    let is_shown = matches!(character, '"' | '\'' | '\\') || text.escape_debug().eq(text.chars());
    is_shown && !BLANK.iter().any(|range| range.contains(&character))
}

/// Returns the nearest name that [`check_name`] accepts for a path of a file: `?` in place of what
/// is not visible, no blanks at the ends, and the last levels of a path that has too many. Names of
/// several files may become the same.
///
/// # Examples
/// ```
/// assert_eq!(octavo::display_name(" a\tb"), "a?b");
/// ```
pub fn display_name(path: &str) -> String {
    // A few levels less than the most: callers may put others in front.
    const LEVELS: usize = LEVELS_MAX - 4;
    let visible = |character: char| if is_visible(character) { character } else { '?' };
    let name: String = path.chars().map(visible).collect();
    let levels = name.split('/').count().saturating_sub(LEVELS);
    match name.trim().splitn(levels + 1, '/').last() {
        Some(name) if !name.is_empty() => name.trim().to_owned(),
        _ => "(long path)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_name_that_is_accepted() {
        let deep = format!("{} end", "d /".repeat(100));
        for path in ["", " ", "/", " a ", "a\nb", "\u{202e}x", "zero\u{200b}", "e\u{301}", "d/ ", &deep] {
            let name = display_name(path);
            assert_eq!((check_name(&name), name.is_empty()), (Ok(()), false), "{path:?}: {name:?}");
        }
        assert_eq!(display_name("two  blanks/x"), "two  blanks/x");
    }

    #[test]
    fn a_name_has_a_bounded_number_of_levels() {
        let levels = |count: usize| vec!["d"; count].join("/");
        assert!(check_name(&levels(64)).is_ok());
        assert!(check_name(&levels(65)).unwrap_err().contains("64 levels"));
    }

    #[test]
    fn a_name_is_shown_as_it_is() {
        for name in
            ["", "vm1", "host/vm1 (copy)", "it's \"one\"\\", "Müller", "Mu\u{308}ller", "磁盤", "диск", "💾"]
        {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{a0}',
            '\u{ad}'..='\u{ad}',
            '\u{600}'..='\u{605}',
            '\u{61c}'..='\u{61c}',
            '\u{180e}'..='\u{180e}',
            '\u{2000}'..='\u{200f}',
            '\u{2028}'..='\u{202f}',
            '\u{205f}'..='\u{206f}',
            '\u{3000}'..='\u{3000}',
            '\u{e000}'..='\u{f8ff}',
            '\u{feff}'..='\u{feff}',
            '\u{fff9}'..='\u{fffb}',
            '\u{1d173}'..='\u{1d17a}',
            '\u{e0000}'..='\u{10ffff}',
        ];
        for character in ranges.into_iter().chain(BLANK).flatten() {
            let why = check_name(&format!("a{character}b")).unwrap_err();
            assert!(why.starts_with(&format!("the character U+{:04X} ", u32::from(character))), "{why}");
        }
        for name in [" vm1", "vm1 ", " "] {
            assert_eq!(check_name(name), Err("a name cannot begin or end with a space".into()));
        }
    }
}
