//! [`SimDisk`]: a disk that exists only in the mind of a seed. It has virtual time, reorders, fails, tears and forgets
//! as real disks may, and does the same again for the same seed and the same calls. No threads, no
//! clock: its time passes when a ring is reaped or waited on. Protects nothing; everything above
//! must.
//!
//! The model (`flight.rs` decides each I/O's fate when it is pushed, `media.rs` keeps what is
//! durable):
//!
//! * D1. An I/O takes a random time. Half way, a random part of its sectors happens (a read sees
//!   them, a write lands in them); the rest happens when it completes. So each sector of a write
//!   changes at one moment between push and completion, and each sector of a read is of one such
//!   moment.
//! * D2. A sync covers at least every write that had completed when the sync was pushed.
//! * D3. A failed write changes none of its sectors, or (torn) any of them.
//! * D4. A failed sync makes each sector that is not yet durable so, or forgets what was written
//!   there.
//! * D5. A crash ends every I/O in flight with an error; its sectors have landed or not. Of what
//!   had landed and was not synced, each sector keeps any version. Handles from before the crash
//!   fail from then on.
//! * D6. A change of length needs a sync, as a file's does; if that fails (D4) the change has
//!   failed, and was made or not.
//! * D7. A disk that hangs takes I/O, and nothing happens until it answers again. (A crash, or a
//!   change of length, does not wait for that.)
//!
//! Lock order: the disk's lock is inside nothing and holds nothing: completions go to their rings
//! after it is free.

mod flight;
mod media;
mod random;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::error::IoError;
use crate::inbox::RingCore;
use crate::io::{Io, Op};
use crate::store::{Kind, Store};
use crate::sync::{Arc, Mutex, lock};
use flight::{Finished, Flights};
use media::Media;
use random::Random;

/// How a simulated disk behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How long an I/O takes, in ticks of virtual time.
    pub latency_ticks: RangeInclusive<u64>,
    /// I/Os overtake each other; else they happen in the order in which they were pushed, each at
    /// one moment.
    pub reorder: bool,
    /// The logical block: 512 or 4096 bytes.
    pub block_bytes: u32,
    /// The disk says that it has synced, and has not. For tests that must notice.
    pub ignores_syncs: bool,
    /// What goes wrong, from the start.
    pub faults: SimFaults,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            seed: 0,
            latency_ticks: 1..=100,
            reorder: true,
            block_bytes: 512,
            ignores_syncs: false,
            faults: SimFaults::default(),
        }
    }
}

/// How often something goes wrong: probabilities from 0 to 1, per I/O. The default is never, but a
/// write that is in flight at a crash is torn.
#[derive(Clone, Debug)]
pub struct SimFaults {
    /// A read fails (EIO).
    pub p_read_error: f64,
    /// A write, a clearing or a change of length fails (EIO).
    pub p_write_error: f64,
    /// A write, or a clearing, fails (ENOSPC).
    pub p_no_space: f64,
    /// The disk refuses to clear a range by itself (EOPNOTSUPP): zeros are written, with a fate of
    /// their own.
    pub p_unsupported: f64,
    /// A sync, or the one of a change of length (D6), fails (EIO, D4).
    pub p_sync_error: f64,
    /// A write that fails or is in flight at a crash leaves any subset of its sectors; else none
    /// or, at a crash, none or all.
    pub p_torn: f64,
    /// A transfer ends early and must be continued.
    pub p_short: f64,
}

impl Default for SimFaults {
    fn default() -> SimFaults {
        SimFaults {
            p_read_error: 0.0,
            p_write_error: 0.0,
            p_no_space: 0.0,
            p_unsupported: 0.0,
            p_sync_error: 0.0,
            p_torn: 1.0,
            p_short: 0.0,
        }
    }
}

/// What a simulated disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Reads completed, well or not.
    pub reads: u64,
    /// Writes and clearings completed, well or not.
    pub writes: u64,
    /// Syncs completed, well or not.
    pub syncs: u64,
    /// Bytes that reads moved.
    pub bytes_read: u64,
    /// Bytes that writes moved or clearings cleared.
    pub bytes_written: u64,
    /// I/Os that failed by chance.
    pub errors: u64,
    /// Crashes.
    pub crashes: u64,
    /// Events that have happened.
    pub steps: u64,
}

/// A simulated disk with named files. A handle: clones are the same disk.
///
/// ```
/// use octavo_disk::{AlignedBytes, Op, Ring, RingOptions, SimDisk, SimOptions};
/// let disk = SimDisk::new(SimOptions { seed: 42, ..SimOptions::default() });
/// let store = disk.store("data", 1 << 20);
/// let ring = Ring::new(&RingOptions::default())?;
/// let mut page = AlignedBytes::new(4096);
/// page.fill(7);
/// // SAFETY: `page` outlives the call.
/// unsafe { ring.run(&store, Op::Write, 0, &[page.io_buffer()]) }?;
/// disk.crash();
/// // Never synced: each sector is there, or is not.
/// assert!(disk.image("data")[..4096].chunks(512).all(|sector| sector == [7; 512] || sector == [0; 512]));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// Everything behind the disk's lock.
struct State {
    options: SimOptions,
    random: Random,
    media: BTreeMap<Arc<str>, Media>,
    flights: Flights,
    /// D7.
    hangs: bool,
    /// Crashes; a handle of another generation is stale (D5).
    generation: u64,
    /// Numbers every landing, so that syncs know what came before them.
    landings: u64,
    counters: SimCounters,
    digest: Digest,
}

/// A running hash (FNV-1a) of everything that happened.
struct Digest(u64);

impl Digest {
    fn note(&mut self, what: &str, name: &str, numbers: &[u64]) {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        for byte in what.bytes().chain(name.bytes()).chain(numbers) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A handle of one file, as a `Store` keeps it.
pub(crate) struct SimStore {
    disk: SimDisk,
    name: Arc<str>,
    generation: u64,
}

impl SimDisk {
    /// An empty disk. Panics unless the block is 512 or 4096 bytes.
    pub fn new(options: SimOptions) -> SimDisk {
        assert!(
            matches!(options.block_bytes, 512 | 4096),
            "a block of {} bytes: 512 or 4096 are possible",
            options.block_bytes
        );
        let state = State {
            random: Random::new(options.seed),
            options,
            media: BTreeMap::new(),
            flights: Flights::default(),
            hangs: false,
            generation: 0,
            landings: 0,
            counters: SimCounters::default(),
            digest: Digest(0xcbf2_9ce4_8422_2325),
        };
        SimDisk(Arc::new(Mutex::new(state)))
    }

    /// Opens the file of this name, or makes it: `len_bytes` zeros, durable from the start. One
    /// that exists keeps its length.
    pub fn store(&self, name: &str, len_bytes: u64) -> Store {
        let mut state = lock(&self.0);
        let key: Arc<str> = name.into();
        state.media.entry(key.clone()).or_insert_with(|| Media::new(len_bytes));
        let sim = SimStore { disk: self.clone(), name: key, generation: state.generation };
        Store::new(name.to_owned(), Kind::Sim(sim))
    }

    /// Changes what goes wrong, for I/O pushed from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        lock(&self.0).options.faults = faults;
    }

    /// The disk hangs from now on (D7).
    pub fn hang(&self) {
        lock(&self.0).hangs = true;
    }

    /// The disk answers again (D7).
    pub fn answer(&self) {
        let rings = {
            let mut state = lock(&self.0);
            state.hangs = false;
            state.flights.rings()
        };
        rings.iter().for_each(|ring| ring.sim_moves());
    }

    /// The power fails and comes back (D5). Every I/O in flight completes with an error; `store`
    /// reopens the files.
    pub fn crash(&self) {
        let finished = {
            let mut state = lock(&self.0);
            let finished = state.crash_flights();
            let State { media, random, .. } = &mut *state;
            media.values_mut().for_each(|media| media.crash(random));
            state.generation += 1;
            state.counters.crashes += 1;
            let generation = state.generation;
            state.digest.note("crash", "", &[generation]);
            finished
        };
        complete(finished);
    }

    /// What reads of the whole file would see now. Panics if there is no file of this name.
    pub fn image(&self, name: &str) -> Vec<u8> {
        let state = lock(&self.0);
        let media =
            state.media.get(name).unwrap_or_else(|| panic!("the simulated disk has no file {name:?}"));
        media.image().to_vec()
    }

    /// I/Os that have not completed.
    pub fn in_flight(&self) -> usize {
        lock(&self.0).flights.count()
    }

    /// What the disk has done so far.
    pub fn counters(&self) -> SimCounters {
        lock(&self.0).counters
    }

    /// A hash of everything that has happened so far: equal seeds and equal calls give equal
    /// hashes.
    pub fn history_digest(&self) -> u64 {
        lock(&self.0).digest.0
    }

    /// Lets the next event happen; rings do so themselves. False if nothing is in flight, or the
    /// disk hangs.
    pub fn step(&self) -> bool {
        let mut finished = Vec::new();
        let stepped = {
            let mut state = lock(&self.0);
            !state.hangs && state.step(&mut finished)
        };
        complete(finished);
        stepped
    }

    pub(crate) fn is(&self, other: &SimDisk) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk({:?})", self.counters())
    }
}

/// With no lock held: rings take theirs.
fn complete(finished: Vec<Finished>) {
    for Finished { ring, io } in finished {
        ring.complete(io);
    }
}

impl SimStore {
    pub(crate) fn disk(&self) -> &SimDisk {
        &self.disk
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        lock(&self.disk.0).media[&self.name].len_bytes()
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        lock(&self.disk.0).options.block_bytes
    }

    /// Puts an I/O in flight.
    pub(crate) fn push(&self, ring: &Arc<RingCore>, mut io: Io) {
        let mut state = lock(&self.disk.0);
        if state.generation != self.generation {
            io.fail(libc::EIO, Some("the simulated disk has crashed since this store was opened"));
        } else {
            let len_bytes = state.media[&self.name].len_bytes();
            io.cut(len_bytes, len_bytes, state.options.block_bytes);
        }
        if io.error.is_some() || io.parts_left == 0 {
            drop(state);
            return ring.complete(io);
        }
        state.launch(ring.clone(), io, self.name.clone());
    }

    /// Everything in flight on this file happens first.
    pub(crate) fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        let mut finished = Vec::new();
        let mut state = lock(&self.disk.0);
        let SimFaults { p_write_error, p_sync_error, .. } = state.options.faults;
        if state.generation != self.generation || state.random.chance(p_write_error) {
            return Err(IoError::new(&self.name, Op::Write, len_bytes, 0, libc::EIO, None));
        }
        // Bounded: nothing can be pushed meanwhile, and an I/O continues a bounded number of times.
        while state.flights.any_of(&self.name) && state.step(&mut finished) {}
        // D6.
        let is_synced = !state.random.chance(p_sync_error);
        if !is_synced {
            let State { media, random, .. } = &mut *state;
            let media = media.get_mut(&self.name).expect("a file is never removed");
            media.sync_begins();
            media.sync_fails(random);
        }
        if is_synced || state.random.coin() {
            state.landings += 1;
            let landing = state.landings;
            state.digest.note("length", &self.name, &[len_bytes]);
            state.media_of(&self.name).set_len_bytes(len_bytes, landing);
        }
        drop(state);
        complete(finished);
        match is_synced {
            true => Ok(()),
            false => Err(IoError::new(&self.name, Op::Sync, 0, 0, libc::EIO, None)),
        }
    }
}

impl State {
    fn media_of(&mut self, name: &str) -> &mut Media {
        self.media.get_mut(name).expect("a file is never removed")
    }
}
