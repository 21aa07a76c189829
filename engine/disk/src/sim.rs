//! [`SimDisk`]: a simulated disk, driven by a seed. It has virtual time, and it reorders, fails,
//! tears and loses writes as real disks may. Equal seeds and equal calls give equal runs. It has no
//! threads and no clock: time passes when a ring is reaped or waited on. The simulated disk
//! protects no data: the code above it must do that.
//!
//! The model (`flight.rs` decides the outcome of each I/O when it is pushed, `media.rs` keeps the
//! durable bytes):
//!
//! * D1. An I/O takes a random time. Halfway through, a random subset of its sectors is applied (a
//!   read sees them, a write lands in them); the other sectors are applied at the end. So each
//!   sector of a write changes at one moment between push and completion, and each sector of a read
//!   is read at one such moment.
//! * D2. A sync covers at least every write that had completed when the sync was pushed.
//! * D3. A failed write changes none of its sectors, or (torn) any of them.
//! * D4. A failed sync either makes a sector durable or loses what was written there, for each
//!   sector that is not yet durable.
//! * D5. A crash fails every I/O in flight. Each sector of such an I/O has landed or not. Each
//!   sector that had landed and was not synced keeps any of its versions. Handles that were opened
//!   before the crash fail from then on.
//! * D6. A change of length needs a sync, as a file's does. If that sync fails (D4), the change
//!   fails, and the length has changed or not.
//! * D7. A disk that hangs accepts I/O and applies nothing until it answers again. (A crash or a
//!   change of length does not wait for that.)
//!
//! Lock order: the disk's lock is taken with no other lock held, and no other lock is taken under
//! it. Completions go to their rings after it is released.

mod flight;
mod media;
mod options;

use std::collections::BTreeMap;
use std::fmt;

use octavo_random::Random;

use crate::error::IoError;
use crate::io::Io;
use crate::io::sink::Sink;
use crate::op::Op;
use crate::sim::flight::{Digest, Flight, Flights, State};
use crate::sim::media::Media;
pub use crate::sim::options::{SimCounters, SimFaults, SimOptions};
use crate::sync::{Arc, Mutex, lock};

/// A simulated disk with named files. This is a handle: clones are the same disk.
///
/// # Examples
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
/// // The write was never synced, so each sector has kept it or lost it.
/// let image = disk.image("data");
/// assert!(image[..4096].chunks(512).all(|sector| sector == [7; 512] || sector == [0; 512]));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// A handle of one file, which a `Store` wraps.
pub(crate) struct SimStore {
    pub(crate) disk: SimDisk,
    name: Arc<str>,
    generation: u64,
}

impl SimDisk {
    /// Creates an empty disk.
    ///
    /// # Panics
    /// If `block_bytes` is neither 512 nor 4096.
    pub fn new(options: SimOptions) -> SimDisk {
        let block = options.block_bytes;
        assert!(matches!(block, 512 | 4096), "a simulated disk has blocks of 512 or 4096 bytes, not {block}");
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

    /// Opens the file of this name, or creates it: see [`SimDisk::store`].
    pub(crate) fn open(&self, name: &str, len_bytes: u64) -> SimStore {
        let mut state = lock(&self.0);
        let name: Arc<str> = name.into();
        state.media.entry(name.clone()).or_insert_with(|| Media::new(len_bytes));
        SimStore { disk: self.clone(), name, generation: state.generation }
    }

    /// Changes the fault probabilities, for I/O pushed from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        lock(&self.0).options.faults = faults;
    }

    /// Makes the disk hang (D7) until [`answer`](SimDisk::answer).
    pub fn hang(&self) {
        lock(&self.0).hangs = true;
    }

    /// Ends [`hang`](SimDisk::hang) (D7).
    pub fn answer(&self) {
        let rings = {
            let mut state = lock(&self.0);
            state.hangs = false;
            state.flights.rings()
        };
        rings.iter().for_each(|ring| ring.sim_moves());
    }

    /// Cuts the power and restores it (D5). Every I/O in flight completes with an error, and all
    /// handles are stale; `store` opens the files again.
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

    /// Returns the bytes of a whole file, as reads would see them now.
    ///
    /// # Panics
    /// If there is no file of this name.
    pub fn image(&self, name: &str) -> Vec<u8> {
        let state = lock(&self.0);
        let Some(media) = state.media.get(name) else { panic!("the simulated disk has no file {name:?}") };
        media.image().to_vec()
    }

    /// Returns the number of I/Os in flight.
    pub fn in_flight(&self) -> usize {
        lock(&self.0).flights.count()
    }

    /// Returns the counts of what the disk has done so far.
    pub fn counters(&self) -> SimCounters {
        lock(&self.0).counters
    }

    /// Returns a hash of all events so far. Equal seeds and equal calls give equal hashes.
    pub fn history_digest(&self) -> u64 {
        lock(&self.0).digest.0
    }

    /// Applies the next event. Rings call this themselves. Returns false if nothing is in flight,
    /// or if the disk hangs.
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

/// Completes I/Os. Called with no lock held, because rings take their own.
fn complete(finished: Vec<Flight>) {
    finished.into_iter().for_each(Flight::deliver);
}

impl SimStore {
    pub(crate) fn len_bytes(&self) -> u64 {
        lock(&self.disk.0).media[&self.name].len_bytes()
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        lock(&self.disk.0).options.block_bytes
    }

    /// Puts an I/O in flight. Its completion goes to `ring`.
    pub(crate) fn push(&self, ring: Arc<dyn Sink>, mut io: Io) {
        let mut state = lock(&self.disk.0);
        if state.generation != self.generation {
            let reason = "the simulated disk has crashed since this store was opened; open it again";
            io.fail(libc::EIO, Some(reason.into()));
        } else {
            let len_bytes = state.media[&self.name].len_bytes();
            io.cut(len_bytes, len_bytes, state.options.block_bytes);
        }
        if io.has_failed() || io.parts_left == 0 {
            drop(state);
            return ring.complete(io.token, io.result(&self.name), None);
        }
        state.launch(ring, io, self.name.clone());
    }

    /// Changes the length, after everything in flight on this file has completed.
    pub(crate) fn set_len_bytes(&self, len_bytes: u64) -> Result<(), IoError> {
        let mut finished = Vec::new();
        let mut state = lock(&self.disk.0);
        let SimFaults { p_write_error, p_sync_error, .. } = state.options.faults;
        if state.generation != self.generation || state.random.chance(p_write_error) {
            return Err(IoError::new(&self.name, Op::Write, len_bytes, 0, libc::EIO, None));
        }
        // Bounded: no I/O can be pushed meanwhile, and an I/O has a bounded number of attempts.
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
