//! Which pages are accessed: the simulator's generators as endless streams.

use octavo_sim::Source;

use crate::Error;
use crate::case::{Mix, Pattern};

/// Page numbers of a pattern over so many pages; the same seed gives the same ones.
pub fn pages(pattern: &Pattern, pages: u64, seed: u64) -> Result<Pages, Error> {
    let source = octavo_sim::generate::parse(&pattern.over(pages, seed)).map_err(Error::at("a workload"))?;
    Ok(Pages { source, chunk: Vec::new().into_iter() })
}

/// Records that YCSB's mixes ask for: popular ones, or for D new ones.
pub fn keys(mix: Mix, records: u64, seed: u64) -> Result<Pages, Error> {
    let line = match mix {
        // Five inserts in a hundred operations.
        Mix::D => format!("drift:pages={records},every=20"),
        _ => format!("zipf:pages={records}"),
    };
    let line = format!("{line},seed={seed},requests={}", i64::MAX);
    let source = octavo_sim::generate::parse(&line).map_err(Error::at("a workload"))?;
    Ok(Pages { source, chunk: Vec::new().into_iter() })
}

/// An endless stream of page numbers.
pub struct Pages {
    source: Box<dyn Source>,
    chunk: std::vec::IntoIter<u64>,
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
    use crate::suite::Suite;

    #[test]
    fn a_stream_goes_on_and_is_the_same_again() {
        let case = &Suite::find("hits", true).unwrap().cases[0];
        let first = |count| pages(&case.workload, 1000, 7).unwrap().take(count).collect::<Vec<_>>();
        assert_eq!(first(100_000)[..10], first(10));
        assert!(first(100_000).iter().all(|page| *page < 1000));
    }
}
