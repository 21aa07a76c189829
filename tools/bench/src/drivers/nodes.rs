//! The code that the drivers of emulated nodes share: `numa`, `twins` and `crossing`.

use octavo::disk::Store;
use octavo::numa::{LocalMemory, NumaMode, PartitionNumaStat, RemoteCost, TopologySource, Traffic};
use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};

use crate::case::{Case, Value};
use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Run, Subject, offset};

/// The processor time of a request without its waits for memory, in nanoseconds: a rounded
/// estimate, measured on one node.
const REQUEST_NS: f64 = 25.0;

/// Returns the configuration of a cache on two emulated nodes. If `spent` is set, threads spend the
/// distance by spinning; otherwise it is only counted.
pub fn config(case: &Case, numa: NumaMode, spent: bool) -> CacheConfig {
    let buffers_bytes = 16 << 20;
    CacheConfig {
        memory_max_bytes: case.memory.0 + case.memory.0 / 64 + (1 << 20) + buffers_bytes,
        buffers_max_bytes: Some(buffers_bytes),
        page_bytes: PAGE_BYTES as u32,
        topology: TopologySource::Emulated { nodes: 2, cores: 1 },
        numa,
        remote_cost: Some(RemoteCost { machine: case.machine.0, spent }),
        // Pages lie in the same places in every run.
        seed: Some(1),
        ..CacheConfig::default()
    }
}

/// Creates a write-back cache of an object in memory, all of whose pages have been read. If `node`
/// is given, that node holds all of them.
pub fn filled(config: CacheConfig, node: Option<u32>, pages: u64) -> Result<Subject, Error> {
    let cache_mode = CacheMode::Writeback;
    let partition = PartitionConfig { node, cache_mode, ..PartitionConfig::new("bench") };
    let subject = Subject::new(config, partition, Store::memory("store", offset(pages)))?;
    let mut page = vec![0; PAGE_BYTES];
    (0..pages).try_for_each(|number| subject.object.read_at(offset(number), &mut page))?;
    Ok(subject)
}

/// The NUMA figures of a cache's only partition before and after some requests.
pub struct Counted {
    before: PartitionNumaStat,
    after: PartitionNumaStat,
    requests: f64,
}

impl Counted {
    /// Makes `requests` requests.
    pub fn measure(
        cache: &Cache,
        requests: f64,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Counted, Error> {
        let stat = || cache.numa_stat().partitions.remove(0);
        let before = stat();
        act()?;
        Ok(Counted { before, after: stat(), requests })
    }

    /// Returns the increase of a counter per request.
    pub fn of(&self, count: fn(&PartitionNumaStat) -> u64) -> f64 {
        (count(&self.after) - count(&self.before)) as f64 / self.requests
    }

    /// Returns the traffic of all requests.
    pub fn traffic(&self) -> Traffic {
        let (before, after) = (&self.before.traffic, &self.after.traffic);
        Traffic {
            local_waits: after.local_waits - before.local_waits,
            remote_waits: after.remote_waits - before.remote_waits,
            local_bytes: after.local_bytes - before.local_bytes,
            remote_bytes: after.remote_bytes - before.remote_bytes,
        }
    }

    /// Returns the virtual time of a request whose share of `traffic` is the memory that it waits
    /// for.
    pub fn request_ns(&self, case: &Case, traffic: &Traffic) -> f64 {
        case.machine.0.memory_ns(traffic, LocalMemory::VIRTUAL) / self.requests + REQUEST_NS
    }

    /// Returns the mode at the end, and how often `auto` changed it.
    pub fn ways(&self) -> [(&'static str, Value); 2] {
        let changes = self.after.way_changes - self.before.way_changes;
        [("way", self.after.way.into()), ("way_changes", (changes as f64).into())]
    }
}

/// The figures of a contestant per request: virtual time and others.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub virtual_ns: f64,
    pub figures: Vec<(&'static str, Value)>,
}

#[cfg(test)]
impl Taken {
    /// Returns a figure by its name.
    pub fn figure(&self, name: &str) -> f64 {
        let found = self.figures.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.number()).unwrap_or_else(|| panic!("{name} is no figure"))
    }
}

/// Runs `act` on a new thread, because `act` places its thread on emulated nodes.
pub fn on_own_thread<T: Send>(act: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        scope.spawn(act).join().map_err(|_| Error::new("the thread on emulated nodes has panicked"))?
    })
}

/// Returns a row for each contestant, with the figures that `take` measures. `ideal_ns` is the
/// virtual time of a request if all memory were local.
pub fn rows(
    case: &Case,
    run: &mut Run<'_>,
    ideal_ns: f64,
    mut take: impl FnMut(&str) -> Result<Taken, Error>,
) -> Result<Vec<Row>, Error> {
    let row = |name: &String| {
        run.step(case, &format!("{name}, {}", case.machine.0.name))?;
        let Taken { virtual_ns, figures } = take(name)?;
        let mut row = Row { clock: "virtual", ..Row::of_contestant(run.suite, case, name) };
        row.add("emulated", true);
        row.add("emulated_virtual_ns", virtual_ns);
        row.add("emulated_of_ideal", ideal_ns / virtual_ns);
        row.facts.0.extend(figures);
        row.notes.push(note(case));
        Ok(row)
    };
    case.contestants.iter().map(row).collect()
}

/// Asserts for each case of a suite that `auto` takes at most `most` percent more than the best of
/// other modes.
#[cfg(test)]
pub fn assert_auto_is_best(
    suite: &str,
    modes: &[&str],
    most: fn(&str) -> f64,
    take: impl Fn(&str, &Case) -> Result<Taken, Error>,
) {
    for case in &crate::suite::Suite::find(suite, true).unwrap().cases {
        let case = case.clone().with_memory_bytes(8 << 20);
        let taken: Vec<f64> = modes.iter().map(|name| take(name, &case).unwrap().virtual_ns).collect();
        let (best, auto) =
            (taken.iter().copied().fold(f64::INFINITY, f64::min), take("auto", &case).unwrap());
        let (name, more) = (&case.name, (auto.virtual_ns / best - 1.0) * 100.0);
        println!("{name}: {taken:.1?}, {auto:.1?}: {more:+.2} %");
        assert!(more < most(name), "{name}: {more:+.2} %");
    }
}

/// Returns the note of every row about emulated nodes.
pub fn note(case: &Case) -> String {
    format!("emulated: the nodes are simulated, with the distances of {}", case.machine.0.name)
}
