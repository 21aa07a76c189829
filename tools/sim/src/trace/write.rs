//! Writes page accesses to a file for this program, for libCacheSim or for people.
//!
//! Until a file is complete, it is called `NAME.partial`; it is removed if writing is abandoned.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The format of a written trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Page numbers of 64 bits, little-endian.
    U64,
    /// Page numbers of 64 bits, little-endian, compressed by zstd.
    U64Zstd,
    /// libCacheSim's records of 24 bytes. The time is the number of the access, and an object's
    /// size is 1. A second pass from the end of the file finds the next access of each page, in
    /// memory proportional to the pages; so this format can only be written to a plain file.
    OracleGeneral,
    /// A page number per line, as text.
    Lirs,
}

/// All targets by name, which is also the ending of file names.
const TARGETS: [(&str, Target); 4] = [
    ("u64", Target::U64),
    ("u64.zst", Target::U64Zstd),
    ("oracleGeneral", Target::OracleGeneral),
    ("lirs", Target::Lirs),
];

impl Target {
    /// Returns the names of all targets.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TARGETS.iter().map(|(name, _)| *name)
    }

    /// Returns the target of a name.
    pub fn named(name: &str) -> Option<Target> {
        TARGETS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, target)| *target)
    }

    /// Returns the target that a file's name ends with.
    pub fn of_name(path: &Path) -> Option<Target> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends = |ending: &str| name.ends_with(&format!(".{}", ending.to_ascii_lowercase()));
        TARGETS.iter().find(|(ending, _)| ends(ending)).map(|(_, target)| *target)
    }
}

/// Bytes that are buffered before they go to the file.
const BUFFER_BYTES: usize = 128 << 10;

/// The default of `zstd` itself: page numbers gain little from a higher level.
const ZSTD_LEVEL: i32 = 3;

const RECORD_BYTES: usize = 24;

/// The offset of the next access's number in a record, in bytes.
const NEXT_AT: usize = 16;

/// Records that the second pass reads at a time.
const RECORDS_AT_ONCE: usize = 16 << 10;

/// Writes a trace.
pub struct Writer {
    target: Target,
    out: Out,
    accesses: u64,
    /// The file's temporary and final name, until it has the final one.
    partial: Option<(PathBuf, PathBuf)>,
}

enum Out {
    Stream(BufWriter<Box<dyn Write + Send>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<Box<dyn Write + Send>>>),
    /// A file that the second pass reads and writes again.
    Records(BufWriter<File>),
    Closed,
}

impl Writer {
    /// Writes to a file. [`Writer::finish`] replaces a file of the same name.
    ///
    /// # Errors
    /// The temporary file cannot be created.
    pub fn create(path: &Path, target: Target) -> io::Result<Writer> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&partial)?;
        let out = match target {
            Target::OracleGeneral => Out::Records(BufWriter::with_capacity(BUFFER_BYTES, file)),
            _ => Writer::stream(Box::new(file), target)?,
        };
        Ok(Writer { target, out, accesses: 0, partial: Some((partial, path.to_owned())) })
    }

    /// Writes to any writer.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for [`Target::OracleGeneral`], which needs a second pass.
    pub fn new(out: impl Write + Send + 'static, target: Target) -> io::Result<Writer> {
        if target == Target::OracleGeneral {
            let what =
                "oracleGeneral needs a second pass over the records, so it can be written to a file only";
            return Err(io::Error::new(ErrorKind::Unsupported, what));
        }
        Ok(Writer { target, out: Writer::stream(Box::new(out), target)?, accesses: 0, partial: None })
    }

    fn stream(out: Box<dyn Write + Send>, target: Target) -> io::Result<Out> {
        let out = BufWriter::with_capacity(BUFFER_BYTES, out);
        Ok(match target {
            Target::U64Zstd => {
                let mut out = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
                out.include_checksum(true)?;
                Out::Zstd(out)
            }
            _ => Out::Stream(out),
        })
    }

    /// Appends accesses.
    ///
    /// # Errors
    /// The bytes cannot be written.
    pub fn write(&mut self, pages: &[u64]) -> io::Result<()> {
        let out: &mut dyn Write = match &mut self.out {
            Out::Stream(out) => out,
            Out::Zstd(out) => out,
            Out::Records(out) => out,
            Out::Closed => unreachable!("only `finish` closes, and takes the writer"),
        };
        for page in pages {
            match self.target {
                Target::U64 | Target::U64Zstd => out.write_all(&page.to_le_bytes())?,
                Target::OracleGeneral => out.write_all(&record(self.accesses, *page))?,
                Target::Lirs => writeln!(out, "{page}")?,
            }
            self.accesses += 1;
        }
        Ok(())
    }

    /// Writes the rest, gives the file its name, and returns the number of accesses in it.
    ///
    /// # Errors
    /// The rest cannot be written, or the file cannot be renamed.
    pub fn finish(mut self) -> io::Result<u64> {
        match std::mem::replace(&mut self.out, Out::Closed) {
            Out::Stream(mut out) => out.flush()?,
            Out::Zstd(out) => out.finish()?.flush()?,
            Out::Records(out) => {
                let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                fill_in_next(file, self.accesses)?;
            }
            Out::Closed => {}
        }
        if let Some((partial, path)) = &self.partial {
            fs::rename(partial, path)?;
        }
        self.partial = None;
        Ok(self.accesses)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.partial {
            // A failure is ignored: the caller that abandons a file already has an error to report.
            let _ = fs::remove_file(partial);
        }
    }
}

fn record(access: u64, page: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&u32::try_from(access).unwrap_or(u32::MAX).to_le_bytes());
    record[4..12].copy_from_slice(&page.to_le_bytes());
    record[12..16].copy_from_slice(&1u32.to_le_bytes());
    record[NEXT_AT..].copy_from_slice(&(-1i64).to_le_bytes());
    record
}

/// Fills in, from the end to the beginning, which access, counted from 1, is the next of the same
/// page.
fn fill_in_next(mut file: File, accesses: u64) -> io::Result<()> {
    let mut next: HashMap<[u8; 8], u64> = HashMap::new();
    let mut records = vec![0; RECORDS_AT_ONCE * RECORD_BYTES];
    let mut end = accesses;
    while end > 0 {
        let count = end.min(RECORDS_AT_ONCE as u64);
        let begin = end - count;
        let records = &mut records[..count as usize * RECORD_BYTES];
        file.seek(SeekFrom::Start(begin * RECORD_BYTES as u64))?;
        file.read_exact(records)?;
        for (at, record) in records.chunks_exact_mut(RECORD_BYTES).enumerate().rev() {
            let number = begin + at as u64 + 1;
            let page = record[4..12].try_into().expect("eight bytes");
            if let Some(later) = next.insert(page, number) {
                record[NEXT_AT..].copy_from_slice(&later.to_le_bytes());
            }
        }
        file.seek(SeekFrom::Start(begin * RECORD_BYTES as u64))?;
        file.write_all(records)?;
        end = begin;
    }
    Ok(())
}
