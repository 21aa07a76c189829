//! Where page accesses come from.

/// How many accesses a source yields at a time, about.
pub const CHUNK: usize = 16 << 10;

/// A stream of page accesses.
pub trait Source: Send {
    /// Appends the next accesses, about [`CHUNK`] of them, to `pages`; nothing once the stream is over. After an error the stream is over.
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError>;

    /// How much of the stream was yielded, from 0 to 1, where that is known.
    fn progress(&self) -> Option<f64>;

    /// How many malformed records were passed over so far.
    fn skipped(&self) -> u64 {
        0
    }
}

/// Why a stream of accesses ended early: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError(pub String);

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SourceError {}
