//! Our own recordings as traces: their accesses, each page by its key.

use octavo_table::recording::{Event, Totals, WHOLE};

use crate::recording::{Ending, Reader};
use crate::{CHUNK, Sample, Source, SourceError};

/// The accesses of a recording.
pub struct Accesses {
    reader: Reader,
    counted: Totals,
}

impl Accesses {
    /// Those that a reader gives.
    pub fn new(reader: Reader) -> Accesses {
        Accesses { reader, counted: Totals::default() }
    }
}

impl Source for Accesses {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let end = pages.len() + CHUNK;
        while pages.len() < end {
            match self.reader.event()? {
                Some(Event::Access { key, .. }) => pages.push(key),
                Some(Event::Totals(totals)) => self.counted = totals,
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        self.reader.progress()
    }

    fn skipped(&self) -> u64 {
        self.reader.skipped()
    }

    fn sample(&self) -> Option<Sample> {
        let header = &self.reader.about().header;
        let Totals { hits, misses } = self.counted;
        let accesses = hits.saturating_add(misses);
        (header.sample_below < WHOLE).then(|| Sample { rate: header.sample(), accesses })
    }

    fn remark(&self) -> Option<String> {
        let ending = self.reader.ending().filter(|ending| *ending != Ending::Stopped)?;
        Some(format!("{}: the recording ends early: {}", self.reader.name(), ending.words()))
    }
}
