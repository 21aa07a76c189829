//! Misses: uniformly random pages of a file much larger than the cache, 32 in flight, through the batch queue.
//!
//! | case | file | reference |
//! |---|---|---|
//! | `disk_qd32` | where the caller says | direct reads into private pages, by the engine's own ring |
//! | `memory_qd32` | in the kernel's memory (tmpfs) | the same, and a copy of each page to a buffer of the caller's |
//!
//! A device hides a copy, a file in memory does not: the cache keeps the page and hands it out, which is a copy more than a
//! read that keeps nothing. The ratio to reads without a copy is shown beside.
//!
//! All contestants draw pages from the same kind of stream, keep as many reads in flight, submit what they start after each
//! wait with one call, and check every word of every page. The file has no name any more while it is read, so that it is
//! gone whatever happens.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Buffer, Cache, CacheConfig, Object, Op, Partition, PartitionConfig, Queue, Request};

use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::machine;
use crate::reference::PrivateReads;
use crate::report::{Detail, Row};
use crate::slices::{Plan, median, rate, ratios, take_turns};
use crate::{Error, Listener, Options};

const DEPTH: usize = 32;

/// Where files in memory live.
const MEMORY_DIRECTORY: &str = "/dev/shm";

/// The file is at least this many times as large as the cache, so that hits change little.
const FILE_TO_CACHE: u64 = 64;

const FILE_BYTES: u64 = 4 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;

/// Runs the suite.
pub fn misses(options: &Options, listener: &mut dyn Listener) -> Result<(), Error> {
    options.validate()?;
    let cases = [("disk_qd32", "disk", options.file.clone()), ("memory_qd32", "memory", memory_file())];
    for (case, place, path) in cases {
        let file_bytes = match (options.quick, place) {
            (true, _) => FILE_BYTES_QUICK,
            (false, "memory") => FILE_BYTES / 2,
            (false, _) => FILE_BYTES,
        };
        let field = Field::new(&path, file_bytes, listener)?;
        let row = field.run(case, place, options, listener)?;
        listener.row(&row);
    }
    Ok(())
}

fn memory_file() -> PathBuf {
    Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-{}", std::process::id()))
}

/// A file, and a cache before it.
struct Field {
    object: Object,
    partition: Partition,
    cache: Cache,
    file_bytes: u64,
    o_direct: bool,
}

impl Field {
    fn new(path: &Path, file_bytes: u64, listener: &mut dyn Listener) -> Result<Field, Error> {
        let what = path.display().to_string();
        let file = create(path).map_err(Error::at(&what))?;
        let made = Unlinked(path);
        write_file(file, &what, file_bytes, listener).map_err(Error::at(&what))?;
        let store = Store::open(path, &Default::default()).map_err(Error::at(&what))?;
        drop(made);
        let o_direct = machine::has_open_direct(path);
        if !(store.is_direct() && o_direct) {
            listener
                .warning(&format!("{what}: O_DIRECT is not in force; this measures the kernel's page cache"));
        }
        let frames_bytes = file_bytes / FILE_TO_CACHE;
        let buffers_bytes = 8 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: frames_bytes + frames_bytes / 128 + (64 << 10) + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            page_bytes: PAGE_BYTES as u32,
            ..CacheConfig::default()
        })?;
        let partition = cache.partition(PartitionConfig::new("bench"))?;
        let object = partition.open(store, "file")?;
        Ok(Field { object, partition, cache, file_bytes, o_direct })
    }

    /// The pages to read: the same stream in each run, another one for each contestant.
    fn pages(&self, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let pages = self.file_bytes / PAGE_BYTES as u64;
        content::random(seed << 32).map(move |random| content::below(random, pages))
    }

    fn run(
        &self,
        case: &'static str,
        place: &'static str,
        options: &Options,
        listener: &mut dyn Listener,
    ) -> Result<Row, Error> {
        let mut cached = Cached::new(self)?;
        let mut direct = Direct::new(self, 2, false)?;
        let mut copied = Direct::new(self, 3, true)?;
        listener.progress(&format!("{case}: filling the cache"));
        self.fill_cache(&mut cached)?;
        let time = options.time.unwrap_or(Duration::from_secs(15));
        let plan = Plan::new(options.quick, time, Duration::from_millis(250), 3);
        let before = self.partition.stat();
        let slices = take_turns(
            plan,
            &mut [&mut |time| direct.slice(time), &mut |time| cached.slice(time), &mut |time| {
                copied.slice(time)
            }],
            |round| listener.progress(&format!("{case}: round {} of {}", round + 1, plan.rounds)),
        )?;
        let after = self.partition.stat();
        let [direct, engine, copied] = &slices[..] else { unreachable!("three contestants") };
        let (reference, words) = match place {
            "memory" => (copied, "direct reads into private pages, copied out"),
            _ => (direct, "direct reads into private pages"),
        };
        let detail = Detail::Misses {
            store: place,
            queue_depth: DEPTH,
            file_bytes: self.file_bytes,
            cache_bytes: after.max_bytes,
            io_engine: self.cache.stat().io_engine,
            is_direct: self.object.store().is_direct(),
            o_direct: self.o_direct,
            reference: words,
            direct_ops_per_s: median(direct),
            direct_ratio: median(&ratios(engine, direct)),
            hits: after.hits - before.hits,
            misses: after.misses - before.misses,
            fills: after.fills - before.fills,
            bypasses: after.bypasses - before.bypasses,
        };
        Ok(Row::new(("misses", case), Clock::Wall, after.policy, (engine, reference), detail))
    }

    /// Reads until every frame has most likely held two pages, so that each miss must evict.
    fn fill_cache(&self, cached: &mut Cached) -> Result<(), Error> {
        let stat = self.partition.stat();
        let enough = stat.max_bytes / PAGE_BYTES as u64 * 2;
        while self.partition.stat().fills < enough {
            cached.slice(Duration::from_millis(10))?;
        }
        Ok(())
    }
}

/// The engine with the cache.
struct Cached {
    object: Object,
    queue: Queue,
    /// Requests with buffers that nobody uses.
    free: Vec<Buffer>,
    pages: Box<dyn Iterator<Item = u64>>,
}

impl Cached {
    fn new(field: &Field) -> Result<Cached, Error> {
        let buffers = (0..DEPTH).map(|_| field.cache.buffer(PAGE_BYTES));
        let free = buffers.collect::<Option<_>>().ok_or_else(|| Error::new("no memory for buffers"))?;
        Ok(Cached {
            object: field.object.clone(),
            queue: field.cache.queue()?,
            free,
            pages: Box::new(field.pages(1)),
        })
    }

    fn slice(&mut self, time: Duration) -> Result<f64, Error> {
        let rate = rate(Clock::Wall, time, || {
            let requests = self.free.drain(..).zip(&mut self.pages).map(|(buffer, page)| Request {
                op: Op::Read { offset: page * PAGE_BYTES as u64, len: PAGE_BYTES, buffer },
                user_data: page,
            });
            self.queue.submit(&self.object, requests);
            self.wait(1)
        });
        self.wait(DEPTH)?;
        rate
    }

    /// Waits for `min` reads at least, and checks what came.
    fn wait(&mut self, min: usize) -> Result<u64, Error> {
        let mut outcome = Ok(());
        let free = &mut self.free;
        let count = self.queue.wait(min, |completion| {
            let Op::Read { buffer, .. } = completion.op else { unreachable!("only reads are asked for") };
            let page = completion.user_data;
            if let Err(error) = completion.result {
                outcome = Err(error.into());
            } else if !content::is_right(page, 0, &buffer[..PAGE_BYTES]) {
                outcome = Err(Error::new(format!("wrong bytes in page {page}, through the cache")));
            }
            free.push(buffer);
        });
        outcome.map(|()| count as u64)
    }
}

/// The engine without the cache.
struct Direct {
    reads: PrivateReads,
    /// The page that each slot reads.
    wanted: [u64; DEPTH],
    /// Slots without a read in flight.
    free: Vec<usize>,
    /// Buffers of the caller, one per slot, where pages are copied out.
    buffers: Option<Vec<AlignedBytes>>,
    pages: Box<dyn Iterator<Item = u64>>,
}

impl Direct {
    fn new(field: &Field, seed: u64, copied: bool) -> Result<Direct, Error> {
        let reads = PrivateReads::new(field.object.store(), DEPTH).map_err(Error::at("a ring"))?;
        Ok(Direct {
            reads,
            wanted: [0; DEPTH],
            free: (0..DEPTH).collect(),
            buffers: copied.then(|| (0..DEPTH).map(|_| AlignedBytes::new(PAGE_BYTES)).collect()),
            pages: Box::new(field.pages(seed)),
        })
    }

    fn slice(&mut self, time: Duration) -> Result<f64, Error> {
        let rate = rate(Clock::Wall, time, || {
            for (slot, page) in self.free.drain(..).zip(&mut self.pages) {
                self.wanted[slot] = page;
                self.reads.start(slot, page);
            }
            self.wait()
        });
        while self.free.len() < DEPTH {
            self.wait()?;
        }
        rate
    }

    /// Waits for a read at least, and checks what came.
    fn wait(&mut self) -> Result<u64, Error> {
        let before = self.free.len();
        self.reads.wait(&mut self.free).map_err(Error::at("a direct read"))?;
        for slot in &self.free[before..] {
            let bytes = match &mut self.buffers {
                Some(buffers) => {
                    self.reads.copy_out(*slot, &mut buffers[*slot]);
                    &buffers[*slot][..]
                }
                None => self.reads.page(*slot),
            };
            let page = self.wanted[*slot];
            if !content::is_right(page, 0, bytes) {
                return Err(Error::new(format!("wrong bytes in page {page}, read directly")));
            }
        }
        Ok((self.free.len() - before) as u64)
    }
}

/// A file that loses its name when this is dropped.
struct Unlinked<'p>(&'p Path);

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        // Where it was never made there is nothing to remove, and where it cannot be removed nothing to be done.
        let _ = std::fs::remove_file(self.0);
    }
}

/// Writes pages that all have content of their own.
fn write_file(
    mut file: File,
    name: &str,
    len_bytes: u64,
    listener: &mut dyn Listener,
) -> std::io::Result<()> {
    const RUN_BYTES: usize = 1 << 20;
    let mut bytes = AlignedBytes::new(RUN_BYTES);
    for first in (0..len_bytes).step_by(RUN_BYTES) {
        if first % (64 << 20) == 0 {
            listener.progress(&format!("writing {name}: {} of {} MiB", first >> 20, len_bytes >> 20));
        }
        for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            content::fill(first / PAGE_BYTES as u64 + number as u64, page);
        }
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

/// Makes a new file, never one that exists, to be written past the kernel's page cache where that can be: then it holds
/// none of the pages afterwards.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.clone().custom_flags(libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // The name is made before the flag is refused.
            let _ = std::fs::remove_file(path);
            options.open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Listener for Silent {
        fn row(&mut self, _: &Row) {}
        fn progress(&mut self, _: &str) {}
        fn warning(&mut self, _: &str) {}
    }

    #[test]
    fn a_file_that_exists_is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("octavo-bench-exists-{}", std::process::id()));
        std::fs::write(&path, "precious").unwrap();
        let result = Field::new(&path, FILE_BYTES_QUICK, &mut Silent);
        assert!(result.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }
}
