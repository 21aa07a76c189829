//! The first pass over a trace: counts its accesses and its different pages. The counts are exact;
//! the pass holds a set of all different pages.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::reading::{Progress, Step, Trace};
use crate::source::{CHUNK, SourceError};

/// The length and the footprint of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Accesses.
    pub requests: u64,
    /// Different pages.
    pub pages: u64,
}

impl Footprint {
    /// Reads a trace to its end, and calls `progress` after every chunk. Returns None if `stop` was
    /// set.
    ///
    /// # Errors
    /// The trace cannot be opened, or its source fails.
    pub fn of(
        trace: &Trace<'_>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Option<Footprint>, SourceError> {
        let mut source = (trace.open)()?;
        let mut pages: HashSet<u64, BuildPageHasher> = HashSet::default();
        let mut requests = 0;
        let mut chunk = Vec::with_capacity(2 * CHUNK);
        loop {
            chunk.clear();
            source.next(&mut chunk)?;
            requests += chunk.len() as u64;
            pages.extend(&chunk);
            let share = source.progress();
            progress(Progress { trace: &trace.name, step: Step::Count, requests, share });
            // Relaxed: the flag orders nothing else.
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if chunk.is_empty() {
                return Ok(Some(Footprint { requests, pages: pages.len() as u64 }));
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
    use crate::simulate::tests::trace;

    #[test]
    fn accesses_and_pages_are_counted_over_chunks() {
        let pages = (0..50_000u64).map(|number| (number % 20_011) << 30).collect();
        let mut news = 0;
        let mut show = |progress: Progress<'_>| news = progress.requests;
        let counted = Footprint::of(&trace("regular", pages), &AtomicBool::new(false), &mut show);
        assert_eq!(counted, Ok(Some(Footprint { requests: 50_000, pages: 20_011 })));
        assert_eq!(news, 50_000);
    }

    #[test]
    fn a_count_that_was_stopped_has_no_result_and_is_not_read_to_its_end() {
        let mut news = 0;
        let mut show = |progress: Progress<'_>| news = progress.requests;
        let long = trace("long", (0..500_000).collect());
        assert_eq!(Footprint::of(&long, &AtomicBool::new(true), &mut show), Ok(None));
        assert!(news < 500_000);
    }
}
