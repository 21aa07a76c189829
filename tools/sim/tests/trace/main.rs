//! Traces as their users meet them: what each format's lines mean, what is said of wrong ones,
//! files packed and cut off, and workloads.

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

/// All pages of a text or of bytes.
fn pages(format: Format, bytes: impl AsRef<[u8]>, options: &Options) -> Result<Vec<u64>, SourceError> {
    let reader = Cursor::new(bytes.as_ref().to_vec());
    all(trace::read(format, "sample", reader, options)?.as_mut())
}

/// All pages of a source, which never yields much more than it says.
fn all(source: &mut dyn Source) -> Result<Vec<u64>, SourceError> {
    let (mut all, mut some) = (Vec::new(), Vec::new());
    loop {
        some.clear();
        source.next(&mut some)?;
        assert!(some.len() <= 2 * CHUNK, "{} pages at once", some.len());
        if some.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&some);
    }
}

/// A folder of one test's own.
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
        // What cannot be removed lies in the build folder and disturbs nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
