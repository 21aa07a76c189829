//! Traces through the public interface: the meaning of each format's lines, errors for malformed
//! ones, compressed and truncated files, and workloads.

#![forbid(unsafe_code)]

mod columns;
mod files;
mod formats;
mod generated;
mod malformed;
mod written;

use std::io::Cursor;
use std::path::PathBuf;

use octavo_sim::trace::{self, Format, Options};
use octavo_sim::{CHUNK, Source, SourceError};
use tempfile::TempDir;

/// Returns all pages of a text or of bytes.
fn pages(format: Format, bytes: impl AsRef<[u8]>, options: &Options) -> Result<Vec<u64>, SourceError> {
    let reader = Cursor::new(bytes.as_ref().to_vec());
    all(trace::read(format, "sample", reader, options)?.as_mut())
}

/// Returns all pages of a source, and checks that it never yields many more than a chunk.
fn all(source: &mut dyn Source) -> Result<Vec<u64>, SourceError> {
    let mut all = Vec::new();
    source.for_each_chunk(&mut |chunk| {
        assert!(chunk.len() <= 2 * CHUNK, "{} pages at once", chunk.len());
        all.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(all)
}

/// Returns a source of a text or of bytes.
fn source(format: Format, bytes: impl AsRef<[u8]>, options: &Options) -> Box<dyn Source> {
    trace::read(format, "sample", Cursor::new(bytes.as_ref().to_vec()), options).unwrap()
}

/// Returns the options by which malformed lines and records are skipped.
fn lenient() -> Options {
    Options { skip_bad: true, ..Options::default() }
}

/// Writes a file into the folder of a test.
fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
