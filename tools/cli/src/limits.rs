//! The limits of a partition, a group or a tenant, by the names that cgroup v2 has for them.

use octavo::{Limits, UNLIMITED};

use crate::units;

/// The most bytes that are read ahead of a stream by default, 512 KiB: enough for most devices to
/// come near their bandwidth.
pub const READ_AHEAD_DEFAULT_BYTES: u64 = 512 << 10;

/// All limits.
pub const NAMES: [&str; 5] = ["min", "low", "high", "max", WEIGHT];

const WEIGHT: &str = "weight";

/// The word for no limit.
pub const NO_BOUND: &str = "max";

/// The limits in bytes.
pub fn in_bytes(limits: &Limits) -> [(&'static str, u64); 4] {
    let Limits { min_bytes, low_bytes, high_bytes, max_bytes, .. } = *limits;
    [("min", min_bytes), ("low", low_bytes), ("high", high_bytes), ("max", max_bytes)]
}

/// A limit by name, as text; `None` if the name is no limit.
pub fn text(limits: &Limits, name: &str) -> Option<String> {
    let bound = |bytes: u64| if bytes == UNLIMITED { NO_BOUND.into() } else { bytes.to_string() };
    let weight = (name == WEIGHT).then(|| limits.weight.to_string());
    weight.or_else(|| {
        in_bytes(limits).into_iter().find(|(limit, _)| *limit == name).map(|(_, bytes)| bound(bytes))
    })
}

/// Parses a limit by name into `limits`. The error is a sentence.
pub fn change(limits: &mut Limits, name: &str, text: &str) -> Result<(), String> {
    match name {
        "min" => limits.min_bytes = bytes(text)?,
        "low" => limits.low_bytes = bytes(text)?,
        "high" => limits.high_bytes = bytes(text)?,
        "max" => limits.max_bytes = bytes(text)?,
        WEIGHT => {
            let weight = text.parse();
            limits.weight =
                weight.map_err(|_| format!("\"{text}\" is no weight; expected a number from 1 to 10000"))?;
        }
        _ => return Err(format!("\"{name}\" can only be read")),
    }
    Ok(())
}

/// Parses bytes, or `max` for no limit.
pub fn bytes(text: &str) -> Result<u64, String> {
    if text == NO_BOUND { Ok(UNLIMITED) } else { units::size_bytes(text) }
}
