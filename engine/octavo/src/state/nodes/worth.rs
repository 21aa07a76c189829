//! Decides whether twins are worth making in a partition (mode `replicate`).

use octavo_table::Tag;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// One page in this many is a *probe*. Its tag decides, so a page that is a probe stays one.
const PROBE_SHARE: u16 = 64;

/// After this many reads of stale twins of probes, the partition decides again.
const PROBES: u64 = 16;

/// Twins are not worth making if each is read fewer than `HITS_MIN` times before a write makes it
/// stale, and are worth making again if each is read more than `HITS_ENOUGH` times. A twin costs
/// more than a single remote read: it must be made, and later marked stale. With reads of some
/// hundred bytes, four to six reads of the twin save that difference; with reads of whole pages,
/// one read does.
const HITS_MIN: u64 = 4;
const HITS_ENOUGH: u64 = 8;

/// Whether twins are worth making in one partition. While those of probes are not, only probes get
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
        // Relaxed, like all accesses in this file: hints.
        !self.is_low.load(Ordering::Relaxed) || is_probe(tag)
    }

    /// Counts a read that a probe's twin has served.
    pub fn probe_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read that found a probe's twin stale, and decides again after every `PROBES` of
    /// these.
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
    tag.draw() < u16::MAX / PROBE_SHARE
}
