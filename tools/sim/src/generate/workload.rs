//! What generated accesses look like. A workload has no end; whoever draws from it counts.

use crate::generate::random::Random;
use crate::generate::zipf::{Zipf, fnv_hash};

/// A workload, and where it stands.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Every page is as likely as every other.
    Uniform { pages: u64 },
    /// A few pages are much more popular, and lie anywhere.
    Zipf(Popular),
    /// The same, and now and then a scan of pages that are otherwise not asked for.
    Scans { hot: Popular, every: u64, length: u64, cold: u64, requests: u64, scanned: u64 },
    /// One page after the other, and again.
    Loop { pages: u64, next: u64 },
    /// What is popular is drawn anew now and then.
    Phases { hot: Popular, every: u64, requests: u64 },
    /// New pages come, the hottest at first, and age.
    Drift { zipf: Zipf, pages: u64, every: u64, requests: u64 },
    /// Workloads side by side, each with pages of its own.
    Mix { parts: Vec<Part>, weights: u64 },
}

/// A part of a mix.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its share of the accesses is this through the sum of all weights.
    pub weight: u64,
    /// Where its pages begin.
    pub first_page: u64,
    /// What it is.
    pub workload: Workload,
}

/// Ranks by Zipf, scattered over pages: several ranks may fall on one page, and none on another, as
/// YCSB has it.
#[derive(Clone, Debug)]
pub struct Popular {
    /// The ranks.
    pub zipf: Zipf,
    /// Where they are scattered.
    pub pages: u64,
}

impl Popular {
    fn draw(&self, random: &mut Random, phase: u64) -> u64 {
        let rank = self.zipf.draw(random);
        fnv_hash(rank.wrapping_add(phase.wrapping_mul(0x9e37_79b9_7f4a_7c15))) % self.pages
    }
}

impl Workload {
    /// Pages have numbers below this.
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

    /// The next access.
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
                unreachable!("the weights' sum is `weights`")
            }
        }
    }
}
