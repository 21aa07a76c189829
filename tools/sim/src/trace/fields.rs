//! The fields of a line of text: numbers, times, and how messages show them.
//!
//! [`number`] takes digits alone, as programs that trace write them. [`whole`] takes every way in
//! which a program that keeps tables writes a whole number: pandas turns a column with one missing
//! value into floating-point numbers (`4096.0`, `1.1e+06`), and offsets may be hexadecimal.

/// The greatest exponent that is read; larger ones are longer than any number of 64 bits.
const EXPONENT_DIGITS_MAX: usize = 4;

/// Parses a whole number that is written in digits alone.
pub fn number(field: &[u8]) -> Result<u64, String> {
    let wrong = |why| Err(format!("\"{}\" is {why}", shown(field)));
    if !is_digits(field) {
        return wrong("not a whole number");
    }
    let digit = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    match field.iter().try_fold(0, digit) {
        Some(number) => Ok(number),
        None => wrong("not below 2^64"),
    }
}

/// Parses a whole number as tables have it: digits, `4096.0`, `1.1e6` or `0x1000`. The arithmetic
/// is exact: no number passes through floating point.
///
/// `4.000` is refused, because it may mean 4 or, with a point between thousands, 4000.
pub fn whole(field: &[u8]) -> Result<u64, String> {
    if field.strip_suffix(b".000").is_some_and(is_digits) {
        return Err(format!("\"{0}\" may mean thousands; write it without a point", shown(field)));
    }
    let too_large = || format!("\"{}\" is not below 2^64", shown(field));
    match hexadecimal(field).or_else(|| decimal(field)) {
        Some(Some(number)) => Ok(number),
        Some(None) => Err(too_large()),
        None => number(field),
    }
}

/// Reads `0x` and digits. The inner None: the number has more than 64 bits.
fn hexadecimal(field: &[u8]) -> Option<Option<u64>> {
    let digits = field.strip_prefix(b"0x").or_else(|| field.strip_prefix(b"0X"))?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    Some(u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok())
}

/// Reads a number with a point or an exponent, if it is whole. The inner None: it is too large.
fn decimal(field: &[u8]) -> Option<Option<u64>> {
    let exponent_at = field.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let significand = &field[..exponent_at.unwrap_or(field.len())];
    let exponent = exponent_at.map_or(Some(0), |at| exponent(&field[at + 1..]))?;
    let point_at = significand.iter().position(|byte| *byte == b'.');
    if point_at.is_none() && exponent_at.is_none() {
        return None;
    }
    let before = &significand[..point_at.unwrap_or(significand.len())];
    let mut behind = point_at.map_or(&[][..], |at| &significand[at + 1..]);
    if !is_digits(before) || !behind.iter().all(u8::is_ascii_digit) {
        return None;
    }
    while let [rest @ .., b'0'] = behind {
        behind = rest;
    }
    let digit = |number: u128, byte: &u8| number.checked_mul(10)?.checked_add(u128::from(byte - b'0'));
    let Some(mut value) = before.iter().chain(behind).try_fold(0, digit) else {
        // Longer than 38 digits. Whether it is whole no longer matters.
        return Some(None);
    };
    let mut scale = exponent - i64::try_from(behind.len()).ok()?;
    // Both loops end after at most 39 steps: the value gets too small to divide, or too large.
    while scale < 0 && value > 0 {
        if value % 10 != 0 {
            return None;
        }
        value /= 10;
        scale += 1;
    }
    while scale > 0 && value > 0 {
        let Some(more) = value.checked_mul(10) else { return Some(None) };
        value = more;
        scale -= 1;
    }
    Some(u64::try_from(value).ok())
}

fn exponent(text: &[u8]) -> Option<i64> {
    let is_negative = text.first() == Some(&b'-');
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    let value = number(digits).ok().filter(|_| digits.len() <= EXPONENT_DIGITS_MAX)?;
    let value = i64::try_from(value).ok()?;
    Some(if is_negative { -value } else { value })
}

/// Checks that a field is a time: a finite number, or a date with or without a time of day, as ISO
/// 8601 and pandas write it. Nothing else is made of it: requests keep their order.
pub fn moment(field: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(field).ok();
    let is_number = text.and_then(|text| text.parse::<f64>().ok()).is_some_and(f64::is_finite);
    if is_number || is_date(field) {
        return Ok(());
    }
    Err(format!("\"{}\" is not a number", shown(field)))
}

fn is_date(field: &[u8]) -> bool {
    let fits = |shape: &[u8], text: &[u8]| {
        let same = |(shape, byte): (&u8, &u8)| match shape {
            b'0' => byte.is_ascii_digit(),
            _ => shape == byte,
        };
        text.len() == shape.len() && shape.iter().zip(text).all(same)
    };
    let Some((date, rest)) = field.split_at_checked(b"0000-00-00".len()) else { return false };
    if !fits(b"0000-00-00", date) {
        return false;
    }
    let Some((separator, rest)) = rest.split_first() else { return true };
    let Some((minutes, rest)) = rest.split_at_checked(b"00:00".len()) else { return false };
    let is_detail = |byte: &u8| byte.is_ascii_digit() || b":.+-Z".contains(byte);
    matches!(separator, b'T' | b't' | b' ') && fits(b"00:00", minutes) && rest.iter().all(is_detail)
}

fn is_digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// Returns a part of a line for a message: printable, and at most 40 bytes of it.
pub fn shown(field: &[u8]) -> String {
    let end = if field.len() > 40 { ".." } else { "" };
    format!("{}{end}", field[..field.len().min(40)].escape_ascii())
}

/// Splits a line at its white space.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Splits the last word off. What is before it keeps its own blanks: it may be a file's name.
pub fn split_last_word(line: &[u8]) -> (&[u8], &[u8]) {
    let line = line.trim_ascii_end();
    match line.iter().rposition(u8::is_ascii_whitespace) {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (&[], line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_fit_into_64_bits() {
        assert_eq!(number(b"0"), Ok(0));
        assert_eq!(number(b"18446744073709551615"), Ok(u64::MAX));
        for wrong in [&b""[..], b"-1", b"+1", b"1.0", b"0x10", b"1 2", b"18446744073709551616"] {
            assert!(number(wrong).is_err(), "{}", wrong.escape_ascii());
        }
        assert_eq!(number(b"\x1b[2J\n").unwrap_err(), "\"\\x1b[2J\\n\" is not a whole number");
    }

    #[test]
    fn tables_write_whole_numbers_in_several_ways_and_each_is_exact() {
        for (text, expected) in [
            ("0", 0),
            ("4096.0", 4096),
            ("4096.", 4096),
            ("4096.00", 4096),
            ("1.1e6", 1_100_000),
            ("1.1E+06", 1_100_000),
            ("4096000e-3", 4096),
            ("0.0e9999", 0),
            ("0e-9999", 0),
            // Floating point has no such number.
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("1.8446744073709551615e19", u64::MAX),
            ("0x1000", 4096),
            ("0XffffffffFFFFFFFF", u64::MAX),
        ] {
            assert_eq!(whole(text.as_bytes()), Ok(expected), "{text}");
        }
        let long = format!("{}.5", "9".repeat(50));
        for (wrong, why) in [
            ("", "not a whole number"),
            (".", "not a whole number"),
            (".5", "not a whole number"),
            ("4096.5", "not a whole number"),
            ("8.192", "not a whole number"),
            ("1e-1", "not a whole number"),
            ("1e", "not a whole number"),
            ("1e+", "not a whole number"),
            ("1e99999", "not a whole number"),
            ("e5", "not a whole number"),
            ("-1", "not a whole number"),
            ("-1.0", "not a whole number"),
            ("+1.0", "not a whole number"),
            ("1.0.0", "not a whole number"),
            ("4,096", "not a whole number"),
            ("nan", "not a whole number"),
            ("inf", "not a whole number"),
            ("0x", "not a whole number"),
            ("0xg", "not a whole number"),
            ("0x10000000000000000", "not below 2^64"),
            ("1.8446744073709551616e19", "not below 2^64"),
            ("1e9999", "not below 2^64"),
            (&long, "not below 2^64"),
            ("18446744073709551616", "not below 2^64"),
            ("4.000", "may mean thousands"),
        ] {
            let said = whole(wrong.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }

    #[test]
    fn times_are_numbers_or_dates() {
        for right in [
            "0.5",
            "-1",
            "1.28e17",
            "2026-01-02",
            "2026-01-02T03:04:05.6Z",
            "2026-01-02 03:04:05",
            "2026-01-02 03:04+01:00",
        ] {
            assert_eq!(moment(right.as_bytes()), Ok(()), "{right}");
        }
        for wrong in
            ["", "nan", "inf", "0,1", "2026-1-2", "2026-01-02x", "2026-01-02 3", "2026-01-02 03:04 x"]
        {
            assert!(moment(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_keeps_its_blanks_when_the_last_word_is_split_off() {
        assert_eq!(split_last_word(b"/da  ta  read "), (&b"/da  ta "[..], &b"read"[..]));
        assert_eq!(split_last_word(b"add"), (&b""[..], &b"add"[..]));
        assert_eq!(split_last_word(b""), (&b""[..], &b""[..]));
    }
}
