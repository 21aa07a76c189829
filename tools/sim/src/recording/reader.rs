//! Reading a recording: the events of one file, or of several that follow each other.
//!
//! Memory is bounded by a block's; nothing in a file can cause a panic. An end that was torn off
//! ends the events without an error, and is told ([`Reader::ending`]); a block in the middle whose
//! checksum is wrong is an error, or is passed over and counted.

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};

use octavo_recording::{Decoder, Event, Totals};

use super::block::{About, BLOCK_BYTES_MAX, Ending, HEAD_BYTES, Head, Kind, MAGIC};
use crate::source::SourceError;
use crate::trace::input::Input;

/// Reads events.
pub struct Reader {
    input: Input,
    /// Files that follow.
    following: VecDeque<PathBuf>,
    files: usize,
    about: About,
    first_part: u32,
    /// What the partition had counted when the first part that is read began, once that is known;
    /// and what it has since.
    counted_before: Option<Totals>,
    counted: Totals,
    events: Decoder<Vec<u8>>,
    /// Bytes of the file before the next block, and before the one that is being read.
    next_at: u64,
    at: u64,
    time_ms: u64,
    ending: Option<Ending>,
    skip_bad: bool,
    skipped: u64,
}

/// What lies next in a file.
enum Next {
    Block(Kind),
    /// The block was bad, and is passed over.
    Bad,
    Over,
}

impl Reader {
    /// Reads files that follow each other, in the order of their parts.
    pub fn open(paths: &[PathBuf], skip_bad: bool) -> Result<Reader, SourceError> {
        let (first, following) = paths.split_first().expect("at least one file");
        let mut reader = Reader::new(Input::open(first)?, skip_bad)?;
        reader.following = following.iter().cloned().collect();
        reader.files = paths.len();
        Ok(reader)
    }

    /// Reads a file from anything; `name` stands for the file's in messages.
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
            // A first part counts from its beginning.
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
        })
    }

    /// What the header of the file says that is being read.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The first part that is read. Where it is not 1, those before it are missing.
    pub fn first_part(&self) -> u32 {
        self.first_part
    }

    /// Whether what is read goes on with an earlier part: what this one tells of what was there
    /// when it began is known.
    pub fn goes_on(&self) -> bool {
        self.about.part != self.first_part
    }

    /// What the partition has counted, sampled or not, in the parts that were read, up to the last
    /// block.
    pub fn counted(&self) -> Totals {
        self.counted
    }

    /// How the last file ends, once it was read.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// When what was read last was written, in milliseconds since the recording began.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Blocks that were passed over.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// What messages call the file.
    pub fn name(&self) -> &str {
        self.input.name()
    }

    /// How much was read, from 0 to 1, where that is known.
    pub fn progress(&self) -> Option<f64> {
        let before = self.files - 1 - self.following.len();
        self.input.progress().map(|share| (before as f64 + share) / self.files as f64)
    }

    /// The next event; None once there are no more, which an error also brings.
    pub fn event(&mut self) -> Result<Option<Event>, SourceError> {
        // A turn takes a block or a file.
        while self.ending.is_none() {
            match self.events.next() {
                Some(Ok(event)) => {
                    if let Event::Totals(totals) = &event {
                        self.count(*totals);
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

    /// A part that is not the first begins with what was counted before it.
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
            Ok(Next::Block(Kind::Header)) => return self.fail("a second header".into()),
            Ok(Next::Block(Kind::End)) => match Ending::decode(&bytes) {
                None => return self.fail("an end of no known kind".into()),
                Some(Ending::Rotated) if !self.following.is_empty() => return self.next_file(),
                Some(ending) if self.following.is_empty() => self.ending = Some(ending),
                Some(_) => return self.fail("the recording ends here, and there are further files".into()),
            },
            Ok(Next::Bad) => self.skipped += 1,
            // A server that was killed, or goes on: what follows cannot be another part, so the end of this
            // one was lost later.
            Ok(Next::Over) if self.following.is_empty() => self.ending = Some(Ending::Torn),
            Ok(Next::Over) if self.skip_bad => {
                self.skipped += 1;
                return self.next_file();
            }
            Ok(Next::Over) => {
                return self.fail("the end of this part is missing, and there are further parts".into());
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
                false => Err("no block begins here".into()),
            };
        };
        let block_bytes = HEAD_BYTES + head.packed_bytes;
        // One more, to know whether it is the last.
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
            // Not all of it has reached the disk.
            Err(_) if is_last => Ok(Next::Over),
            Err(_) if self.skip_bad => Ok(Next::Bad),
            Err(what) => Err(what.into()),
        }
    }

    /// A file system may make a file longer before it has its bytes.
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

/// Reads the magic and the header; tells how long they are.
fn begin(input: &mut Input) -> Result<(About, u64), SourceError> {
    let name = input.name().to_owned();
    let failed = |what: String| SourceError(format!("{name}: {what}"));
    let beginning = input.at_least(MAGIC.len() + HEAD_BYTES).map_err(|error| failed(error.to_string()))?;
    let version = MAGIC.len() - 1;
    match beginning.get(..MAGIC.len()) {
        Some(magic) if magic == MAGIC => {}
        Some(magic) if magic[..version] == MAGIC[..version] => {
            let what = format!(
                "a recording of version {}, and this program reads {}",
                magic[version], MAGIC[version]
            );
            return Err(failed(what));
        }
        _ => return Err(failed("this is no recording: it does not begin as one".into())),
    }
    let head = beginning.get(MAGIC.len()..).and_then(|rest| rest.first_chunk()).and_then(Head::read);
    let head =
        head.filter(|head| head.kind == Kind::Header).ok_or_else(|| failed("it has no header".into()))?;
    input.take(MAGIC.len());
    let block_bytes = HEAD_BYTES + head.packed_bytes;
    let block = input.at_least(block_bytes).map_err(|error| failed(error.to_string()))?;
    let block = block.get(..block_bytes).ok_or_else(|| failed("its header is cut off".into()))?;
    let mut bytes = Vec::new();
    head.unpack(block, &mut bytes).map_err(|what| failed(format!("its header: {what}")))?;
    let about = About::decode(&bytes).map_err(failed)?;
    input.take(block_bytes);
    Ok((about, (MAGIC.len() + block_bytes) as u64))
}

/// Whether a file goes on where another ends.
fn follows(before: &About, about: &About) -> Result<(), String> {
    if about.id != before.id {
        return Err("this is another recording".into());
    }
    if about.part != before.part.wrapping_add(1) {
        return Err(format!(
            "this is part {}, and part {} is missing",
            about.part,
            before.part.wrapping_add(1)
        ));
    }
    Ok(())
}

/// Which files are parts of one recording: groups of paths, in the order in which they are given,
/// each in the order of its parts. A file that is no recording is alone; what is wrong with it is
/// told when it is read.
pub fn parts(paths: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    // In the order of recordings first, then of parts; a file that is none has a recording of its own.
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

/// What the header of a file says.
pub fn about(path: &Path) -> Result<About, SourceError> {
    begin(&mut Input::open(path)?).map(|(about, _)| about)
}

// The buffer that bytes are read through holds a block and a byte.
const _: () = assert!(HEAD_BYTES + BLOCK_BYTES_MAX < crate::trace::input::BUFFER_BYTES);
