//! What the drivers of emulated nodes share: `numa`, `twins` and `crossing`.

use octavo::numa::{Machine, NumaMode, PartitionNumaStat, RemoteCost, TopologySource, Traffic};
use octavo::{Cache, CacheConfig};

use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::stage::Run;

/// What the processor does for a request besides waiting for memory, in nanoseconds: an estimate
/// from one node, rounded.
pub const REQUEST_NS: f64 = 25.0;

/// The machine whose distances a case emulates.
pub fn machine(case: &Case) -> Result<Machine, Error> {
    let found = Machine::named(&case.machine.0);
    found.ok_or_else(|| Error::new(format!("there is no machine \"{}\"", case.machine.0)))
}

/// A cache on two emulated nodes. `spent`: threads spend the distance by spinning; else it is only
/// counted.
pub fn config(case: &Case, numa: NumaMode, spent: bool) -> Result<CacheConfig, Error> {
    let buffers_bytes = 16 << 20;
    Ok(CacheConfig {
        memory_max_bytes: case.memory.0 + case.memory.0 / 64 + (1 << 20) + buffers_bytes,
        buffers_max_bytes: Some(buffers_bytes),
        page_bytes: PAGE_BYTES as u32,
        topology: TopologySource::Emulated { nodes: 2, cores: 1 },
        numa,
        remote_cost: Some(RemoteCost { machine: machine(case)?, spent }),
        // Pages lie in the same places in every run.
        seed: Some(1),
        ..CacheConfig::default()
    })
}

/// The NUMA figures of a cache's only partition.
pub fn stat(cache: &Cache) -> PartitionNumaStat {
    cache.numa_stat().partitions.remove(0)
}

/// The traffic between two readings.
pub fn traffic(before: &Traffic, after: &Traffic) -> Traffic {
    Traffic {
        local_waits: after.local_waits - before.local_waits,
        remote_waits: after.remote_waits - before.remote_waits,
        local_bytes: after.local_bytes - before.local_bytes,
        remote_bytes: after.remote_bytes - before.remote_bytes,
    }
}

/// Runs `act` on a thread of its own, since it sits on emulated nodes.
pub fn on_own_thread<T: Send>(act: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        scope.spawn(act).join().map_err(|_| Error::new("the thread on emulated nodes has panicked"))?
    })
}

/// A row about one contestant, with the virtual time of a request.
pub fn row(run: &Run<'_>, case: &Case, name: &str, virtual_ns: f64) -> Row {
    let mut row = Row { clock: "virtual", ..Row::of_contestant(run.suite, case, name) };
    row.add("emulated", true);
    row.add("emulated_virtual_ns", virtual_ns);
    row.notes.push(note(case));
    row
}

/// The note of every row about emulated nodes.
pub fn note(case: &Case) -> String {
    format!("emulated: the nodes are simulated, with the distances of {}", case.machine.0)
}
