//! Reads a recording: the events of one file, or of several that follow each other.
//!
//! The reader holds one block at a time, and nothing in a file can cause a panic. A torn end ends
//! the events without an error, and [`Reader::ending`] reports it. A block in the middle with a
//! wrong checksum is an error, or is skipped and counted.

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};

use octavo_recording::{Decoder, Event, Totals};

use super::block::{About, BLOCK_BYTES_MAX, Ending, HEAD_BYTES, Head, Kind, MAGIC};
use super::lives::Lives;
use crate::source::SourceError;
use crate::trace::input::Input;

/// Reads the events of a recording.
pub struct Reader {
    input: Input,
    /// The files that follow.
    following: VecDeque<PathBuf>,
    files: usize,
    about: About,
    first_part: u32,
    /// The partition's counts when the first part that is read began, once they are known.
    counted_before: Option<Totals>,
    /// The partition's counts since then.
    counted: Totals,
    events: Decoder<Vec<u8>>,
    /// The offset of the next block in the file, in bytes.
    next_at: u64,
    /// The offset of the block that is being read.
    at: u64,
    time_ms: u64,
    ending: Option<Ending>,
    skip_bad: bool,
    skipped: u64,
    lives: Lives,
}

/// The next item of a file.
enum Next {
    Block(Kind),
    /// A damaged block, which is skipped.
    Bad,
    Over,
}

impl Reader {
    /// Reads files that follow each other, in the order of their parts.
    ///
    /// # Errors
    /// The first file cannot be read, or is not a recording.
    ///
    /// # Panics
    /// If `paths` is empty.
    pub fn open(paths: &[PathBuf], skip_bad: bool) -> Result<Reader, SourceError> {
        let (first, following) = paths.split_first().expect("at least one file");
        let mut reader = Reader::new(Input::open(first)?, skip_bad)?;
        reader.following = following.iter().cloned().collect();
        reader.files = paths.len();
        Ok(reader)
    }

    /// Reads one file from any reader; messages call it `name`.
    ///
    /// # Errors
    /// The beginning cannot be read, or is not that of a recording.
    pub fn read(
        name: &str,
        reader: impl Read + Send + 'static,
        skip_bad: bool,
    ) -> Result<Reader, SourceError> {
        Reader::new(Input::from_reader(name, Box::new(reader))?, skip_bad)
    }

    /// Reads one file.
    pub(crate) fn new(mut input: Input, skip_bad: bool) -> Result<Reader, SourceError> {
        let (about, next_at) = begin(&mut input)?;
        let events = Decoder::new(Vec::new());
        Ok(Reader {
            input,
            following: VecDeque::new(),
            files: 1,
            first_part: about.part,
            // The counts of a first part begin at 0.
            counted_before: (about.part == 1).then(Totals::default),
            counted: Totals::default(),
            about,
            events,
            next_at,
            at: 0,
            time_ms: 0,
            ending: None,
            skip_bad,
            skipped: 0,
            lives: Lives::new(),
        })
    }

    /// Returns the header of the file that is being read.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the number of the first part that is read. If it is not 1, the parts before it are
    /// missing.
    pub fn first_part(&self) -> u32 {
        self.first_part
    }

    /// Returns whether an earlier part was read before this one. Then the state that this part
    /// lists at its beginning is known.
    pub fn goes_on(&self) -> bool {
        self.about.part != self.first_part
    }

    /// Returns the partition's counts of all accesses, sampled or not, in the parts that were read.
    pub fn counted(&self) -> Totals {
        self.counted
    }

    /// Returns how the last file ends, once it was read.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns when the last block that was read was written, in milliseconds since the recording
    /// began.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Returns the number of blocks that were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the name of the file in messages.
    pub fn name(&self) -> &str {
        self.input.name()
    }

    /// Returns the share that was read, from 0 to 1, if it is known.
    pub fn progress(&self) -> Option<f64> {
        let before = self.files - 1 - self.following.len();
        self.input.progress().map(|share| (before as f64 + share) / self.files as f64)
    }

    /// Returns the next event; None at the end, and after an error.
    ///
    /// # Errors
    /// A file cannot be read, is damaged, or does not follow the one before.
    pub fn event(&mut self) -> Result<Option<Event>, SourceError> {
        // Each turn takes an event, a block or a file.
        while self.ending.is_none() {
            match self.events.next() {
                Some(Ok(event)) => {
                    match &event {
                        Event::Totals(totals) => self.count(*totals),
                        Event::Closed { object } => self.lives.end(*object),
                        _ => {}
                    }
                    return Ok(Some(event));
                }
                Some(Err(malformed)) if !self.skip_bad => self.fail(malformed.to_string())?,
                Some(Err(_)) => self.skipped += 1,
                None => self.read_block()?,
            }
        }
        Ok(None)
    }

    /// Returns the event that was read last with a key that no page of an earlier object has.
    pub(crate) fn in_its_life(&self, event: Event) -> Event {
        self.lives.told_apart(event)
    }

    /// Counts from the beginning of the first part that is read. The first totals in that part are
    /// the counts of what came before it.
    fn count(&mut self, totals: Totals) {
        let before = self.counted_before.get_or_insert(totals);
        self.counted = Totals {
            hits: totals.hits.saturating_sub(before.hits),
            misses: totals.misses.saturating_sub(before.misses),
        };
    }

    /// Takes the next block, or the next file.
    fn read_block(&mut self) -> Result<(), SourceError> {
        let mut bytes = std::mem::replace(&mut self.events, Decoder::new(Vec::new())).into_block();
        bytes.clear();
        self.at = self.next_at;
        let next = self.next(&mut bytes);
        match next {
            Ok(Next::Block(Kind::Events)) => self.events = Decoder::new(bytes),
            Ok(Next::Block(Kind::Header)) => return self.fail("the file has a second header".into()),
            Ok(Next::Block(Kind::End)) => match Ending::decode(&bytes) {
                None => return self.fail("the end of the file is of an unknown kind".into()),
                Some(Ending::Rotated) if !self.following.is_empty() => return self.next_file(),
                Some(ending) if self.following.is_empty() => self.ending = Some(ending),
                Some(_) => return self.fail("the recording ends here, but more files follow".into()),
            },
            Ok(Next::Bad) => self.skipped += 1,
            // The last file of a server that was killed, or is still writing.
            Ok(Next::Over) if self.following.is_empty() => self.ending = Some(Ending::Torn),
            // A server writes the end of a part before it begins the next, so this end was lost
            // later.
            Ok(Next::Over) if self.skip_bad => {
                self.skipped += 1;
                return self.next_file();
            }
            Ok(Next::Over) => {
                return self.fail("the end of this part is missing, but more parts follow".into());
            }
            Err(what) => return self.fail(what),
        }
        Ok(())
    }

    fn next_file(&mut self) -> Result<(), SourceError> {
        let path = self.following.pop_front().expect("there is one");
        let opened = Input::open(&path).and_then(|mut input| {
            let (about, next_at) = begin(&mut input)?;
            Ok((input, about, next_at))
        });
        let (input, about, next_at) = opened.inspect_err(|_| self.ending = Some(Ending::Torn))?;
        if let Err(what) = follows(&self.about, &about) {
            self.ending = Some(Ending::Torn);
            return Err(SourceError(format!("{}: {what}", path.display())));
        }
        (self.input, self.about, self.next_at) = (input, about, next_at);
        Ok(())
    }

    fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Next, String> {
        let failed = |error: std::io::Error| error.to_string();
        let at_hand = self.input.at_least(HEAD_BYTES).map_err(failed)?;
        let Some(head) = at_hand.first_chunk() else { return Ok(Next::Over) };
        let Some(head) = Head::read(head) else {
            return match self.is_zero_to_the_end()? {
                true => Ok(Next::Over),
                false => Err("there is no block here".into()),
            };
        };
        let block_bytes = HEAD_BYTES + head.packed_bytes;
        // One more byte in the input tells that the block is not the last.
        let at_hand = self.input.at_least(block_bytes + 1).map_err(failed)?;
        let is_last = at_hand.len() <= block_bytes;
        let Some(block) = at_hand.get(..block_bytes) else { return Ok(Next::Over) };
        let unpacked = head.unpack(block, bytes);
        self.input.take(block_bytes);
        self.next_at += block_bytes as u64;
        match unpacked {
            Ok(()) => {
                self.time_ms = head.time_ms;
                Ok(Next::Block(head.kind))
            }
            // A last block that did not reach the disk as a whole is a torn end.
            Err(_) if is_last => Ok(Next::Over),
            Err(_) if self.skip_bad => Ok(Next::Bad),
            Err(what) => Err(what.into()),
        }
    }

    /// Returns whether only zeros are left: a file system may lengthen a file before it writes the
    /// bytes.
    fn is_zero_to_the_end(&mut self) -> Result<bool, String> {
        loop {
            let at_hand = self.input.at_least(1).map_err(|error| error.to_string())?;
            if at_hand.is_empty() {
                return Ok(true);
            }
            if at_hand.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            let count = at_hand.len();
            self.input.take(count);
        }
    }

    fn fail(&mut self, what: String) -> Result<(), SourceError> {
        self.ending = Some(Ending::Torn);
        Err(SourceError(format!("{}: block at byte {}: {what}", self.input.name(), self.at)))
    }
}

/// Reads the magic and the header, and returns the header and the length of both in bytes.
fn begin(input: &mut Input) -> Result<(About, u64), SourceError> {
    let name = input.name().to_owned();
    let failed = |what: String| SourceError(format!("{name}: {what}"));
    let beginning = input.at_least(MAGIC.len() + HEAD_BYTES).map_err(|error| failed(error.to_string()))?;
    let version = MAGIC.len() - 1;
    match beginning.get(..MAGIC.len()) {
        Some(magic) if magic == MAGIC => {}
        Some(magic) if magic[..version] == MAGIC[..version] => {
            let (has, reads) = (magic[version], MAGIC[version]);
            return Err(failed(format!("a recording of version {has}; this program reads version {reads}")));
        }
        _ => return Err(failed("this is not a recording: the file does not begin as one".into())),
    }
    let head = beginning.get(MAGIC.len()..).and_then(|rest| rest.first_chunk()).and_then(Head::read);
    let head = head
        .filter(|head| head.kind == Kind::Header)
        .ok_or_else(|| failed("the recording has no header".into()))?;
    input.take(MAGIC.len());
    let block_bytes = HEAD_BYTES + head.packed_bytes;
    let block = input.at_least(block_bytes).map_err(|error| failed(error.to_string()))?;
    let block = block.get(..block_bytes).ok_or_else(|| failed("the header is cut off".into()))?;
    let mut bytes = Vec::new();
    head.unpack(block, &mut bytes).map_err(|what| failed(format!("the header is damaged: {what}")))?;
    let about = About::decode(&bytes).map_err(failed)?;
    input.take(block_bytes);
    Ok((about, (MAGIC.len() + block_bytes) as u64))
}

/// Checks that a file continues another.
fn follows(before: &About, about: &About) -> Result<(), String> {
    if about.id != before.id {
        return Err("the file belongs to another recording".into());
    }
    let next = before.part.wrapping_add(1);
    match about.part == next {
        true => Ok(()),
        false => Err(format!("the file is part {}, but part {next} is missing", about.part)),
    }
}

/// Groups files by recording. The groups are in the order of their first paths, and the files of a
/// group in the order of their parts. A file that is not a recording is a group of its own; reading
/// it reports the error.
pub fn parts(paths: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    // By recording first, then by part.
    let mut files: Vec<(usize, u32, PathBuf)> = Vec::new();
    let mut ids: Vec<Option<u64>> = Vec::new();
    for path in paths {
        let is_named_so = path.to_string_lossy().ends_with(super::ENDING);
        let about = if is_named_so { about(path).ok() } else { None };
        let (id, part) = about.map_or((None, 0), |about| (Some(about.id), about.part));
        let known = ids.iter().position(|other| id.is_some() && *other == id);
        let recording = known.unwrap_or(ids.len());
        if known.is_none() {
            ids.push(id);
        }
        files.push((recording, part, path.clone()));
    }
    files.sort();
    let groups = files.chunk_by(|one, other| one.0 == other.0);
    groups.map(|group| group.iter().map(|(_, _, path)| path.clone()).collect()).collect()
}

/// Reads the header of a file.
///
/// # Errors
/// The file cannot be read, or is not a recording.
pub fn about(path: &Path) -> Result<About, SourceError> {
    begin(&mut Input::open(path)?).map(|(about, _)| about)
}

// The input's buffer holds a block and a byte.
const _: () = assert!(HEAD_BYTES + BLOCK_BYTES_MAX < crate::trace::input::BUFFER_BYTES);
