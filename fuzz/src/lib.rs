//! What every target asks of a reader, whatever the bytes.
//!
//! No panic and no overflow, which the build's flags check; a bounded number of pages at a time; the same pages however the bytes arrive; nothing
//! after an error; and with bad lines passed over everything that is read without, and more.

#![forbid(unsafe_code)]

use std::io::{Cursor, Read};

use octavo_sim::trace::{self, Format, Options};
use octavo_sim::{CHUNK, Source, SourceError, generate};

/// More pages are not looked at: a short line can stand for a million.
const PAGES_MAX: usize = 1 << 18;

/// What came of a source.
#[derive(Debug, PartialEq)]
struct Outcome {
    pages: Vec<u64>,
    error: Option<SourceError>,
    skipped: u64,
}

/// Reads bytes in a format, in several ways.
pub fn read(format: Format, bytes: &[u8]) {
    let strict = Options::default();
    let whole = outcome(format, bytes, usize::MAX, &strict);
    let pieces = outcome(format, bytes, 1 + bytes.len() % 13, &strict);
    if is_packed(bytes) && whole.error.is_some() {
        // Where a compressed stream is damaged, what its decoder still gives depends on how much it sees at once.
        assert!(pieces.error.is_some(), "the same bytes in pieces");
        assert!(whole.pages.starts_with(&pieces.pages) || pieces.pages.starts_with(&whole.pages));
    } else {
        assert_eq!(whole, pieces, "the same bytes in pieces");
    }
    assert_eq!(whole.skipped, 0, "nothing may be passed over");

    let lenient = outcome(format, bytes, usize::MAX, &Options { skip_bad: true, ..strict });
    assert!(
        lenient.pages.starts_with(&whole.pages),
        "what is good is read whether bad lines are passed over or not"
    );
    if whole.error.is_none() {
        assert_eq!(whole, lenient, "there is nothing bad to pass over");
    } else {
        let is_full = whole.pages.len() >= PAGES_MAX;
        assert!(
            is_full || lenient.error.is_some() || lenient.skipped > 0,
            "what is bad is an error, or counted"
        );
    }
    // Other pages, other bounds.
    outcome(format, bytes, usize::MAX, &Options { page_bytes: 512, skip_bad: true, ..strict });
}

/// Draws from the workload that a text describes, if it describes one.
pub fn draw(text: &str) {
    let Ok(mut source) = generate::parse(text) else { return };
    let outcome = drain(source.as_mut());
    assert_eq!(outcome.error, None);
    assert!(outcome.pages.iter().all(|page| *page < 1 << 42), "a page is below the sum of all");
}

/// Whether the bytes may be taken for a compressed file.
fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b, 8]) || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}

fn outcome(format: Format, bytes: &[u8], piece: usize, options: &Options) -> Outcome {
    let reader = Pieces { bytes: Cursor::new(bytes.to_vec()), piece };
    match trace::read(format, "input", reader, options) {
        Ok(mut source) => drain(source.as_mut()),
        Err(error) => Outcome { pages: Vec::new(), error: Some(error), skipped: 0 },
    }
}

fn drain(source: &mut dyn Source) -> Outcome {
    let mut pages = Vec::new();
    while pages.len() < PAGES_MAX {
        let before = pages.len();
        let result = source.next(&mut pages);
        assert!(pages.len() - before <= 2 * CHUNK, "{} pages at once", pages.len() - before);
        if let Err(error) = result {
            let after = pages.len();
            assert_eq!(source.next(&mut pages), Ok(()), "one error");
            assert_eq!(pages.len(), after, "nothing after an error");
            return Outcome { pages, error: Some(error), skipped: source.skipped() };
        }
        if pages.len() == before {
            break;
        }
    }
    let error = None;
    Outcome { pages, error, skipped: source.skipped() }
}

/// Gives bytes a few at a time.
struct Pieces {
    bytes: Cursor<Vec<u8>>,
    piece: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(self.piece);
        self.bytes.read(&mut buffer[..count])
    }
}
