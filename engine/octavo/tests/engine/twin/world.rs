//! A cache whose configuration comes from a seed, and the random operations on it.

use super::disk::Disk;
use super::model::{Mark, Twin};
use crate::fixture::{batch_at, bytes_at, scene, small};
use crate::foreign::{bytes_of, memory_with, read_somehow, write_somehow};
use octavo::disk::{SimFaults, SimOptions, Store};
use octavo::numa::{NumaMode, Replication, TopologySource, sit};
use octavo::{
    Advice, Cache, CacheConfig, CacheMode, Completion, Error, Object, Op, OwnedPin, Partition,
    PartitionConfig, Pin, PolicyName, Queue, Read, Request, WAYS,
};
use octavo_random::Random;
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The longest wait for the number of a closed object.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest length of an object.
const LEN_MAX: u64 = 160 << 10;

pub struct World {
    random: Random,
    disk: Disk,
    cache: Cache,
    partitions: Vec<Partition>,
    queue: Queue,
    objects: Vec<Object>,
    twins: Vec<Twin>,
    /// Bytes of a segment of each partition.
    segments: [u64; 2],
    faulty: bool,
    /// Syncs of the store may fail.
    sync_faults: bool,
    /// The seats that the one thread takes in turn when nodes have copies.
    seats: u64,
    /// Bytes of buffers in use while no request is in flight.
    buffers_bytes: u64,
    /// Owned pins with their bytes. They outlive epochs, objects and crashes.
    owned: Vec<(OwnedPin, Vec<u8>)>,
    /// Pages of which a pin was leaked.
    leaked: u64,
    steps_left: u64,
    /// Print each step.
    pub traced: bool,
}

/// A request in flight in the queue.
struct Flight {
    object: usize,
    range: Range<u64>,
    changes: bool,
    mark: Option<Mark>,
    /// A sync of the store has failed in the meantime: bytes of this write may be lost.
    doubtful: bool,
}

impl World {
    pub fn new(mut random: Random, (numa, topology): (NumaMode, TopologySource), is_threaded: bool) -> World {
        let page_bytes = random.pick(&[4096, 4096, 16384]);
        let segment_bytes = page_bytes * WAYS as u64 * random.pick(&[1, 1, 2]);
        // Some partitions have pages of their own size, and segments to match.
        let own: [Option<u64>; 2] = [(); 2].map(|()| match random.below(12) {
            0 | 1 => Some(4096),
            2 | 3 => Some(65536),
            4 => Some(1 << 20),
            _ => None,
        });
        let pages = own.map(|own| own.unwrap_or(page_bytes));
        let segments = pages.map(|page| segment_bytes.max(page * WAYS as u64));
        let most_bytes = segments[0].max(segments[1]);
        let options = SimOptions {
            seed: random.next_u64(),
            latency_ticks: 1..=random.pick(&[1, 10, 100]),
            reorder: !random.one_in(4),
            block_bytes: random.pick(&[512, 4096]),
            ..SimOptions::default()
        };
        let disk = Disk::new(options, is_threaded);
        let buffers_bytes = random.pick(&[128 << 10, 192 << 10, 1 << 20]);
        // Workers have rings of their own.
        let works = matches!(numa, NumaMode::Message | NumaMode::Auto);
        let buffers_bytes = buffers_bytes + if works { 128 << 10 } else { 0 };
        // A pool of bounce pages for each size.
        let buffers_bytes = buffers_bytes + own.iter().flatten().map(|page| 4 * page).sum::<u64>();
        let config = CacheConfig {
            memory_max_bytes: buffers_bytes + 8 * (most_bytes + (24 << 10)),
            page_bytes: page_bytes as u32,
            segment_bytes,
            buffers_max_bytes: Some(buffers_bytes),
            background: false,
            seed: Some(random.next_u64()),
            pages_meet: random.one_in(4),
            topology,
            numa,
            ..CacheConfig::default()
        };
        let seats = if matches!(numa, NumaMode::Replicate | NumaMode::Auto) { 8 } else { 1 };
        sit(0);
        let replication = Replication {
            threshold: random.pick(&[1, 1, 3]),
            refresh: !random.one_in(4),
            elect: !random.one_in(4),
            yields: !random.one_in(4),
            switch_writes: random.pick(&[0, 1, 1, 2]),
            weighs: random.one_in(2),
        };
        let config = if seats > 1 { CacheConfig { replication, ..config } } else { config };
        let cache = Cache::new(config).unwrap();
        let mode = random.pick(&[CacheMode::Writethrough, CacheMode::Writeback, CacheMode::Writeback]);
        let count = 1 + random.below(2);
        let partitions: Vec<Partition> = (0..count)
            .map(|number| {
                let (page_bytes, segment_bytes) = (pages[number as usize], segments[number as usize]);
                let segments = 1 + random.below(4);
                let config = PartitionConfig {
                    cache_mode: mode,
                    page_bytes: own[number as usize].map(|page| page as u32),
                    policy: random.pick(&PolicyName::ALL),
                    max_bytes: Some(segments * (segment_bytes + 1024) + (20 << 10)),
                    dirty_max_bytes: random.pick(&[None, Some(0), Some(3 * page_bytes), Some(1 << 30)]),
                    ..PartitionConfig::new(&format!("partition {number}"))
                };
                let partition = cache.partition(config).unwrap();
                // Three objects, and one that is being replaced: each reopening takes a number that
                // was another's.
                partition.limit_numbers(4);
                partition
            })
            .collect();
        let queue = cache.queue().unwrap();
        let mut world = World {
            random,
            disk,
            cache,
            partitions,
            queue,
            objects: Vec::new(),
            twins: Vec::new(),
            segments,
            faulty: false,
            sync_faults: false,
            buffers_bytes: 0,
            steps_left: 0,
            seats,
            owned: Vec::new(),
            leaked: 0,
            traced: false,
        };
        for number in 0..1 + world.random.below(3) as usize {
            let len = 1 + world.random.below(LEN_MAX);
            let object = world.open(number, len);
            world.objects.push(object);
            world.twins.push(Twin::new(len, LEN_MAX));
        }
        // The first batch that misses makes this thread's ring; a single read may need none.
        world.objects[0].read_batch(&mut [Read { offset: 0, buffer: &mut [0] }]).unwrap();
        world.buffers_bytes = world.cache.stat().buffers_used_bytes;
        world
    }

    fn open(&self, number: usize, len: u64) -> Object {
        let store = self.disk.store(&format!("file {number}"), len);
        let partition = &self.partitions[number % self.partitions.len()];
        let began = Instant::now();
        loop {
            match partition.open(store.clone(), &format!("object {number}")) {
                Ok(object) => return object,
                // A worker may have a closed object a moment longer.
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    pub fn run(&mut self, steps: u64) {
        self.steps_left = steps;
        while self.steps_left > 0 {
            // The objects stay where they are while pins borrow from them.
            let objects = std::mem::take(&mut self.objects);
            let mut epoch = Epoch { objects: &objects, ..Epoch::default() };
            epoch.run(self);
            epoch.end(self);
            let crash = epoch.crash;
            drop(epoch);
            self.objects = objects;
            self.check_figures();
            match crash {
                true => self.reopen_after_crash(),
                false => self.reopen_some(),
            }
        }
    }

    /// Checks all bytes of every object, and that all memory is returned. Returns the hash of the
    /// disk's events.
    pub fn end(mut self) -> u64 {
        self.disk.set_faults(SimFaults::default());
        self.faulty = false;
        for number in 0..self.objects.len() {
            if self.twins[number].failed {
                self.reopen(number);
            }
            let (object, twin) = (&self.objects[number], &mut self.twins[number]);
            let mark = twin.mark();
            object.sync().unwrap();
            twin.synced(&mark, 0, LEN_MAX);
            twin.read(0, &bytes_at(object, 0, object.len_bytes()));
            twin.crashed(&self.disk.image(&format!("file {number}")));
            assert_eq!(object.stat().dirty_bytes, 0);
        }
        assert!(self.partitions.iter().all(|partition| partition.stat().dirty_bytes == 0));
        for object in &self.objects {
            object.close().unwrap();
            assert!(object.read_at(0, &mut [0]).is_err());
        }
        assert!(self.partitions.iter().all(|partition| partition.stat().resident_bytes == 0));
        self.check_leaks();
        assert_eq!(self.cache.stat().buffers_used_bytes, self.buffers_bytes);
        // Pins outlive the cache.
        let World { cache, partitions, queue, objects, owned, disk, .. } = self;
        drop((queue, objects, partitions, cache));
        assert!(owned.iter().all(|(pin, bytes)| pin[..] == bytes[..]), "a pin has changed");
        disk.history_digest()
    }

    /// Checks that pins, owned and leaked, keep their own pages and no other memory: without pages,
    /// the smallest size of a partition exceeds the one without pins by theirs alone.
    fn check_leaks(&mut self) {
        let page_bytes = self.partitions.iter().map(Partition::page_bytes).max().expect("one at least");
        let pinned = |world: &World| world.partitions.iter().map(|p| p.pinned_bytes()).sum::<u64>();
        let charged = |world: &World| {
            world.partitions.iter().map(|partition| partition.resize(1).unwrap()).sum::<u64>()
        };
        let most = (self.owned.len() as u64 + self.leaked) * page_bytes;
        assert!(pinned(self) <= most, "{} of {most}", pinned(self));
        let before = charged(self);
        for (pin, bytes) in self.owned.drain(1.min(self.owned.len())..) {
            assert!(pin[..] == bytes, "a pin has changed");
        }
        let (after, left) = (charged(self), pinned(self));
        assert!(after <= before && left <= (1 + self.leaked) * page_bytes, "{left} bytes are pinned");
        for (partition, segment_bytes) in self.partitions.iter().zip(self.segments) {
            assert_eq!(partition.stat().max_bytes, segment_bytes, "one segment is left");
        }
    }

    fn check_figures(&self) {
        let stat = self.cache.stat();
        assert!(stat.memory_charged_bytes <= stat.memory_max_bytes, "{stat:?}");
        assert_eq!(stat.buffers_used_bytes, self.buffers_bytes);
        for partition in &self.partitions {
            let stat = partition.stat();
            assert!(stat.resident_bytes <= stat.max_bytes, "{stat:?}");
            assert!(stat.dirty_bytes <= stat.resident_bytes, "{stat:?}");
            let objects = partition.objects();
            let dirty: u64 = objects.iter().map(|object| object.stat().dirty_bytes).sum();
            assert_eq!(stat.dirty_bytes, dirty, "{stat:?}");
        }
    }

    fn reopen_after_crash(&mut self) {
        for number in 0..self.objects.len() {
            self.objects[number].abandon();
            self.twins[number].crashed(&self.disk.image(&format!("file {number}")));
            self.open_again(number);
        }
        self.check_figures();
    }

    fn reopen_some(&mut self) {
        for number in 0..self.objects.len() {
            if self.twins[number].failed || self.random.one_in(3) {
                self.reopen(number);
            }
        }
        self.check_figures();
    }

    fn reopen(&mut self, number: usize) {
        let object = self.objects[number].clone();
        if !self.sync(number, 0..LEN_MAX, || object.close()) {
            object.abandon();
            self.twins[number].forget();
            self.twins[number].failed = false;
        }
        self.open_again(number);
    }

    fn open_again(&mut self, number: usize) {
        self.objects[number] = self.open(number, 0);
        assert_eq!(self.objects[number].len_bytes(), self.twins[number].len());
    }

    /// Returns whether a call has succeeded. It may fail only on a disk with faults.
    fn is_done<E: std::fmt::Display>(&self, result: &Result<(), E>) -> bool {
        result.as_ref().inspect_err(|error| assert!(self.faulty, "{error}")).is_ok()
    }

    /// The same of a sync of some bytes, which must fail on an object that has failed.
    fn sync(&mut self, number: usize, bytes: Range<u64>, sync: impl FnOnce() -> Result<(), Error>) -> bool {
        let twin = &mut self.twins[number];
        let mark = twin.mark();
        match sync() {
            Ok(()) => {
                assert!(!twin.failed, "a failed object cannot be synced");
                twin.synced(&mark, bytes.start, bytes.end);
                true
            }
            Err(error) => {
                assert!(self.faulty || twin.failed, "{error}");
                false
            }
        }
    }
}

/// A period in which no object is opened or closed.
#[derive(Default)]
struct Epoch<'o> {
    objects: &'o [Object],
    pins: Vec<(Pin<'o>, Vec<u8>)>,
    flights: HashMap<u64, Flight>,
    next_flight: u64,
    crash: bool,
}

impl<'o> Epoch<'o> {
    fn run(&mut self, world: &mut World) {
        let objects = self.objects;
        let length = 20 + world.random.below(400);
        for _ in 0..length.min(world.steps_left) {
            world.steps_left -= 1;
            let number = world.random.below(objects.len() as u64) as usize;
            let kind = world.random.below(100);
            if world.traced {
                eprintln!("{} steps left: object {number}, kind {kind}, {:?}", world.steps_left, world.disk);
            }
            self.step(world, &objects[number], number, kind);
        }
        self.crash = world.random.one_in(3) && world.disk.can_crash();
    }

    /// Completes everything in flight, possibly after a crash, and checks that pins still show
    /// their first bytes.
    fn end(&mut self, world: &mut World) {
        if self.crash {
            for _ in 0..world.random.below(20) {
                world.disk.step();
            }
            world.disk.crash();
            world.faulty = true;
        }
        while !self.flights.is_empty() {
            self.wait(world, 1);
        }
        assert_eq!(world.queue.pending(), 0);
        for (pin, bytes) in self.pins.drain(..) {
            assert!(pin[..] == bytes, "a pin has changed");
        }
        if self.crash {
            world.disk.set_faults(SimFaults::default());
            (world.faulty, world.sync_faults) = (false, false);
        }
    }

    fn step(&mut self, world: &mut World, object: &'o Object, number: usize, kind: u64) {
        if world.seats > 1 {
            sit(world.random.below(world.seats) as u32);
            // In mode `auto`: another strategy than the partition has chosen.
            if world.random.one_in(8) {
                let ways = [NumaMode::Partition, NumaMode::Message, NumaMode::Replicate];
                let way = world.random.pick(&ways);
                world.partitions.iter().for_each(|partition| partition.go_numa_way(way));
            }
        }
        match kind {
            0..20 => self.read(world, object, number),
            20..25 => self.read_batch(world, object, number),
            25..50 => self.write(world, object, number),
            50..60 => self.submit(world, object, number),
            60..65 => {
                let min = world.random.below(4) as usize;
                self.wait(world, min)
            }
            65..69 => self.sync(world, object, number),
            69..72 => sync_range(world, object, number),
            72..76 => self.clear(world, object, number),
            76..78 => self.set_len(world, object, number),
            78..82 => self.advise(world, object, number),
            82..85 => self.pin(world, object, number),
            85..87 => self.own(world, object, number),
            87..89 => self.unpin(world),
            89..91 => Self::disown(world),
            91..94 => self.resize(world),
            94..96 => _ = world.is_done(&world.cache.clean()),
            // The outcome of requests in flight is already decided.
            96 if self.flights.is_empty() => set_faults(world),
            98 => self.change_from_outside(world, object, number),
            97 => {
                let objects = object.stat().dirty_bytes;
                assert!(objects <= world.partitions.iter().map(|p| p.stat().dirty_bytes).sum());
            }
            _ => world.disk.step(),
        }
        self.notice(world);
    }

    /// A sync of the store may fail in any call that makes something durable.
    fn notice(&mut self, world: &mut World) {
        for (number, object) in self.objects.iter().enumerate().filter(|_| world.faulty) {
            let twin = &mut world.twins[number];
            if !twin.failed && object.stat().failed {
                twin.failed = true;
                twin.forget();
                let flights = self.flights.values_mut();
                flights.filter(|flight| flight.object == number).for_each(|flight| flight.doubtful = true);
            }
        }
    }

    /// A range of the object that no request in flight changes (nor reads, if it is to be changed).
    fn range(&self, world: &mut World, number: usize, changes: bool) -> Option<Range<u64>> {
        let end = world.twins[number].len();
        let page = self.objects[number].page_bytes();
        let random = &mut world.random;
        if end == 0 {
            return None;
        }
        let mut start = random.below(end);
        let len = match random.below(8) {
            0 => random.below(page * 12),
            1..3 => random.below(page * 3),
            3..5 => {
                start -= start % page;
                page * random.pick(&[1, 1, 1, 2, 5])
            }
            5 => end - start,
            _ => random.below(600),
        };
        let range = start..(start + len).min(end);
        let sectors = |range: &Range<u64>| range.start / 512..range.end.div_ceil(512);
        let conflicts = |flight: &Flight| {
            let (a, b) = (sectors(&flight.range), sectors(&range));
            flight.object == number && a.start < b.end && b.start < a.end && (changes || flight.changes)
        };
        (!self.flights.values().any(conflicts)).then_some(range)
    }

    fn read(&self, world: &mut World, object: &Object, number: usize) {
        let Some(range) = self.range(world, number, false) else { return };
        let mut bytes = vec![0xEE; (range.end - range.start) as usize];
        let result = read_somehow(&mut world.random, object, range.start, &mut bytes);
        if world.is_done(&result) {
            world.twins[number].read(range.start, &bytes);
        }
    }

    fn read_batch(&self, world: &mut World, object: &Object, number: usize) {
        let count = 1 + world.random.below(40);
        let ranges = (0..count).filter_map(|_| self.range(world, number, false));
        let ranges: Vec<_> = ranges.map(|range| (range.start, (range.end - range.start) as usize)).collect();
        let (result, read) = batch_at(object, &ranges);
        if world.is_done(&result) {
            let read = ranges.iter().zip(&read);
            read.for_each(|((offset, _), bytes)| world.twins[number].read(*offset, bytes));
        }
    }

    fn write(&self, world: &mut World, object: &Object, number: usize) {
        let Some(range) = self.range(world, number, true) else { return };
        let bytes = world.random.bytes((range.end - range.start) as usize);
        let result = write_somehow(&mut world.random, object, range.start, &bytes);
        let is_done = world.is_done(&result);
        world.twins[number].write(range.start, &bytes, is_done);
    }

    fn submit(&mut self, world: &mut World, object: &Object, number: usize) {
        let mut requests = Vec::new();
        for _ in 0..1 + world.random.below(24) {
            let kind = world.random.below(18);
            let changes = kind < 10;
            let Some(range) = self.range(world, number, changes) else { continue };
            let (offset, len) = (range.start, (range.end - range.start) as usize);
            let mut flight = Flight { object: number, range, changes, mark: None, doubtful: false };
            let op = match kind {
                0..8 => {
                    let (bytes, durable) = (world.random.bytes(len), world.random.one_in(5));
                    match world.random.one_in(2) {
                        true => Op::Write { offset, len, buffer: bytes.into(), durable },
                        false => {
                            let memory = memory_with(&mut world.random, bytes);
                            Op::WriteFrom { offset, memory, durable }
                        }
                    }
                }
                8 => Op::Discard { offset, len: len as u64, durable: world.random.one_in(5) },
                9 => Op::Zero { offset, len: len as u64, durable: world.random.one_in(5) },
                10..14 => Op::Read { offset, len, buffer: vec![0xEE; len].into() },
                14..17 => {
                    let memory = memory_with(&mut world.random, vec![0xEE; len]);
                    Op::ReadInto { offset, memory }
                }
                _ => {
                    flight.range = 0..0;
                    flight.mark = Some(world.twins[number].mark());
                    Op::Sync
                }
            };
            let user_data = self.next_flight;
            self.next_flight += 1;
            self.flights.insert(user_data, flight);
            requests.push(Request { op, user_data });
        }
        world.queue.submit(object, requests);
        // A sync that has failed on the disk but was not reported yet would let any read return
        // older bytes.
        while world.sync_faults && !self.flights.is_empty() {
            self.wait(world, 1);
        }
    }

    fn wait(&mut self, world: &mut World, min: usize) {
        let mut done: Vec<Completion> = Vec::new();
        match world.random.one_in(2) {
            true => {
                let count = world.queue.wait(min, |completion| done.push(completion));
                assert_eq!(count, done.len());
            }
            false => {
                done.extend((0..min).map_while(|_| world.queue.wait_next()));
                done.extend(std::iter::from_fn(|| world.queue.take_next()));
            }
        }
        self.notice(world);
        let World { twins, faulty, .. } = world;
        for Completion { user_data, op, result, .. } in done {
            let op = match op {
                Op::Discard { offset, len, durable } | Op::Zero { offset, len, durable } => {
                    let len = len as usize;
                    Op::Write { offset, len, buffer: vec![0; len].into(), durable }
                }
                Op::ReadInto { offset, memory } => {
                    Op::Read { offset, len: memory.len(), buffer: bytes_of(memory).into() }
                }
                Op::WriteFrom { offset, memory, durable } => {
                    Op::Write { offset, len: memory.len(), buffer: bytes_of(memory).into(), durable }
                }
                op => op,
            };
            let flight = self.flights.remove(&user_data).expect("every request ends once");
            let twin = &mut twins[flight.object];
            assert!(result.is_ok() || *faulty || twin.failed, "{result:?}");
            match op {
                Op::Read { offset, len, buffer } if result.is_ok() => twin.read(offset, &buffer[..len]),
                Op::Write { offset, len, buffer, durable } => {
                    twin.write(offset, &buffer[..len], result.is_ok());
                    if durable && result.is_ok() && len > 0 {
                        let mark = twin.mark();
                        twin.synced(&mark, offset.next_multiple_of(512), (offset + len as u64) & !511);
                    }
                }
                Op::Sync if result.is_ok() => {
                    twin.synced(&flight.mark.expect("a sync has a mark"), 0, LEN_MAX)
                }
                _ => {}
            }
            if flight.doubtful {
                twin.forget();
            }
        }
    }

    fn sync(&self, world: &mut World, object: &Object, number: usize) {
        if world.sync(number, 0..LEN_MAX, || object.sync()) {
            let quiet = self.flights.is_empty();
            assert!(!quiet || object.stat().dirty_bytes == 0);
        }
    }

    fn clear(&self, world: &mut World, object: &Object, number: usize) {
        let Some(range) = self.range(world, number, true) else { return };
        let len = range.end - range.start;
        let result = match world.random.below(4) {
            0 | 1 => object.discard(range.start, len),
            _ => object.zero(range.start, len),
        };
        let is_done = world.is_done(&result);
        world.twins[number].write(range.start, &vec![0; len as usize], is_done);
    }

    fn set_len(&self, world: &mut World, object: &Object, number: usize) {
        // The new length must not cut requests in flight.
        if self.flights.values().any(|flight| flight.object == number) {
            return;
        }
        let len = match world.random.below(3) {
            0 => world.random.below(LEN_MAX),
            1 => world.twins[number].len().saturating_sub(world.random.below(5000)),
            _ => (world.twins[number].len() + world.random.below(9000)).min(LEN_MAX),
        };
        match object.set_len_bytes(len) {
            Ok(()) => world.twins[number].set_len(len),
            Err(error) => {
                assert!(world.faulty, "{error}");
                // A change that fails at its sync may lose bytes of the store, also of an object
                // that failed before, and may still have taken effect.
                if matches!(&error, Error::Io { source, .. } if source.op() == octavo::disk::Op::Sync) {
                    world.twins[number].failed = true;
                    world.twins[number].forget();
                }
                if object.len_bytes() == len {
                    world.twins[number].set_len(len);
                }
            }
        }
        assert_eq!(object.len_bytes(), world.twins[number].len());
        assert_eq!(object.len_bytes(), object.store().len_bytes());
    }

    /// Changes the file through another handle, as another program would, and tells the cache.
    fn change_from_outside(&self, world: &mut World, object: &Object, number: usize) {
        let is_quiet = self.flights.values().all(|flight| flight.object != number);
        if !is_quiet || world.faulty || !world.sync(number, 0..LEN_MAX, || object.sync()) {
            return;
        }
        let store = world.disk.store(&format!("file {number}"), 0);
        let (len, twin) = (world.twins[number].len(), &mut world.twins[number]);
        match world.random.below(5) {
            // Another length.
            0 => {
                let new = world.random.below(LEN_MAX);
                store.set_len_bytes(new).unwrap();
                assert_eq!(object.adopt_len_bytes().unwrap(), new);
                twin.set_len(new);
            }
            // Another content, while pages of the old one are dirty.
            1 => {
                let dirty_before = world.random.bytes(3000.min(len as usize));
                object.write_at(0, &dirty_before).unwrap();
                // In write-back mode they never reach the store.
                twin.write(0, &dirty_before, false);
                let new = world.random.below(LEN_MAX);
                store.set_len_bytes(new).unwrap();
                let bytes = world.random.bytes(new as usize);
                write_outside(&store, 0, &bytes);
                object.start_generation().unwrap();
                assert_eq!((object.len_bytes(), object.stat().dirty_bytes), (new, 0));
                twin.set_len(new);
                twin.write(0, &bytes, true);
            }
            // Other bytes, in whole blocks.
            _ => {
                let start = world.random.below(len + 1) / 4096 * 4096;
                let range = start..(start + world.random.below(40_000)).min(len);
                if range.is_empty() {
                    return;
                }
                let bytes = world.random.bytes((range.end - range.start) as usize);
                let old = bytes_at(object, start, bytes.len() as u64);
                write_outside(&store, start, &bytes);
                let between = bytes_at(object, start, bytes.len() as u64);
                let is_one_of_both = |at: usize| between[at] == old[at] || between[at] == bytes[at];
                assert!((0..bytes.len()).all(is_one_of_both), "neither the old bytes nor the new ones");
                assert_eq!(object.invalidate(start, bytes.len() as u64).unwrap(), 0);
                twin.write(start, &bytes, true);
                twin.read(start, &bytes_at(object, start, bytes.len() as u64));
            }
        }
    }

    fn advise(&self, world: &mut World, object: &Object, number: usize) {
        let Some(range) = self.range(world, number, false) else { return };
        use Advice::{DontNeed, NoReuse, Normal, Random, Sequential, WillNeed};
        let advice = world.random.pick(&[Normal, Sequential, Random, WillNeed, DontNeed, DontNeed, NoReuse]);
        world.is_done(&object.advise(range.start, range.end - range.start, advice));
    }

    fn pin(&mut self, world: &mut World, object: &'o Object, number: usize) {
        let Some(range) = self.range(world, number, false) else { return };
        let page = object.page_bytes();
        let start = range.start - range.start % page;
        let end = (start + page).min(world.twins[number].len());
        let busy = |f: &Flight| f.object == number && f.changes && f.range.start < end && start < f.range.end;
        if self.pins.len() > 20 || self.flights.values().any(busy) {
            return;
        }
        let pinned = match self.pins.len() % 2 {
            0 => object.pin(range.start),
            _ => {
                let mut pins = Vec::new();
                object.pin_batch(&[range.start], &mut pins).map(|()| pins.pop().expect("one was asked for"))
            }
        };
        match pinned {
            Ok(Some(pin)) => {
                assert_eq!(pin.len() as u64, end - start);
                world.twins[number].read(start, &pin);
                let bytes = pin.to_vec();
                self.pins.push((pin, bytes));
            }
            Ok(None) => {}
            Err(error) => assert!(world.faulty, "{error}"),
        }
    }

    /// Takes an owned pin, which the world holds, converts a pin into one, or leaks one.
    fn own(&mut self, world: &mut World, object: &'o Object, number: usize) {
        let held = self.pins.len();
        self.pin(world, object, number);
        if self.pins.len() == held || world.owned.len() > 10 {
            return;
        }
        let (pin, bytes) = self.pins.pop().expect("one more than before");
        match world.random.below(40) {
            // Few, or all ways are leaked some day.
            0 if world.leaked < 4 => {
                world.leaked += 1;
                std::mem::forget(pin);
            }
            1 if world.leaked < 4 => {
                world.leaked += 1;
                std::mem::forget(pin.into_owned());
            }
            _ => world.owned.push((pin.into_owned(), bytes)),
        }
    }

    /// Drops one of the owned pins.
    fn disown(world: &mut World) {
        if !world.owned.is_empty() {
            let at = world.random.below(world.owned.len() as u64) as usize;
            let (pin, bytes) = world.owned.swap_remove(at);
            assert!(pin[..] == bytes, "a pin has changed");
        }
    }

    fn unpin(&mut self, world: &mut World) {
        if !self.pins.is_empty() {
            let at = world.random.below(self.pins.len() as u64) as usize;
            let (pin, bytes) = self.pins.swap_remove(at);
            assert!(pin[..] == bytes, "a pin has changed");
        }
    }

    fn resize(&self, world: &mut World) {
        let count = world.partitions.len() as u64;
        let at = world.random.below(count) as usize;
        let partition = &world.partitions[at];
        let bytes = (1 + world.random.below(8 / count)) * (world.segments[at] + (16 << 10)) + (64 << 10);
        match partition.resize(bytes) {
            // Pins keep their pages.
            Ok(charged) => {
                let pinned = partition.pinned_bytes();
                assert!(charged <= bytes + pinned, "{charged} of {bytes}, {pinned} pinned");
            }
            Err(Error::NoMemory { .. }) => {}
            Err(error) => assert!(world.faulty, "{error}"),
        }
    }
}

fn sync_range(world: &mut World, object: &Object, number: usize) {
    let start = world.random.below(world.twins[number].len() + 1);
    let len = 1 + world.random.below(40_000);
    let page = object.page_bytes();
    let pages = start - start % page..(start + len).next_multiple_of(page).min(LEN_MAX);
    world.sync(number, pages, || object.sync_range(start, len));
}

/// Writes to a store past the cache: through another one.
fn write_outside(store: &Store, offset: u64, bytes: &[u8]) {
    let (_cache, _partition, object) = scene(small(0), PartitionConfig::new("outside"), store.clone());
    object.write_at(offset, bytes).unwrap();
}

fn set_faults(world: &mut World) {
    let random = &mut world.random;
    world.faulty = random.one_in(2);
    let faults = match world.faulty {
        false => SimFaults { p_short: random.pick(&[0.0, 0.3]), ..SimFaults::default() },
        true => SimFaults {
            p_read_error: random.pick(&[0.0, 0.05, 0.5]),
            p_write_error: random.pick(&[0.0, 0.05, 0.5, 1.0]),
            p_no_space: random.pick(&[0.0, 0.1, 1.0]),
            p_unsupported: random.pick(&[0.0, 0.5, 1.0]),
            p_sync_error: random.pick(&[0.0, 0.0, 0.1]),
            p_torn: random.pick(&[0.0, 0.5, 1.0]),
            p_short: random.pick(&[0.0, 0.3]),
        },
    };
    world.sync_faults = faults.p_sync_error > 0.0;
    world.disk.set_faults(faults);
}
