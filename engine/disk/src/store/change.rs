//! [`Change`] and [`Noticed`]: what other programs did to the file or device of a store. Not here:
//! how a change is found (`watch.rs`).

use std::fmt;

/// A change that another program made to the file or device of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The path no longer leads to any file.
    Missing,
    /// The path leads to another file or device.
    Replaced,
    /// The path leads to the store again.
    Restored,
    /// The length of the file differs from the store's length.
    Length {
        /// The length that the store continues to use.
        expected_bytes: u64,
        /// The length that the file has.
        found_bytes: u64,
    },
    /// The file has the store's length again. Bytes past a shorter end are lost nevertheless.
    LengthRestored,
    /// Another program wrote to the file or device.
    Written,
    /// Another program had the file or device open for writing while the store was being written.
    Opened,
    /// The device was set read-only.
    ReadOnly,
    /// The device can be written again.
    Writable,
}

impl Change {
    /// Returns whether an operator has to act. False for [`Change::Restored`] and
    /// [`Change::Writable`], which only undo an earlier change.
    pub fn is_alarming(&self) -> bool {
        !matches!(self, Change::Restored | Change::Writable)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Missing => {
                "its path leads to no file now (moved, removed or unmounted); the opened file stays in use"
            }
            Change::Replaced => {
                "its path leads to another file now; the opened file stays in use, the new one is ignored"
            }
            Change::Restored => "its path leads to it again",
            Change::Length { expected_bytes, found_bytes } => {
                return write!(
                    f,
                    "another program changed its length to {found_bytes} bytes; it is used as {expected_bytes} \
                     bytes"
                );
            }
            Change::LengthRestored => {
                "its length is correct again; bytes past the shorter end that it had are lost"
            }
            Change::Written => "another program wrote to it; pages in the cache have the old content",
            Change::Opened => {
                "another program had it open for writing; pages in the cache have the old content"
            }
            Change::ReadOnly => "the device was set read-only, and refuses dirty pages",
            Change::Writable => "the device can be written again",
        })
    }
}

/// The changes that a [`Watch`](crate::Watch) has noticed of a store since it began to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// The number of alarming changes.
    pub count: u64,
    /// The latest change of any kind.
    pub last: Option<Change>,
}
