//! Collects what a plan needs to know about a partition, and fits the partition's monitor to its
//! size.
//!
//! Not here: the monitor itself (`octavo_table`), plans (`plan.rs`).

use std::sync::atomic::Ordering::Relaxed;

use octavo_share::Seen;
use octavo_table::Table;

use super::core::Partition;
use super::plan::{Share, Use};
use crate::state::counters::Count;
use crate::state::monitor::Watch;
use crate::sync::lock;
use crate::ways::WAYS;

impl Partition {
    /// Returns what a plan needs to know about the partition, whose segments count as
    /// `segment_bytes` each: their granules. If `keep` is below 1, also ends a
    /// period: multiplies the counts of the curve, the misses and the returns by `keep`, decays the
    /// stretch, and counts periods without requests. With `keep` 1, nothing decays.
    pub(crate) fn share(&self, keep: f64, segment_bytes: u64) -> Share {
        let inner = &self.inner;
        let curve = inner.table.miss_curve();
        let is_over = keep < 1.0;
        let has_changed = is_over && inner.table.monitor().is_some_and(|monitor| monitor.fade(keep));
        let mut remembered = lock(&inner.remembered);
        let over = is_over.then_some((keep, has_changed));
        let misses = remembered.misses.look(inner.sum(Count::Misses), over);
        // Relaxed: a statistic.
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
        let bytes = u64::from(inner.table.live_segments()) * segment_bytes;
        let ghosts = inner.table.remembered_slots();
        let rate = curve.as_ref().map_or(0.0, |curve| curve.rate);
        let seen = Seen {
            bytes,
            misses,
            returns,
            reach_bytes: bytes + ghosts * inner.page_bytes() as u64,
            sampled_per_byte: rate / inner.page_bytes() as f64,
        };
        let (sizes, fit) = ((segment_bytes, fixed), (&seen, &mut stretch));
        let share = Share::new(inner.limits(), sizes, curve, inner.page_bytes() as u64, fit, (trend, used));
        lock(&inner.remembered).stretch = stretch;
        share
    }

    /// Records that a plan has changed the partition's size.
    pub(crate) fn note_resize(&self, from_bytes: u64, to_bytes: u64) {
        let mut remembered = lock(&self.inner.remembered);
        remembered.trend = remembered.trend.after(from_bytes, to_bytes);
    }

    /// Fits the monitor to the partition's size. Extends the curve to larger sizes if the partition
    /// has grown to more than half of the largest size that the curve covers. Shrinks the monitor
    /// if it takes more memory than its share of the partition's current size.
    pub(crate) fn fit_monitor(&self) {
        let inner = &self.inner;
        let Some(monitor) = inner.table.monitor() else { return };
        let slots = inner.table.slots_count();
        let (cache, page_bytes) = (&inner.shared.config, inner.page_bytes() as u32);
        let possible = Watch::possible(cache, page_bytes, inner.table.shape());
        let largest = monitor.curve().points.last().map_or(0, |(pages, _)| *pages);
        let learning = Table::<WAYS>::learning_bytes(inner.table.policy(), slots) as u64;
        let watch = Watch::new(cache, page_bytes, inner.table.shape(), slots, learning);
        let is_large = monitor.bytes() > watch.bytes_max;
        if !is_large && (largest >= possible / 8 * 7 || largest >= 2 * slots) || watch.bytes() == 0 {
            return;
        }
        let mut costs = lock(&inner.costs);
        if costs.watch(monitor.bytes(), watch.bytes()).is_ok() {
            monitor.reshape(watch.most_pages, watch.bytes_max, WAYS);
        }
    }
}
