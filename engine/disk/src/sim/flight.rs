//! [`State`]: the state of a simulated disk, and the I/O in flight on it. The outcome of an I/O is
//! decided when it is pushed; two events then apply it, halfway and at the end (D1 in `sim.rs`).
//! Protects the repeatability of a run: events are ordered by (tick, number), never by address or
//! hash. Not here: durability (`media.rs`).

use std::collections::BTreeMap;

use octavo_random::Random;

use crate::io::Io;
use crate::io::method::Method;
use crate::io::sink::Sink;
use crate::op::Op;
use crate::sim::media::{Media, SECTOR_BYTES};
use crate::sim::options::{SimCounters, SimOptions};
use crate::sync::Arc;

/// Everything behind the disk's lock.
pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) random: Random,
    pub(super) media: BTreeMap<Arc<str>, Media>,
    pub(super) flights: Flights,
    /// D7.
    pub(super) hangs: bool,
    /// The number of crashes. A handle of an earlier generation is stale (D5).
    pub(super) generation: u64,
    /// Numbers every landing, so that a sync knows which landings came before it (D2).
    pub(super) landings: u64,
    pub(super) counters: SimCounters,
    pub(super) digest: Digest,
}

/// A running hash (FNV-1a) of every event.
pub(super) struct Digest(pub(super) u64);

impl Digest {
    pub(super) fn note(&mut self, what: &str, name: &str, numbers: &[u64]) {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        for byte in what.bytes().chain(name.bytes()).chain(numbers) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The moment at which a sector of an I/O is read or lands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Halfway,
    End,
    /// The sector has been read or has landed, or never will.
    Past,
}

/// One attempt at an I/O. On a simulated disk, an I/O has one part.
pub(super) struct Flight {
    ring: Arc<dyn Sink>,
    io: Io,
    name: Arc<str>,
    /// The bytes that this attempt moves, from the part's `next` on.
    len_bytes: u64,
    /// One moment for each sector.
    moments: Vec<Moment>,
    fault_errno: Option<i32>,
    /// The latest landing that a sync covers (D2).
    landing_covered: u64,
}

impl Flight {
    /// Completes the I/O. Called without the disk's lock, because the ring takes its own.
    pub(super) fn deliver(self) {
        self.ring.complete(self.io.token, self.io.result(&self.name), None);
    }
}

#[derive(Default)]
pub(super) struct Flights {
    now_ticks: u64,
    numbers: u64,
    flights: BTreeMap<u64, Flight>,
    /// The pending events, ordered by (tick, number). Each value is the flight's id, and whether
    /// the event is at the flight's end (rather than halfway).
    events: BTreeMap<(u64, u64), (u64, bool)>,
    end_ticks_latest: u64,
}

impl Flights {
    pub(super) fn any_of(&self, name: &str) -> bool {
        self.flights.values().any(|flight| &*flight.name == name)
    }

    pub(super) fn count(&self) -> usize {
        self.flights.len()
    }

    /// Returns the ring of each I/O in flight.
    pub(super) fn rings(&self) -> Vec<Arc<dyn Sink>> {
        self.flights.values().map(|flight| flight.ring.clone()).collect()
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl State {
    pub(super) fn media_of(&mut self, name: &str) -> &mut Media {
        self.media.get_mut(name).expect("a file is never removed")
    }

    /// Puts an I/O in flight.
    pub(super) fn launch(&mut self, ring: Arc<dyn Sink>, io: Io, name: Arc<str>) {
        if io.op == Op::Sync {
            self.media_of(&name).sync_begins();
        }
        let landing_covered = self.landings;
        self.attempt(Flight {
            ring,
            io,
            name,
            len_bytes: 0,
            moments: Vec::new(),
            fault_errno: None,
            landing_covered,
        });
    }

    /// Decides the outcome of an attempt and the times of its events.
    fn attempt(&mut self, mut flight: Flight) {
        self.decide(&mut flight);
        let latency = self.random.within(&self.options.latency_ticks);
        let flights = &mut self.flights;
        let mut end = flights.now_ticks.saturating_add(latency);
        let mut halfway = flights.now_ticks + self.random.within(&(0..=end - flights.now_ticks));
        if !self.options.reorder {
            end = end.max(flights.end_ticks_latest);
            halfway = end;
        }
        flights.end_ticks_latest = flights.end_ticks_latest.max(end);

        let id = flights.number();
        if flight.moments.contains(&Moment::Halfway) {
            let number = flights.number();
            flights.events.insert((halfway, number), (id, false));
        }
        let number = flights.number();
        flights.events.insert((end, number), (id, true));
        let op = flight.io.op as u64;
        self.digest.note("push", &flight.name, &[id, op, flight.io.offset, flight.len_bytes, end]);
        self.flights.flights.insert(id, flight);
    }

    /// Decides the outcome of an attempt: how many bytes it moves, whether it fails, and the moment
    /// of each sector.
    fn decide(&mut self, flight: &mut Flight) {
        let faults = self.options.faults.clone();
        let block = u64::from(self.options.block_bytes);
        let remaining = flight.io.parts[0].remaining_bytes();
        let is_short = self.random.chance(faults.p_short);
        flight.len_bytes = remaining;
        if is_short && remaining > block && flight.io.parts[0].method == Method::Write {
            flight.len_bytes = block * (1 + self.random.below((remaining - 1) / block));
        }
        flight.fault_errno = match flight.io.op {
            Op::Read => self.random.chance(faults.p_read_error).then_some(libc::EIO),
            Op::Sync => self.random.chance(faults.p_sync_error).then_some(libc::EIO),
            Op::Zero | Op::Discard if self.refuses_method(flight.io.parts[0].method) => {
                Some(libc::EOPNOTSUPP)
            }
            Op::Write | Op::Zero | Op::Discard => {
                let is_error = self.random.chance(faults.p_write_error);
                let is_full = self.random.chance(faults.p_no_space);
                is_error.then_some(libc::EIO).or(is_full.then_some(libc::ENOSPC))
            }
        };
        let is_torn = flight.fault_errno.is_some_and(|errno| errno != libc::EOPNOTSUPP)
            && self.random.chance(faults.p_torn);
        let sectors = flight.len_bytes.div_ceil(SECTOR_BYTES);
        let reorder = self.options.reorder;
        flight.moments = (0..sectors)
            .map(|_| {
                // D3.
                let happens = flight.fault_errno.is_none() || (is_torn && self.random.coin());
                let is_early = self.random.coin() && reorder;
                match (happens, is_early) {
                    (false, _) => Moment::Past,
                    (true, true) => Moment::Halfway,
                    (true, false) => Moment::End,
                }
            })
            .collect();
    }

    /// Decides whether the disk refuses to clear a range by this method.
    fn refuses_method(&mut self, method: Method) -> bool {
        method != Method::Write && self.random.chance(self.options.faults.p_unsupported)
    }

    /// Applies the next event. Returns false if there is none.
    pub(super) fn step(&mut self, finished: &mut Vec<Flight>) -> bool {
        let Some(((tick, _), (id, is_end))) = self.flights.events.pop_first() else { return false };
        self.flights.now_ticks = self.flights.now_ticks.max(tick);
        self.counters.steps += 1;
        self.digest.note("event", "", &[tick, id, is_end.into()]);
        let mut flight = self.flights.flights.remove(&id).expect("an event has a flight");
        if !is_end {
            self.apply(&flight, Moment::Halfway);
            for moment in flight.moments.iter_mut().filter(|moment| **moment == Moment::Halfway) {
                *moment = Moment::Past;
            }
            self.flights.flights.insert(id, flight);
            return true;
        }
        self.apply(&flight, Moment::End);
        if self.end(&mut flight) {
            self.attempt(flight);
        } else {
            finished.push(flight);
        }
        true
    }

    /// Reads or lands the sectors of one moment.
    fn apply(&mut self, flight: &Flight, moment: Moment) {
        if flight.io.op == Op::Sync {
            return;
        }
        let start = flight.io.parts[0].next;
        self.landings += 1;
        for (index, _) in flight.moments.iter().enumerate().filter(|(_, planned)| **planned == moment) {
            let at = start + index as u64 * SECTOR_BYTES;
            let len = SECTOR_BYTES.min(start + flight.len_bytes - at);
            self.transfer_sector(flight, at, len);
        }
    }

    fn transfer_sector(&mut self, flight: &Flight, at: u64, len: u64) {
        let skip = at - flight.io.offset;
        let landing = self.landings;
        let media = self.media_of(&flight.name);
        if flight.io.op == Op::Read {
            flight.io.buffers.copy_in(skip, media.read(at, len));
        } else {
            let mut bytes = [0; SECTOR_BYTES as usize];
            let bytes = &mut bytes[..len as usize];
            flight.io.buffers.copy_out(skip, bytes);
            media.land(at, bytes, landing);
        }
    }

    /// Ends an attempt. Returns true if the I/O needs another.
    fn end(&mut self, flight: &mut Flight) -> bool {
        let moved = if flight.fault_errno.is_some() { 0 } else { flight.len_bytes };
        match flight.io.op {
            Op::Read => self.counters.bytes_read += moved,
            Op::Write | Op::Zero | Op::Discard => self.counters.bytes_written += moved,
            Op::Sync => self.end_sync(flight),
        }
        let outcome = flight.fault_errno.map_or(Ok(moved as usize), Err);
        self.counters.errors += u64::from(outcome.is_err());
        let needs_another = flight.io.advance(0, outcome);
        if !needs_another {
            match flight.io.op {
                Op::Read => self.counters.reads += 1,
                Op::Write | Op::Zero | Op::Discard => self.counters.writes += 1,
                Op::Sync => self.counters.syncs += 1,
            }
        }
        needs_another
    }

    fn end_sync(&mut self, flight: &Flight) {
        let State { media, random, options, .. } = self;
        let media = media.get_mut(&flight.name).expect("a file is never removed");
        match flight.fault_errno {
            None if options.ignores_syncs => media.sync_is_ignored(),
            None => media.sync_succeeds(flight.landing_covered, random),
            Some(_) => media.sync_fails(random),
        }
    }

    /// D5: fails every I/O in flight. Of an I/O that changes the file, lands a random subset of the
    /// sectors that have not landed.
    pub(super) fn crash_flights(&mut self) -> Vec<Flight> {
        self.flights.events.clear();
        let mut flights: Vec<Flight> = std::mem::take(&mut self.flights.flights).into_values().collect();
        for flight in &mut flights {
            if flight.io.op.changes() {
                let is_torn = self.random.chance(self.options.faults.p_torn);
                let all_or_none = self.random.coin();
                for moment in flight.moments.iter_mut().filter(|moment| **moment != Moment::Past) {
                    let happens = if is_torn { self.random.coin() } else { all_or_none };
                    *moment = if happens { Moment::End } else { Moment::Past };
                }
                self.apply(flight, Moment::End);
            }
            flight.io.fail(libc::EIO, Some("the simulated disk crashed".into()));
        }
        flights
    }
}
