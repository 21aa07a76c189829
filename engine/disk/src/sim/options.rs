//! The options, fault probabilities and counters of a simulated disk. Not here: the model that they
//! belong to (`sim.rs`, D1 to D7).

use std::ops::RangeInclusive;

/// The behaviour of a [`SimDisk`](crate::SimDisk).
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Seed of all random decisions. Default: 0.
    pub seed: u64,
    /// Duration of an I/O, in ticks of virtual time. Default: 1 to 100.
    pub latency_ticks: RangeInclusive<u64>,
    /// Lets I/Os overtake each other. If false, they happen in the order in which they were pushed,
    /// each at one moment. Default: true.
    pub reorder: bool,
    /// Logical block in bytes: 512 or 4096. Default: 512.
    pub block_bytes: u32,
    /// Makes syncs succeed without making anything durable, for tests that must notice such a disk.
    /// Default: false.
    pub ignores_syncs: bool,
    /// Faults from the start on. Default: [`SimFaults::default`].
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

/// Probabilities of faults, from 0 to 1, per I/O. Default: all 0, except `p_torn`.
#[derive(Clone, Debug)]
pub struct SimFaults {
    /// A read fails (EIO).
    pub p_read_error: f64,
    /// A write, a clearing or a change of length fails (EIO).
    pub p_write_error: f64,
    /// A write or a clearing fails (ENOSPC).
    pub p_no_space: f64,
    /// The disk cannot clear a range by itself (EOPNOTSUPP). Then zeros are written, and that write
    /// can fail in its own right.
    pub p_unsupported: f64,
    /// A sync fails (EIO, D4). Includes the sync of a change of length (D6).
    pub p_sync_error: f64,
    /// A write that fails, or is in flight at a crash, leaves any subset of its sectors. Without
    /// this fault, a failed write leaves none of its sectors, and a write in flight at a crash
    /// leaves none or all. Default: 1.
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

/// Counts of what a simulated disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Completed reads, successful or not.
    pub reads: u64,
    /// Completed writes and clearings, successful or not.
    pub writes: u64,
    /// Completed syncs, successful or not.
    pub syncs: u64,
    /// Bytes moved by reads.
    pub bytes_read: u64,
    /// Bytes moved by writes or cleared by clearings.
    pub bytes_written: u64,
    /// Attempts that failed because of a random fault.
    pub errors: u64,
    /// Crashes.
    pub crashes: u64,
    /// Events that were applied: the halfway points and ends of attempts.
    pub steps: u64,
}
