//! I/O in flight on a simulated disk: its fate, decided when it is pushed, and its two events, half
//! way and the end (D1 in `mod.rs`). Protects the repeatability of a run: events are ordered by
//! (tick, number), never by address or hash. Not here: durability (`media.rs`).

use std::collections::BTreeMap;

use super::State;
use super::media::SECTOR_BYTES;
use crate::clear::Means;
use crate::inbox::RingCore;
use crate::io::{Io, Op};
use crate::sync::Arc;

/// An I/O that has completed, and the ring that it goes back to.
pub(super) struct Finished {
    pub(super) ring: Arc<RingCore>,
    pub(super) io: Io,
}

/// When a sector of an I/O happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    HalfWay,
    End,
    /// The sector has happened, or never does.
    Past,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    HalfWay,
    End,
}

/// One attempt of an I/O's only part.
struct Flight {
    ring: Arc<RingCore>,
    io: Io,
    name: Arc<str>,
    /// Bytes that this attempt moves, from the part's `next` on.
    len_bytes: u64,
    /// Per sector.
    moments: Vec<Moment>,
    fault_errno: Option<i32>,
    /// A sync covers landings up to this one (D2).
    landing_covered: u64,
}

#[derive(Default)]
pub(super) struct Flights {
    now_ticks: u64,
    numbers: u64,
    flights: BTreeMap<u64, Flight>,
    events: BTreeMap<(u64, u64), (u64, Phase)>,
    end_ticks_latest: u64,
}

impl Flights {
    pub(super) fn any_of(&self, name: &str) -> bool {
        self.flights.values().any(|flight| &*flight.name == name)
    }

    pub(super) fn count(&self) -> usize {
        self.flights.len()
    }

    /// The rings that wait for something.
    pub(super) fn rings(&self) -> Vec<Arc<RingCore>> {
        self.flights.values().map(|flight| flight.ring.clone()).collect()
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl State {
    /// Puts an I/O in flight.
    pub(super) fn launch(&mut self, ring: Arc<RingCore>, io: Io, name: Arc<str>) {
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

    /// Decides what becomes of an attempt, and when.
    fn attempt(&mut self, mut flight: Flight) {
        self.decide(&mut flight);
        let latency = self.random.within(&self.options.latency_ticks);
        let flights = &mut self.flights;
        let mut end = flights.now_ticks.saturating_add(latency);
        let mut half_way = flights.now_ticks + self.random.within(&(0..=end - flights.now_ticks));
        if !self.options.reorder {
            end = end.max(flights.end_ticks_latest);
            half_way = end;
        }
        flights.end_ticks_latest = flights.end_ticks_latest.max(end);

        let id = flights.number();
        if flight.moments.contains(&Moment::HalfWay) {
            let number = flights.number();
            flights.events.insert((half_way, number), (id, Phase::HalfWay));
        }
        let number = flights.number();
        flights.events.insert((end, number), (id, Phase::End));
        let op = flight.io.op as u64;
        self.digest.note("push", &flight.name, &[id, op, flight.io.offset, flight.len_bytes, end]);
        self.flights.flights.insert(id, flight);
    }

    fn decide(&mut self, flight: &mut Flight) {
        let faults = self.options.faults.clone();
        let block = u64::from(self.options.block_bytes);
        let remaining = flight.io.parts[0].remaining_bytes();
        let is_short = self.random.chance(faults.p_short);
        flight.len_bytes = remaining;
        if is_short && remaining > block && flight.io.parts[0].means == Means::Written {
            flight.len_bytes = block * (1 + self.random.below((remaining - 1) / block));
        }
        flight.fault_errno = match flight.io.op {
            Op::Read => self.random.chance(faults.p_read_error).then_some(libc::EIO),
            Op::Sync => self.random.chance(faults.p_sync_error).then_some(libc::EIO),
            Op::Zero | Op::Discard if self.refuses_means(flight.io.parts[0].means) => Some(libc::EOPNOTSUPP),
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
                    (true, true) => Moment::HalfWay,
                    (true, false) => Moment::End,
                }
            })
            .collect();
    }

    /// Whether the disk does not clear a range by these means.
    fn refuses_means(&mut self, means: Means) -> bool {
        means != Means::Written && self.random.chance(self.options.faults.p_unsupported)
    }

    /// Lets the next event happen. False if there is none.
    pub(super) fn step(&mut self, finished: &mut Vec<Finished>) -> bool {
        let Some(((tick, _), (id, phase))) = self.flights.events.pop_first() else { return false };
        self.flights.now_ticks = self.flights.now_ticks.max(tick);
        self.counters.steps += 1;
        self.digest.note("event", "", &[tick, id, (phase == Phase::End).into()]);
        let mut flight = self.flights.flights.remove(&id).expect("an event has a flight");
        match phase {
            Phase::HalfWay => {
                self.happen(&flight, Moment::HalfWay);
                for moment in flight.moments.iter_mut().filter(|moment| **moment == Moment::HalfWay) {
                    *moment = Moment::Past;
                }
                self.flights.flights.insert(id, flight);
            }
            Phase::End => {
                self.happen(&flight, Moment::End);
                if self.end(&mut flight) {
                    self.attempt(flight);
                } else {
                    finished.push(Finished { ring: flight.ring, io: flight.io });
                }
            }
        }
        true
    }

    /// The sectors of one moment are read, or land.
    fn happen(&mut self, flight: &Flight, moment: Moment) {
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

    /// An attempt is over. True if the I/O goes on with another.
    fn end(&mut self, flight: &mut Flight) -> bool {
        let moved = if flight.fault_errno.is_some() { 0 } else { flight.len_bytes };
        match flight.io.op {
            Op::Read => self.counters.bytes_read += moved,
            Op::Write | Op::Zero | Op::Discard => self.counters.bytes_written += moved,
            Op::Sync => self.end_sync(flight),
        }
        let outcome = flight.fault_errno.map_or(Ok(moved as usize), Err);
        self.counters.errors += u64::from(outcome.is_err());
        let goes_on = flight.io.advance(0, outcome);
        if !goes_on {
            match flight.io.op {
                Op::Read => self.counters.reads += 1,
                Op::Write | Op::Zero | Op::Discard => self.counters.writes += 1,
                Op::Sync => self.counters.syncs += 1,
            }
        }
        goes_on
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

    /// D5: everything in flight lands in part and ends.
    pub(super) fn crash_flights(&mut self) -> Vec<Finished> {
        self.flights.events.clear();
        let flights = std::mem::take(&mut self.flights.flights);
        let mut finished = Vec::with_capacity(flights.len());
        for mut flight in flights.into_values() {
            if flight.io.op.changes() {
                let is_torn = self.random.chance(self.options.faults.p_torn);
                let all_or_none = self.random.coin();
                for moment in flight.moments.iter_mut().filter(|moment| **moment != Moment::Past) {
                    let happens = if is_torn { self.random.coin() } else { all_or_none };
                    *moment = if happens { Moment::End } else { Moment::Past };
                }
                self.happen(&flight, Moment::End);
            }
            flight.io.fail(libc::EIO, Some("the simulated disk crashed"));
            finished.push(Finished { ring: flight.ring, io: flight.io });
        }
        finished
    }
}
