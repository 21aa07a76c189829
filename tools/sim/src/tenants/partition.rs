//! A tenant's partition without its frames: the engine's table, which grows and shrinks by
//! segments, under the engine's monitor.

use std::sync::atomic::Ordering::Relaxed;

use octavo_share::{Curve, Leaf, Seen, Stretch, Trend};
use octavo_table::{Late, Mixer, NoBytes, PolicyKind, SegmentIndex, Shape, Table};

use crate::cache::{Cache, SetCache};

/// One tenant's partition.
pub(super) struct Partition {
    cache: SetCache<16>,
    page_bytes: u64,
    pub misses: u64,
    /// Decayed count of misses; it decays like the monitor's counts.
    missed: Late,
    misses_before: u64,
    /// Decayed count of the misses whose pages had a ghost in their set.
    returned: Late,
    returns_before: u64,
    stretch: Stretch,
    trend: Trend,
}

/// The smallest number of sampled references with which the plan uses a curve.
const SAMPLED_MIN: u64 = 64;

impl Partition {
    /// Creates a partition of `live` segments, which can grow to all of the shape's.
    pub fn new(policy: PolicyKind, shape: Shape, live: u32, page_bytes: u64, seed: u64) -> Partition {
        let table = Table::new(shape, policy, live);
        let slots = |segments: u32| u64::from(segments) * u64::from(shape.sets_per_segment) * 16;
        // The monitor gets a hundredth of the initial size. The engine does the same, with room for
        // the policy's learner in it.
        table.watch_alone(slots(shape.segments_max), slots(live) * page_bytes / 100);
        Partition {
            cache: SetCache { table, mixer: Mixer::new(seed) },
            page_bytes,
            misses: 0,
            missed: Late::default(),
            misses_before: 0,
            returned: Late::default(),
            returns_before: 0,
            stretch: Stretch::default(),
            trend: Trend::None,
        }
    }

    /// Accesses a page.
    pub fn access(&mut self, page: u64) {
        self.misses += u64::from(!self.cache.access(page));
    }

    /// Runs the monitor's references through its miniatures and returns their number.
    pub fn drain(&self) -> u64 {
        self.cache.table.drain_monitor()
    }

    #[cfg(test)]
    pub fn curve(&self) -> Option<octavo_table::MissCurve> {
        self.cache.table.miss_curve()
    }

    /// Returns the partition's state for the plan, then decays all counts by `keep`.
    pub fn look(&mut self, granule_bytes: u64, keep: f64) -> Leaf {
        let curve = self.cache.table.miss_curve().unwrap_or_default();
        let current_bytes = u64::from(self.cache.table.live_segments()) * granule_bytes;
        self.missed.add((self.misses - std::mem::replace(&mut self.misses_before, self.misses)) as f64);
        let returns = self.cache.table.tally().ghost_hits.load(Relaxed);
        self.returned.add((returns - std::mem::replace(&mut self.returns_before, returns)) as f64);
        let remembered = self.cache.table.remembered_slots();
        let seen = Seen {
            bytes: current_bytes,
            misses: self.missed.count(),
            returns: self.returned.count(),
            reach_bytes: current_bytes + remembered * self.page_bytes,
            sampled_per_byte: curve.rate / self.page_bytes as f64,
        };
        if keep < 1.0 {
            let has_changed = self.cache.table.monitor().is_some_and(|monitor| monitor.fade(keep));
            self.stretch.fade(has_changed);
            for late in [&mut self.missed, &mut self.returned] {
                late.fade(keep);
                if has_changed {
                    late.forget();
                }
            }
        }
        let points = curve.points.iter().map(|(pages, misses)| (pages * self.page_bytes, *misses));
        Leaf {
            current_bytes,
            curve: Curve::new(curve.references, points).fitted(&seen, &mut self.stretch),
            trend: self.trend,
            sampled_pages: seen.sampled_per_byte * current_bytes as f64,
            is_new: curve.seen < SAMPLED_MIN,
            ..Leaf::default()
        }
    }

    /// Grows or shrinks to `segments` segments.
    pub fn resize(&mut self, segments: u32) {
        self.trend = self.trend.after(self.cache.table.live_segments().into(), segments.into());
        while self.cache.table.live_segments() < segments {
            let Some(segment) = self.cache.table.spare_segment() else { break };
            self.cache.table.join(segment).into_iter().rev().for_each(|mv| self.advance(mv));
        }
        while self.cache.table.live_segments() > segments.max(1) {
            let last: SegmentIndex = self.cache.table.segments().last().expect("a partition has segments");
            self.cache.table.leave(last).into_iter().rev().for_each(|mv| self.advance(mv));
            self.cache.table.retire(last).expect("nothing is pinned");
        }
    }

    fn advance(&self, mv: octavo_table::Move) {
        let pass = self.cache.table.advance(mv, &mut NoBytes);
        assert!(pass.busy.is_none(), "no other thread uses a page");
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> u32 {
        self.cache.table.live_segments()
    }
}
