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

/// A folder that one test uses.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let name = format!("trace-{test}-{}", std::process::id());
        let folder = Folder(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays in the build folder, where it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
