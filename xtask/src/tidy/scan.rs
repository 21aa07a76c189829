//! Splits Rust source into code and comments, line by line.
//!
//! The scanner knows strings, raw strings, characters, lifetimes and nested block comments. Rules
//! about comments use it because a parser of Rust drops them.

/// One line of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code of the line. The contents of strings and characters are left out.
    pub code: String,
    /// The comment of the line from its first slash on; None if the line has none.
    pub comment: Option<String>,
}

/// The state of the scanner.
enum State {
    Code,
    /// Inside a raw string that ends with a quote and this number of `#`. None: inside a string
    /// with escapes.
    Text(Option<usize>),
    LineComment,
    /// Inside this number of nested block comments.
    BlockComment(u32),
}

/// Splits a file into its lines.
pub fn lines(text: &str) -> Vec<Line> {
    let mut state = State::Code;
    let mut lines = Vec::new();
    for line in text.lines() {
        let characters: Vec<char> = line.chars().collect();
        let mut scanned = Line::default();
        if let State::BlockComment(_) = state {
            scanned.comment = Some(String::new());
        }
        let mut at = 0;
        while at < characters.len() {
            at += step(&mut state, &characters[at..], &mut scanned);
        }
        if let State::LineComment = state {
            state = State::Code;
        }
        lines.push(scanned);
    }
    lines
}

/// Consumes the next characters of a line. Returns their number.
fn step(state: &mut State, rest: &[char], line: &mut Line) -> usize {
    let taken = match *state {
        State::Code => return step_in_code(state, rest, line),
        State::Text(None) if rest[0] == '\\' => 2,
        State::Text(None) if rest[0] == '"' => {
            *state = State::Code;
            line.code.push('"');
            1
        }
        State::Text(Some(hashes)) if rest[0] == '"' && hashes_at(&rest[1..]) >= hashes => {
            *state = State::Code;
            line.code.push('"');
            1 + hashes
        }
        State::Text(_) => 1,
        State::LineComment => rest.len(),
        State::BlockComment(depth) => match rest {
            ['*', '/', ..] => {
                *state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                2
            }
            ['/', '*', ..] => {
                *state = State::BlockComment(depth + 1);
                2
            }
            _ => 1,
        },
    };
    let taken = taken.min(rest.len());
    if let Some(comment) = &mut line.comment {
        comment.extend(&rest[..taken]);
    }
    taken
}

fn step_in_code(state: &mut State, rest: &[char], line: &mut Line) -> usize {
    let is_word = line.code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    match rest {
        ['/', '/', ..] => {
            *state = State::LineComment;
            line.comment = Some(rest.iter().collect());
            rest.len()
        }
        ['/', '*', ..] => {
            *state = State::BlockComment(1);
            line.comment = Some("/*".into());
            2
        }
        ['"', ..] => {
            *state = State::Text(None);
            line.code.push('"');
            1
        }
        ['b' | 'c', 'r', after @ ..] | ['r', after @ ..]
            if !is_word && after.get(hashes_at(after)) == Some(&'"') =>
        {
            let hashes = hashes_at(after);
            *state = State::Text(Some(hashes));
            line.code.push('"');
            rest.len() - after.len() + hashes + 1
        }
        // A character literal. A lifetime has no quote after its first letter.
        ['\'', '\\', _, tail @ ..] => {
            line.code.push_str("''");
            3 + tail.iter().position(|next| *next == '\'').map_or(tail.len(), |end| end + 1)
        }
        ['\'', _, '\'', ..] => {
            line.code.push_str("''");
            3
        }
        [next, ..] => {
            line.code.push(*next);
            1
        }
        [] => 0,
    }
}

fn hashes_at(rest: &[char]) -> usize {
    rest.iter().take_while(|next| **next == '#').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(code: &str, comment: Option<&str>) -> Line {
        Line { code: code.into(), comment: comment.map(str::to_owned) }
    }

    #[test]
    fn strings_are_not_comments_and_comments_are_not_code() {
        assert_eq!(lines("a // b \"c"), [line("a ", Some("// b \"c"))]);
        assert_eq!(lines(r#"f("// no \" {"); // yes"#), [line("f(\"\"); ", Some("// yes"))]);
        assert_eq!(lines("r#\"// \" \"# + br\"\\\" // c"), [line("\"\" + \"\" ", Some("// c"))]);
        assert_eq!(lines("'\"' '\\'' '\\u{41}' &'a x // c"), [line("'' '' '' &'a x ", Some("// c"))]);
        assert_eq!(lines("b'\"' // c"), [line("b'' ", Some("// c"))]);
    }

    #[test]
    fn strings_and_block_comments_go_on_over_lines() {
        assert_eq!(lines("\"a\n// b\nc\" d"), [line("\"", None), line("", None), line("\" d", None)]);
        let nested = lines("a /* b /* c\nd */ e\n*/ f");
        assert_eq!(nested, [line("a ", Some("/* b /* c")), line("", Some("d */ e")), line(" f", Some("*/"))]);
    }
}
