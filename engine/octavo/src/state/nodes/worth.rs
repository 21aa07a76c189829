//! Decides whether twins are worth making in a partition (mode `replicate`).

use octavo_table::Tag;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// One page in this many is a *probe*, chosen by its tag, so that it stays one.
const PROBE_SHARE: u16 = 64;

/// After this many reads of stale twins of probes, the partition decides anew.
const PROBES: u64 = 16;

/// Twins are not worth making if each is read less often than `HITS_MIN` before a write
/// overtakes it, and are worth it again if each is read more often than `HITS_ENOUGH`. With
/// reads of some hundred bytes, four to six reads save what making and overtaking a twin costs
/// beyond one remote read; with reads of whole pages, one read does.
const HITS_MIN: u64 = 4;
const HITS_ENOUGH: u64 = 8;

/// Whether twins are worth making in one partition. While the probes say no, only probes get
/// twins.
#[derive(Default)]
pub(crate) struct Worth {
    is_low: AtomicBool,
    /// Since the last decision: reads of probes that found the twin stale, and reads served by a
    /// probe's twin.
    stale: AtomicU64,
    hits: AtomicU64,
}

impl Worth {
    /// Whether the page may have twins.
    pub fn allows(&self, tag: Tag) -> bool {
        // Relaxed, all here: hints.
        !self.is_low.load(Ordering::Relaxed) || is_probe(tag)
    }

    /// Counts a read that a probe's twin has served.
    pub fn probe_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read that found a probe's twin stale, and decides anew after `PROBES` of these.
    pub fn probe_stale(&self) {
        if self.stale.fetch_add(1, Ordering::Relaxed) + 1 < PROBES {
            return;
        }
        let (stale, hits) = (self.stale.swap(0, Ordering::Relaxed), self.hits.swap(0, Ordering::Relaxed));
        if hits < stale * HITS_MIN {
            self.is_low.store(true, Ordering::Relaxed);
        } else if hits > stale * HITS_ENOUGH {
            self.is_low.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether the page is a probe.
pub(crate) fn is_probe(tag: Tag) -> bool {
    tag.sample() < u16::MAX / PROBE_SHARE
}
