//! Amounts as people read them.

/// Bytes for people: `12.3 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut name = 0;
    while value >= 1024.0 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    match name {
        0 => format!("{bytes} B"),
        _ if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0} {}", NAMES[name]),
        _ => format!("{value:.1} {}", NAMES[name]),
    }
}
