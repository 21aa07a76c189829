//! Numbers in a few characters.

/// Formats a byte count with a binary unit: `12.3 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let digits = usize::from(value < 100.0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit as usize])
}

/// Formats a rate with a decimal prefix: `2.00 M`.
pub fn rate(per_s: f64) -> String {
    match per_s {
        r if r >= 1e9 => format!("{:.2} G", r / 1e9),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r if r >= 100.0 || r == r.trunc() => format!("{r:.0}"),
        r => format!("{r:.3}"),
    }
}

/// Formats a time in nanoseconds with its unit: `12.3 us`.
pub fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e4 => format!("{:.1} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

/// Formats a number for an axis: `0.050`, `12.5`, `300`, `2 M`.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e5 => rate(value).replace(".00 ", " ").replace(".0 ", " "),
        v if v >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a fraction with at most four digits after the point: `0.05`.
pub fn fraction(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_unit_and_a_few_digits() {
        assert_eq!([0, 1023, 28_672, 12_897_485].map(bytes), ["0 B", "1023 B", "28 KiB", "12.3 MiB"]);
        assert_eq!([1 << 20, 200_000_000, u64::MAX].map(bytes), ["1 MiB", "191 MiB", "16384 PiB"]);
        assert_eq!([2.0, 0.25, 1500.0, 2e6, 3e9].map(rate), ["2", "0.250", "1.5 k", "2.00 M", "3.00 G"]);
        assert_eq!([90.0, 12_345.0, 2.5e6].map(nanoseconds), ["90 ns", "12.3 us", "2.50 ms"]);
        assert_eq!([0.05, 12.5, 300.0, 1e6, 2e5].map(short), ["0.050", "12.5", "300", "1 M", "200 k"]);
        assert_eq!([0.0, 1.0, 0.05, 0.34567].map(fraction), ["0", "1", "0.05", "0.3457"]);
    }
}
