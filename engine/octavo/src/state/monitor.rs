//! What is learned of a partition's load: the size of its monitor, and what one plan leaves to the
//! next. Not here: the monitor itself (`octavo_table`), plans (`control`).

use octavo_share::{Stretch, Trend};
use octavo_table::{Late, Shape, Table};

use super::shared::Shared;
use crate::ways::WAYS;

/// What one plan leaves to the next: misses of late, as a monitor's counts fade, those of them
/// whose pages returned, how its curve was stretched, and where the size went.
#[derive(Default)]
pub(crate) struct Remembered {
    pub misses: Of,
    pub returns: Of,
    pub stretch: Stretch,
    pub trend: Trend,
    /// Pages that it had been asked for when the last period was over, and periods since in which
    /// it was asked for none.
    pub asked: u64,
    pub quiet: u32,
}

/// A count of late, of one that only grows.
#[derive(Default)]
pub(crate) struct Of {
    late: Late,
    before: u64,
}

impl Of {
    /// Of so many in all, those of late. Where a period is over, they fade from now on, or only the
    /// last few periods' count.
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

/// How a partition is watched: sizes up to eight times its own, with what the policy's learning
/// leaves of a hundredth of it.
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
