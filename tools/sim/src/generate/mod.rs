//! Generates accesses from a text and a seed: the same text gives the same accesses on every
//! machine of one architecture.
//!
//! - `uniform:pages=N`: all pages are equally likely.
//! - `zipf:pages=N`: YCSB's scrambled Zipf: ranks drawn by Zipf's distribution, hashed by FNV-1a
//!   modulo *N*.
//! - `scans:pages=N,every=E,length=L`: zipf, and after every *E* accesses *L* pages in order out of
//!   `cold` others (default: 10 *N*).
//! - `loop:pages=N`: pages 0 to *N* - 1 in order, again and again.
//! - `phases:pages=N,every=E`: zipf, with other popular pages after every *E* accesses.
//! - `drift:pages=N,every=E`: after every *E* accesses the next of *N* pages becomes the hottest,
//!   and all others become one rank colder.
//! - `mix:W=[..],W=[..]`: the workloads in brackets, interleaved by weights *W*; each has its own
//!   pages.
//!
//! All take `requests` (default: 10,000,000) and `seed` (default: 1); in a mix, only the outermost
//! mix takes them, and they apply to all its parts. Workloads with popular pages take `skew`
//! (default: 0.99) and, except for `drift`, `ranks`: the number of ranks of Zipf's distribution. As
//! in YCSB the default is 10,000,000,000, whatever the number of pages: with many pages, many of
//! the accesses are then spread evenly over all of them. With `ranks=N`, the pages themselves have
//! approximately Zipf's distribution.

mod spec;
mod workload;
mod zipf;

use octavo_random::Random;

use crate::{CHUNK, Source, SourceError};
use workload::Workload;

/// Creates the source of the accesses that a text describes.
///
/// # Errors
/// The text is malformed; the message says where and why.
///
/// # Examples
///
/// ```
/// let mut source = octavo_sim::generate::parse("zipf:pages=1000,requests=20,seed=7")?;
/// let mut pages = Vec::new();
/// source.next(&mut pages)?;
/// assert!(pages.len() == 20 && pages.iter().all(|page| *page < 1000));
/// # Ok::<(), octavo_sim::SourceError>(())
/// ```
pub fn parse(text: &str) -> Result<Box<dyn Source>, SourceError> {
    let spec = spec::parse(text).map_err(|what| SourceError(format!("gen:{what}")))?;
    let random = Random::new(spec.seed);
    Ok(Box::new(Generator { workload: spec.workload, random, requests: spec.requests, yielded: 0 }))
}

struct Generator {
    workload: Workload,
    random: Random,
    requests: u64,
    yielded: u64,
}

impl Source for Generator {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let count = (self.requests - self.yielded).min(CHUNK as u64);
        pages.extend((0..count).map(|_| self.workload.draw(&mut self.random)));
        self.yielded += count;
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        Some(self.yielded as f64 / self.requests.max(1) as f64)
    }
}
