//! Sizes as people write them, everywhere: on command lines, in configurations, suites and Python.
//!
//! A size is a whole number and a unit, in upper or lower case, with or without blanks between
//! them. As in QEMU and the kernel, a bare letter stands for a power of 1024.

/// How to write a size, for messages.
pub const SHAPE: &str = "a size such as \"32MiB\", \"1G\" or a number of bytes";

/// Parses a size such as `32MiB` to bytes. The error is a sentence.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (count, unit) = split(text, SHAPE)?;
    let scale = match unit {
        "" => 1,
        _ => scale(unit).ok_or_else(|| format!("unknown unit \"{unit}\"; expected {SHAPE}"))?,
    };
    count
        .checked_mul(scale)
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("\"{text}\" is more than the largest size, 8 EiB less one byte"))
}

/// Returns the bytes of a unit.
pub fn scale(unit: &str) -> Option<u64> {
    Some(match &*unit.to_ascii_lowercase() {
        "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Splits a text into the whole number that it begins with, and its unit. `shape` says what is
/// expected.
pub fn split<'t>(text: &'t str, shape: &str) -> Result<(u64, &'t str), String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    if digits == 0 {
        return Err(format!("\"{text}\" does not begin with a number; expected {shape}"));
    }
    if unit.starts_with(['.', ',']) {
        return Err(format!("\"{text}\" is not a whole number; use a smaller unit"));
    }
    let count = count.parse().map_err(|_| format!("\"{count}\" is too large a number"))?;
    Ok((count, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_all_usual_forms() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("32MiB", 32 << 20),
            ("32 mib", 32 << 20),
            ("1G", 1 << 30),
            ("8k", 8192),
            ("2GB", 2_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5G", "1X", "9999999999999999999999", "16777216T", "1 0"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
