//! Contestants that only write: the kernel's page cache, and a cache under one lock.
//!
//! Both hold the same pages as the engine, and write the same places in the same order. Like the
//! engine, they write the bytes that a page already has.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;
use octavo::disk::AlignedBytes;

use super::walk::{Way, offset, split};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::scratch::MEMORY_DIRECTORY;
use crate::statistics::Histogram;
use crate::turns::{Worker, timed};

/// The contestants.
pub const NAMES: &[&str] = &["pwrite", "locked-lru"];

/// Creates a worker of one of these contestants. `resident` has the number of each page's content;
/// writes have `len` bytes.
pub fn writing<'t>(
    name: &str,
    resident: &'t [u32],
    len: usize,
    way: Way<'t>,
) -> Result<Box<dyn Worker + 't>, Error> {
    let mut pages = vec![0; resident.len() * PAGE_BYTES];
    for (bytes, page) in pages.chunks_exact_mut(PAGE_BYTES).zip(resident) {
        content::fill(u64::from(*page), bytes);
    }
    if name == "locked-lru" {
        let cache = Mutex::new(LockedLru::new(pages));
        return Ok(Box::new(worker(resident, len, way, move |at, bytes| {
            cache.lock().unwrap_or_else(PoisonError::into_inner).write(at, bytes);
            Ok(())
        })));
    }
    let file = unnamed_file().and_then(|file| file.write_all_at(&pages, 0).map(|()| file));
    let file = file.map_err(Error::at("a file in memory"))?;
    drop(pages);
    Ok(Box::new(worker(resident, len, way, move |at, bytes| {
        file.write_all_at(bytes, at).map_err(Error::at("pwrite"))
    })))
}

/// Creates a file in memory: its pages lie in the kernel's page cache, and no write-back of the
/// kernel disturbs the run.
fn unnamed_file() -> std::io::Result<File> {
    let path = Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-pwrite-{}", std::process::id()));
    let file = File::create_new(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn worker<'t>(
    resident: &'t [u32],
    len: usize,
    mut way: Way<'t>,
    write: impl Fn(u64, &[u8]) -> Result<(), Error> + 't,
) -> impl Worker + 't {
    let mut buffer = AlignedBytes::new(len);
    move |mut times: Option<&mut Histogram>| {
        let places = way.next();
        for place in places {
            let (page, skip) = split(*place);
            content::fill_part(u64::from(resident[page as usize]), skip, &mut buffer);
            timed(&mut times, || write(offset(*place), &buffer))?;
        }
        Ok(places.len() as u64)
    }
}

/// A cache as it is often written: a map and a list of uses under one lock.
struct LockedLru {
    /// Where the bytes of each page begin.
    pages: LruCache<u64, usize>,
    bytes: Vec<u8>,
}

impl LockedLru {
    fn new(bytes: Vec<u8>) -> LockedLru {
        let count = NonZeroUsize::new(bytes.len() / PAGE_BYTES).expect("a cache with pages");
        let mut pages = LruCache::new(count);
        (0..count.get()).for_each(|page| _ = pages.put(page as u64, page * PAGE_BYTES));
        LockedLru { pages, bytes }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (page, skip) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        let at = *self.pages.get(&page).expect("every page is resident") + skip;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
