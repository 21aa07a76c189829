//! Other people's policies, for comparison only: nothing of the engine is here, and nothing here is
//! in the engine.
//!
//! Each spans the whole cache, in one thread, with exact lists: the best that it can do, at a price
//! that a cache with many cores would not pay. Each file cites its paper and says its parameters;
//! where a paper leaves something open, libCacheSim's choice is ours too, so that the miss ratios
//! can be checked (`tests/libcachesim.rs`). All bring in every page that is accessed.
//!
//! What is not here: sizes of objects other than one page, deletions, changes of the capacity, and
//! the time that a policy takes.

use std::fmt;
use std::str::FromStr;

use crate::Cache;

mod arc;
mod car;
mod clock_pro;
mod lfu;
mod lhd;
mod linux;
mod lirs;
pub mod opt;
mod pages;
mod queue;
mod s3_fifo;
#[cfg(test)]
mod twins;
mod two_q;
mod w_tiny_lfu;

/// A cache that knows how many pages it holds now.
trait Policy: Cache {
    fn resident_pages(&self) -> u64;
}

/// A policy to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reference {
    /// Least recently used.
    Lru,
    /// First in, first out.
    Fifo,
    /// Second chance, one bit.
    Clock,
    /// 2Q, full version.
    TwoQ,
    /// ARC.
    Arc,
    /// CAR.
    Car,
    /// LIRS.
    Lirs,
    /// CLOCK-Pro as its paper has it.
    ClockPro,
    /// Linux's active and inactive list.
    Linux,
    /// The same with refault distances.
    LinuxRefault,
    /// Least frequently used, counted while a page is in the cache.
    Lfu,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// W-TinyLFU.
    WTinyLfu,
    /// Least hit density.
    Lhd,
    /// Belady's optimum, which knows the future; see [`opt`].
    Opt,
    /// Belady's optimum inside each set of pages; see [`opt`].
    SetOpt,
}

impl Reference {
    /// All of them, in the order of reports.
    pub const ALL: [Reference; 17] = [
        Reference::Lru,
        Reference::Fifo,
        Reference::Clock,
        Reference::TwoQ,
        Reference::Arc,
        Reference::Car,
        Reference::Lirs,
        Reference::ClockPro,
        Reference::Linux,
        Reference::LinuxRefault,
        Reference::Lfu,
        Reference::S3Fifo,
        Reference::Sieve,
        Reference::WTinyLfu,
        Reference::Lhd,
        Reference::Opt,
        Reference::SetOpt,
    ];

    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Reference::Lru => "global-lru",
            Reference::Fifo => "global-fifo",
            Reference::Clock => "global-clock",
            Reference::TwoQ => "global-2q",
            Reference::Arc => "global-arc",
            Reference::Car => "global-car",
            Reference::Lirs => "global-lirs",
            Reference::ClockPro => "global-clockpro",
            Reference::Linux => "global-linux",
            Reference::LinuxRefault => "global-linux-refault",
            Reference::Lfu => "global-lfu",
            Reference::S3Fifo => "global-s3fifo",
            Reference::Sieve => "global-sieve",
            Reference::WTinyLfu => "global-wtinylfu",
            Reference::Lhd => "global-lhd",
            Reference::Opt => "global-opt",
            Reference::SetOpt => "set-opt",
        }
    }

    /// Whether the policy must know the whole trace before it begins.
    pub fn needs_future(self) -> bool {
        matches!(self, Reference::Opt | Reference::SetOpt)
    }

    /// A cache of `capacity_pages`, of one page at least. `seed` is for the policies that draw
    /// lots. None: it needs the future, see [`opt`].
    pub fn cache(self, capacity_pages: u64, seed: u64) -> Option<Box<dyn Cache>> {
        self.policy(capacity_pages, seed).map(|policy| policy as Box<dyn Cache>)
    }

    fn policy(self, capacity_pages: u64, seed: u64) -> Option<Box<dyn Policy>> {
        let capacity = capacity_pages.max(1);
        Some(match self {
            Reference::Lru => Box::new(queue::Lru::new(capacity)),
            Reference::Fifo => Box::new(queue::Fifo::new(capacity)),
            Reference::Clock => Box::new(queue::Clock::new(capacity)),
            Reference::TwoQ => Box::new(two_q::TwoQ::new(capacity)),
            Reference::Arc => Box::new(arc::Arc::new(capacity)),
            Reference::Car => Box::new(car::Car::new(capacity)),
            Reference::Lirs if capacity == 1 => Box::new(queue::Lru::new(capacity)),
            Reference::Lirs => Box::new(lirs::Lirs::new(capacity)),
            Reference::ClockPro => Box::new(clock_pro::ClockPro::new(capacity)),
            Reference::Linux => Box::new(linux::Linux::new(capacity, false)),
            Reference::LinuxRefault => Box::new(linux::Linux::new(capacity, true)),
            Reference::Lfu => Box::new(lfu::Lfu::new(capacity)),
            Reference::S3Fifo => Box::new(s3_fifo::S3Fifo::new(capacity)),
            Reference::Sieve => Box::new(queue::Sieve::new(capacity)),
            Reference::WTinyLfu => Box::new(w_tiny_lfu::WTinyLfu::new(capacity)),
            Reference::Lhd => Box::new(lhd::Lhd::new(capacity, seed)),
            Reference::Opt | Reference::SetOpt => return None,
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Reference::ALL.into_iter().find(|reference| reference.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Reference::ALL.iter().map(|reference| reference.name()).collect();
            format!("there is no reference policy \"{name}\"; there are {}", names.join(", "))
        })
    }
}
