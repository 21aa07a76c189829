//! [`Bytes`]: how messages show sizes.

use std::fmt;

/// A number of bytes. Displays it in the largest binary unit that divides it.
///
/// # Examples
/// ```
/// use octavo_share::Bytes;
/// assert_eq!(Bytes(8 << 20).to_string(), "8 MiB");
/// assert_eq!(Bytes((8 << 20) + 1024).to_string(), "8193 KiB");
/// assert_eq!(Bytes(1).to_string(), "1 bytes");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}
