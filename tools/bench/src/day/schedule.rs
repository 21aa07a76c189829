//! What happens when: the operator's events and the tenants' phases, from a seed.
//!
//! A day consists of rounds of at least ten minutes, or of one shorter round. Each round has every
//! event once, in an order that the seed chooses, each in a slot of its own. An event begins and
//! ends in its slot, so that, for example, no store fails during an upgrade. Phases change twice in
//! a slot.

use std::time::Duration;

use octavo_random::Random;

/// An event in the operation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A tenant comes, works and leaves.
    Visit,
    /// The largest size of a partition changes, and changes back.
    Limits,
    /// The sizes that the server's plan proposes are applied.
    Plan,
    /// A store refuses writes, and accepts them again.
    Failure,
    /// The partitions give memory back.
    Reclaim,
    /// The configuration changes and is read again.
    Reload,
    /// Another process takes over.
    Upgrade,
    /// The server is killed and started again.
    Kill,
}

impl Event {
    pub const ALL: [Event; 8] = [
        Event::Visit,
        Event::Limits,
        Event::Plan,
        Event::Failure,
        Event::Reclaim,
        Event::Reload,
        Event::Upgrade,
        Event::Kill,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Event::Visit => "visit",
            Event::Limits => "limits",
            Event::Plan => "plan",
            Event::Failure => "failure",
            Event::Reclaim => "reclaim",
            Event::Reload => "reload",
            Event::Upgrade => "upgrade",
            Event::Kill => "kill",
        }
    }
}

/// How a tenant chooses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Any block.
    Uniform,
    /// Nine of ten requests in a tenth of the disk.
    Skewed,
    /// A quarter of the disk, in order, again and again.
    Loop,
    /// The whole disk in order, 16 blocks a request.
    Scan,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Uniform, Phase::Skewed, Phase::Loop, Phase::Scan];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Uniform => "uniform",
            Phase::Skewed => "skewed",
            Phase::Loop => "loop",
            Phase::Scan => "scan",
        }
    }
}

/// A round is at least this long, unless the day is shorter.
const ROUND_MIN: Duration = Duration::from_secs(600);

/// An event with its time since the day's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub event: Event,
    pub at: Duration,
    /// When an event that lasts ends.
    pub until: Duration,
}

/// The events and phases of a day.
pub struct Schedule {
    pub entries: Vec<Entry>,
    slot: Duration,
    seed: u64,
}

impl Schedule {
    pub fn new(seed: u64, length: Duration) -> Schedule {
        let mut random = Random::new(seed);
        let rounds = (length.as_secs() / ROUND_MIN.as_secs()).max(1);
        let slot = length / (rounds as u32 * Event::ALL.len() as u32);
        let mut entries = Vec::new();
        for round in 0..rounds {
            let mut events = Event::ALL;
            for left in (1..events.len()).rev() {
                events.swap(left, random.below(left as u64 + 1) as usize);
            }
            for (number, event) in events.into_iter().enumerate() {
                let begin = slot * (round as u32 * Event::ALL.len() as u32 + number as u32);
                let at = begin + slot.mul_f64(0.15 + random.below(100) as f64 / 1000.0);
                entries.push(Entry { event, at, until: begin + slot.mul_f64(0.75) });
            }
        }
        Schedule { entries, slot, seed }
    }

    /// Returns the phase of a tenant at a time. A tenant goes through all phases in turn.
    pub fn phase(&self, tenant: u64, at: Duration) -> Phase {
        let number = (2.0 * at.as_secs_f64() / self.slot.as_secs_f64().max(0.001)) as u64;
        let first = Random::new(self.seed ^ tenant).below(Phase::ALL.len() as u64);
        Phase::ALL[(first + number) as usize % Phase::ALL.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_any_length_has_every_event_in_order_and_none_overlaps_the_next() {
        for (seed, seconds) in [(1, 6), (2, 60), (3, 600), (4, 1500), (5, 21600), (6, 86400)] {
            let length = Duration::from_secs(seconds);
            let entries = Schedule::new(seed, length).entries;
            for event in Event::ALL {
                assert!(entries.iter().any(|entry| entry.event == event), "{event:?} in {seconds} s");
            }
            assert!(entries.is_sorted_by(|one, next| one.until < next.at), "{entries:?}");
            assert!(entries.iter().all(|entry| entry.at < entry.until && entry.until < length));
        }
    }

    #[test]
    fn a_seed_gives_the_same_day_again_and_another_seed_another_day() {
        let day = |seed| Schedule::new(seed, Duration::from_secs(600)).entries;
        assert_eq!(day(5), day(5));
        assert_ne!(day(5), day(6));
    }

    #[test]
    fn every_tenant_has_every_phase() {
        let length = Duration::from_secs(12);
        let schedule = Schedule::new(9, length);
        for tenant in 1..6 {
            let phases: Vec<Phase> = (0..16).map(|at| schedule.phase(tenant, length * at / 16)).collect();
            assert!(Phase::ALL.iter().all(|phase| phases.contains(phase)), "{phases:?}");
        }
    }
}
