//! Writes a recording: one file, or files of a bounded size, of which the last few are kept.
//!
//! Only the owner can read the files (mode 0600), because a recording contains a tenant's accesses
//! and the secret that places its pages. A file never replaces an existing one. By its checksum,
//! readers accept a block as a whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use octavo_recording::Header;

use super::block::{self, About, Ending, Kind, MAGIC};

/// When a new file begins, and which files are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// A file with at least as many bytes is full ([`Writer::is_full`]). None (the default): the
    /// recording is one file.
    pub file_bytes_max: Option<u64>,
    /// How many files are kept. None (the default): all.
    pub keep: Option<u32>,
}

impl Rotation {
    /// Checks that the two values fit together; the error is a sentence.
    pub fn check(self) -> Result<(), String> {
        match (self.file_bytes_max, self.keep) {
            (Some(0), _) => Err("a rotation at 0 bytes never ends: give files at least one byte".into()),
            (_, Some(0)) => Err("at least one file must be kept".into()),
            (None, Some(_)) => {
                Err("the number of files to keep needs a size at which the recording is rotated".into())
            }
            _ => Ok(()),
        }
    }
}

/// The names of a recording's files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Files {
    path: PathBuf,
    is_numbered: bool,
}

impl Files {
    /// Returns `disk.octr`, or `disk.00001.octr` and so on if there may be several files.
    fn path(&self, number: u32) -> PathBuf {
        if !self.is_numbered {
            return self.path.clone();
        }
        self.path.with_file_name(format!("{}{number:05}{}", self.beginning(), super::ENDING))
    }

    fn beginning(&self) -> String {
        format!("{}.", self.path.file_stem().unwrap_or_default().to_string_lossy())
    }

    /// Returns the numbers of the existing files.
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
    /// The number of the file that is being written.
    number: u32,
    file_bytes: u64,
    /// Bytes in all files, including removed ones.
    bytes: u64,
}

impl Writer {
    /// Begins the first file. Numbered files continue the numbers of an earlier recording.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid rotation, name or part, before anything is
    /// written; [`ErrorKind::AlreadyExists`] if the recording is one file without a number, and
    /// that file exists; others if the file cannot be written.
    pub fn create(path: &Path, rotation: Rotation, about: About) -> io::Result<Writer> {
        let refused = |what: String| io::Error::new(ErrorKind::InvalidInput, what);
        rotation.check().map_err(refused)?;
        is_named_so(path).map_err(refused)?;
        if about.part != 1 {
            return Err(refused(format!("a recording begins with part 1, not with part {}", about.part)));
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

    /// Returns the path of the file that is being written.
    pub fn path(&self) -> PathBuf {
        self.files.path(self.number)
    }

    /// Returns the bytes written so far, including those of removed files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether another part should begin.
    pub fn is_full(&self) -> bool {
        self.rotation.file_bytes_max.is_some_and(|most| self.file_bytes >= most)
    }

    /// Writes a block of events; `time_ms` is the time since the recording began.
    ///
    /// # Errors
    /// The block cannot be packed or written.
    pub fn write(&mut self, time_ms: u64, events: &[u8]) -> io::Result<()> {
        self.put(&block::pack(Kind::Events, time_ms, events)?)
    }

    /// Ends the file and begins the next one. The events of the next file must begin with the state
    /// that makes them readable without the earlier files.
    ///
    /// # Errors
    /// One of the two files cannot be written, or a file that is not kept cannot be removed.
    pub fn begin_part(&mut self, time_ms: u64, header: Header) -> io::Result<()> {
        self.put(&block::pack(Kind::End, time_ms, &Ending::Rotated.encode())?)?;
        let number = next(self.number)?;
        self.file = create(&self.files.path(number))?;
        self.number = number;
        self.about = About { part: self.about.part + 1, header, ..self.about };
        self.begin()
    }

    /// Writes why the recording ends, and syncs the file.
    ///
    /// # Errors
    /// The file cannot be written or synced.
    pub fn finish(&mut self, time_ms: u64, ending: Ending) -> io::Result<()> {
        self.put(&block::pack(Kind::End, time_ms, &ending.encode())?)?;
        self.file.sync_data()
    }

    /// Writes the header, and removes the files that are not kept.
    fn begin(&mut self) -> io::Result<()> {
        self.file_bytes = 0;
        let header = block::pack(Kind::Header, 0, &self.about.encode())?;
        self.put(&[&MAGIC[..], &header].concat())?;
        let Some(keep) = self.rotation.keep.filter(|_| self.files.is_numbered) else { return Ok(()) };
        for number in self.files.numbers()? {
            if number.saturating_add(keep) <= self.number {
                match std::fs::remove_file(self.files.path(number)) {
                    // Another program may have removed or moved the file.
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

/// Checks that a path can be a recording's; the error is a sentence.
pub fn is_named_so(path: &Path) -> Result<(), String> {
    let name = path.file_name().map(|name| name.to_string_lossy());
    match name.is_some_and(|name| name.len() > super::ENDING.len() && name.ends_with(super::ENDING)) {
        true => Ok(()),
        false => Err(format!(
            "\"{}\": the name of a recording must end in {}, by which `octavo simulate` recognises it",
            path.display(),
            super::ENDING
        )),
    }
}

fn next(number: u32) -> io::Result<u32> {
    number.checked_add(1).ok_or_else(|| io::Error::other("there are too many files with this name"))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
