//! Policies of other authors, for comparison only. The engine does not use this module, and this
//! module uses nothing from the engine.
//!
//! Each policy spans the whole cache, in one thread, with exact lists: the best that the policy can
//! do, at a cost that is too high for a cache on many cores. Each file cites its paper and states
//! its parameters. Where a paper leaves something open, the file follows libCacheSim, so that the
//! miss ratios can be checked (`tests/libcachesim.rs`). With every policy, every page that is
//! accessed becomes resident.
//!
//! What is not here: objects larger than one page, deletions, changes of the capacity, and the time
//! that a policy takes.

use crate::cache::Cache;

mod arc;
mod car;
mod clock_pro;
mod lfu;
mod lhd;
mod linux;
mod lirs;
mod lists;
pub mod opt;
mod queue;
mod s3_fifo;
#[cfg(test)]
mod tests;
mod two_q;
mod w_tiny_lfu;

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
    /// Linux's lists with refault distances.
    LinuxRefault,
    /// Least frequently used; accesses are counted while a page is in the cache.
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

/// Makes a policy from its capacity in pages and a seed.
type Make = fn(u64, u64) -> Box<dyn Cache>;

/// All policies in the order of reports, each with its name, and how to make it if it does not need
/// the future.
const TABLE: [(Reference, &str, Option<Make>); 17] = [
    (Reference::Lru, "global-lru", Some(|pages, _| queue(queue::Rule::Lru, pages))),
    (Reference::Fifo, "global-fifo", Some(|pages, _| queue(queue::Rule::Fifo, pages))),
    (Reference::Clock, "global-clock", Some(|pages, _| queue(queue::Rule::Clock, pages))),
    (Reference::TwoQ, "global-2q", Some(|pages, _| Box::new(two_q::TwoQ::new(pages)))),
    (Reference::Arc, "global-arc", Some(|pages, _| Box::new(arc::Arc::new(pages)))),
    (Reference::Car, "global-car", Some(|pages, _| Box::new(car::Car::new(pages)))),
    (Reference::Lirs, "global-lirs", Some(|pages, _| lirs(pages))),
    (Reference::ClockPro, "global-clockpro", Some(|pages, _| Box::new(clock_pro::ClockPro::new(pages)))),
    (Reference::Linux, "global-linux", Some(|pages, _| Box::new(linux::Linux::new(pages, false)))),
    (
        Reference::LinuxRefault,
        "global-linux-refault",
        Some(|pages, _| Box::new(linux::Linux::new(pages, true))),
    ),
    (Reference::Lfu, "global-lfu", Some(|pages, _| Box::new(lfu::Lfu::new(pages)))),
    (Reference::S3Fifo, "global-s3fifo", Some(|pages, _| Box::new(s3_fifo::S3Fifo::new(pages)))),
    (Reference::Sieve, "global-sieve", Some(|pages, _| queue(queue::Rule::Sieve, pages))),
    (Reference::WTinyLfu, "global-wtinylfu", Some(|pages, _| Box::new(w_tiny_lfu::WTinyLfu::new(pages)))),
    (Reference::Lhd, "global-lhd", Some(|pages, seed| Box::new(lhd::Lhd::new(pages, seed)))),
    (Reference::Opt, "global-opt", None),
    (Reference::SetOpt, "set-opt", None),
];

fn queue(rule: queue::Rule, pages: u64) -> Box<dyn Cache> {
    Box::new(queue::Queue::new(rule, pages))
}

fn lirs(pages: u64) -> Box<dyn Cache> {
    if pages == 1 { queue(queue::Rule::Lru, 1) } else { Box::new(lirs::Lirs::new(pages)) }
}

impl Reference {
    /// All policies, in the order of reports.
    pub const ALL: [Reference; TABLE.len()] = {
        let mut all = [Reference::Lru; TABLE.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = TABLE[at].0;
            at += 1;
        }
        all
    };

    fn entry(self) -> &'static (Reference, &'static str, Option<Make>) {
        TABLE.iter().find(|(reference, ..)| *reference == self).expect("every policy is in the table")
    }

    /// Returns the name on command lines and in reports.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns whether the policy must know the whole trace before it begins.
    pub fn needs_future(self) -> bool {
        self.entry().2.is_none()
    }

    /// Creates a cache of `capacity_pages`, raised to one page. `seed` is for policies that draw
    /// random numbers. Returns None for a policy that needs the future; see [`opt`].
    pub fn cache(self, capacity_pages: u64, seed: u64) -> Option<Box<dyn Cache>> {
        let make = self.entry().2?;
        Some(make(capacity_pages.max(1), seed))
    }
}
