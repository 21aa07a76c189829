//! What is learned of a partition's load: its monitor, kept in proportion to its size, and what a
//! plan is told and leaves to the next. Not here: the monitor itself (`octavo_table`), and plans
//! (`reaper.rs`).

use std::sync::atomic::Ordering::Relaxed;

use octavo_share::{Seen, Stretch, Trend};
use octavo_table::{Late, Shape, Table};

use super::Partition;
use crate::WAYS;
use crate::cache::Shared;
use crate::counters::Count;
use crate::reaper::{Share, Use};
use crate::sync::lock;

/// What one plan leaves to the next: misses of late, as a monitor's counts fade, those of them
/// whose pages returned, how its curve was stretched, and where the size went.
#[derive(Default)]
pub(super) struct Remembered {
    misses: Of,
    returns: Of,
    stretch: Stretch,
    trend: Trend,
    /// Pages that it had been asked for when the last period was over, and periods since in which
    /// it was asked for none.
    asked: u64,
    quiet: u32,
}

/// A count of late, of one that only grows.
#[derive(Default)]
struct Of {
    late: Late,
    before: u64,
}

impl Of {
    /// Of so many in all, those of late. Where a period is over, they fade from now on, or only the
    /// last few periods' count.
    fn look(&mut self, all: u64, over: Option<(f64, bool)>) -> f64 {
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
pub(super) struct Watch {
    most_pages: u64,
    bytes_max: u64,
}

impl Watch {
    fn possible(shared: &Shared, shape: Shape) -> u64 {
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

impl Partition {
    /// What it would have missed of late at other sizes. None where it is not watched: the cache
    /// has no reaper, or the partition is very small.
    pub fn miss_curve(&self) -> Option<octavo_table::MissCurve> {
        if self.0.shared.is_forked() {
            return None;
        }
        self.0.table.drain_monitor();
        self.0.table.miss_curve()
    }

    /// What a plan must know. The curve's counts are worth `keep` of what they were from now on.
    pub(crate) fn share(&self, keep: f64) -> Share {
        let inner = &self.0;
        let curve = inner.table.miss_curve();
        let is_over = keep < 1.0;
        let has_changed = is_over && inner.table.monitor().is_some_and(|monitor| monitor.fade(keep));
        let mut remembered = lock(&inner.remembered);
        let over = is_over.then_some((keep, has_changed));
        let misses = remembered.misses.look(inner.sum(Count::Misses), over);
        // Relaxed: a figure.
        let returns = remembered.returns.look(inner.table.tally().ghost_hits.load(Relaxed), over);
        let mut stretch = remembered.stretch;
        if is_over {
            stretch.fade(has_changed);
        }
        let asked = inner.sum(Count::Hits).wrapping_add(inner.sum(Count::Misses));
        if is_over {
            let is_quiet = std::mem::replace(&mut remembered.asked, asked) == asked;
            remembered.quiet = if is_quiet { remembered.quiet.saturating_add(1) } else { 0 };
        }
        let used = if asked == 0 { Use::Never } else { Use::Before(remembered.quiet) };
        let trend = remembered.trend;
        drop(remembered);
        let fixed = lock(&inner.costs).fixed_bytes();
        let bytes = u64::from(inner.table.live_segments()) * self.segment_bytes();
        let ghosts = inner.table.remembered_slots();
        let rate = curve.as_ref().map_or(0.0, |curve| curve.rate);
        let seen = Seen {
            bytes,
            misses,
            returns,
            reach_bytes: bytes + ghosts * inner.page_bytes() as u64,
            sampled_per_byte: rate / inner.page_bytes() as f64,
        };
        let (sizes, fit) = ((self.segment_bytes(), fixed), (&seen, &mut stretch));
        let share = Share::new(self.limits(), sizes, curve, inner.page_bytes() as u64, fit, (trend, used));
        lock(&inner.remembered).stretch = stretch;
        share
    }

    /// A plan has changed its size.
    pub(crate) fn went(&self, from_bytes: u64, to_bytes: u64) {
        let mut remembered = lock(&self.0.remembered);
        remembered.trend = remembered.trend.after(from_bytes, to_bytes);
    }

    /// Fits the monitor to the partition's size: lets it look at larger sizes where the partition
    /// has come near the largest that it looks at, and takes it back where it takes more than
    /// its part of what the partition is now.
    pub(crate) fn fit_monitor(&self) {
        let inner = &self.0;
        let Some(monitor) = inner.table.monitor() else { return };
        let slots = inner.table.slots_count();
        let possible = Watch::possible(&inner.shared, inner.table.shape());
        let largest = monitor.curve().points.last().map_or(0, |(pages, _)| *pages);
        let learning = Table::<WAYS>::learning_bytes(inner.table.policy(), slots) as u64;
        let watch = Watch::new(&inner.shared, inner.table.shape(), slots, learning);
        let is_large = monitor.bytes() > watch.bytes_max;
        if !is_large && (largest >= possible / 8 * 7 || largest >= 2 * slots) || watch.bytes() == 0 {
            return;
        }
        let mut costs = lock(&inner.costs);
        if costs.watch(monitor.bytes(), watch.bytes()).is_ok() {
            monitor.reshape(watch.most_pages, watch.bytes_max, WAYS);
        }
    }

    /// Bytes of all that is learned of its load, by the policy and for its curve.
    #[doc(hidden)]
    pub fn learned_bytes(&self) -> u64 {
        lock(&self.0.costs).learning_bytes() + self.0.table.monitor().map_or(0, |monitor| monitor.bytes())
    }
}
