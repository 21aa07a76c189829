//! Hits: one thread reads uniformly random places of cached pages, beside a bare gather from an array of the same size.
//!
//! The cache's frames are as large as asked for, and full. A store half as large again is read into them; the pages that are there
//! then are the ones that are read, so that no set is short of ways and every read is a hit: the counters are compared before and
//! after. The reference's array holds the same pages, one behind the other. Engine and reference walk
//! the same stream of indices; read `n` of the one and of the other have the same page and the same offset inside it.

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use octavo::disk::{AlignedBytes, Store};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, Read};

use crate::clock::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::machine::huge_pages_bytes;
use crate::reference::{AHEAD_SHORT, Array, Gather, UNIT_SHIFT, Walk};
use crate::report::{Detail, Row};
use crate::slices::{Plan, median, rate, take_turns};
use crate::{Error, Listener, Options};

/// Reads of one batch.
const BATCH: usize = 32;

/// Reads between two looks at the clock: a multiple of a batch that takes about 0.1 ms.
const TURN_SHORT: usize = 128 * BATCH;
const TURN_PAGES: usize = 8 * BATCH;

/// Indices in a stream: together they touch several times what a last-level cache holds.
const STREAM: usize = 1 << 22;

/// One case: what is read, and by which call.
struct Case {
    name: &'static str,
    read_bytes: usize,
    batch: usize,
}

const CASES: [Case; 4] = [
    Case { name: "single_128", read_bytes: 128, batch: 1 },
    Case { name: "batch_128", read_bytes: 128, batch: BATCH },
    Case { name: "single_4096", read_bytes: PAGE_BYTES, batch: 1 },
    Case { name: "batch_4096", read_bytes: PAGE_BYTES, batch: BATCH },
];

/// Runs the suite.
pub fn hits(options: &Options, listener: &mut dyn Listener) -> Result<(), Error> {
    options.validate()?;
    let memory_bytes = options.memory_bytes.unwrap_or(if options.quick { 64 << 20 } else { 1 << 30 });
    let field = Field::new(memory_bytes, listener)?;
    for case in &CASES {
        let row = field.run(case, options, listener)?;
        listener.row(&row);
    }
    Ok(())
}

/// A cache that is full, and an array with the same pages.
struct Field {
    /// Before the cache, which it is a part of.
    object: Object,
    partition: Partition,
    _cache: Cache,
    array: Array,
    /// The pages of the object that are cached. Page `n` of the array is a copy of page `resident[n]`.
    resident: Vec<u32>,
}

/// The same reads as places in the object and in the array, in units of `1 << UNIT_SHIFT` bytes.
struct Streams {
    object: Vec<u32>,
    array: Vec<u32>,
}

impl Field {
    fn new(memory_bytes: u64, listener: &mut dyn Listener) -> Result<Field, Error> {
        // Frames and 28 bytes of metadata for each, rounded up by less than a segment.
        let partition_bytes = memory_bytes + memory_bytes / 128 + (64 << 10);
        let buffers_bytes = 8 << 20;
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: partition_bytes + buffers_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            page_bytes: PAGE_BYTES as u32,
            ..CacheConfig::default()
        })?;
        let partition = cache.partition(PartitionConfig::new("bench"))?;
        listener.progress("filling the store");
        let pages = memory_bytes / PAGE_BYTES as u64 * 3 / 2;
        let object = partition.open(Store::memory("pages", pages * PAGE_BYTES as u64), "pages")?;
        write_content(&object, pages)?;
        listener.progress("filling the cache");
        let resident = resident_pages(&object, pages)?;
        listener.progress("filling the array");
        let mut array =
            Array::new(resident.len() * PAGE_BYTES).map_err(Error::at("an array of huge pages"))?;
        for (page, bytes) in resident.iter().zip(array.bytes_mut().chunks_exact_mut(PAGE_BYTES)) {
            content::fill(u64::from(*page), bytes);
        }
        Ok(Field { object, partition, _cache: cache, array, resident })
    }

    /// Uniformly random reads of `len` bytes, at multiples of `len`.
    fn streams(&self, len: usize) -> Streams {
        let places = (PAGE_BYTES / len) as u64;
        let units = |page: u64, place: u64| ((page * places + place) * (len as u64 >> UNIT_SHIFT)) as u32;
        let mut streams = Streams { object: Vec::with_capacity(STREAM), array: Vec::with_capacity(STREAM) };
        for random in content::random(len as u64).take(STREAM) {
            let index = content::below(random, self.resident.len() as u64 * places);
            let (page, place) = (index / places, index % places);
            streams.array.push(units(page, place));
            streams.object.push(units(u64::from(self.resident[page as usize]), place));
        }
        streams
    }

    fn run(&self, case: &Case, options: &Options, listener: &mut dyn Listener) -> Result<Row, Error> {
        let streams = self.streams(case.read_bytes);
        let gather = Gather::new(&self.array, &streams.array, case.read_bytes);
        let turn = if case.read_bytes == PAGE_BYTES { TURN_PAGES } else { TURN_SHORT };
        let mut buffers = AlignedBytes::new(case.read_bytes * case.batch);
        let mut reference_buffers = AlignedBytes::new(case.read_bytes * case.batch);
        let time = options.time.unwrap_or(Duration::from_secs(9));
        let plan = Plan::new(options.quick, time, Duration::from_millis(120), 3);
        let before = self.partition.stat();
        let mut at = [0; 3];
        let [plain_at, prefetching_at, engine_at] = &mut at;
        let mut bare = |walk: Walk, at: &mut usize, time: Duration| {
            rate(Clock::Thread, time, || {
                let numbers = next_turn(at, turn);
                gather.copy(walk, numbers, &mut reference_buffers);
                Ok(turn as u64)
            })
        };
        let bare = std::cell::RefCell::new(&mut bare);
        let slices = take_turns(
            plan,
            &mut [
                &mut |time| bare.borrow_mut()(Walk::Plain, plain_at, time),
                &mut |time| bare.borrow_mut()(Walk::Prefetching, prefetching_at, time),
                &mut |time| self.engine(case, &streams, engine_at, turn, time, &mut buffers),
            ],
            |round| listener.progress(&format!("{}: round {} of {}", case.name, round + 1, plan.rounds)),
        )?;
        let after = self.partition.stat();
        self.check(case, &streams)?;
        let [plain, prefetching, engine] = &slices[..] else { unreachable!("three contestants") };
        let (walk, reference) = match median(plain) >= median(prefetching) {
            true => ("plain", plain),
            false => ("prefetching", prefetching),
        };
        let misses = after.misses - before.misses;
        if misses > 0 {
            listener.warning(&format!("{}: {misses} reads were no hits", case.name));
        }
        let memory_bytes = (self.resident.len() * PAGE_BYTES) as u64;
        let detail = Detail::Hits {
            read_bytes: case.read_bytes,
            batch: case.batch,
            memory_bytes,
            huge_pages_bytes: self.frames_huge_pages_bytes(listener)?,
            reference_huge_pages_bytes: huge_pages_bytes(self.array.address()).0,
            reference_walk: walk,
            reference_plain_ops_per_s: median(plain),
            reference_prefetching_ops_per_s: median(prefetching),
            hits: after.hits - before.hits,
            misses,
        };
        Ok(Row::new(("hits", case.name), Clock::Thread, after.policy, (engine, reference), detail))
    }

    /// A slice of the engine.
    fn engine(
        &self,
        case: &Case,
        streams: &Streams,
        at: &mut usize,
        turn: usize,
        time: Duration,
        buffers: &mut [u8],
    ) -> Result<f64, Error> {
        let offset = |place: u32| u64::from(place) << UNIT_SHIFT;
        if case.batch == 1 {
            return rate(Clock::Thread, time, || {
                for place in &streams.object[next_turn(at, turn)] {
                    self.object.read_at(offset(*place), buffers)?;
                    black_box(buffers.as_mut_ptr());
                }
                Ok(turn as u64)
            });
        }
        let chunks = buffers.chunks_exact_mut(case.read_bytes);
        let mut reads: Vec<Read<'_>> = chunks.map(|buffer| Read { offset: 0, buffer }).collect();
        rate(Clock::Thread, time, || {
            for places in streams.object[next_turn(at, turn)].chunks_exact(case.batch) {
                for (read, place) in reads.iter_mut().zip(places) {
                    read.offset = offset(*place);
                }
                self.object.read_batch(&mut reads)?;
                black_box(reads.as_mut_ptr());
            }
            Ok(turn as u64)
        })
    }

    /// Some reads of the same stream by the same calls, every byte of them checked, in the array too.
    fn check(&self, case: &Case, streams: &Streams) -> Result<(), Error> {
        let mut bytes = AlignedBytes::new(case.read_bytes * case.batch);
        let mut reference = AlignedBytes::new(case.read_bytes * case.batch);
        let gather = Gather::new(&self.array, &streams.array, case.read_bytes);
        for at in (0..1024 * case.batch).step_by(case.batch) {
            let places = &streams.object[at..at + case.batch];
            let chunks = bytes.chunks_exact_mut(case.read_bytes).zip(places);
            let mut reads: Vec<Read<'_>> = chunks
                .map(|(buffer, place)| Read { offset: u64::from(*place) << UNIT_SHIFT, buffer })
                .collect();
            match &mut reads[..] {
                [read] => self.object.read_at(read.offset, read.buffer)?,
                reads => self.object.read_batch(reads)?,
            }
            gather.copy(Walk::Plain, at..at + case.batch, &mut reference);
            for (bytes, place) in bytes.chunks_exact(case.read_bytes).zip(places) {
                let offset = (*place as usize) << UNIT_SHIFT;
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
    fn frames_huge_pages_bytes(&self, listener: &mut dyn Listener) -> Result<u64, Error> {
        let offset = u64::from(self.resident[0]) * PAGE_BYTES as u64;
        let Some(pin) = self.object.pin(offset)? else { return Ok(0) };
        let (huge, resident) = huge_pages_bytes(pin.as_ptr().addr());
        if huge < resident / 100 * 95 {
            listener.warning(&format!(
                "only {} of {} MiB of the cache are on huge pages",
                huge >> 20,
                resident >> 20
            ));
        }
        Ok(huge)
    }
}

/// The next `turn` reads of a stream, from its start again near the end: what prefetches look ahead at is inside, too.
fn next_turn(at: &mut usize, turn: usize) -> Range<usize> {
    if *at + turn + AHEAD_SHORT > STREAM {
        *at = 0;
    }
    let numbers = *at..*at + turn;
    *at += turn;
    numbers
}

/// Gives every page of the object content of its own, by writes.
fn write_content(object: &Object, pages: u64) -> Result<(), Error> {
    const RUN_PAGES: u64 = 64;
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

/// Brings in as much as there is room for, and lists what is there then: reads of it are hits, and hits evict nothing.
fn resident_pages(object: &Object, pages: u64) -> Result<Vec<u32>, Error> {
    let mut byte = [0; 8];
    let offset = |page: u32| u64::from(page) * PAGE_BYTES as u64;
    for page in 0..pages as u32 {
        object.read_at(offset(page), &mut byte)?;
    }
    Ok((0..pages as u32).filter(|page| object.is_resident(offset(*page))).collect())
}
