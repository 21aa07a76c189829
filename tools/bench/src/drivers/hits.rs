//! Hits: threads read (and write) random places of cached pages, beside bare loops over an array of
//! the same size.
//!
//! The cache's frames are as large as asked for, and full. A store half as large again is read into
//! them; the pages that are there then are the ones that are read, so that no set is short of ways
//! and every read is a hit: the counters are compared before and after. The reference's array holds
//! the same pages, one behind the other. Engine and reference walk the same stream of indices; read
//! `n` of the one and of the other have the same page and the same offset inside it. Threads share
//! a stream and begin at places of their own.
//!
//! Writes put the bytes back that are there. With them the cache has no cleaner and no bound on
//! dirty pages, so that they end in pages: what they cost beside is write-back's affair.

mod looks;

use std::borrow::Cow;
use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, Read};

use crate::case::{Call, Case, Value};
use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::machine::huge_pages_bytes;
use crate::reference::{AHEAD_SHORT, Array, Gather, UNIT_SHIFT, Walk};
use crate::report::Row;
use crate::rival::{Places, Rival, RivalTeam, Room};
use crate::statistics::Histogram;
use crate::turns::{Team, Worker, timed};
use crate::{Error, Options, stream};

/// Who can run.
pub const CONTESTANTS: &[&str] = &[
    "octavo",
    "octavo-own-page",
    "plain",
    "prefetching",
    "line",
    "words",
    "pin",
    "read",
    "pin-batch",
    "read-batch",
];

/// Those of them that write.
const WRITERS: &[&str] = &["octavo", "octavo-own-page", "words"];

/// What the stage depends on.
pub const SCENERY: &[&str] = &["memory", "policy", "mode", "reads"];

/// Reads between two looks at the clock: a multiple of a batch that takes about 0.1 ms.
const TURN_SHORT: usize = 4096;
const TURN_PAGES: usize = 256;

/// Indices in a stream: together they touch several times what a last-level cache holds.
const STREAM: usize = 1 << 22;
const STREAM_QUICK: usize = 1 << 17;

/// Less has no huge page to speak of.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Places are kept as multiples of 128 bytes, with a bit to spare.
const MEMORY_BYTES_MAX: u64 = 64 << 30;

/// The bit of a place that says that it is written.
const WRITES: u32 = 1 << 31;

/// Whether a case can be run; the error is a sentence.
pub fn check(case: &Case) -> Result<(), String> {
    if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&case.memory.0) {
        return Err(format!(
            "memory of {} bytes: {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX} are possible",
            case.memory.0
        ));
    }
    let looks = case.contestants.iter().all(|name| looks::NAMES.contains(&&**name));
    match case.bytes.0 {
        128 | 4096 => {}
        256 | 512 | 1024 | 2048 if looks => {}
        bytes => {
            let looking = looks::NAMES.join(", ");
            return Err(format!(
                "bytes = {bytes}: hits are of 128 or 4096 bytes; of {looking} of 256 to 2048 too"
            ));
        }
    }
    if !TURN_PAGES.is_multiple_of(case.batch.0) || !case.batch.0.is_power_of_two() {
        return Err(format!("batch = {}: a power of two up to {TURN_PAGES} is possible", case.batch.0));
    }
    match case.call {
        Call::Queue => Err("hits are asked for by single, batch, pin or pin-batch".into()),
        Call::Batch | Call::Pin | Call::PinBatch if case.reads.0 < 100 => {
            Err("only single calls write".into())
        }
        _ if case.reads.0 < 100 && case.contestants.iter().any(|name| !WRITERS.contains(&&**name)) => {
            Err(format!("who writes is {}", WRITERS.join(", ")))
        }
        _ => Ok(()),
    }
}

/// A cache that is full, and an array with the same pages.
pub struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    array: Array,
    /// The pages of the object that are cached. Page `n` of the array is a copy of page
    /// `resident[n]`.
    resident: Vec<u32>,
}

/// The same operations as places in the object and in the array, in units of `1 << UNIT_SHIFT`
/// bytes.
struct Streams {
    object: Vec<u32>,
    array: Vec<u32>,
}

impl Field {
    /// Fills a cache and an array.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        let memory_bytes = case.memory.0;
        // Frames and 28 bytes of metadata for each, rounded up by less than a segment.
        let partition_bytes = memory_bytes + memory_bytes / 128 + (64 << 10);
        let buffers_bytes = 8 << 20;
        let writes = case.reads.0 < 100;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: partition_bytes + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            page_bytes: PAGE_BYTES as u32,
            background: !writes,
            ..CacheConfig::default()
        })?;
        let partition = cache.partition(PartitionConfig {
            policy: case.policy.0,
            cache_mode: case.mode.0,
            dirty_max_bytes: writes.then_some(u64::MAX),
            ..PartitionConfig::new("bench")
        })?;
        run.news(case, "filling the store");
        let pages = memory_bytes / PAGE_BYTES as u64 * 3 / 2;
        let store = Store::memory("pages", pages * PAGE_BYTES as u64);
        write_content(&store, pages)?;
        run.news(case, "filling the cache");
        let object = partition.open(store, "pages")?;
        let resident = resident_pages(&object, pages)?;
        run.news(case, "filling the array");
        let mut array =
            Array::new(resident.len() * PAGE_BYTES).map_err(Error::at("an array of huge pages"))?;
        for (page, bytes) in resident.iter().zip(array.bytes_mut().chunks_exact_mut(PAGE_BYTES)) {
            content::fill(u64::from(*page), bytes);
        }
        Ok(Field { object, partition, _cache: cache, array, resident })
    }

    /// Operations of `len` bytes, at multiples of `len`, in pages of the case's pattern.
    fn streams(&self, case: &Case, count: usize) -> Result<Streams, Error> {
        let len = case.bytes.0 as usize;
        let places = (PAGE_BYTES / len) as u64;
        let units = |page: u64, place: u64| ((page * places + place) * (len as u64 >> UNIT_SHIFT)) as u32;
        let mut streams = Streams { object: Vec::with_capacity(count), array: Vec::with_capacity(count) };
        let pages = stream::pages(&case.workload, self.resident.len() as u64, len as u64)?;
        // Not the generator's own numbers: with one seed for both, each page had one place, and the array
        // shrank to a line of each page.
        for (page, random) in pages.take(count).zip(content::random(content::mix(len as u64 + 1))) {
            // A pattern may have pages of its own, beyond those asked for; they fall on others.
            let page = page % self.resident.len() as u64;
            let place = content::below(random, places);
            let writes =
                if content::below(content::mix(random), 100) >= case.reads.0.into() { WRITES } else { 0 };
            streams.array.push(units(page, place) | writes);
            streams.object.push(units(u64::from(self.resident[page as usize]), place) | writes);
        }
        Ok(streams)
    }

    /// The contestant of a name.
    fn team<'t>(
        &'t self,
        name: &'t str,
        case: &'t Case,
        streams: &'t Streams,
        options: &Options,
    ) -> Result<Box<dyn Team + 't>, Error> {
        if let Some(rival) = options.rivals.iter().find(|rival| rival.name() == name) {
            return self.rival(&**rival, name, case, streams, options);
        }
        let bare = |walk| Box::new(Bare { name, field: self, case, streams, walk });
        if looks::NAMES.contains(&name) {
            return Ok(Box::new(looks::Looking { name, field: self, case, streams }));
        }
        Ok(match name {
            "plain" => bare(Some(Walk::Plain)),
            "prefetching" => bare(Some(Walk::Prefetching)),
            "line" | "words" => bare(None),
            name => Box::new(Engine { name, field: self, case, streams }),
        })
    }

    /// A cache of somebody else's with the same pages. It counts pages and not what they take, and
    /// gets a quarter more room, so that none of its parts is short of it.
    fn rival<'t>(
        &'t self,
        rival: &dyn Rival,
        name: &'t str,
        case: &'t Case,
        streams: &'t Streams,
        options: &Options,
    ) -> Result<Box<dyn Team + 't>, Error> {
        let pages = self.resident.len() as u64;
        let mut path = options.file.clone().into_os_string();
        path.push(".rival");
        let fill = |page: u64, bytes: &mut [u8]| content::fill(self.resident[page as usize].into(), bytes);
        let room = Room::new(path.into(), pages, pages + pages / 4, fill)?;
        let cache = rival.open(&room)?;
        let places = move |thread| {
            let at = begin(thread, case.threads.0, streams.array.len());
            Ok(Places::stream(&streams.array, at, turn_of(case), case.bytes.0 as usize))
        };
        // Some pages of the stream, every byte of them.
        let drawn = stream::pages(&case.workload, pages, 9)?;
        let mut checker = cache.worker(Places::named(drawn, name, &self.resident))?;
        (0..64).try_for_each(|_| checker.turn(None).map(drop))?;
        drop(checker);
        Ok(Box::new(RivalTeam { name, cache, places }))
    }

    /// Some reads of the same stream by the same calls, every byte of them checked, in the array
    /// too.
    fn check(&self, case: &Case, streams: &Streams) -> Result<(), Error> {
        // The references know two lengths; places of another one begin where shorter ones do.
        let len = if case.bytes.0 as usize == PAGE_BYTES { PAGE_BYTES } else { 128 };
        let batch = if case.call == Call::Batch { case.batch.0 } else { 1 };
        let mut bytes = AlignedBytes::new(len * batch);
        let mut reference = AlignedBytes::new(len * batch);
        let array: Vec<u32> = streams.array.iter().map(|place| place & !WRITES).collect();
        let gather = Gather::new(&self.array, &array, len);
        for at in (0..1024 * batch).step_by(batch) {
            let places = streams.object[at..at + batch].iter().map(|place| place & !WRITES);
            let chunks = bytes.chunks_exact_mut(len).zip(places.clone());
            let mut reads: Vec<Read<'_>> = chunks
                .map(|(buffer, place)| Read { offset: u64::from(place) << UNIT_SHIFT, buffer })
                .collect();
            match &mut reads[..] {
                [read] => self.object.read_at(read.offset, read.buffer)?,
                reads => self.object.read_batch(reads)?,
            }
            gather.copy(Walk::Plain, at..at + batch, &mut reference);
            for (bytes, place) in bytes.chunks_exact(len).zip(places) {
                let offset = (place as usize) << UNIT_SHIFT;
                if !content::is_right((offset / PAGE_BYTES) as u64, offset % PAGE_BYTES, bytes) {
                    return Err(Error::new(format!("{}: wrong bytes at offset {offset}", case.name)));
                }
            }
            if bytes[..] != reference[..] {
                return Err(Error::new(format!("{}: engine and reference read different bytes", case.name)));
            }
        }
        Ok(())
    }

    /// Bytes of huge pages of the mapping that the frames lie in; says so if they are few.
    fn frames_huge_pages_bytes(&self, run: &mut Run<'_>) -> Result<u64, Error> {
        let offset = u64::from(self.resident[0]) * PAGE_BYTES as u64;
        let Some(pin) = self.object.pin(offset)? else { return Ok(0) };
        let (huge, resident) = huge_pages_bytes(pin.as_ptr().addr());
        if huge < resident / 100 * 95 {
            run.listener.warning(&format!(
                "only {} of {} MiB of the cache are on huge pages",
                huge >> 20,
                resident >> 20
            ));
        }
        Ok(huge)
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        run.news(case, "drawing places");
        let streams = self.streams(case, if run.options.quick { STREAM_QUICK } else { STREAM })?;
        let teams: Vec<_> = {
            let contestants = case.contestants.iter();
            contestants.map(|name| self.team(name, case, &streams, run.options)).collect::<Result<_, _>>()?
        };
        let teams: Vec<&dyn Team> = teams.iter().map(|team| &**team).collect();
        // Other programs do not count for one thread that never waits. Threads side by side wait for each
        // other.
        let clock = if case.threads.0 == 1 { Clock::Thread } else { Clock::Wall };
        let plan = run.plan(case, (9.0, Duration::from_millis(120), clock), teams.len());
        let before = self.partition.stat();
        let slices = run.compete(case, plan, &teams)?;
        let after = self.partition.stat();
        self.check(case, &streams)?;
        let misses = after.misses - before.misses;
        if misses > 0 {
            run.listener.warning(&format!("{}: {misses} reads were no hits", case.name));
        }
        let mut row = Row::new(run.suite, case);
        row.compare(case, plan, &teams, &slices);
        row.count("hits", after.hits - before.hits);
        row.count("misses", misses);
        row.count("memory_bytes", (self.resident.len() * PAGE_BYTES) as u64);
        row.count("huge_pages_bytes", self.frames_huge_pages_bytes(run)?);
        row.count("reference_huge_pages_bytes", huge_pages_bytes(self.array.address()).0);
        if let Some(walk @ ("plain" | "prefetching")) = row.reference.as_deref() {
            let walk = Value::Text(walk.into());
            row.fact("reference_walk", walk);
        }
        Ok(vec![row])
    }
}

// ---- The engine
// ---------------------------------------------------------------------------------------------------

struct Engine<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
    streams: &'t Streams,
}

impl Team for Engine<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let mut places = Cow::Borrowed(&self.streams.object[..]);
        if self.name == "octavo-own-page" {
            // The same places of a page, in a page that no other thread reads.
            let resident = &self.field.resident;
            let page = u64::from(resident[(thread + 1) % resident.len()]) * (PAGE_BYTES as u64 >> UNIT_SHIFT);
            let in_page = (PAGE_BYTES >> UNIT_SHIFT) as u32 - 1;
            places.to_mut().iter_mut().for_each(|place| *place = page as u32 | *place & (in_page | WRITES));
        }
        Ok(Box::new(EngineThread {
            object: self.field.object.clone(),
            case: self.case,
            at: begin(thread, self.case.threads.0, self.streams.object.len()),
            buffers: AlignedBytes::new(self.case.bytes.0 as usize * self.case.batch.0),
            places,
        }))
    }
}

struct EngineThread<'t> {
    object: Object,
    case: &'t Case,
    places: Cow<'t, [u32]>,
    at: usize,
    buffers: AlignedBytes,
}

fn offset(place: u32) -> u64 {
    u64::from(place & !WRITES) << UNIT_SHIFT
}

impl Worker for EngineThread<'_> {
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error> {
        let numbers = next_turn(&mut self.at, turn_of(self.case), self.places.len());
        let places = &self.places[numbers];
        let len = self.case.bytes.0 as usize;
        match (self.case.call, times) {
            (Call::Single, None) if self.case.reads.0 == 100 => {
                let buffer = &mut self.buffers[..len];
                for place in places {
                    self.object.read_at(u64::from(*place) << UNIT_SHIFT, buffer)?;
                    black_box(buffer.as_mut_ptr());
                }
            }
            (Call::Single, times) => mixed(&self.object, places, &mut self.buffers[..len], times)?,
            (Call::Pin, None) => {
                for place in places {
                    let offset = u64::from(*place) << UNIT_SHIFT;
                    black_box(self.object.pin(offset & !(PAGE_BYTES as u64 - 1))?);
                }
            }
            (Call::Pin, Some(times)) => {
                for place in places {
                    let offset = offset(*place) & !(PAGE_BYTES as u64 - 1);
                    timed(times, || self.object.pin(offset).map(drop))?;
                }
            }
            (Call::PinBatch, _) => {
                let (mut offsets, mut pins) = (Vec::new(), Vec::new());
                for places in places.chunks_exact(self.case.batch.0) {
                    offsets.clear();
                    offsets.extend(places.iter().map(|place| offset(*place) & !(PAGE_BYTES as u64 - 1)));
                    self.object.pin_batch(&offsets, &mut pins)?;
                    black_box(&mut pins).clear();
                }
            }
            (Call::Batch | Call::Queue, _) => {
                let chunks = self.buffers.chunks_exact_mut(len);
                let mut reads: Vec<Read<'_>> = chunks.map(|buffer| Read { offset: 0, buffer }).collect();
                for places in places.chunks_exact(self.case.batch.0) {
                    for (read, place) in reads.iter_mut().zip(places) {
                        read.offset = u64::from(*place) << UNIT_SHIFT;
                    }
                    self.object.read_batch(&mut reads)?;
                    black_box(reads.as_mut_ptr());
                }
            }
        }
        Ok(places.len() as u64)
    }
}

/// Reads, and writes that put back what is there.
fn mixed(
    object: &Object,
    places: &[u32],
    buffer: &mut [u8],
    mut times: Option<&mut Histogram>,
) -> Result<(), Error> {
    for place in places {
        let offset = offset(*place);
        if place & WRITES != 0 {
            content::fill_part(offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES, buffer);
        }
        let mut operation = || match place & WRITES != 0 {
            true => object.write_at(offset, buffer),
            false => object.read_at(offset, buffer),
        };
        match &mut times {
            Some(times) => timed(times, operation)?,
            None => operation()?,
        }
        black_box(buffer.as_mut_ptr());
    }
    Ok(())
}

// ---- The references
// -----------------------------------------------------------------------------------------------

struct Bare<'t> {
    name: &'t str,
    field: &'t Field,
    case: &'t Case,
    streams: &'t Streams,
    /// None: what the name says.
    walk: Option<Walk>,
}

impl Team for Bare<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let len = self.case.bytes.0 as usize;
        let buffers = if self.case.call == Call::Batch { self.case.batch.0 } else { 1 };
        Ok(Box::new(BareThread {
            team: self,
            gather: (self.name != "words").then(|| Gather::new(&self.field.array, &self.streams.array, len)),
            at: begin(thread, self.case.threads.0, self.streams.object.len()),
            buffers: AlignedBytes::new(len * buffers),
        }))
    }
}

struct BareThread<'t> {
    team: &'t Bare<'t>,
    gather: Option<Gather<'t>>,
    at: usize,
    buffers: AlignedBytes,
}

impl Worker for BareThread<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let turn = turn_of(self.team.case);
        let numbers = next_turn(&mut self.at, turn, self.team.streams.array.len());
        match (self.team.walk, &self.gather) {
            (Some(walk), Some(gather)) => gather.copy(walk, numbers, &mut self.buffers),
            (None, Some(gather)) => gather.lines(numbers),
            (_, None) => self.words(numbers),
        }
        Ok(turn as u64)
    }
}

impl BareThread<'_> {
    fn words(&mut self, numbers: Range<usize>) {
        let (array, resident) = (&self.team.field.array, &self.team.field.resident);
        for place in &self.team.streams.array[numbers] {
            let (offset, buffer) = (offset(*place) as usize, &mut self.buffers[..]);
            match place & WRITES != 0 {
                true => {
                    let page = u64::from(resident[offset / PAGE_BYTES]);
                    content::fill_part(page, offset % PAGE_BYTES, buffer);
                    array.write_words(offset, buffer);
                }
                false => array.read_words(offset, buffer),
            }
            black_box(buffer.as_mut_ptr());
        }
    }
}

// ---- Streams and pages
// --------------------------------------------------------------------------------------------

fn turn_of(case: &Case) -> usize {
    if case.bytes.0 as usize == PAGE_BYTES { TURN_PAGES } else { TURN_SHORT }
}

/// Where a thread begins in the stream: as far as can be from the others.
fn begin(thread: usize, threads: usize, count: usize) -> usize {
    (count / threads * thread) & !(TURN_SHORT - 1)
}

/// The next `turn` reads of a stream, from its start again near the end: what prefetches look ahead
/// at is inside, too.
fn next_turn(at: &mut usize, turn: usize, count: usize) -> Range<usize> {
    if *at + turn + AHEAD_SHORT > count {
        *at = 0;
    }
    let numbers = *at..*at + turn;
    *at += turn;
    numbers
}

/// Gives every page of the store content of its own, by writes through a small cache.
pub fn write_content(store: &Store, pages: u64) -> Result<(), Error> {
    const RUN_PAGES: u64 = 64;
    let cache = Cache::new(CacheConfig { memory_max_bytes: 8 << 20, ..CacheConfig::default() })?;
    let partition = cache.partition(PartitionConfig::new("writer"))?;
    let object = partition.open(store.clone(), "pages")?;
    let mut bytes = vec![0; RUN_PAGES as usize * PAGE_BYTES];
    for first in (0..pages).step_by(RUN_PAGES as usize) {
        let run = &mut bytes[..RUN_PAGES.min(pages - first) as usize * PAGE_BYTES];
        for (page, bytes) in (first..).zip(run.chunks_exact_mut(PAGE_BYTES)) {
            content::fill(page, bytes);
        }
        object.write_at(first * PAGE_BYTES as u64, run)?;
    }
    Ok(())
}

/// Brings in as much as there is room for, and lists what is there then: reads of it are hits, and
/// hits evict nothing.
fn resident_pages(object: &Object, pages: u64) -> Result<Vec<u32>, Error> {
    let mut byte = [0; 8];
    let offset = |page: u32| u64::from(page) * PAGE_BYTES as u64;
    for page in 0..pages as u32 {
        object.read_at(offset(page), &mut byte)?;
    }
    Ok((0..pages as u32).filter(|page| object.is_resident(offset(*page))).collect())
}
