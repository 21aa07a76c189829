//! Traces: files of page accesses, and of requests that become page accesses.
//!
//! [`open`] finds out the format from a file's name, or is told, and gives a [`Source`]. A file is
//! read once, from its beginning, through a buffer of fixed size (`input`); gzip and zstd are
//! recognised by their first bytes. What requests are made of is said beside the code that reads
//! them: `records`, `blocks`, `csv`, `columns`, `blkparse`, `fio`, `octr`. Bytes become pages in
//! `extent`.
//!
//! A malformed line or record ends the trace with an error that says where it is, or is passed over
//! and counted ([`Options::skip_bad`]). A file that cannot be read, or decompressed, is an error
//! always. Nothing in a file can cause a panic or more than some MiB of memory (zstd takes
//! up to 128 MiB if its writer wanted that).
//!
//! A further format is a line in `FORMATS`, a variant of [`Format`] and its [`Source`] in
//! `read_input`.

mod blkparse;
mod blocks;
mod columns;
mod csv;
mod extent;
mod fio;
pub(crate) mod input;
mod lines;
mod octr;
mod records;
mod write;

use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::generate;
use crate::recording::Reader;
use crate::{Source, SourceError};
use extent::PageBytes;
use input::Input;
use lines::Lines;

pub use columns::{Columns, Separator};
pub use extent::REQUEST_PAGES_MAX;
pub use input::LINE_BYTES_MAX;
pub use write::{Target, Writer};

/// What begins the name of a generated trace, in place of a file's.
pub const GENERATED: &str = "gen:";

/// What a trace's bytes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Page numbers of 64 bits, little-endian.
    U64,
    /// libCacheSim's records of 24 bytes.
    OracleGeneral,
    /// The traces that came with ARC: `first_block count ignored request`.
    Arc,
    /// The traces that came with LIRS: a block number a line.
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
    /// Tables whose columns are named; see [`Columns`].
    Csv,
}

/// What is known of a format.
struct About {
    format: Format,
    name: &'static str,
    /// How names of files end, without `.gz` or `.zst`, in small letters.
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
    // No ending: a name does not tell the columns.
    About { format: Format::Csv, name: "csv", endings: &[] },
];

impl Format {
    /// All formats.
    pub fn all() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|about| about.format)
    }

    /// The word for it on command lines.
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// The format that a file's name ends with, if any.
    pub fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name().and_then(OsStr::to_str)?.to_ascii_lowercase();
        let name = [".gz", ".zst"].iter().find_map(|packed| name.strip_suffix(packed)).unwrap_or(&name);
        let ends = |about: &&About| about.endings.iter().any(|ending| name.ends_with(ending));
        FORMATS.iter().find(ends).map(|about| about.format)
    }

    fn about(self) -> &'static About {
        FORMATS.iter().find(|about| about.format == self).expect("every format has its line")
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        let found = FORMATS.iter().find(|about| about.name.eq_ignore_ascii_case(name));
        found
            .map(|about| about.format)
            .ok_or_else(|| format!("\"{name}\" is no format; there are {}", names()))
    }
}

/// How to read a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the bytes mean. None: the columns or the file's name tell.
    pub format: Option<Format>,
    /// What the columns of a [`Format::Csv`] mean.
    pub columns: Option<Columns>,
    /// How long a page is, for formats that speak of bytes or sectors: a power of two from 512
    /// bytes to 16 MiB.
    pub page_bytes: u64,
    /// Whether malformed lines and records are passed over and counted, and are no errors.
    pub skip_bad: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { format: None, columns: None, page_bytes: 4096, skip_bad: false }
    }
}

impl Options {
    /// The format that a file is read in. None: nothing tells.
    pub fn format_of(&self, path: &Path) -> Option<Format> {
        let by_columns = || self.columns.is_some().then_some(Format::Csv);
        self.format.or_else(by_columns).or_else(|| Format::of_name(path))
    }
}

/// Opens a trace: a file, `-` for standard input, or `gen:` and what [`generate::parse`] takes.
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
        let what = if path.as_os_str() == "-" { "this" } else { "the" };
        let path = path.display();
        SourceError(format!(
            "{path}: {what} name does not tell the format; say it with --format: {}; or, of a table, what its columns \
            are with --columns time,op,offset,size",
            names()
        ))
    })?;
    read_input(format, Input::open(path)?, options)
}

/// Refuses what can be no trace whatever its format: nothing, a folder, a file without a byte.
fn must_be_readable(path: &Path) -> Result<(), SourceError> {
    let wrong = |what: String| Err(SourceError(format!("{}: {what}", path.display())));
    if path.as_os_str() == "-" {
        return Ok(());
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => wrong("no such file".into()),
        Err(error) => wrong(error.to_string()),
        Ok(about) if about.is_dir() => {
            wrong("a folder is no trace; octavo simulate --suite reads all traces in one".into())
        }
        Ok(about) if about.is_file() && about.len() == 0 => wrong("the file is empty".into()),
        Ok(_) => Ok(()),
    }
}

/// Opens files that follow each other: the parts of a recording.
pub fn open_parts(paths: &[PathBuf], options: &Options) -> Result<Box<dyn Source>, SourceError> {
    match paths {
        [path] => open(path, options),
        _ => Ok(Box::new(octr::Accesses::new(Reader::open(paths, options.skip_bad)?))),
    }
}

/// Reads a trace from anything; `name` stands for the file's in messages.
pub fn read(
    format: Format,
    name: &str,
    reader: impl Read + Send + 'static,
    options: &Options,
) -> Result<Box<dyn Source>, SourceError> {
    read_input(format, Input::from_reader(name, Box::new(reader))?, options)
}

fn read_input(format: Format, input: Input, options: &Options) -> Result<Box<dyn Source>, SourceError> {
    let page_bytes = PageBytes::new(options.page_bytes)?;
    let skip_bad = options.skip_bad;
    if options.columns.is_some() && format != Format::Csv {
        let name = format.name();
        return Err(SourceError(format!(
            "{}: --columns says what a table has, and {name} is none; leave one of the two out",
            input.name()
        )));
    }
    Ok(match format {
        Format::U64 => Box::new(records::U64::new(input, skip_bad)),
        Format::OracleGeneral => Box::new(records::OracleGeneral::new(input, skip_bad)),
        Format::Arc => Box::new(Lines::new(input, blocks::Arc, skip_bad)),
        Format::Lirs => Box::new(Lines::new(input, blocks::Lirs, skip_bad)),
        Format::Spc => Box::new(Lines::new(input, csv::Spc(page_bytes), skip_bad)),
        Format::Msr => Box::new(Lines::new(input, csv::Msr::new(page_bytes), skip_bad)),
        Format::Tencent => Box::new(Lines::new(input, csv::Tencent(page_bytes), skip_bad)),
        Format::Alibaba => Box::new(Lines::new(input, csv::Alibaba(page_bytes), skip_bad)),
        Format::Blkparse => Box::new(Lines::new(input, blkparse::Blkparse::new(page_bytes), skip_bad)),
        Format::Fio => Box::new(Lines::new(input, fio::Fio::new(page_bytes), skip_bad)),
        Format::Csv => {
            let columns = options.columns.clone().ok_or_else(|| {
                let what = "what its columns are is not said; say it with --columns time,op,offset,size";
                SourceError(format!("{}: {what}", input.name()))
            })?;
            Box::new(Lines::new(
                input,
                columns::Table::new(columns, page_bytes, options.page_bytes),
                skip_bad,
            ))
        }
        Format::Octr => Box::new(octr::Accesses::new(Reader::new(input, skip_bad)?)),
    })
}

fn names() -> String {
    FORMATS.iter().map(|about| about.name).collect::<Vec<_>>().join(", ")
}
