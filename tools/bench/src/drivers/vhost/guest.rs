//! [`Disk`]: a disk attached by vhost-user, with libblkio as VMM and guest in one.
//!
//! libblkio puts requests into the rings of its own memory, which it shares with the server. It
//! asks for a signal only before it sleeps, as a guest's kernel does.

use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};

use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::stage::offset;
use crate::statistics::Histogram;
use crate::stream::Pages;
use crate::turns::Worker;

/// The longest time for one request. A server that needs longer has failed.
const REQUEST_MAX: Duration = Duration::from_secs(20);

/// An attached disk.
pub struct Disk {
    /// The queues that no reader has taken, each with its number.
    queues: Mutex<Vec<(usize, Blkioq)>>,
    memory: MemoryRegion,
    /// The bytes of the memory that each queue has.
    share_bytes: usize,
    // Last: it owns the memory.
    _blkio: Mutex<Blkio>,
}

/// The bytes that a contestant checks of each page that it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// Another 64 bytes of each page.
    Line,
    /// All.
    Page,
}

impl Checked {
    /// Checks the bytes of a page.
    pub fn check(self, page: u64, bytes: &[u8]) -> Result<(), Error> {
        let part = match self {
            Checked::Line => {
                let at = page as usize * 64 % PAGE_BYTES;
                at..at + 64
            }
            Checked::Page => 0..PAGE_BYTES,
        };
        content::check(page, part.start, &bytes[part], "through a server")
    }
}

fn failed(what: &str) -> impl Fn(blkio::Error) -> Error {
    move |error| Error::new(format!("libblkio: {what}: {}", error.message()))
}

impl Disk {
    /// Attaches the disk at a socket, read-only, with memory for `depth` pages on each queue.
    pub fn attach(socket: &Path, queues: usize, depth: usize) -> Result<Disk, Error> {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(failed("the driver"))?;
        let path = socket.to_str().ok_or_else(|| Error::new("the socket's path is not UTF-8"))?;
        blkio.set_str("path", path).map_err(failed("the path"))?;
        blkio.set_bool("read-only", true).map_err(failed("read-only"))?;
        blkio.connect().map_err(failed("connect"))?;
        blkio.set_i32("num-queues", queues as i32).map_err(failed("num-queues"))?;
        let started = blkio.start().map_err(failed("start"))?;
        let share_bytes = depth * PAGE_BYTES;
        let memory = blkio.alloc_mem_region(queues * share_bytes).map_err(failed("memory"))?;
        blkio.map_mem_region(&memory).map_err(failed("memory"))?;
        let queues = Mutex::new(started.queues.into_iter().enumerate().collect());
        Ok(Disk { queues, memory, share_bytes, _blkio: Mutex::new(blkio) })
    }

    /// Returns a reader of the disk with a queue of its own.
    pub fn reader(&self, pages: Pages, checked: Checked) -> Result<Reader, Error> {
        let taken = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (number, queue) = taken.ok_or_else(|| Error::new("no queue of the disk is left"))?;
        let depth = self.share_bytes / PAGE_BYTES;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.memory.addr);
        Ok(Reader {
            queue,
            memory: start.wrapping_add(number * self.share_bytes),
            free: (0..depth).collect(),
            reads: vec![(0, Instant::now()); depth],
            ended: (0..depth).map(|_| MaybeUninit::uninit()).collect(),
            pages,
            checked,
        })
    }
}

/// Reads pages of a disk through one of its queues.
pub struct Reader {
    queue: Blkioq,
    memory: *mut u8,
    /// The slots without a read in flight.
    free: Vec<usize>,
    /// The page that each slot reads, and when the read began.
    reads: Vec<(u64, Instant)>,
    ended: Vec<MaybeUninit<Completion>>,
    pages: Pages,
    checked: Checked,
}

impl Reader {
    /// Reads `pages`, one after the other.
    pub fn touch(&mut self, pages: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        for page in pages {
            self.begin(0, page);
            self.wait(1, None)?;
        }
        self.free.truncate(self.reads.len());
        Ok(())
    }

    fn begin(&mut self, slot: usize, page: u64) {
        let to = self.memory.wrapping_add(slot * PAGE_BYTES);
        self.queue.read(offset(page), to, PAGE_BYTES, slot, ReqFlags::empty());
        self.reads[slot].0 = page;
    }

    /// Submits the reads that were begun, waits for at least `min` reads, and checks their pages.
    fn wait(&mut self, min: usize, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        let mut time = REQUEST_MAX;
        let done = self.queue.do_io(&mut self.ended, min, Some(&mut time), None);
        let count = done.map_err(failed("a read"))?;
        for ended in &self.ended[..count] {
            // SAFETY: `do_io` has written this many.
            let ended = unsafe { ended.assume_init_ref() };
            let slot = ended.user_data;
            if ended.ret != 0 {
                return Err(Error::new(format!("a read through a server failed: {}", ended.ret)));
            }
            let (page, begun) = self.reads[slot];
            if let Some(times) = &mut times {
                times.add(begun.elapsed().as_nanos() as u64);
            }
            let start = self.memory.wrapping_add(slot * PAGE_BYTES).cast_const();
            // SAFETY: the slot lies in the memory, which lives as long as the queue, and the server
            // has ended its write.
            let bytes = unsafe { std::slice::from_raw_parts(start, PAGE_BYTES) };
            self.checked.check(page, bytes)?;
            self.free.push(slot);
        }
        Ok(count as u64)
    }
}

impl Worker for Reader {
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error> {
        while let Some(slot) = self.free.pop() {
            let page = self.pages.next().ok_or_else(|| Error::new("the pages have an end"))?;
            if times.is_some() {
                self.reads[slot].1 = Instant::now();
            }
            self.begin(slot, page);
        }
        self.wait(1, times)
    }

    fn settle(&mut self) -> Result<(), Error> {
        let in_flight = self.reads.len() - self.free.len();
        self.wait(in_flight, None).map(drop)
    }
}
