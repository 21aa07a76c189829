//! Rivals: other authors' caches as contestants of the drivers `hits` and `through`.
//!
//! A rival opens a cache for a [`Room`], and gives each thread a [`Reader`]. The loop around the
//! reader is compiled for its type ([`Places::by`]), so that the loop adds no indirect call. The
//! rivals themselves are in `tools/bench-compare`, a workspace of its own because of their
//! dependencies.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use octavo::disk::{AlignedBytes, OpenOptions, Store};

use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::reference::{DirectFile, UNIT_SHIFT};
use crate::statistics::Histogram;
use crate::stream::Pages;
use crate::turns::{WHOLE_PAGES, Worker, page_reads};

/// Another author's cache, not opened yet.
pub trait Rival: Send + Sync {
    /// Returns the name in suites and rows.
    fn name(&self) -> &str;

    /// Opens the cache. If the capacity of the room suffices for all pages, reads all of them into
    /// the cache.
    fn open(&self, room: &Room) -> Result<Box<dyn RivalCache>, Error>;
}

/// An open cache of a rival.
pub trait RivalCache: Send + Sync {
    /// Creates the worker of one thread: `places.by(reader)`.
    fn worker<'t>(&'t self, places: Places<'t>) -> Result<Box<dyn Worker + 't>, Error>;
}

/// One thread's access to a rival.
pub trait Reader {
    /// Copies the bytes of `page` from `skip` on into `into`.
    fn read(&mut self, page: u64, skip: usize, into: &mut [u8]) -> Result<(), Error>;
}

/// The task of a rival: its capacity, and the file whose pages it caches.
pub struct Room {
    /// The number of pages.
    pub pages: u64,
    /// The most pages that the cache may hold.
    pub capacity_pages: u64,
    /// The file with all pages, open with O_DIRECT.
    pub direct: Arc<DirectFile>,
    /// The same file, as a store for the engine's rings.
    pub store: Store,
    /// The same file, open without O_DIRECT.
    pub buffered: File,
}

impl Room {
    /// Creates a room whose pages lie in a new, unlinked file.
    pub(crate) fn new(path: PathBuf, pages: u64, capacity_pages: u64) -> Result<Room, Error> {
        let what = path.display().to_string();
        let made = File::options().read(true).write(true).create_new(true).open(&path);
        let buffered = made.map_err(Error::at(&what))?;
        let removed = std::fs::remove_file(&path);
        removed.map_err(Error::at(&what))?;
        let written = content::write_file(&buffered, pages * PAGE_BYTES as u64, &mut |_| {});
        written.map_err(Error::at(&what))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", buffered.as_raw_fd()));
        let direct = Arc::new(DirectFile::open(&path).map_err(Error::at(&what))?);
        let options = OpenOptions { lock: false, ..OpenOptions::default() };
        let store = Store::open(&path, &options).map_err(Error::at(&what))?;
        Ok(Room { pages, capacity_pages, direct, store, buffered })
    }

    /// Returns whether the cache holds all pages.
    pub fn holds_all(&self) -> bool {
        self.capacity_pages >= self.pages
    }
}

/// The operations of a thread.
pub struct Places<'t>(Kind<'t>);

enum Kind<'t> {
    /// Places of a stream, in units, which begins again at its end. The bytes are not checked.
    Stream { places: &'t [u32], at: usize, turn: usize, len: usize },
    /// Whole pages, each checked.
    Pages { pages: Pages, source: &'t str },
}

impl<'t> Places<'t> {
    pub(crate) fn stream(places: &'t [u32], at: usize, turn: usize, len: usize) -> Places<'t> {
        Places(Kind::Stream { places, at, turn, len })
    }

    pub(crate) fn pages(pages: Pages, source: &'t str) -> Places<'t> {
        Places(Kind::Pages { pages, source })
    }

    /// Creates the worker that performs these operations through `reader`.
    pub fn by<R: Reader + 't>(self, mut reader: R) -> Box<dyn Worker + 't> {
        let (places, mut at, turn, len) = match self.0 {
            Kind::Stream { places, at, turn, len } => (places, at, turn, len),
            Kind::Pages { pages, source } => {
                let read = move |page, into: &mut AlignedBytes| reader.read(page, 0, into);
                return Box::new(page_reads(WHOLE_PAGES, pages, source, read));
            }
        };
        let mut buffer = AlignedBytes::new(len);
        Box::new(move |_: Option<&mut Histogram>| {
            if at + turn > places.len() {
                at = 0;
            }
            for place in &places[at..at + turn] {
                let offset = (*place as usize) << UNIT_SHIFT;
                reader.read((offset / PAGE_BYTES) as u64, offset % PAGE_BYTES, &mut buffer)?;
                black_box(buffer.as_mut_ptr());
            }
            at += turn;
            Ok(turn as u64)
        })
    }
}
