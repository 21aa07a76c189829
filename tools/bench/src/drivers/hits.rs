//! Hits: threads read (and write) random places of resident pages, compared with bare loops over an
//! array of the same size.
//!
//! The cache has frames for the case's `memory`, and they are full: a store half as large again is
//! read into them, and only pages that are resident then are accessed. Every read is therefore a
//! hit, which the counters before and after confirm. The reference's array contains the same pages,
//! one after the other. Engine and reference walk the same stream of indices: operation `n` of
//! either has the same page and the same offset in it. Threads share a stream, and begin at
//! different places.
//!
//! Writes store the bytes that the page already has. Cases with writes have a cache without a
//! cleaner and without a limit on dirty pages, so that a write is complete when the page has the
//! bytes (`writeback` measures the rest).

mod looks;
mod walk;
mod writers;

use std::borrow::Cow;
use std::hint::black_box;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_random::{Random, mix};

use crate::case::{Call, Case, Clock};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine::huge_pages_bytes;
use crate::reference::{Array, Gather, UNIT_SHIFT, Walk};
use crate::report::Row;
use crate::rival::{Places, Rival, RivalCache, Room};
use crate::stage::{Driver, Run, Subject, cache_config, partition_config};
use crate::statistics::Histogram;
use crate::stream;
use crate::turns::{Pace, Team};
use walk::{TURN_PAGES, TURN_SHORT, WRITES, Way, offset, read_batches, split, turn_of, walker};

pub const DRIVER: Driver = Driver {
    name: "hits",
    purpose: "reads and writes of resident pages",
    contestants: &[
        "octavo",
        "octavo-own-page",
        "plain",
        "prefetching",
        "line",
        "words",
        "pwrite",
        "locked-lru",
        "pin",
        "read",
        "pin-batch",
        "read-batch",
    ],
    scenery: &["memory", "policy", "mode", "reads"],
    check,
    // The store is half as large again, the references read an array, rivals and writers hold the
    // same pages.
    memory: |needs| needs.frames * 7 / 2 + needs.frames * needs.rivals,
    set: |case, run| {
        let full = FullCache::new(case, run)?;
        Ok(Box::new(move |case, run| full.run(case, run).map(|row| vec![row])))
    },
};

/// The contestants that can write.
const WRITERS: &[&str] = &["octavo", "octavo-own-page", "words", "pwrite", "locked-lru"];

/// Indices of a stream. The data at these places is several times as large as a last-level cache.
const STREAM: usize = 1 << 22;
const STREAM_QUICK: usize = 1 << 17;

/// The smallest memory: a smaller one has too few huge pages.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Places are multiples of 128 bytes in 31 bits; a store of 1.5 times this size still fits.
const MEMORY_BYTES_MAX: u64 = 64 << 30;

fn check(case: &Case) -> Result<(), String> {
    let (memory, batch) = (case.memory.0, case.batch.0);
    if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&memory) {
        return Err(format!(
            "memory of {memory} bytes: {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX} are possible"
        ));
    }
    let looks = case.contestants.iter().all(|name| looks::NAMES.contains(&&**name));
    match case.bytes.0 {
        128 | 4096 => {}
        256 | 512 | 1024 | 2048 if looks => {}
        bytes => {
            return Err(format!(
                "bytes = {bytes}: 128 or 4096 are possible; for {} also 256 to 2048",
                looks::NAMES.join(", ")
            ));
        }
    }
    if !TURN_PAGES.is_multiple_of(batch) || !batch.is_power_of_two() {
        return Err(format!("batch = {batch}: a power of two up to {TURN_PAGES} is possible"));
    }
    let writes = case.reads.0 < 100;
    match case.call {
        Call::Queue => Err("hits have the calls single, batch, pin and pin-batch".into()),
        Call::Batch | Call::Pin | Call::PinBatch if writes => Err("only single calls can write".into()),
        _ if case.reads.0 > 0 && case.contestants.iter().any(|name| writers::NAMES.contains(&&**name)) => {
            Err(format!("{} only write: they need reads = 0", writers::NAMES.join(" and ")))
        }
        _ if writes && case.contestants.iter().any(|name| !WRITERS.contains(&&**name)) => {
            Err(format!("the contestants that can write are {}", WRITERS.join(", ")))
        }
        _ => Ok(()),
    }
}

/// A full cache, and an array with the same pages.
struct FullCache {
    subject: Subject,
    array: Array,
    /// The resident pages of the object. Page `n` of the array is a copy of page `resident[n]`.
    resident: Vec<u32>,
}

/// The same operations as places in the object and in the array, in units of `1 << UNIT_SHIFT`
/// bytes.
struct Streams {
    object: Vec<u32>,
    array: Vec<u32>,
}

impl FullCache {
    fn new(case: &Case, run: &mut Run<'_>) -> Result<FullCache, Error> {
        let writes = case.reads.0 < 100;
        let cache = CacheConfig { background: !writes, ..cache_config(case.memory.0, 8 << 20) };
        let partition =
            PartitionConfig { dirty_max_bytes: writes.then_some(u64::MAX), ..partition_config(case) };
        run.news(case, "filling the store");
        let pages = case.memory.0 / PAGE_BYTES as u64 * 3 / 2;
        let subject = Subject::new(cache, partition, filled_store(pages)?)?;
        run.news(case, "filling the cache");
        subject.touch(0..pages)?;
        let is_resident = |page: &u32| subject.object.is_resident(crate::stage::offset((*page).into()));
        let resident: Vec<u32> = (0..pages as u32).filter(is_resident).collect();
        run.news(case, "filling the array");
        let mut array =
            Array::new(resident.len() * PAGE_BYTES).map_err(Error::at("an array of huge pages"))?;
        for (page, bytes) in resident.iter().zip(array.bytes_mut().chunks_exact_mut(PAGE_BYTES)) {
            content::fill(u64::from(*page), bytes);
        }
        Ok(FullCache { subject, array, resident })
    }

    /// Draws operations of `bytes` each, at multiples of `bytes`, in pages of the case's pattern.
    fn streams(&self, case: &Case, count: usize) -> Result<Streams, Error> {
        let len = case.bytes.0 as usize;
        let places = (PAGE_BYTES / len) as u64;
        let units = |page: u64, place: u64| ((page * places + place) * (len as u64 >> UNIT_SHIFT)) as u32;
        let mut streams = Streams { object: Vec::with_capacity(count), array: Vec::with_capacity(count) };
        let pages = stream::pages(&case.workload, self.resident.len() as u64, len as u64)?;
        // A seed of its own: with the generator's seed each page had only one place, and the array
        // shrank to one line per page.
        let mut random = Random::new(mix(len as u64 + 1));
        for page in pages.take(count) {
            // A pattern can have pages beyond those of the array; they fall on others.
            let page = page % self.resident.len() as u64;
            let drawn = random.next_u64();
            let place = octavo_random::scale(drawn, places);
            let writes = if case.reads.has(mix(drawn)) { 0 } else { WRITES };
            streams.object.push(units(u64::from(self.resident[page as usize]), place) | writes);
            streams.array.push(units(page, place) | writes);
        }
        Ok(streams)
    }

    fn run(&self, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
        run.news(case, "drawing places");
        let streams = self.streams(case, if run.options.quick { STREAM_QUICK } else { STREAM })?;
        let rivals = &run.options.rivals;
        let open = |name: &String| match rivals.iter().find(|rival| rival.name() == name) {
            Some(rival) => self.open_rival(&**rival, case, run).map(Some),
            None => Ok(None),
        };
        let opened: Vec<_> = case.contestants.iter().map(open).collect::<Result<_, _>>()?;
        let contestants = case.contestants.iter().zip(&opened);
        let teams: Vec<Team<'_>> = contestants
            .map(|(name, rival)| match rival {
                Some(cache) => rival_team(name, &**cache, case, &streams),
                None => self.team(name, case, &streams),
            })
            .collect();
        // One thread never waits, and thread time excludes other programs. Several threads wait for
        // each other.
        let clock = if case.threads.0 == 1 { Clock::Thread } else { Clock::Wall };
        let pace = Pace { clock, ..Pace::new(9.0, 120) };
        let ((mut row, _), did) = self.subject.measure(|| run.race(case, pace, &teams))?;
        self.check(case, &streams)?;
        let misses = did.misses();
        if misses > 0 {
            run.listener.warning(&format!("{}: {misses} reads were misses, not hits", case.name));
        }
        row.add("hits", did.hits());
        row.add("misses", misses);
        row.add("memory_bytes", self.resident.len() * PAGE_BYTES);
        row.add("huge_pages_bytes", self.frames_huge_pages_bytes(run)?);
        row.add("reference_huge_pages_bytes", huge_pages_bytes(self.array.address()).0);
        if let Some(walk @ ("plain" | "prefetching")) = row.reference().map(str::to_owned).as_deref() {
            row.add("reference_walk", walk);
        }
        Ok(row)
    }

    fn team<'t>(&'t self, name: &'t str, case: &'t Case, streams: &'t Streams) -> Team<'t> {
        let way = move |places: Cow<'t, [u32]>, thread| {
            let at = begin(thread, case.threads.0, places.len());
            Way { places, at, turn: turn_of(case) }
        };
        let object = || self.subject.object.clone();
        let len = case.bytes.0 as usize;
        let bare = move |thread| {
            let buffers = if case.call == Call::Batch { case.batch.0 } else { 1 };
            let gather = Gather::new(&self.array, &streams.array, len);
            (gather, way(Cow::Borrowed(&streams.array), thread), AlignedBytes::new(len * buffers))
        };
        match name {
            "octavo" => Team::new(name, move |thread| {
                Ok(walker(object(), case, way(Cow::Borrowed(&streams.object), thread)))
            }),
            "octavo-own-page" => Team::new(name, move |thread| {
                // Reads the same offsets, but in a page that no other thread reads.
                let page = u64::from(self.resident[(thread + 1) % self.resident.len()]);
                let first = (page * (PAGE_BYTES as u64 >> UNIT_SHIFT)) as u32;
                let in_page = (PAGE_BYTES >> UNIT_SHIFT) as u32 - 1;
                let places = streams.object.iter().map(|place| first | *place & (in_page | WRITES));
                Ok(walker(object(), case, way(places.collect(), thread)))
            }),
            "plain" | "prefetching" => {
                let walk = if name == "plain" { Walk::Plain } else { Walk::Prefetching };
                Team::new(name, move |thread| {
                    let (gather, mut way, mut buffers) = bare(thread);
                    Ok(move |_: Option<&mut Histogram>| {
                        gather.copy(walk, way.numbers(), &mut buffers);
                        Ok(way.turn as u64)
                    })
                })
            }
            "line" => Team::new(name, move |thread| {
                let (gather, mut way, _) = bare(thread);
                Ok(move |_: Option<&mut Histogram>| {
                    gather.lines(way.numbers());
                    Ok(way.turn as u64)
                })
            }),
            "words" => Team::new(name, move |thread| {
                let mut way = way(Cow::Borrowed(&streams.array), thread);
                let mut buffer = AlignedBytes::new(len);
                Ok(move |_: Option<&mut Histogram>| {
                    self.words(way.next(), &mut buffer);
                    Ok(way.turn as u64)
                })
            }),
            _ if writers::NAMES.contains(&name) => Team::boxed(name, move |thread| {
                writers::writing(name, &self.resident, len, way(Cow::Borrowed(&streams.array), thread))
            }),
            _ => Team::new(name, move |thread| {
                Ok(looks::looking(name, object(), case, way(Cow::Borrowed(&streams.object), thread)))
            }),
        }
    }

    /// Reads and writes places of the array, while other threads do.
    fn words(&self, places: &[u32], buffer: &mut [u8]) {
        for place in places {
            let (at, (page, skip)) = (offset(*place) as usize, split(*place));
            match place & WRITES != 0 {
                true => {
                    content::fill_part(u64::from(self.resident[page as usize]), skip, buffer);
                    self.array.write_words(at, buffer);
                }
                false => self.array.read_words(at, buffer),
            }
            black_box(buffer.as_mut_ptr());
        }
    }

    /// Opens a rival's cache with as many pages, and checks every byte of some of them. A rival's
    /// capacity is a number of pages. It is a quarter larger than the number of pages, so that all
    /// pages fit in every shard.
    fn open_rival(
        &self,
        rival: &dyn Rival,
        case: &Case,
        run: &Run<'_>,
    ) -> Result<Box<dyn RivalCache>, Error> {
        let pages = self.resident.len() as u64;
        let mut path = run.options.file.clone().into_os_string();
        path.push(".rival");
        let cache = rival.open(&Room::new(path.into(), pages, pages + pages / 4)?)?;
        let drawn = stream::pages(&case.workload, pages, 9)?;
        let mut checker = cache.worker(Places::pages(drawn, rival.name()))?;
        (0..64).try_for_each(|_| checker.turn(None).map(drop))?;
        drop(checker);
        Ok(cache)
    }

    /// Reads some places of the stream by the case's call, and compares every byte with its content
    /// and with the array.
    fn check(&self, case: &Case, streams: &Streams) -> Result<(), Error> {
        // `Gather` copies 128 bytes or a page. Operations of other lengths begin at such places
        // too.
        let len = if case.bytes.0 as usize == PAGE_BYTES { PAGE_BYTES } else { 128 };
        let batch = if case.call == Call::Batch { case.batch.0 } else { 1 };
        let mut bytes = AlignedBytes::new(len * batch);
        let mut reference = AlignedBytes::new(len * batch);
        let array: Vec<u32> = streams.array.iter().map(|place| place & !WRITES).collect();
        let gather = Gather::new(&self.array, &array, len);
        for at in (0..1024 * batch).step_by(batch) {
            let places = &streams.object[at..at + batch];
            match places {
                [place] => self.subject.object.read_at(offset(*place), &mut bytes)?,
                places => read_batches(&self.subject.object, places, len, &mut bytes, |_| {})?,
            }
            gather.copy(Walk::Plain, at..at + batch, &mut reference);
            for (bytes, place) in bytes.chunks_exact(len).zip(places) {
                let (page, skip) = split(*place);
                content::check(page, skip, bytes, &case.name)?;
            }
            if bytes[..] != reference[..] {
                return Err(Error::new(format!("{}: engine and reference read different bytes", case.name)));
            }
        }
        Ok(())
    }

    /// Returns the bytes of the frames' mapping that are on huge pages. Warns if they are few.
    fn frames_huge_pages_bytes(&self, run: &mut Run<'_>) -> Result<u64, Error> {
        let offset = crate::stage::offset(self.resident[0].into());
        let Some(pin) = self.subject.object.pin(offset)? else { return Ok(0) };
        let (huge, resident) = huge_pages_bytes(pin.as_ptr().addr());
        if huge < resident / 100 * 95 {
            let (huge, resident) = (huge >> 20, resident >> 20);
            run.listener.warning(&format!("only {huge} of {resident} MiB of the cache are on huge pages"));
        }
        Ok(huge)
    }
}

fn rival_team<'t>(
    name: &'t str,
    cache: &'t dyn RivalCache,
    case: &'t Case,
    streams: &'t Streams,
) -> Team<'t> {
    Team::boxed(name, move |thread| {
        let at = begin(thread, case.threads.0, streams.array.len());
        cache.worker(Places::stream(&streams.array, at, turn_of(case), case.bytes.0 as usize))
    })
}

// ---- Streams and stores

/// Returns the position in the stream at which a thread begins: as far as possible from those of
/// the other threads.
fn begin(thread: usize, threads: usize, count: usize) -> usize {
    (count / threads * thread) & !(TURN_SHORT - 1)
}

/// Creates a store in memory whose pages have content of their own, written through a small cache.
pub fn filled_store(pages: u64) -> Result<Store, Error> {
    const RUN_PAGES: u64 = 64;
    let store = Store::memory("pages", crate::stage::offset(pages));
    let cache = Cache::new(CacheConfig { memory_max_bytes: 8 << 20, ..CacheConfig::default() })?;
    let object = cache.partition(PartitionConfig::new("writer"))?.open(store.clone(), "pages")?;
    let mut bytes = vec![0; RUN_PAGES as usize * PAGE_BYTES];
    for first in (0..pages).step_by(RUN_PAGES as usize) {
        let run = &mut bytes[..RUN_PAGES.min(pages - first) as usize * PAGE_BYTES];
        content::fill_run(first, run);
        object.write_at(crate::stage::offset(first), run)?;
    }
    Ok(store)
}
