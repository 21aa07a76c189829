//! What every target checks of a reader, whatever the bytes:
//!
//! - no panic and no overflow, which the build's flags check;
//! - a bounded number of pages at a time;
//! - the same pages however the bytes arrive;
//! - no pages after an error;
//! - with bad lines skipped, at least all pages that are read without skipping.

#![forbid(unsafe_code)]

pub mod vhost;

use std::io::{Cursor, Read};
use std::sync::atomic::AtomicBool;

use octavo_recording::{Header, Secret, WHOLE};
use octavo_sim::recording::block::{self, Kind};
use octavo_sim::recording::{self, Reader};
use octavo_sim::trace::{self, Format, Options};
use octavo_sim::{CHUNK, Source, SourceError, generate};
use octavo_table::{PolicyKind, Shape};

/// The most pages that are read from one input: a short line can stand for a million.
const PAGES_MAX: usize = 1 << 18;

/// The result of reading a source.
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
        // How much the decoder of a damaged stream still yields depends on how many bytes it sees
        // at once.
        assert!(pieces.error.is_some(), "the same bytes in pieces");
        assert!(whole.pages.starts_with(&pieces.pages) || pieces.pages.starts_with(&whole.pages));
    } else {
        assert_eq!(whole, pieces, "the same bytes in pieces");
    }
    assert_eq!(whole.skipped, 0, "nothing may be skipped");

    let lenient = outcome(format, bytes, usize::MAX, &Options { skip_bad: true, ..strict.clone() });
    assert!(
        lenient.pages.starts_with(&whole.pages),
        "good lines are read whether bad ones are skipped or not"
    );
    if whole.error.is_none() {
        assert_eq!(whole, lenient, "there is no bad line to skip");
    } else {
        let is_full = whole.pages.len() >= PAGES_MAX;
        assert!(
            is_full || lenient.error.is_some() || lenient.skipped > 0,
            "a bad line is an error, or is counted"
        );
    }
    // Another page length has other limits.
    outcome(format, bytes, usize::MAX, &Options { page_bytes: 512, skip_bad: true, ..strict.clone() });
}

/// Reads bytes as a recording: as they are, after a valid header, and as the events of a block with
/// the right checksum.
pub fn recording(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => read(Format::Octr, rest),
        1 => read(Format::Octr, &[beginning(*kind), rest.to_vec()].concat()),
        2 => read(Format::Octr, &file(*kind, rest)),
        // As a block of events, torn off anywhere.
        _ => {
            let whole = file(*kind, rest);
            let end = whole.len() * (*kind as usize / 4) / 64;
            read(Format::Octr, &whole[..end]);
        }
    }
}

/// Replays any events through a small table.
pub fn replay(bytes: &[u8]) {
    let Some((kind, events)) = bytes.split_first() else { return };
    let file = Cursor::new(file(*kind, events));
    let mut reader = Reader::read("input", file, false).expect("the header is complete");
    let replayed = recording::replay(&mut reader, &AtomicBool::new(false), &mut |_, _| {});
    if let Ok(replayed) = replayed {
        assert!(replayed.hits <= replayed.accesses && replayed.differences <= replayed.accesses);
    }
}

/// Makes a recording with these events, of a partition of a few sets.
fn file(kind: u8, events: &[u8]) -> Vec<u8> {
    let mut file = beginning(kind);
    for events in events.chunks(block::BLOCK_BYTES_MAX) {
        file.extend(block::pack(Kind::Events, 5, events).expect("memory can be packed"));
    }
    file.extend(block::pack(Kind::End, 6, &recording::Ending::Stopped.encode()).expect("as above"));
    file
}

fn beginning(kind: u8) -> Vec<u8> {
    let header = Header {
        partition: "fuzz".into(),
        policy: PolicyKind::ALL[kind as usize / 4 % PolicyKind::ALL.len()],
        ways: [8, 16, 32][kind as usize % 3],
        page_bytes: 4096,
        shape: Shape { segments_max: 6, sets_per_segment: 2 },
        nodes: 1,
        segments: 2,
        secret: Secret::Weak,
        sample_below: if kind & 64 == 0 { WHOLE } else { WHOLE / 3 },
        from_the_first: true,
    };
    let about = recording::About { id: 1, part: 1, began_unix_ms: 0, header };
    let header = block::pack(Kind::Header, 0, &about.encode()).expect("memory can be packed");
    [&block::MAGIC[..], &header].concat()
}

/// Draws from the workload that a text describes, if it describes one.
pub fn draw(text: &str) {
    let Ok(mut source) = generate::parse(text) else { return };
    let outcome = drain(source.as_mut());
    assert_eq!(outcome.error, None);
    assert!(outcome.pages.iter().all(|page| *page < 1 << 42), "a page is below the sum of all");
}

/// Returns whether the bytes may be read as a compressed file.
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

/// Yields a few bytes at a time.
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
