//! Endless streams of page numbers, from the simulator's generators.

use octavo_sim::Source;

use crate::case::{Mix, Pattern};
use crate::error::Error;

/// Draws pages below `pages` by a pattern. The same seed gives the same stream.
pub fn pages(pattern: &Pattern, pages: u64, seed: u64) -> Result<Pages, Error> {
    Pages::new(&pattern.over(pages, seed))
}

/// Returns the seed of a thread of a contestant. Every contestant and thread has a stream of its
/// own.
pub fn seed(contestant: usize, thread: usize) -> u64 {
    ((contestant as u64) << 32) + thread as u64 + 1
}

/// Draws the records that a YCSB mix accesses: by popularity, or, for mix D, preferably the newest.
pub fn keys(mix: Mix, records: u64, seed: u64) -> Result<Pages, Error> {
    let line = match mix {
        // 5 % of the operations are inserts.
        Mix::D => format!("drift:pages={records},every=20"),
        _ => format!("zipf:pages={records}"),
    };
    Pages::new(&format!("{line},seed={seed},requests={}", i64::MAX))
}

/// An endless stream of page numbers.
pub struct Pages {
    source: Box<dyn Source>,
    chunk: std::vec::IntoIter<u64>,
}

impl Pages {
    fn new(line: &str) -> Result<Pages, Error> {
        let source = octavo_sim::generate::parse(line).map_err(Error::at("a workload"))?;
        Ok(Pages { source, chunk: Vec::new().into_iter() })
    }
}

impl Iterator for Pages {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if let Some(page) = self.chunk.next() {
            return Some(page);
        }
        let mut chunk = Vec::new();
        self.source.next(&mut chunk).ok()?;
        self.chunk = chunk.into_iter();
        self.chunk.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    #[test]
    fn a_stream_is_endless_and_repeats_from_its_seed() {
        let case = Case::default();
        let first = |count| pages(&case.workload, 1000, 7).unwrap().take(count).collect::<Vec<_>>();
        assert_eq!(first(100_000)[..10], first(10));
        assert!(first(100_000).iter().all(|page| *page < 1000));
    }
}
