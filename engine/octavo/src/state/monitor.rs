//! The parameters of a partition's monitor, and what one plan remembers about the partition for the
//! next.
//!
//! Not here: the monitor itself (`octavo_table`), plans (`control`).

use octavo_share::{Stretch, Trend};
use octavo_table::{Late, Shape, Table};

use crate::config::CacheConfig;
use crate::ways::WAYS;

/// What one plan remembers about a partition for the next plan.
#[derive(Default)]
pub(crate) struct Remembered {
    /// Decayed count of misses.
    pub misses: Decayed,
    /// Decayed count of misses of pages that were evicted before.
    pub returns: Decayed,
    /// How the curve was stretched.
    pub stretch: Stretch,
    /// Whether the last plans grew or shrank the partition.
    pub trend: Trend,
    /// Pages requested until the end of the last period, and the number of consecutive periods
    /// without a request.
    pub asked: u64,
    pub quiet: u32,
}

/// A decayed count, derived from a count that only grows.
#[derive(Default)]
pub(crate) struct Decayed {
    late: Late,
    before: u64,
}

impl Decayed {
    /// Returns the decayed count after adding the growth of `all`, the undecayed total, since
    /// the last call. At the end of a period (`over`), the count then decays by `keep`, or keeps
    /// only the last few periods if the load has changed.
    pub fn look(&mut self, all: u64, over: Option<(f64, bool)>) -> f64 {
        self.late.add(all.wrapping_sub(std::mem::replace(&mut self.before, all)) as f64);
        let late = self.late.count();
        if let Some((keep, has_changed)) = over {
            self.late.fade(keep);
            if has_changed {
                self.late.forget();
            }
        }
        late
    }
}

/// The parameters of a partition's monitor. The monitor covers sizes up to eight times the
/// partition's. Its memory and the policy's together take at most 1 % of the partition.
pub(crate) struct Watch {
    pub most_pages: u64,
    pub bytes_max: u64,
}

impl Watch {
    /// Returns the largest number of pages that the partition can ever have.
    pub fn possible(cache: &CacheConfig, page_bytes: u32, shape: Shape) -> u64 {
        let table = u64::from(shape.segments_max) * u64::from(shape.sets_per_segment) * WAYS as u64;
        table.min(cache.memory_max_bytes / u64::from(page_bytes))
    }

    pub fn new(cache: &CacheConfig, page_bytes: u32, shape: Shape, slots: u64, learning: u64) -> Watch {
        let hundredth = slots * u64::from(page_bytes) / 100;
        let bytes_max = if cache.reaper { hundredth.saturating_sub(learning) } else { 0 };
        Watch { most_pages: (8 * slots).min(Self::possible(cache, page_bytes, shape)), bytes_max }
    }

    pub fn bytes(&self) -> u64 {
        octavo_table::Monitor::bytes_for(self.most_pages, self.bytes_max, WAYS)
    }

    pub fn begin(&self, table: &Table<WAYS>) {
        table.watch(self.most_pages, self.bytes_max);
    }
}
