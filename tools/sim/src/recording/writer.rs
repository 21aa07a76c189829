//! Writing a recording: one file, or files of a bounded size of which the last few are kept.
//!
//! Files are made for their owner alone (mode 0600: a recording tells what a tenant reads, and what
//! places its pages) and never replace one that is there. A block is written whole or not at all as
//! far as readers are concerned: its checksum tells.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use octavo_recording::Header;

use super::block::{self, About, Ending, Kind, MAGIC};

/// When another file begins, and which are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// A file that has so many bytes is full ([`Writer::is_full`]). None: one file.
    pub file_bytes_max: Option<u64>,
    /// How many files are kept. None: all.
    pub keep: Option<u32>,
}

impl Rotation {
    /// Whether it makes sense; the error is a sentence.
    pub fn check(self) -> Result<(), String> {
        match (self.file_bytes_max, self.keep) {
            (Some(0), _) => Err("files of no bytes are too many".into()),
            (_, Some(0)) => Err("at least one file is kept".into()),
            (None, Some(_)) => Err("there is one file to keep, unless it is rotated at a size".into()),
            _ => Ok(()),
        }
    }
}

/// How the files of a recording are called.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Files {
    path: PathBuf,
    is_numbered: bool,
}

impl Files {
    /// `disk.octr`; or `disk.00001.octr` and so on, if there may be several.
    fn path(&self, number: u32) -> PathBuf {
        if !self.is_numbered {
            return self.path.clone();
        }
        self.path.with_file_name(format!("{}{number:05}{}", self.beginning(), super::ENDING))
    }

    fn beginning(&self) -> String {
        format!("{}.", self.path.file_stem().unwrap_or_default().to_string_lossy())
    }

    /// The numbers of the files that are there.
    fn numbers(&self) -> io::Result<Vec<u32>> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let beginning = self.beginning();
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
            let name = entry?.file_name();
            let number =
                name.to_str().and_then(|name| name.strip_prefix(&beginning)?.strip_suffix(super::ENDING));
            numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        Ok(numbers)
    }
}

/// Writes a recording.
pub struct Writer {
    files: Files,
    rotation: Rotation,
    about: About,
    file: File,
    /// Of the file that is written.
    number: u32,
    file_bytes: u64,
    /// In all files, also in those that are gone.
    bytes: u64,
}

impl Writer {
    /// Begins the first file. Numbers go on where those of another recording end; without numbers
    /// it fails if there is such a file. What makes no sense is refused before anything is
    /// written.
    pub fn create(path: &Path, rotation: Rotation, about: About) -> io::Result<Writer> {
        let refused = |what: String| io::Error::new(ErrorKind::InvalidInput, what);
        rotation.check().map_err(refused)?;
        is_named_so(path).map_err(refused)?;
        if about.part != 1 {
            return Err(refused(format!("a recording begins with part 1, and not with {}", about.part)));
        }
        let files = Files { path: path.to_owned(), is_numbered: rotation.file_bytes_max.is_some() };
        let number = match files.is_numbered {
            true => next(files.numbers()?.into_iter().max().unwrap_or(0))?,
            false => 1,
        };
        let file = create(&files.path(number))?;
        let mut writer = Writer { files, rotation, about, file, number, file_bytes: 0, bytes: 0 };
        writer.begin()?;
        Ok(writer)
    }

    /// The file that is written now.
    pub fn path(&self) -> PathBuf {
        self.files.path(self.number)
    }

    /// Bytes written, also to files that are gone.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether another part should begin.
    pub fn is_full(&self) -> bool {
        self.rotation.file_bytes_max.is_some_and(|most| self.file_bytes >= most)
    }

    /// Writes a block of events.
    pub fn write(&mut self, time_ms: u64, events: &[u8]) -> io::Result<()> {
        self.put(&block::pack(Kind::Events, time_ms, events)?)
    }

    /// Goes on with another file, whose events begin with all that is needed to understand them
    /// without those of the files before.
    pub fn begin_part(&mut self, time_ms: u64, header: Header) -> io::Result<()> {
        self.put(&block::pack(Kind::End, time_ms, &Ending::Rotated.encode())?)?;
        let number = next(self.number)?;
        self.file = create(&self.files.path(number))?;
        self.number = number;
        self.about = About { part: self.about.part + 1, header, ..self.about };
        self.begin()
    }

    /// Says why the recording ends.
    pub fn finish(&mut self, time_ms: u64, ending: Ending) -> io::Result<()> {
        self.put(&block::pack(Kind::End, time_ms, &ending.encode())?)?;
        self.file.sync_data()
    }

    /// Writes the header, and lets go of what is not kept.
    fn begin(&mut self) -> io::Result<()> {
        self.file_bytes = 0;
        let header = block::pack(Kind::Header, 0, &self.about.encode())?;
        self.put(&[&MAGIC[..], &header].concat())?;
        let Some(keep) = self.rotation.keep.filter(|_| self.files.is_numbered) else { return Ok(()) };
        for number in self.files.numbers()? {
            if number.saturating_add(keep) <= self.number {
                match std::fs::remove_file(self.files.path(number)) {
                    // Somebody has taken it.
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file_bytes += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Whether a path can be a recording's; the error is a sentence.
pub fn is_named_so(path: &Path) -> Result<(), String> {
    let name = path.file_name().map(|name| name.to_string_lossy());
    match name.is_some_and(|name| name.len() > super::ENDING.len() && name.ends_with(super::ENDING)) {
        true => Ok(()),
        false => Err(format!(
            "\"{}\": a recording's name ends in {}, by which `octavo simulate` knows it",
            path.display(),
            super::ENDING
        )),
    }
}

fn next(number: u32) -> io::Result<u32> {
    number.checked_add(1).ok_or_else(|| io::Error::other("there are too many files of this name"))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
