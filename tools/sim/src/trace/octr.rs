//! Our own recordings as traces: the accesses, each with its key as the page. Objects that had one
//! number one after the other have different keys.

use octavo_recording::{Event, Totals, WHOLE};

use crate::recording::{Ending, Reader};
use crate::{CHUNK, Sample, Source, SourceError};

impl Source for Reader {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let end = pages.len() + CHUNK;
        while pages.len() < end {
            let Some(event) = self.event()? else { break };
            if let Event::Access { key, .. } = self.in_its_life(event) {
                pages.push(key);
            }
        }
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        Reader::progress(self)
    }

    fn skipped(&self) -> u64 {
        Reader::skipped(self)
    }

    fn sample(&self) -> Option<Sample> {
        let header = &self.about().header;
        let Totals { hits, misses } = self.counted();
        let accesses = hits.saturating_add(misses);
        (header.sample_below < WHOLE).then(|| Sample { rate: header.sample(), accesses })
    }

    fn remark(&self) -> Option<String> {
        let first = match self.first_part() {
            1 => None,
            part => Some(format!("reading begins with part {part}; the parts before it are missing")),
        };
        let ending = self.ending().filter(|ending| *ending != Ending::Stopped);
        let last = ending.map(|ending| format!("the recording ends early: {}", ending.words()));
        let words = first.into_iter().chain(last).reduce(|first, last| format!("{first}; {last}"))?;
        Some(format!("{}: {words}", self.name()))
    }
}
