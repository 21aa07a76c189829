//! Sizes, durations, counts and tables: how people write them, and how messages show them.

use std::time::Duration;

pub use octavo_sim::report::{aligned, human_bytes};
pub use octavo_sim::size::{SHAPE as SIZE_SHAPE, bytes as size_bytes, split};

/// How to write a duration, for messages.
pub const DURATION_SHAPE: &str = "a duration such as \"30s\", \"500ms\" or \"2m\"";

/// Parses a duration such as `30s`, of at most a day. The error is a sentence.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (count, unit) = split(text, DURATION_SHAPE)?;
    let scale_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "" => return Err(format!("\"{text}\" has no unit; expected {DURATION_SHAPE}")),
        _ => return Err(format!("unknown unit \"{unit}\"; expected {DURATION_SHAPE}")),
    };
    count
        .checked_mul(scale_ms)
        .filter(|ms| *ms <= 24 * 3_600_000)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("\"{text}\" is more than a day"))
}

/// A count for people: `12.3k`.
pub fn human_count(count: f64) -> String {
    match count {
        c if c >= 1e9 => format!("{:.1}G", c / 1e9),
        c if c >= 1e6 => format!("{:.1}M", c / 1e6),
        c if c >= 1e4 => format!("{:.1}k", c / 1e3),
        c => format!("{c:.0}"),
    }
}

/// A duration for people: `850 ns`, `12.3 µs`, `4.5 ms`, `1.2 s`.
pub fn human_time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.1} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

/// A share in percent, `93.1 %`; a dash if the whole is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["30", "s", "1.5s", "3y", "48h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_and_counts_are_rounded_for_people() {
        assert_eq!(human_bytes(17), "17 B");
        assert_eq!(human_bytes(32 << 20), "32 MiB");
        assert_eq!(human_bytes(12_900_000), "12.3 MiB");
        assert_eq!(human_count(12_345.0), "12.3k");
        let times = [0, 999, 1500, 2_345_678, 61_000_000_000].map(human_time);
        assert_eq!(times, ["0 ns", "999 ns", "1.5 µs", "2.3 ms", "61.0 s"]);
    }
}
