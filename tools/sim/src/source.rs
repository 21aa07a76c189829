//! Where page accesses come from.

/// How many accesses a source yields at a time, about.
pub const CHUNK: usize = 16 << 10;

/// A stream of page accesses.
pub trait Source: Send {
    /// Appends the next accesses, about [`CHUNK`] of them, to `pages`; nothing once the stream is
    /// over. After an error the stream is over.
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError>;

    /// How much of the stream was yielded, from 0 to 1, where that is known.
    fn progress(&self) -> Option<f64>;

    /// How many malformed records were passed over so far.
    fn skipped(&self) -> u64 {
        0
    }

    /// What was left out of the stream, once it is over. None: nothing.
    fn sample(&self) -> Option<Sample> {
        None
    }

    /// What people should know of how the stream ended, once it is over, though it is no error.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// A stream that has the accesses to some pages only: all of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The part of the pages.
    pub rate: f64,
    /// How many accesses there were to all pages.
    pub accesses: u64,
}

impl Sample {
    /// Pages of which the sample has so many.
    pub fn scaled_up(&self, pages: u64) -> u64 {
        (pages as f64 / self.rate).round() as u64
    }

    /// How many of so many pages are in the sample; one at least.
    pub fn scaled_down(&self, pages: u64) -> u64 {
        ((pages as f64 * self.rate).round() as u64).max(1)
    }

    /// The share of all accesses that so many misses in the sample stand for. What a sample has
    /// more or less than its share of are accesses to the most popular pages, which are hits
    /// (SHARDS-adj).
    pub fn miss_ratio(&self, misses: u64) -> f64 {
        (misses as f64 / (self.accesses as f64 * self.rate).max(1.0)).min(1.0)
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
