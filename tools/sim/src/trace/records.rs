//! Traces of records of one length: plain page numbers, and libCacheSim's `oracleGeneral`.

use crate::trace::input::Input;
use crate::{CHUNK, Source, SourceError};

/// Records of `BYTES` bytes, each an access of the page whose number lies `AT` bytes into it,
/// little-endian.
pub struct Records<const BYTES: usize, const AT: usize> {
    input: Input,
    skip_bad: bool,
    records: u64,
    skipped: u64,
    is_over: bool,
}

/// Plain page numbers.
pub type U64 = Records<8, 0>;

/// `oracleGeneral`: time (4 bytes), object (8), its size (4), number of its next access (8).
/// Objects are pages; the other fields of a record are ignored.
pub type OracleGeneral = Records<24, 4>;

impl<const BYTES: usize, const AT: usize> Records<BYTES, AT> {
    /// Starts at the input's beginning.
    pub fn new(input: Input, skip_bad: bool) -> Self {
        const { assert!(AT + 8 <= BYTES) };
        Records { input, skip_bad, records: 0, skipped: 0, is_over: false }
    }

    fn read(&mut self, pages: &mut Vec<u64>) -> Result<(), String> {
        let bytes = self.input.at_least(BYTES).map_err(|error| error.to_string())?;
        let (records, rest) = bytes.as_chunks::<BYTES>();
        let records = &records[..records.len().min(CHUNK)];
        pages.extend(records.iter().map(|record| {
            let page = record[AT..].first_chunk().expect("a page number lies inside its record");
            u64::from_le_bytes(*page)
        }));
        self.records += records.len() as u64;
        let (count, rest) = (records.len(), rest.len());
        self.input.take(count * BYTES);
        if count == 0 {
            self.is_over = true;
            if rest > 0 && !self.skip_bad {
                return Err(format!("the file ends after {rest} of its {BYTES} bytes"));
            }
            self.skipped += u64::from(rest > 0);
        }
        Ok(())
    }
}

impl<const BYTES: usize, const AT: usize> Source for Records<BYTES, AT> {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let target = pages.len() + CHUNK / 2;
        while pages.len() < target && !self.is_over {
            self.read(pages).map_err(|what| {
                self.is_over = true;
                SourceError(format!("{}: record {}: {what}", self.input.name(), self.records + 1))
            })?;
        }
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        self.input.progress()
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}
