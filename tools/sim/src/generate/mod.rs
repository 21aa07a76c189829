//! Generated accesses, from a text and a seed: the same text gives the same accesses on every
//! machine of one architecture.
//!
//! | text | accesses |
//! |---|---|
//! | `uniform:pages=N` | every page is as likely as every other |
//! | `zipf:pages=N` | YCSB's scrambled Zipf: ranks drawn by Zipf's distribution, hashed by FNV-1a modulo *N* |
//! | `scans:pages=N,every=E,length=L` | the same, and after *E* accesses *L* pages in order out of `cold` other ones (`10 N`) |
//! | `loop:pages=N` | page 0 to *N* - 1, and again |
//! | `phases:pages=N,every=E` | zipf, with other popular pages after each *E* accesses |
//! | `drift:pages=N,every=E` | after each *E* accesses a page becomes the hottest and all others one rank colder, round *N* pages |
//! | `mix:W=[..],W=[..]` | the workloads in brackets side by side, by weights *W*; each has pages of its own |
//!
//! All take `requests` (10 000 000) and `seed` (1), the outermost of a mix for all; those with
//! popular pages take `skew` (0.99) and, but for `drift`, `ranks`: how many ranks Zipf's
//! distribution has. As in YCSB that is 10 000 000 000, whatever the pages: with many pages a good
//! part of the accesses is then spread evenly over all. `ranks=N` gives Zipf's distribution over
//! about the pages themselves.

mod random;
mod spec;
mod workload;
mod zipf;

use crate::{CHUNK, Source, SourceError};
use random::Random;
use workload::Workload;

/// The accesses that a text describes.
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
