//! [`Room`]: what a cache may use.

use std::path::PathBuf;

/// What a cache may use.
#[derive(Clone, Debug)]
pub struct Room {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// Where files of a cache are kept.
    pub directory: PathBuf,
    /// Length of Octavo's pages.
    pub page_bytes: u32,
}
