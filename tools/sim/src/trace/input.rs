//! The bytes of a trace, read through one bounded buffer and decompressed if they are compressed.
//!
//! The reader of a format asks for records ([`Input::at_least`]) or lines ([`Input::line`]) and
//! gets slices of the buffer, which never grows: a line that does not fit is skipped and reported.
//! What is not here: the meaning of the bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::SourceError;

/// Bytes of the buffer: as many as a [`CHUNK`](crate::CHUNK) of page numbers takes.
pub const BUFFER_BYTES: usize = 8 * crate::CHUNK;

/// The longest line that is read, its end included. Real lines have some hundred bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// The bytes that tell whether a file is compressed.
const MAGIC_BYTES: u64 = 10;

type Reader = Box<dyn Read + Send>;

/// The bytes of a trace, and the name it has in messages.
pub struct Input {
    name: String,
    reader: Reader,
    buffer: Box<[u8]>,
    /// The part of the buffer with bytes that were read from the file and not yet taken.
    unread: Range<usize>,
    is_over: bool,
    progress: Option<Progress>,
}

/// How much of a file of known length was read.
struct Progress {
    read_bytes: Arc<AtomicU64>,
    file_bytes: u64,
}

/// The result of [`Input::line`].
pub enum Line {
    /// A line, without its end: this part of [`Input::buffer`].
    Is(Range<usize>),
    /// A line longer than [`LINE_BYTES_MAX`], which is skipped.
    TooLong,
    /// The end of the input.
    End,
}

impl Input {
    /// Opens a file; `-` is standard input.
    pub fn open(path: &Path) -> Result<Input, SourceError> {
        if path.as_os_str() == "-" {
            return Input::new("standard input", Box::new(io::stdin()), None);
        }
        let name = path.display().to_string();
        let failed = |error: io::Error| SourceError(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let read_bytes = Arc::new(AtomicU64::new(0));
        let progress = metadata
            .is_file()
            .then(|| Progress { read_bytes: Arc::clone(&read_bytes), file_bytes: metadata.len() });
        Input::new(&name, Box::new(Counted { file, read_bytes }), progress)
    }

    /// Reads from any reader; messages call it `name`.
    pub fn from_reader(name: &str, reader: Reader) -> Result<Input, SourceError> {
        Input::new(name, reader, None)
    }

    fn new(name: &str, mut reader: Reader, progress: Option<Progress>) -> Result<Input, SourceError> {
        let failed = |error: io::Error| SourceError(format!("{name}: {error}"));
        let mut beginning = Vec::new();
        reader.by_ref().take(MAGIC_BYTES).read_to_end(&mut beginning).map_err(failed)?;
        let reader = unpacked(&beginning.clone(), Cursor::new(beginning).chain(reader)).map_err(failed)?;
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Input { name: name.to_owned(), reader, buffer, unread: 0..0, is_over: false, progress })
    }

    /// Returns the name of the input in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the share of the file that was read, from 0 to 1, if its length is known.
    pub fn progress(&self) -> Option<f64> {
        let progress = self.progress.as_ref()?;
        // Relaxed: the figure orders nothing.
        let read_bytes = progress.read_bytes.load(Ordering::Relaxed);
        let share = read_bytes as f64 / progress.file_bytes.max(1) as f64;
        Some(if self.is_over { 1.0 } else { share.min(1.0) })
    }

    /// Returns the buffer that [`Line::Is`] points into.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns all bytes that are read and not yet taken: at least `bytes` of them, unless the
    /// input ends before. [`Input::take`] says how many were used.
    pub fn at_least(&mut self, bytes: usize) -> io::Result<&[u8]> {
        debug_assert!(bytes <= BUFFER_BYTES);
        while self.unread.len() < bytes && !self.is_over {
            self.read_more()?;
        }
        Ok(&self.buffer[self.unread.clone()])
    }

    /// Takes bytes that [`Input::at_least`] returned.
    pub fn take(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.unread.len());
        self.unread.start += bytes;
    }

    /// Takes a line. It ends with `\n`, `\r\n`, or `\r` alone, as on old systems.
    pub fn line(&mut self) -> io::Result<Line> {
        let mut searched = 0;
        let mut is_too_long = false;
        loop {
            let unread = &self.buffer[self.unread.clone()];
            let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
            let end = unread[searched..].iter().position(is_end).map(|end| searched + end);
            let (len, taken) = match end {
                // The next byte tells whether this is all of the line's end.
                Some(end) if unread[end..] == *b"\r" && self.has_more() => {
                    searched = end;
                    self.read_more()?;
                    continue;
                }
                Some(end) if unread[end..].starts_with(b"\r\n") => (end, end + 2),
                Some(end) => (end, end + 1),
                None if self.is_over => (unread.len(), unread.len()),
                None if unread.len() >= LINE_BYTES_MAX => {
                    is_too_long = true;
                    self.take(self.unread.len());
                    searched = 0;
                    continue;
                }
                None => {
                    searched = unread.len();
                    self.read_more()?;
                    continue;
                }
            };
            if taken == 0 && !is_too_long {
                return Ok(Line::End);
            }
            let line = self.unread.start..self.unread.start + len;
            self.take(taken);
            return Ok(if is_too_long || taken > LINE_BYTES_MAX { Line::TooLong } else { Line::Is(line) });
        }
    }

    /// Whether [`Input::read_more`] may still find bytes, and room for them.
    fn has_more(&self) -> bool {
        !self.is_over && self.unread.len() < BUFFER_BYTES
    }

    /// Reads once. Bytes that were not taken move to the front of the buffer.
    fn read_more(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let count = read_once(&mut self.reader, &mut self.buffer[self.unread.end..])?;
        self.unread.end += count;
        self.is_over = count == 0;
        Ok(())
    }
}

/// Returns the bytes of a file, unpacked if its `beginning` is that of a compressed file. Every
/// byte of gzip's header that is fixed is compared, because page numbers can look like a magic
/// number.
fn unpacked(beginning: &[u8], whole: impl Read + Send + 'static) -> io::Result<Reader> {
    Ok(match *beginning {
        // zstd refuses windows of more than 128 MiB, which bounds its memory.
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(buffered(whole))?),
        [0x1f, 0x8b, 8, 0..0x20, _, _, _, _, 0 | 2 | 4, 0..=13 | 255] => {
            Box::new(flate2::bufread::MultiGzDecoder::new(buffered(whole)))
        }
        _ => Box::new(whole),
    })
}

fn buffered(compressed: impl Read) -> impl BufRead {
    BufReader::with_capacity(BUFFER_BYTES, compressed)
}

/// A file that counts the bytes that were read.
struct Counted {
    file: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        // Relaxed: the figure orders nothing.
        self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

fn read_once(reader: &mut Reader, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
