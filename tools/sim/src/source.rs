//! Streams of page accesses.

/// About how many accesses a source yields at a time.
pub const CHUNK: usize = 16 << 10;

/// A stream of page accesses.
pub trait Source: Send {
    /// Appends the next accesses, about [`CHUNK`] of them, to `pages`; none once the stream is
    /// over.
    ///
    /// # Errors
    /// The trace is malformed or cannot be read. After an error the stream is over.
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError>;

    /// Returns the share of the stream that was yielded, from 0 to 1, if it is known.
    fn progress(&self) -> Option<f64>;

    /// Returns the malformed records that were skipped so far.
    fn skipped(&self) -> u64 {
        0
    }

    /// Returns, once the stream is over, the sample that it consists of. None: the stream has all
    /// pages.
    fn sample(&self) -> Option<Sample> {
        None
    }

    /// Returns, once the stream is over, a remark for people about how it ended, if there is
    /// something to know that is no error.
    fn remark(&self) -> Option<String> {
        None
    }
}

impl dyn Source + '_ {
    /// Hands all remaining accesses to `take`, a chunk at a time.
    ///
    /// # Errors
    /// The stream's own error, or the first error that `take` returns.
    pub fn for_each_chunk(
        &mut self,
        take: &mut dyn FnMut(&[u64]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let mut chunk = Vec::with_capacity(2 * CHUNK);
        loop {
            chunk.clear();
            self.next(&mut chunk)?;
            if chunk.is_empty() {
                return Ok(());
            }
            take(&chunk)?;
        }
    }
}

/// A source that yields pages from memory.
pub struct Pages {
    pages: Vec<u64>,
    yielded: usize,
}

impl Pages {
    /// Creates a source of `pages`, in this order.
    pub fn new(pages: Vec<u64>) -> Pages {
        Pages { pages, yielded: 0 }
    }
}

impl Source for Pages {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let end = (self.yielded + CHUNK).min(self.pages.len());
        pages.extend(&self.pages[self.yielded..end]);
        self.yielded = end;
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        Some(self.yielded as f64 / self.pages.len().max(1) as f64)
    }
}

/// The size of a sample: a stream that has all accesses to some pages of a load, and none to the
/// others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The share of the pages, above 0 and at most 1.
    pub rate: f64,
    /// The number of accesses to all pages.
    pub accesses: u64,
}

impl Sample {
    /// Returns how many pages of the load `pages` of the sample stand for.
    pub fn scaled_up(&self, pages: u64) -> u64 {
        (pages as f64 / self.rate).round() as u64
    }

    /// Returns how many of `pages` are in the sample; at least one.
    pub fn scaled_down(&self, pages: u64) -> u64 {
        ((pages as f64 * self.rate).round() as u64).max(1)
    }

    /// Returns the share of all accesses that `misses` in the sample stand for. If the sample has
    /// more or fewer accesses than its share, the difference counts as accesses to the most popular
    /// pages, which are hits (SHARDS-adj).
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
