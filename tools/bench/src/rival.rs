//! Other people's caches as contestants: what they must bring to run in the drivers of `hits` and
//! `through`.
//!
//! A rival is made for a [`Room`] and gives each thread a [`Reader`]. The loop around the reader is
//! compiled for it ([`Places::by`]), so that no call is indirect that is not its own. What is not
//! here: the rivals; they live where their dependencies do no harm.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use octavo::disk::{AlignedBytes, OpenOptions, Store};

use crate::Error;
use crate::content::{self, PAGE_BYTES};
use crate::reference::{DirectFile, UNIT_SHIFT};
use crate::statistics::Histogram;
use crate::stream::Pages;
use crate::turns::{Team, Worker, timed};

/// A cache of somebody else's, not made yet.
pub trait Rival: Send + Sync {
    /// What suites and rows call it.
    fn name(&self) -> &str;

    /// Makes it. Where the room has as much capacity as pages, it brings in all of them.
    fn open(&self, room: &Room) -> Result<Box<dyn RivalCache>, Error>;
}

/// A rival's cache.
pub trait RivalCache: Send + Sync {
    /// A thread's share: `places.by(reader)`.
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error>;
}

/// How a thread reads from a rival.
pub trait Reader {
    /// Copies the bytes of `page` from `skip` on.
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error>;
}

/// What a rival is to hold, and where it comes from.
pub struct Room {
    /// Pages have numbers below this.
    pub pages: u64,
    /// It may hold so many.
    pub capacity_pages: u64,
    /// A file with all pages, open past the kernel's page cache.
    pub direct: Arc<DirectFile>,
    /// The same, as a store of the engine's rings.
    pub store: Store,
    /// The same file, open as usual.
    pub buffered: File,
}

impl Room {
    /// A room whose pages lie in a new file, which has no name any more; `fill` gives a page its
    /// bytes.
    pub(crate) fn new(
        path: PathBuf,
        pages: u64,
        capacity_pages: u64,
        fill: impl Fn(u64, &mut [u8]),
    ) -> Result<Room, Error> {
        let what = path.display().to_string();
        let made = File::options().read(true).write(true).create_new(true).open(&path);
        let buffered = made.map_err(Error::at(&what))?;
        let removed = std::fs::remove_file(&path);
        removed.map_err(Error::at(&what))?;
        let mut run = vec![0; 256 * PAGE_BYTES];
        for first in (0..pages).step_by(256) {
            let count = (pages - first).min(256) as usize;
            for (page, bytes) in (first..).zip(run[..count * PAGE_BYTES].chunks_exact_mut(PAGE_BYTES)) {
                fill(page, bytes);
            }
            std::os::unix::fs::FileExt::write_all_at(
                &buffered,
                &run[..count * PAGE_BYTES],
                first * PAGE_BYTES as u64,
            )
            .map_err(Error::at(&what))?;
        }
        buffered.sync_all().map_err(Error::at(&what))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", buffered.as_raw_fd()));
        let direct = Arc::new(DirectFile::open(&path).map_err(Error::at(&what))?);
        let options = OpenOptions { lock: false, ..OpenOptions::default() };
        let store = Store::open(&path, &options).map_err(Error::at(&what))?;
        Ok(Room { pages, capacity_pages, direct, store, buffered })
    }

    /// Whether everything is to be there.
    pub fn holds_all(&self) -> bool {
        self.capacity_pages >= self.pages
    }
}

/// The operations of a thread.
pub struct Places<'t>(Kind<'t>);

enum Kind<'t> {
    /// Places of a stream, in units, that begins again at its end.
    Stream { places: &'t [u32], at: usize, turn: usize, len: usize },
    /// Whole pages, each of which is checked.
    Pages { pages: Pages, how: &'t str, names: Option<&'t [u32]> },
}

impl<'t> Places<'t> {
    pub(crate) fn stream(places: &'t [u32], at: usize, turn: usize, len: usize) -> Places<'t> {
        Places(Kind::Stream { places, at, turn, len })
    }

    pub(crate) fn pages(pages: Pages, how: &'t str) -> Places<'t> {
        Places(Kind::Pages { pages, how, names: None })
    }

    /// The same; page `n` holds what a file's page `names[n]` does.
    pub(crate) fn named(pages: Pages, how: &'t str, names: &'t [u32]) -> Places<'t> {
        Places(Kind::Pages { pages, how, names: Some(names) })
    }

    /// The worker that reads them through a reader.
    pub fn by<R: Reader + 't>(self, reader: R) -> Box<dyn Worker + 't> {
        Box::new(Through { places: self.0, reader, buffer: AlignedBytes::new(PAGE_BYTES) })
    }
}

struct Through<'t, R> {
    places: Kind<'t>,
    reader: R,
    buffer: AlignedBytes,
}

/// Whole pages between two looks at the clock.
const TURN_PAGES: usize = 16;

impl<R: Reader> Worker for Through<'_, R> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        match &mut self.places {
            Kind::Stream { places, at, turn, len } => {
                if *at + *turn > places.len() {
                    *at = 0;
                }
                let buffer = &mut self.buffer[..*len];
                for place in &places[*at..*at + *turn] {
                    let offset = (*place as usize) << UNIT_SHIFT;
                    self.reader.read((offset / PAGE_BYTES) as u64, offset % PAGE_BYTES, buffer)?;
                    black_box(buffer.as_mut_ptr());
                }
                *at += *turn;
                Ok(*turn as u64)
            }
            Kind::Pages { pages, how, names } => {
                for page in pages.take(TURN_PAGES) {
                    let mut read = || self.reader.read(page, 0, &mut self.buffer);
                    match &mut times {
                        Some(times) => timed(times, read)?,
                        None => read()?,
                    }
                    let name = names.map_or(page, |names| names[page as usize].into());
                    if !content::is_right(name, 0, &self.buffer) {
                        return Err(Error::new(format!("wrong bytes in page {page}, {how}")));
                    }
                }
                Ok(TURN_PAGES as u64)
            }
        }
    }
}

/// A rival in a driver.
pub(crate) struct RivalTeam<'t, P: Fn(usize) -> Result<Places<'t>, Error> + Sync> {
    pub name: &'t str,
    pub cache: Box<dyn RivalCache>,
    /// The operations of each thread.
    pub places: P,
}

impl<'p, P: Fn(usize) -> Result<Places<'p>, Error> + Sync> Team for RivalTeam<'p, P> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        self.cache.worker((self.places)(thread)?)
    }
}
