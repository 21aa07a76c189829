//! [`Behaviour`]: the options of a mount, as its parts see them.

use std::time::Duration;

/// How the mount behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// How long the kernel may keep names and attributes.
    pub valid: Duration,
    /// No other program changes the lower directory. The kernel may also keep that names do not
    /// exist.
    pub is_exclusive: bool,
    /// No writes.
    pub read_only: bool,
    /// Most files whose pages are kept; a file takes two descriptors.
    pub files_max: usize,
    /// Above this number the kernel is asked to forget nodes.
    pub nodes_max: usize,
    /// Most nodes that keep a descriptor, where handles serve the others.
    pub places_max: usize,
    /// Bypass the kernel's page cache below.
    pub direct: bool,
    /// Reads are answered without the cache.
    pub reference: Option<Reference>,
}

/// What answers reads instead of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Bytes of the thread's buffer, always the same: a round trip and nothing else.
    Constant,
    /// The lower file through the kernel's page cache: one `pread` and one `writev`, which is what
    /// a plain passthrough file system does.
    Passthrough,
}
