//! [`Identity`]: bytes that tell a store from every other. This file imports nothing.

use std::fmt;
use std::sync::Arc;

/// Tells the bytes of one store from those of every other: equal identities mean the same file,
/// device or remote volume, under whatever name it was opened. Opaque: compare it, hash it, or keep
/// its bytes.
///
/// The identity of a file or device holds device numbers, which may change when the system starts
/// again.
///
/// # Examples
/// ```
/// use octavo_disk::Identity;
/// let identity = Identity::from_bytes(b"volume-7");
/// assert_eq!(identity, Identity::from_bytes(identity.as_bytes()));
/// assert_eq!(format!("{identity:?}"), "Identity(766f6c756d652d37)");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<[u8]>);

impl Identity {
    /// Creates an identity from its bytes.
    pub fn from_bytes(bytes: &[u8]) -> Identity {
        Identity(bytes.into())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
