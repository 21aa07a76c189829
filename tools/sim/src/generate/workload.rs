//! The workloads. A workload has no end; its caller counts the accesses.

use octavo_random::Random;

use crate::generate::zipf::{Zipf, fnv_hash};

/// A workload, with its position.
#[derive(Clone, Debug)]
pub enum Workload {
    /// All pages are equally likely.
    Uniform { pages: u64 },
    /// A few pages, anywhere, are much more popular than the others.
    Zipf(Popular),
    /// As [`Workload::Zipf`], interrupted by scans of pages that are otherwise not accessed.
    Scans { hot: Popular, every: u64, length: u64, cold: u64, requests: u64, scanned: u64 },
    /// All pages in order, again and again.
    Loop { pages: u64, next: u64 },
    /// As [`Workload::Zipf`], with other popular pages after every `every` accesses.
    Phases { hot: Popular, every: u64, requests: u64 },
    /// New pages arrive as the hottest and cool down.
    Drift { zipf: Zipf, pages: u64, every: u64, requests: u64 },
    /// Interleaved workloads, each with its own pages.
    Mix { parts: Vec<Part>, weights: u64 },
}

/// A part of a mix.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part's share of the accesses, times the sum of all weights.
    pub weight: u64,
    /// The first of the part's pages.
    pub first_page: u64,
    /// The workload of the part.
    pub workload: Workload,
}

/// Zipf's ranks, scattered over pages as in YCSB: a page may have several ranks, or none.
#[derive(Clone, Debug)]
pub struct Popular {
    /// The distribution of ranks.
    pub zipf: Zipf,
    /// The pages over which ranks are scattered.
    pub pages: u64,
}

impl Popular {
    fn draw(&self, random: &mut Random, phase: u64) -> u64 {
        let rank = self.zipf.draw(random);
        fnv_hash(rank.wrapping_add(phase.wrapping_mul(0x9e37_79b9_7f4a_7c15))) % self.pages
    }
}

impl Workload {
    /// Returns the number of pages; all page numbers are below it.
    pub fn pages(&self) -> u64 {
        match self {
            Workload::Uniform { pages } | Workload::Loop { pages, .. } | Workload::Drift { pages, .. } => {
                *pages
            }
            Workload::Zipf(hot) | Workload::Phases { hot, .. } => hot.pages,
            Workload::Scans { hot, cold, .. } => hot.pages + cold,
            Workload::Mix { parts, .. } => {
                parts.last().map_or(0, |part| part.first_page + part.workload.pages())
            }
        }
    }

    /// Draws the next access.
    pub fn draw(&mut self, random: &mut Random) -> u64 {
        match self {
            Workload::Uniform { pages } => random.below(*pages),
            Workload::Zipf(hot) => hot.draw(random, 0),
            Workload::Scans { hot, every, length, cold, requests, scanned } => {
                let at = *requests % (*every + *length);
                *requests += 1;
                if at < *every {
                    return hot.draw(random, 0);
                }
                let page = hot.pages + *scanned % *cold;
                *scanned += 1;
                page
            }
            Workload::Loop { pages, next } => {
                let page = *next;
                *next = (page + 1) % *pages;
                page
            }
            Workload::Phases { hot, every, requests } => {
                let phase = *requests / *every;
                *requests += 1;
                hot.draw(random, phase)
            }
            Workload::Drift { zipf, pages, every, requests } => {
                let newest = *requests / *every % *pages;
                *requests += 1;
                (newest + *pages - zipf.draw(random)) % *pages
            }
            Workload::Mix { parts, weights } => {
                let mut at = random.below(*weights);
                for part in parts.iter_mut() {
                    if at < part.weight {
                        return part.first_page + part.workload.draw(random);
                    }
                    at -= part.weight;
                }
                unreachable!("`weights` is the sum of the parts' weights")
            }
        }
    }
}
