//! Traces: files of page accesses, and of requests that become page accesses.
//!
//! [`open`] takes the format from a file's name, or from [`Options`], and returns a [`Source`]. A
//! file is read once, from its beginning, through a buffer of fixed size (`input`); gzip and zstd
//! are recognised by their first bytes.
//!
//! | file | reads |
//! |---|---|
//! | `records.rs` | records of one length |
//! | `formats.rs` | text with one request a line |
//! | `blkparse.rs` | the text of `blkparse` |
//! | `columns.rs` | tables whose columns the user names |
//! | `operations.rs` | the words for operations in such tables |
//! | `octr.rs` | our own recordings |
//!
//! `fields.rs` reads the fields of lines; `extent.rs` turns bytes into pages; `write.rs` writes
//! traces.
//!
//! A malformed line or record ends the trace with an error that says where it is, or is skipped and
//! counted ([`Options::skip_bad`]). A file that cannot be read or decompressed is always an error.
//! Nothing in a file can cause a panic or take more than a few MiB of memory (zstd takes up to 128
//! MiB if the file was compressed with such a window).
//!
//! To add a format, add a line in `FORMATS`, a variant of [`Format`], and its [`Source`] in
//! `read_input`.

mod blkparse;
mod columns;
mod extent;
mod fields;
mod formats;
pub(crate) mod input;
mod lines;
mod octr;
mod operations;
mod records;
mod write;

use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::generate;
use crate::recording::Reader;
use crate::{Source, SourceError};
use blkparse::Blkparse;
use extent::Extents;
use input::Input;
use lines::Lines;

pub use columns::{Columns, Separator};
pub use extent::REQUEST_PAGES_MAX;
pub use input::LINE_BYTES_MAX;
pub use write::{Target, Writer};

/// The prefix of a generated trace's name, in place of a file's name.
pub const GENERATED: &str = "gen:";

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Page numbers of 64 bits, little-endian.
    U64,
    /// libCacheSim's records of 24 bytes.
    OracleGeneral,
    /// The traces that came with ARC: `first_block count ignored request`.
    Arc,
    /// The traces that came with LIRS: a block number per line.
    Lirs,
    /// The Storage Performance Council's: `ASU,LBA,bytes,opcode,timestamp`.
    Spc,
    /// Microsoft Research Cambridge's:
    /// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
    Msr,
    /// Tencent's block storage: `Timestamp,Offset,Size,IOType,VolumeID`.
    Tencent,
    /// Alibaba's block storage: `device_id,opcode,offset,length,timestamp`.
    Alibaba,
    /// The text of `blkparse`.
    Blkparse,
    /// fio's `iolog`, version 2 or 3.
    Fio,
    /// Our own recordings; see [`crate::recording`].
    Octr,
    /// Tables whose columns the user names; see [`Columns`].
    Csv,
}

/// The names of a format.
struct About {
    format: Format,
    name: &'static str,
    /// The endings of file names, in lower case and without `.gz` or `.zst`.
    endings: &'static [&'static str],
}

const FORMATS: &[About] = &[
    About { format: Format::U64, name: "u64", endings: &[".u64"] },
    About {
        format: Format::OracleGeneral,
        name: "oracleGeneral",
        endings: &[".oraclegeneral", ".oraclegeneral.bin"],
    },
    About { format: Format::Arc, name: "arc", endings: &[".arc", ".lis"] },
    About { format: Format::Lirs, name: "lirs", endings: &[".lirs", ".trc"] },
    About { format: Format::Spc, name: "spc", endings: &[".spc"] },
    About { format: Format::Msr, name: "msr", endings: &[".msr", ".msr.csv"] },
    About { format: Format::Tencent, name: "tencent", endings: &[".tencent", ".tencent.csv"] },
    About { format: Format::Alibaba, name: "alibaba", endings: &[".alibaba", ".alibaba.csv"] },
    About { format: Format::Blkparse, name: "blkparse", endings: &[".blkparse"] },
    About { format: Format::Fio, name: "fio", endings: &[".fio", ".iolog"] },
    About { format: Format::Octr, name: "octr", endings: &[crate::recording::ENDING] },
    // No ending: a file's name does not tell the columns.
    About { format: Format::Csv, name: "csv", endings: &[] },
];

impl Format {
    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|about| about.format)
    }

    /// Returns the format's name on command lines.
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// Returns the format that a file's name ends with, if any.
    pub fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name().and_then(OsStr::to_str)?.to_ascii_lowercase();
        let name = [".gz", ".zst"].iter().find_map(|packed| name.strip_suffix(packed)).unwrap_or(&name);
        let ends = |about: &&About| about.endings.iter().any(|ending| name.ends_with(ending));
        FORMATS.iter().find(ends).map(|about| about.format)
    }

    fn about(self) -> &'static About {
        FORMATS.iter().find(|about| about.format == self).expect("every format is in the table")
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        let found = FORMATS.iter().find(|about| about.name.eq_ignore_ascii_case(name));
        found
            .map(|about| about.format)
            .ok_or_else(|| format!("\"{name}\" is not a format; known: {}", names()))
    }
}

/// How to read a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The format. None (the default): it follows from the columns or from the file's name.
    pub format: Option<Format>,
    /// The columns of a [`Format::Csv`]. Default: None.
    pub columns: Option<Columns>,
    /// Bytes of a page, for formats in bytes or sectors: a power of two from 512 bytes to 16 MiB.
    /// Default: 4096.
    pub page_bytes: u64,
    /// Whether malformed lines and records are skipped and counted instead of being errors.
    /// Default: false.
    pub skip_bad: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { format: None, columns: None, page_bytes: 4096, skip_bad: false }
    }
}

impl Options {
    /// Returns the format of a file. None: neither the options nor the file's name tell it.
    pub fn format_of(&self, path: &Path) -> Option<Format> {
        let by_columns = || self.columns.is_some().then_some(Format::Csv);
        self.format.or_else(by_columns).or_else(|| Format::of_name(path))
    }
}

/// Opens a trace: a file, `-` for standard input, or `gen:` and what [`generate::parse`] takes.
///
/// # Errors
/// The file is missing, empty or a folder, its format is not known or does not fit the options, or
/// its beginning cannot be read.
///
/// # Examples
///
/// ```
/// use octavo_sim::trace::{self, Options};
///
/// let mut source = trace::open("gen:loop:pages=3,requests=5".as_ref(), &Options::default())?;
/// let mut pages = Vec::new();
/// source.next(&mut pages)?;
/// assert_eq!(pages, [0, 1, 2, 0, 1]);
/// # Ok::<(), octavo_sim::SourceError>(())
/// ```
pub fn open(path: &Path, options: &Options) -> Result<Box<dyn Source>, SourceError> {
    if let Some(spec) = path.to_str().and_then(|path| path.strip_prefix(GENERATED)) {
        return generate::parse(spec);
    }
    must_be_readable(path)?;
    let format = options.format_of(path).ok_or_else(|| {
        SourceError(format!(
            "{}: the name does not tell the format; give it with --format: {}; or, for a table, give its columns \
            with --columns time,op,offset,size",
            path.display(),
            names()
        ))
    })?;
    read_input(format, Input::open(path)?, options)
}

/// Refuses a path that cannot be a trace in any format: a missing file, a folder, an empty file.
fn must_be_readable(path: &Path) -> Result<(), SourceError> {
    let wrong = |what: String| Err(SourceError(format!("{}: {what}", path.display())));
    if path.as_os_str() == "-" {
        return Ok(());
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => wrong("no such file".into()),
        Err(error) => wrong(error.to_string()),
        Ok(about) if about.is_dir() => wrong(
            "this is a folder, not a trace; octavo simulate --suite reads all traces in a folder".into(),
        ),
        Ok(about) if about.is_file() && about.len() == 0 => wrong("the file is empty".into()),
        Ok(_) => Ok(()),
    }
}

/// Opens files that follow each other: the parts of a recording.
///
/// # Errors
/// Those of [`open`], for the first file.
pub fn open_parts(paths: &[PathBuf], options: &Options) -> Result<Box<dyn Source>, SourceError> {
    match paths {
        [path] => open(path, options),
        _ => Ok(Box::new(Reader::open(paths, options.skip_bad)?)),
    }
}

/// Reads a trace from any reader; messages call it `name`.
///
/// # Errors
/// The format does not fit the options, or the beginning cannot be read.
pub fn read(
    format: Format,
    name: &str,
    reader: impl Read + Send + 'static,
    options: &Options,
) -> Result<Box<dyn Source>, SourceError> {
    read_input(format, Input::from_reader(name, Box::new(reader))?, options)
}

fn read_input(format: Format, input: Input, options: &Options) -> Result<Box<dyn Source>, SourceError> {
    let extents = Extents::new(options.page_bytes)?;
    let skip_bad = options.skip_bad;
    let wrong = |what: String| SourceError(format!("{}: {what}", input.name()));
    if options.columns.is_some() && format != Format::Csv {
        let name = format.name();
        return Err(wrong(format!(
            "--columns needs a table (csv), but the format is {name}; leave one of the two out"
        )));
    }
    Ok(match format {
        Format::U64 => Box::new(records::U64::new(input, skip_bad)),
        Format::OracleGeneral => Box::new(records::OracleGeneral::new(input, skip_bad)),
        Format::Arc => lines(input, formats::arc, skip_bad),
        Format::Lirs => lines(input, formats::lirs, skip_bad),
        Format::Spc => lines(input, formats::spc(extents), skip_bad),
        Format::Msr => lines(input, formats::msr(extents), skip_bad),
        Format::Tencent => lines(input, formats::tencent(extents), skip_bad),
        Format::Alibaba => lines(input, formats::alibaba(extents), skip_bad),
        Format::Blkparse => lines(input, Blkparse::new(extents), skip_bad),
        Format::Fio => lines(input, formats::fio(extents), skip_bad),
        Format::Csv => {
            let columns = options.columns.clone().ok_or_else(|| {
                wrong(
                    "the meaning of the columns is missing; give it with --columns time,op,offset,size"
                        .into(),
                )
            })?;
            lines(input, columns::Table::new(columns, extents), skip_bad)
        }
        Format::Octr => Box::new(Reader::new(input, skip_bad)?),
    })
}

fn lines(input: Input, format: impl lines::Format + 'static, skip_bad: bool) -> Box<dyn Source> {
    Box::new(Lines::new(input, format, skip_bad))
}

fn names() -> String {
    FORMATS.iter().map(|about| about.name).collect::<Vec<_>>().join(", ")
}
