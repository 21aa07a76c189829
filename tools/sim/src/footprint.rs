//! The first pass over a trace: counts its accesses and its different pages. The counts are exact;
//! the pass holds a set of all different pages.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::source::{CHUNK, Source, SourceError};

/// The length and the footprint of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Accesses.
    pub requests: u64,
    /// Different pages.
    pub pages: u64,
    /// Whether the trace was read to its end, and not interrupted.
    pub complete: bool,
}

impl Footprint {
    /// Reads a source to its end, or until `stop` is set. Calls `progress` after every chunk with
    /// the accesses so far and the share of the source that was read, where it is known.
    ///
    /// # Errors
    /// The source's own error.
    pub fn of(
        source: &mut dyn Source,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, Option<f64>),
    ) -> Result<Footprint, SourceError> {
        let mut pages: HashSet<u64, BuildPageHasher> = HashSet::default();
        let mut requests = 0;
        let mut chunk = Vec::with_capacity(2 * CHUNK);
        loop {
            chunk.clear();
            source.next(&mut chunk)?;
            requests += chunk.len() as u64;
            pages.extend(&chunk);
            progress(requests, source.progress());
            // Relaxed: the flag orders nothing else.
            let stopped = stop.load(Ordering::Relaxed);
            if chunk.is_empty() || stopped {
                return Ok(Footprint { requests, pages: pages.len() as u64, complete: !stopped });
            }
        }
    }
}

/// Hashes page numbers. They are regular, and their low or high bits may all be equal.
#[derive(Default)]
pub(crate) struct PageHasher(u64);

pub(crate) type BuildPageHasher = BuildHasherDefault<PageHasher>;

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Pages;

    #[test]
    fn accesses_and_pages_are_counted_over_chunks() {
        let pages: Vec<u64> = (0..50_000u64).map(|number| (number % 20_011) << 30).collect();
        let mut news = 0;
        let counted = Footprint::of(&mut Pages::new(pages), &AtomicBool::new(false), &mut |requests, _| {
            news = requests
        });
        assert_eq!(counted, Ok(Footprint { requests: 50_000, pages: 20_011, complete: true }));
        assert_eq!(news, 50_000);
    }

    #[test]
    fn a_count_that_was_stopped_says_that_it_is_not_complete() {
        let counted =
            Footprint::of(&mut Pages::new((0..500_000).collect()), &AtomicBool::new(true), &mut |_, _| ());
        assert!(counted.is_ok_and(|counted| !counted.complete && counted.requests < 500_000));
    }
}
