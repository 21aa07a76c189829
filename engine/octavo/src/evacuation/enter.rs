//! E5 to E8: evacuated pages enter a cache.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use octavo_disk::{Identity, IoBuffer, Ring};
use rustix::fs::{FallocateFlags, fallocate};

use super::catalog::{ObjectEntry, PartitionEntry};
use super::chunk::{Record, Records};
use super::header::mark_used;
use super::warm::WarmPages;
use super::workers;
use crate::api::cache::Cache;
use crate::api::lifecycle::ClosedRange;
use crate::control::Partition;
use crate::error::Error;
use crate::flight::{EVERY, Object};
use crate::memory::Buffer;
use crate::pages::steps::Known;
use crate::position::{ByteOffset, PageIndex};
use crate::state::expected::Expected;
use crate::state::partition::{ObjectInner, PartitionInner};
use crate::sync::lock;

/// The most pages of an object that are compared with its store.
const SAMPLE_PAGES: u64 = 64;

/// The result of [`Cache::restore`].
#[derive(Debug, Default)]
pub struct Restored {
    /// Pages that came in. With less memory than before, later ones may have evicted earlier ones.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Partitions and objects none of whose pages came in.
    pub cold: Vec<Cold>,
}

/// A partition or an object that starts without its evacuated pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cold {
    /// The partition's name.
    pub partition: String,
    /// The object's name. `None`: all objects of the partition.
    pub object: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}

impl Cache {
    /// Prepares for [`restore`](Cache::restore): partitions that are created and objects that are
    /// opened from now on are placed as those whose pages `warm` has, so that the pages fall into
    /// the same sets. Without this call, the pages of a full cache do not all find a place.
    pub fn expect(&self, warm: &WarmPages) {
        let expected = warm.catalog.partitions.iter().map(|partition| {
            let objects = partition.objects.iter();
            let objects = objects.map(|object| (Identity::from_bytes(&object.identity), object.id)).collect();
            let expected = Expected { secret: partition.secret, objects };
            (partition.name.clone(), expected)
        });
        self.core().shared.unless_forked(|| lock(&self.core().shared.expected).extend(expected));
    }

    /// Takes evacuated pages in, for objects of the same names, partitions and stores that are open
    /// in this cache. Call it before anything reads or writes them. The memory of the file is
    /// returned as its pages come in, and the file cannot be used again.
    ///
    /// A partition stays cold if its page size has changed, if it was accessed already or is being
    /// recorded, or if a record of it is damaged. An object stays cold if its store is another one,
    /// has another length or was changed since the evacuation, or if one of 64 pages that are
    /// compared differs from the store.
    ///
    /// # Errors
    /// An error of the file before any page came in. `Unsupported` in a child of `fork`.
    ///
    /// # Examples
    /// See [`evacuate`](Cache::evacuate).
    pub fn restore(&self, warm: WarmPages) -> io::Result<Restored> {
        if self.core().shared.is_forked() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let WarmPages { file, catalog } = warm;
        // E6.
        mark_used(&file)?;
        lock(&self.core().shared.expected).clear();
        let mut restored = Restored::default();
        let partitions = self.partitions();
        for (number, entry) in catalog.partitions.iter().enumerate() {
            let cold = |reason: String| Cold { partition: entry.name.clone(), object: None, reason };
            let found = partitions.iter().find(|partition| partition.name() == entry.name);
            let entered = found.ok_or_else(|| "there is no such partition now".to_owned());
            let entered = entered.and_then(|partition| {
                let mut arrival =
                    Arrival { cache: self, file: &file, number: number as u32, entry, partition };
                arrival.run(&mut restored)
            });
            if let Err(reason) = entered {
                restored.cold.push(cold(reason));
            }
            forget(&file, entry.chunks.start, entry.chunks.end);
        }
        Ok(restored)
    }
}

/// Returns the memory of a part of the file to the system. A file system that cannot costs memory
/// until the file is closed.
fn forget(file: &File, start: u64, end: u64) {
    if start < end {
        let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start);
    }
}

/// The pages of one partition that come in.
struct Arrival<'a> {
    cache: &'a Cache,
    file: &'a File,
    number: u32,
    entry: &'a PartitionEntry,
    partition: &'a Partition,
}

/// An open object whose pages may come in.
struct Guest<'a> {
    entry: &'a ObjectEntry,
    closed: ClosedRange,
    /// Records of the object that the check has seen.
    seen: u64,
    /// Why its pages stay out.
    doubt: Option<String>,
}

impl Guest<'_> {
    fn object(&self) -> &ObjectInner {
        &self.closed.object.inner
    }
}

impl<'a> Arrival<'a> {
    /// E7 and E8. The error says why the whole partition stays cold.
    fn run(&mut self, restored: &mut Restored) -> Result<(), String> {
        let inner = &*self.partition.inner;
        let page_bytes = inner.page_bytes();
        if page_bytes != self.entry.page_bytes as usize {
            return Err(format!("its pages had {} bytes, and have {page_bytes} now", self.entry.page_bytes));
        }
        let mut guests = self.guests(restored);
        let chunks = self.check(&mut guests)?;
        for guest in guests.values().filter(|guest| guest.doubt.is_some()) {
            restored.cold.push(self.cold(guest.entry, guest.doubt.clone().unwrap_or_default()));
        }
        guests.retain(|_, guest| guest.doubt.is_none());
        let pages = inner.hold_still(|_| {
            if inner.is_recorded() {
                return Err("it is being recorded".to_owned());
            }
            if !inner.is_untouched() {
                return Err("it was accessed before its pages came in".to_owned());
            }
            Ok(self.load(&guests, &chunks))
        })?;
        restored.pages += pages;
        restored.bytes += pages * page_bytes as u64;
        Ok(())
    }

    fn cold(&self, object: &ObjectEntry, reason: String) -> Cold {
        Cold { partition: self.entry.name.clone(), object: Some(object.name.clone()), reason }
    }

    /// The open objects that the catalog names, by their numbers, with their ranges closed.
    fn guests(&self, restored: &mut Restored) -> HashMap<u64, Guest<'a>> {
        let mut open: HashMap<u64, Object> =
            self.partition.objects().into_iter().map(|object| (object.inner.id, object)).collect();
        let inner = &self.partition.inner;
        lock(&inner.objects).expect_no_more(&inner.returned);
        let mut guests = HashMap::new();
        for entry in &self.entry.objects {
            let is_same = |object: &Object| {
                object.inner.store.identity().is_some_and(|now| now.as_bytes() == entry.identity)
            };
            let found = open.remove(&entry.id).filter(is_same);
            let found = found.ok_or_else(|| "its store is not open in this partition now".to_owned());
            let closed =
                found.and_then(|object| object.close_range(EVERY).map_err(|error: Error| error.to_string()));
            match closed {
                Ok(closed) => {
                    let doubt = changed(&closed.object.inner, entry);
                    guests.insert(entry.id, Guest { entry, closed, seen: 0, doubt });
                }
                Err(reason) => restored.cold.push(self.cold(entry, reason)),
            }
        }
        guests
    }

    /// E7: checks all records, and compares a sample of the pages. Returns where the chunks begin.
    fn check(&self, guests: &mut HashMap<u64, Guest<'a>>) -> Result<Vec<u64>, String> {
        let page_bytes = self.entry.page_bytes as usize;
        let mut buffer = self
            .cache
            .buffer(page_bytes)
            .ok_or("the buffer share has no room to compare pages with their stores")?;
        let (mut pages, mut chunks) = (0, Vec::new());
        let (mut at, end) = (self.entry.chunks.start, self.entry.chunks.end);
        while at < end {
            let chunk = self.chunk(at).map_err(|error| error.to_string())?;
            if chunk.end > end {
                return Err("a chunk of pages reaches past the end of its partition".into());
            }
            chunks.push(at);
            pages += chunk.records.len() as u64;
            for (nth, record) in chunk.records.iter().enumerate() {
                let Some(guest) = guests.get_mut(&u64::from(record.object)) else { continue };
                let stride = guest.entry.pages.div_ceil(SAMPLE_PAGES).max(1);
                let is_sampled = guest.seen % stride == 0 && guest.doubt.is_none();
                guest.seen += 1;
                if is_sampled {
                    let at = chunk.pages + (nth * page_bytes) as u64;
                    guest.doubt = self.compare(guest, record, at, &mut buffer);
                }
            }
            at = chunk.end;
        }
        if pages != self.entry.pages || guests.values().any(|guest| guest.seen != guest.entry.pages) {
            return Err("the file of pages has not the number of pages that its catalog states".into());
        }
        Ok(chunks)
    }

    /// Compares a page of the file with the store. Returns what is wrong.
    fn compare(&self, guest: &Guest<'_>, record: &Record, at: u64, buffer: &mut Buffer) -> Option<String> {
        let object = guest.object();
        let page_size = object.partition.page_size;
        if !object.has_page(PageIndex(record.page)) {
            return Some(format!("page {} lies past its end", record.page));
        }
        let page_bytes = page_size.bytes();
        let offset = page_size.start_of(PageIndex(record.page)).0;
        let bytes = IoBuffer { ptr: buffer.as_mut_ptr(), len: page_bytes };
        // SAFETY: the buffer is ours, at least a page long, and outlives the call.
        if let Err(source) = unsafe { Ring::read_alone(&object.store, offset, bytes) } {
            return Some(format!("cannot compare it with its store: {source}"));
        }
        let mut evacuated = vec![0; page_bytes];
        if let Err(error) = self.file.read_exact_at(&mut evacuated, at) {
            return Some(format!("cannot read the file of pages: {error}"));
        }
        let is_same = evacuated[..] == buffer[..page_bytes];
        (!is_same).then(|| format!("page {} differs from its store", record.page))
    }

    /// E8: returns the number of pages that came in.
    fn load(&self, guests: &HashMap<u64, Guest<'a>>, chunks: &[u64]) -> u64 {
        let work = |mine: &mut dyn Iterator<Item = &u64>| {
            let mut pages = 0;
            for at in mine {
                match self.chunk(*at) {
                    Ok(chunk) => {
                        pages += self.take(guests, &chunk);
                        forget(self.file, *at, chunk.end);
                    }
                    // The check has read it a moment ago.
                    Err(error) => log::warn!(
                        "partition {}: not all evacuated pages came in: {error}",
                        self.partition.name()
                    ),
                }
            }
            pages
        };
        workers::run(self.partition.inner.page_bytes(), chunks, work).into_iter().sum()
    }

    /// E8 for a chunk.
    fn take(&self, guests: &HashMap<u64, Guest<'a>>, chunk: &Records) -> u64 {
        let inner = &*self.partition.inner;
        // Another policy's bits would say something else.
        let is_same_policy = inner.table.policy().name() == self.entry.policy;
        let mut pages = 0;
        for (record, at) in chunk.records.iter().zip((chunk.pages..).step_by(inner.page_bytes())) {
            let Some(guest) = guests.get(&u64::from(record.object)) else { continue };
            let bits = if is_same_policy { record.bits } else { 0 };
            let known = Known { page: PageIndex(record.page), bits };
            pages += u64::from(inner.enter(guest.object(), known, self.file, at));
        }
        pages
    }

    /// Reads the records of the chunk at `at`.
    fn chunk(&self, at: u64) -> io::Result<Records> {
        Records::read(self.file, at, self.number, self.entry.page_bytes)
    }
}

/// Returns why an object is not what it was when its pages left.
fn changed(object: &ObjectInner, entry: &ObjectEntry) -> Option<String> {
    let len_bytes = object.len_bytes();
    if len_bytes != entry.len_bytes {
        return Some(format!("it had {} bytes, and has {len_bytes} now", entry.len_bytes));
    }
    match object.store.stamp() {
        Some(stamp) if stamp == entry.stamp => None,
        Some(_) => Some("its store was changed since its pages left".into()),
        None => Some("nothing tells whether its store was changed since its pages left".into()),
    }
}

impl ObjectInner {
    fn has_page(&self, page: PageIndex) -> bool {
        self.partition.page_size.page_range(ByteOffset(0), self.len_bytes()).contains(&page)
    }
}

impl PartitionInner {
    /// E8 for a page, whose bytes lie at `at` in the file. Returns whether it came in.
    fn enter(&self, object: &ObjectInner, known: Known, file: &File, at: u64) -> bool {
        if !object.has_page(known.page) {
            return false;
        }
        let tag = object.tag(known.page);
        let guard = self.table.lock(tag);
        if guard.find(tag).is_some() || self.strays.has(tag) {
            return false;
        }
        let Some(slot) = self.claim_known(guard, tag, known) else { return false };
        // SAFETY: the frame is in state Filling, so no other thread touches it (P1), and it stays
        // mapped.
        let read = unsafe { read_page(file, at, self.frames.at(slot), self.page_bytes()) };
        match read {
            true => self.publish(slot, false),
            false => self.release(tag, slot),
        }
        read
    }
}

/// Reads `len` bytes of the file into a frame. Returns whether it could.
///
/// # Safety
/// `frame` is valid for `len` bytes, and no other thread accesses them.
unsafe fn read_page(file: &File, at: u64, frame: *mut u8, len: usize) -> bool {
    let mut read = 0;
    while read < len {
        let (to, left) = (frame.wrapping_add(read), len - read);
        // SAFETY: the caller's promise: the rest of the frame.
        match unsafe { libc::pread(file.as_raw_fd(), to.cast(), left, (at + read as u64) as i64) } {
            more @ 1.. => read += more as usize,
            0 => return false,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
    true
}
