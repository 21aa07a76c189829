//! What is learned about a partition's load: the size of its monitor, and what one plan passes
//! to the next.
//!
//! Not here: the monitor itself (`octavo_table`), plans (`control`).

use octavo_share::{Stretch, Trend};
use octavo_table::{Late, Shape, Table};

use super::shared::Shared;
use crate::ways::WAYS;

/// What one plan passes to the next: decayed counts of misses and of misses whose pages
/// returned, how the curve was stretched, and in which direction the size went.
#[derive(Default)]
pub(crate) struct Remembered {
    pub misses: Of,
    pub returns: Of,
    pub stretch: Stretch,
    pub trend: Trend,
    /// Pages requested until the end of the last period, and periods since then without a
    /// request.
    pub asked: u64,
    pub quiet: u32,
}

/// A decayed count, derived from a count that only grows.
#[derive(Default)]
pub(crate) struct Of {
    late: Late,
    before: u64,
}

impl Of {
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

/// The parameters of a partition's monitor: it covers sizes up to eight times the partition's,
/// and takes at most 1 % of the partition less what the policy's learning takes.
pub(crate) struct Watch {
    pub most_pages: u64,
    pub bytes_max: u64,
}

impl Watch {
    pub fn possible(shared: &Shared, shape: Shape) -> u64 {
        let table = u64::from(shape.segments_max) * u64::from(shape.sets_per_segment) * WAYS as u64;
        table.min(shared.budget.max_bytes() / u64::from(shared.config.page_bytes))
    }

    pub fn new(shared: &Shared, shape: Shape, slots: u64, learning: u64) -> Watch {
        let hundredth = slots * u64::from(shared.config.page_bytes) / 100;
        let bytes_max = if shared.config.reaper { hundredth.saturating_sub(learning) } else { 0 };
        Watch { most_pages: (8 * slots).min(Self::possible(shared, shape)), bytes_max }
    }

    pub fn bytes(&self) -> u64 {
        octavo_table::Monitor::bytes_for(self.most_pages, self.bytes_max, WAYS)
    }

    pub fn begin(&self, table: &Table<WAYS>) {
        table.watch(self.most_pages, self.bytes_max);
    }
}
