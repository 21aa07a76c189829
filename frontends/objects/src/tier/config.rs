//! [`TierConfig`]: settings.

use std::path::PathBuf;

/// Settings of a [`Tier`](super::Tier).
///
/// # Examples
/// ```no_run
/// use octavo_objects::tier::{Tier, TierConfig};
/// let config = TierConfig {
///     directory: "/var/cache/octavo/objects".into(),
///     max_bytes: 100 << 30,
///     block_bytes: 512 << 10,
/// };
/// let tier = Tier::open(&config)?;
/// println!("{} blocks", tier.stat().blocks);
/// # Ok::<(), octavo_objects::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// Where the files are. Created if it is not there, for its owner only. It must be empty, or
    /// have the files of a tier.
    pub directory: PathBuf,
    /// Most bytes of disk that the files take, headers included. At least sixteen blocks.
    pub max_bytes: u64,
    /// Length of a block in bytes: a power of two from 4 KiB to 16 MiB. The last block of an object
    /// may be shorter, but takes the same room. Files with blocks of another length are deleted on
    /// open.
    pub block_bytes: u32,
}
