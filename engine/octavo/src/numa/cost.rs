//! The cost of distance between emulated nodes: the worth of placement can be measured on a
//! machine with one node.
//!
//! For each access, by the node of its memory, two things are counted: *waits*, the lines that
//! the access has to wait for before it can continue, and *bytes* moved. Distance makes waits
//! longer and bytes slower, by what PaCaR (Coquisart, Sopena, Gouicem, EuroSys '26) measured on
//! seven machines. The counts give *virtual time*, which depends on no clock and repeats.
//! Alternatively each thread spends the difference to local memory at once, spinning, so that
//! ordinary clocks see it. Either is *emulated*.
//!
//! Not here: contention for the links, caches (a remote line that stays in a local cache is
//! charged every time), interrupts.

use std::sync::OnceLock;
use std::time::Instant;

/// A machine with several nodes, from PaCaR's table: how much worse another node's memory is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The machine's name.
    pub name: &'static str,
    /// How much longer a remote line takes than a local one, in percent.
    pub latency_more_percent: f64,
    /// How much less bandwidth remote memory has, in percent.
    pub bandwidth_less_percent: f64,
}

const fn machine(name: &'static str, latency_more_percent: f64, bandwidth_less_percent: f64) -> Machine {
    Machine { name, latency_more_percent, bandwidth_less_percent }
}

/// PaCaR's seven machines.
pub const MACHINES: [Machine; 7] = [
    machine("2x-xeon-4410y", 66.5, 54.9),
    machine("2x-epyc-7301", 193.0, 57.4),
    machine("4x-xeon-6130", 68.1, 83.4),
    machine("2x-xeon-5320", 71.6, 54.7),
    machine("2x-xeon-4314", 70.8, 73.8),
    machine("2x-xeon-6130", 59.9, 68.6),
    machine("2x-xeon-e5-2630", 63.2, 51.8),
];

/// The cost of emulated distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemoteCost {
    /// The machine to emulate.
    pub machine: Machine,
    /// Whether threads spend the cost by spinning. Else it is only counted.
    pub spent: bool,
}

/// The cost of local memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalMemory {
    /// Nanoseconds until a line arrives.
    pub latency_ns: f64,
    /// Bytes that one thread moves per nanosecond.
    pub bytes_per_ns: f64,
}

impl LocalMemory {
    /// The values for virtual time: round figures of servers of these years.
    pub const VIRTUAL: LocalMemory = LocalMemory { latency_ns: 90.0, bytes_per_ns: 10.0 };

    /// Measures this machine, once: lines that each name the next, and copies, both larger than
    /// the caches.
    pub fn here() -> LocalMemory {
        static HERE: OnceLock<LocalMemory> = OnceLock::new();
        *HERE.get_or_init(LocalMemory::measure)
    }

    fn measure() -> LocalMemory {
        const WORDS: usize = 4 << 20;
        const STEPS: usize = 50_000;
        // A ring of lines in an order that no prefetcher guesses: an odd stride through a power
        // of two visits all of them.
        let lines = WORDS / 8;
        let stride = (lines / 8 * 5 + 12_345) | 1;
        let mut words = vec![0usize; WORDS];
        let mut at = 0;
        for _ in 0..lines {
            let next = (at + stride) % lines;
            words[at * 8] = next;
            at = next;
        }
        let began = Instant::now();
        for _ in 0..STEPS {
            at = words[at * 8];
        }
        std::hint::black_box(at);
        let latency_ns = began.elapsed().as_nanos() as f64 / STEPS as f64;
        let (from, to) = words.split_at_mut(WORDS / 2);
        let began = Instant::now();
        to.copy_from_slice(from);
        std::hint::black_box(&to);
        let bytes_per_ns = size_of_val(from) as f64 / began.elapsed().as_nanos().max(1) as f64;
        // The machine may have been interrupted meanwhile: clamp the figures to what is
        // plausible.
        LocalMemory {
            latency_ns: latency_ns.clamp(20.0, 1000.0),
            bytes_per_ns: bytes_per_ns.clamp(0.5, 100.0),
        }
    }
}

/// Counted accesses. Waits are in twelfths of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Waits for lines of the thread's own node.
    pub local_waits: u64,
    /// Waits for lines of other nodes.
    pub remote_waits: u64,
    /// Bytes moved on the thread's own node.
    pub local_bytes: u64,
    /// Bytes moved between nodes.
    pub remote_bytes: u64,
}

/// Most requests of a bundle: enough that the trip costs little beside them, few enough that a
/// node's workers share a batch.
pub(crate) const LETTERS_MAX: usize = 16;

/// Waits of one line.
pub(crate) const LINE: u64 = 12;

/// An access reads its set's fingerprints, and then the slot and the bytes together.
const LINES_OF_ACCESS: u64 = 2;

/// Lines of a bundle's trip: the queue's entry there and back to its sender's node, and the
/// lane's list there and back.
pub(crate) const LINES_OF_BUNDLE: u64 = 4;

/// A letter is one line, and travels both ways.
pub(crate) const BYTES_OF_LETTER: u64 = 2 * 64;

/// Processor time for a request that travels, at both ends together, in nanoseconds: a rounded
/// estimate from one node.
pub const LETTER_NS: f64 = 20.0;

/// The same for a bundle.
pub const BUNDLE_NS: f64 = 150.0;

/// Waits of an access whose lines are looked up together with those of `together` accesses.
pub(crate) fn waits_of(together: u64) -> u64 {
    LINES_OF_ACCESS * LINE / together.clamp(1, LINE)
}

/// The prices of these operations in virtual time, in nanoseconds, for code that chooses between
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prices(pub Machine);

impl Prices {
    fn of(&self, is_here: bool, waits: u64, bytes: u64) -> f64 {
        let traffic = match is_here {
            true => Traffic { local_waits: waits, local_bytes: bytes, ..Traffic::default() },
            false => Traffic { remote_waits: waits, remote_bytes: bytes, ..Traffic::default() },
        };
        self.0.memory_ns(&traffic, LocalMemory::VIRTUAL)
    }

    /// An access to `bytes` of the thread's own node, or of another node.
    pub fn access(&self, is_here: bool, bytes: u64, together: u64) -> f64 {
        self.of(is_here, waits_of(together), bytes)
    }

    /// A request that travels with the others of its bundle: its share of the trip, and the work
    /// at its page's node, where reads are looked up together.
    pub fn letter(&self, letters: u64, bytes: u64, write: bool) -> f64 {
        let way = self.of(false, LINES_OF_BUNDLE * LINE, 0) + BUNDLE_NS;
        let served = self.access(true, bytes, if write { 1 } else { letters });
        way / letters as f64 + self.of(false, 0, BYTES_OF_LETTER + bytes) + LETTER_NS + served
    }

    /// A copy of a page.
    pub fn copy(&self, page_bytes: u64) -> f64 {
        self.of(false, waits_of(1), page_bytes)
    }

    /// Moving a page's main.
    pub fn switch(&self, page_bytes: u64) -> f64 {
        self.of(false, 2 * waits_of(1), page_bytes)
    }

    /// The search for copies on `nodes` nodes.
    pub fn overtaking(&self, nodes: u64) -> f64 {
        self.of(false, nodes * waits_of(1), 0)
    }
}

impl Machine {
    /// Returns the machine of that name.
    pub fn named(name: &str) -> Option<Machine> {
        MACHINES.into_iter().find(|machine| machine.name == name)
    }

    /// The extra time of remote lines and bytes over local ones, in nanoseconds.
    pub(crate) fn more_ns(&self, waits: u64, bytes: u64, local: LocalMemory) -> f64 {
        let late = waits as f64 / LINE as f64 * local.latency_ns * self.latency_more_percent / 100.0;
        let slow = bytes as f64 / local.bytes_per_ns;
        late + slow / (1.0 - self.bandwidth_less_percent / 100.0) - slow
    }

    /// The time that memory takes for `traffic`, summed over all threads, in nanoseconds.
    pub fn memory_ns(&self, traffic: &Traffic, local: LocalMemory) -> f64 {
        let waits = (traffic.local_waits + traffic.remote_waits) as f64 / LINE as f64;
        let bytes = (traffic.local_bytes + traffic.remote_bytes) as f64;
        let as_local = waits * local.latency_ns + bytes / local.bytes_per_ns;
        as_local + self.more_ns(traffic.remote_waits, traffic.remote_bytes, local)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn remote_memory_is_worse_by_what_the_table_says() {
        let machine = Machine::named("2x-epyc-7301").unwrap();
        let local = LocalMemory { latency_ns: 100.0, bytes_per_ns: 10.0 };
        let near = Traffic { local_waits: 12, local_bytes: 1000, ..Traffic::default() };
        let far = Traffic { remote_waits: 12, remote_bytes: 1000, ..Traffic::default() };
        assert!((machine.memory_ns(&near, local) - 200.0).abs() < 1e-9);
        // 293 ns for the line, and 42.6 % of the bandwidth for the bytes.
        assert!((machine.memory_ns(&far, local) - (293.0 + 100.0 / 0.426)).abs() < 1e-9);
        assert!(Machine::named("toaster").is_none());
    }
}
