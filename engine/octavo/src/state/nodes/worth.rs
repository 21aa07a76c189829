//! Whether copies of pages are worth their while in a partition (mode `replicate`).

use octavo_table::Tag;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Of so many pages one is a *probe*: by its tag, so that it stays one.
const PROBE_SHARE: u16 = 64;

/// So many reads of overtaken probes are a look at what copies are worth.
const PROBES: u64 = 16;

/// Copies are not worth it when each is read less often than this before a write overtakes it, and
/// are again when it is read more often than that. What a copy and its end cost more than a read
/// from afar is what four to six reads of it save, where a read is of some hundred bytes; with
/// whole pages it is one.
const HITS_MIN: u64 = 4;
const HITS_ENOUGH: u64 = 8;

/// Whether copies are worth their while in a partition: most of its pages have none while those
/// that are probes say no.
#[derive(Default)]
pub(crate) struct Worth {
    is_low: AtomicBool,
    /// Reads of probes whose copies were overtaken, and of their copies, since the last look.
    stale: AtomicU64,
    hits: AtomicU64,
}

impl Worth {
    /// Whether the page may have copies.
    pub fn allows(&self, tag: Tag) -> bool {
        // Relaxed, all here: hints.
        !self.is_low.load(Ordering::Relaxed) || is_probe(tag)
    }

    pub fn probe_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

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

pub(crate) fn is_probe(tag: Tag) -> bool {
    tag.sample() < u16::MAX / PROBE_SHARE
}
