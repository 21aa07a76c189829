//! The monitor of a partition: it estimates, from a sample of the partition's pages, how often the
//! partition would miss at other sizes under its own policy. The result is a miss curve.
//!
//! *The sample* consists of the pages whose sample bits lie below a threshold: at most one page in
//! 32, and a smaller share of a large partition. The monitor sees all accesses to these pages:
//! claims report misses, and hits are reported because the mark of a sampled page stays clear, so
//! that its hits never take the path that stores nothing (`Table::touch`). All other pages cost
//! nothing.
//!
//! *The miniatures* run the partition's policy on the sample at sizes from a 64th of the largest to
//! the largest, four per doubling. Misses are counted per size. The counts decay once per period,
//! by a factor that the caller chooses ([`Monitor::fade`]). If the counts of the last few periods
//! give a different curve than the decayed counts, the load has changed, and only the last few
//! periods are kept.
//!
//! *The rings.* A thread that accesses a sampled page puts it into a ring and continues.
//! [`Monitor::drain`] runs it through the miniatures later, on the thread that asks for curves. If
//! a ring is full, the oldest entries are overwritten and counted as lost, and the estimate is
//! scaled up by their number. A page that comes again within eight entries is not put in again: it
//! would hit in every miniature, except perhaps in one with sets of at most eight ways. Each thread
//! has its own ring, unless there are more threads than rings. The drain takes the rings one after
//! the other, a few times per second, so the accesses of one thread between two drains are all run
//! before those of another. There are as many rings as the miniatures leave room for, at most 16; a
//! small partition has one.
//!
//! Not here: the cost of a miss, and the decision which partition gets memory.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::miniature::{Miniature, Plain};
use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{PolicyKind, with_policy};
use crate::word::tag::Tag;

/// Maximum number of slots of the largest miniature. Fewer slots would make curves less accurate.
const SLOTS_MAX: u64 = 8192;

/// At most one page in this number is followed.
const RATE_MIN: u64 = 32;

/// Ratio of the largest size to the smallest.
const RANGE: u64 = 64;

/// Number of sizes per doubling.
const PER_DOUBLING: u32 = 4;

/// Minimum number of slots of a miniature. A smaller one would say nothing.
const SLOTS_MIN: u64 = 4;

/// A page that comes again within this number of entries is not put into the ring again. With sets
/// of more ways than this, such a page hits in every miniature.
const NEAR: u64 = 8;
const RECENT: usize = 64;

/// Factor by which the counts that detect a change of the load decay per period.
const RECENT_KEEP: f64 = 0.7;

/// The load has changed if, at some size, the miss ratio of the last few periods differs by more
/// than this number, plus `CHANGED_DEVIATIONS` times the largest standard deviation that a ratio of
/// so few references can have.
const CHANGED: f64 = 0.25;
const CHANGED_DEVIATIONS: f64 = 4.0;

/// Minimum number of periods between two detected changes, so that a load that alternates, as
/// recurring scans do, counts as one load.
const CHANGED_APART: u32 = 40;

/// Maximum number of rings, and the minimum size of all miniatures, in bytes, for more than one
/// ring. Partitions of about 32 MiB reach that size.
const RINGS_MAX: usize = 16;
const SIZES_BYTES_SHARED: usize = 128 << 10;

/// Number of entries that run through the miniatures at a time.
const BATCH: usize = 256;

/// Marks an entry as present. An entry holds the place and the print of a tag, and flags.
const PRESENT: u64 = 1 << 63;

/// Marks the first request of a page that was read ahead. If it misses in a miniature, the miss is
/// not counted, because read-ahead would have avoided it at any size.
const EXPLAINED: u64 = 1 << 62;

/// Estimates the misses of a partition at other sizes; see the head of `monitor.rs`.
pub struct Monitor {
    /// Pages whose sample number is below this are followed.
    below: AtomicU32,
    rings: Box<[Ring]>,
    model: Mutex<Model>,
    bytes: AtomicU64,
}

/// The accesses that one thread, or a few, have reported and no drain has taken.
#[repr(align(128))]
struct Ring {
    /// Number of entries put in so far.
    put: AtomicU64,
    /// Recent entries, indexed by a few bits of their prints; each holds a position and a print.
    recent: [AtomicU64; RECENT],
    entries: Box<[AtomicU64]>,
}

thread_local! {
    /// The number of this thread's ring, modulo the number of rings.
    static RING: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed)
    };
}

/// The state that only the drain uses.
struct Model {
    policy: PolicyKind,
    /// Number of entries taken so far, by ring.
    taken: Vec<u64>,
    /// Number of entries of all rings since the monitor began.
    seen: u64,
    /// The miniatures, the largest first.
    sizes: Vec<Size>,
    /// Decayed, as the misses are.
    references: Late,
    lost: f64,
    rate: f64,
    /// Number of periods since the load changed.
    periods: u32,
}

/// A count that decays once per period, together with its value in the last few periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Late {
    late: f64,
    recent: f64,
    /// Its value when the period began.
    begun: f64,
}

impl Late {
    /// Adds `count`.
    pub fn add(&mut self, count: f64) {
        self.late += count;
    }

    /// Returns the decayed count.
    pub fn count(&self) -> f64 {
        self.late
    }

    /// Ends a period: multiplies all that was counted by `keep`.
    pub fn fade(&mut self, keep: f64) {
        self.recent = self.recent * RECENT_KEEP + (self.late - self.begun);
        self.late *= keep;
        self.begun = self.late;
    }

    /// Drops everything but the last few periods.
    pub fn forget(&mut self) {
        self.late = self.recent;
        self.begun = self.late;
    }
}

/// The miniature of the partition at one size.
struct Size {
    miniature: Miniature,
    balance: Balance,
    /// The decayed misses.
    misses: Late,
}

/// A miss curve: the estimated misses of a cache at several sizes, decayed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissCurve {
    /// The decayed number of references, estimated.
    pub references: f64,
    /// The decayed number of references to sampled pages on which the estimate is based.
    pub sampled: f64,
    /// The number of references to sampled pages since the monitor began.
    pub seen: u64,
    /// The share of all pages that is sampled.
    pub rate: f64,
    /// Pairs of a size in pages and the misses at that size, sizes rising.
    pub points: Vec<(u64, f64)>,
}

impl MissCurve {
    /// Returns the misses at a size: linear between two known sizes, and constant beyond the last.
    fn misses_at(&self, pages: f64) -> f64 {
        let next = self.points.partition_point(|(size, _)| (*size as f64) <= pages);
        let (from, misses) = next.checked_sub(1).map_or((0, self.references), |before| self.points[before]);
        let Some((to, later)) = self.points.get(next) else { return misses };
        misses + (later - misses) * (pages - from as f64) / (to - from) as f64
    }
}

/// The sizes of a monitor's parts.
struct Plan {
    below: u32,
    rings: usize,
    /// Number of entries of each ring.
    ring: usize,
    /// Number of slots by size, the largest first.
    slots: Vec<usize>,
    bytes: u64,
}

impl Plan {
    /// Plans for sizes up to `most_pages`, in at most `bytes_max` bytes, with at most `rings_max`
    /// rings. Returns `None` if there is no room for three sizes.
    fn new(most_pages: u64, bytes_max: u64, ways: usize, rings_max: usize) -> Option<Plan> {
        let numbers = 1u64 << Tag::SAMPLE_BITS;
        let mut below = (numbers / RATE_MIN).min(numbers * SLOTS_MAX / most_pages.max(1)).max(1);
        loop {
            let largest = (most_pages * below / numbers).min(SLOTS_MAX);
            let steps = RANGE.ilog2() * PER_DOUBLING;
            let size = |step| (largest as f64 * (-f64::from(step) / f64::from(PER_DOUBLING)).exp2()) as u64;
            let mut slots: Vec<usize> = (0..=steps)
                .map(size)
                .take_while(|slots| *slots >= SLOTS_MIN)
                .map(|slots| Miniature::slots_for(slots as usize, ways))
                .collect();
            slots.dedup();
            let ring = (largest / 2).next_power_of_two().clamp(64, 4096) as usize;
            let sizes: usize = slots.iter().map(|slots| Size::bytes(*slots, ways)).sum();
            let a_ring = size_of::<Ring>() + ring * size_of::<AtomicU64>();
            let bytes = |rings: usize| (size_of::<Monitor>() + sizes + rings * a_ring) as u64;
            if slots.len() < 3 || below == 0 {
                return None;
            }
            // Few threads are busy with a small partition.
            let most = if sizes < SIZES_BYTES_SHARED { 1 } else { rings_max };
            let mut rings =
                std::iter::successors(Some(most), |rings| Some(rings / 2).filter(|half| *half > 0));
            if let Some(rings) = rings.find(|rings| bytes(*rings) <= bytes_max) {
                return Some(Plan { below: below as u32, rings, ring, slots, bytes: bytes(rings) });
            }
            below = below * 3 / 4;
        }
    }
}

impl Size {
    fn new(slots: usize, ways: usize) -> Size {
        let miniature = Miniature::new(slots, ways);
        let balance = Balance::new(miniature.slots() as u64);
        Size { miniature, balance, misses: Late::default() }
    }

    fn bytes(slots: usize, ways: usize) -> usize {
        size_of::<Size>() - size_of::<Miniature>() + Miniature::bytes(slots, ways)
    }
}

impl Model {
    /// Creates a model that has seen nothing.
    fn new(policy: PolicyKind, plan: &Plan, ways: usize) -> Model {
        Model {
            policy,
            taken: vec![0; plan.rings],
            seen: 0,
            sizes: plan.slots.iter().map(|slots| Size::new(*slots, ways)).collect(),
            references: Late::default(),
            lost: 0.0,
            periods: CHANGED_APART,
            rate: f64::from(plan.below) / (1u64 << Tag::SAMPLE_BITS) as f64,
        }
    }

    /// Runs the entries of a ring through the miniatures. Returns the number of entries since the
    /// last call, lost ones included.
    fn drain(&mut self, ring: &Ring, number: usize, lead: Option<&Lead>) -> u64 {
        let mut batch = [(Tag(0), false); BATCH];
        let (mut taken, end, room) = (self.taken[number], ring.put.load(Relaxed), ring.entries.len() as u64);
        let waiting = end.wrapping_sub(taken);
        let lost = waiting.saturating_sub(room);
        self.lost += lost as f64;
        self.seen += waiting;
        taken = taken.wrapping_add(lost);
        while taken != end {
            let mut count = 0;
            while taken != end && count < BATCH {
                let entry = ring.entries[(taken % room) as usize].swap(0, Relaxed);
                taken = taken.wrapping_add(1);
                // 0: the thread that took this place has not stored its entry yet. The drain passes
                // the place, and this access is usually lost.
                if entry & PRESENT != 0 {
                    batch[count] = (tag_of(entry), entry & EXPLAINED == 0);
                    count += 1;
                }
            }
            self.run(&batch[..count], lead);
        }
        self.taken[number] = taken;
        waiting
    }

    /// Runs pages through the miniatures of all sizes, and counts the misses of pages whose flag is
    /// true.
    fn run(&mut self, pages: &[(Tag, bool)], lead: Option<&Lead>) {
        self.references.add(pages.len() as f64);
        with_policy!(self.policy, P => for Size { miniature, balance, misses } in &mut self.sizes {
            let mut guide = Plain::<P>::new(lead, balance);
            for (tag, counts) in pages {
                let hit = miniature.access(*tag, &mut guide);
                misses.add(f64::from(u8::from(!hit && *counts)));
            }
        });
    }

    /// Returns whether the counts of the last few periods give a different curve than all decayed
    /// counts. Both count misses of the same miniatures.
    fn has_changed(&self) -> bool {
        let Late { late, recent, .. } = self.references;
        let most = CHANGED + CHANGED_DEVIATIONS * 0.5 / recent.sqrt();
        let difference = |misses: &Late| (misses.recent / recent - misses.late / late).abs();
        recent > 0.0 && self.sizes.iter().any(|size| difference(&size.misses) > most)
    }
}

/// Returns the bits of a tag that miniatures use: the place and the print.
fn place_and_print(tag: Tag) -> u64 {
    u64::from(tag.ghost_print()) << Tag::PLACE_BITS | u64::from(tag.place())
}

/// Returns a tag with the place and the print of an entry.
fn tag_of(entry: u64) -> Tag {
    let print = entry >> Tag::PLACE_BITS << Tag::GHOST_PRINT_SHIFT;
    Tag(print | u64::from(entry as u32))
}

impl Ring {
    fn new(entries: usize) -> Ring {
        Ring {
            put: AtomicU64::new(0),
            recent: std::array::from_fn(|_| AtomicU64::new(0)),
            entries: (0..entries).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn put(&self, tag: Tag, flags: u64) {
        let print = u64::from(tag.ghost_print());
        let recent = &self.recent[print as usize % RECENT];
        let (seen, put) = (recent.load(Relaxed), self.put.load(Relaxed));
        if seen & 0xffff == print && seen != 0 && put.wrapping_sub(seen >> 16) & ((1 << 48) - 1) <= NEAR {
            return;
        }
        // Incremented atomically: two threads may share a ring.
        let put = self.put.fetch_add(1, Relaxed);
        recent.store((put + 1) << 16 | print, Relaxed);
        let entry = place_and_print(tag) | PRESENT | flags;
        self.entries[put as usize % self.entries.len()].store(entry, Relaxed);
    }
}

impl Monitor {
    /// Creates a monitor for sizes up to `most_pages` pages, with at most `bytes_max` bytes of
    /// memory. With `alone`, only one thread at a time may report accesses; they are processed in
    /// the order of the reports, whichever threads make them. Returns `None` if `bytes_max` is too
    /// small for a useful estimate.
    pub fn new(
        policy: PolicyKind,
        most_pages: u64,
        bytes_max: u64,
        ways: usize,
        alone: bool,
    ) -> Option<Monitor> {
        let plan = Plan::new(most_pages, bytes_max, ways, if alone { 1 } else { RINGS_MAX })?;
        Some(Monitor {
            below: AtomicU32::new(plan.below),
            rings: (0..plan.rings).map(|_| Ring::new(plan.ring)).collect(),
            bytes: AtomicU64::new(plan.bytes),
            model: Mutex::new(Model::new(policy, &plan, ways)),
        })
    }

    /// Returns the bytes that a monitor would use; 0 if `bytes_max` is too small for one.
    pub fn bytes_for(most_pages: u64, bytes_max: u64, ways: usize) -> u64 {
        Plan::new(most_pages, bytes_max, ways, RINGS_MAX).map_or(0, |plan| plan.bytes)
    }

    /// Returns the bytes that the monitor uses.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns whether a page is in the sample.
    #[inline(always)]
    pub fn follows(&self, tag: Tag) -> bool {
        // Relaxed, here and below: a sample orders nothing.
        u32::from(tag.sample()) < self.below.load(Relaxed)
    }

    /// Returns the number of rings that threads share.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Reports an access to a page of the sample. `explained` says that the page was read ahead, as
    /// it would have been at any size.
    pub fn show(&self, tag: Tag, explained: bool) {
        let ring = &self.rings[RING.with(|number| *number) % self.rings.len()];
        ring.put(tag, if explained { EXPLAINED } else { 0 });
    }

    /// Runs the reported accesses through the miniatures. Returns their number. Only one thread at
    /// a time drains; a second thread gets 0.
    pub(crate) fn drain(&self, lead: Option<&Lead>) -> u64 {
        let Ok(mut model) = self.model.try_lock() else { return 0 };
        self.rings.iter().enumerate().map(|(number, ring)| model.drain(ring, number, lead)).sum()
    }

    /// Ends a period: multiplies the counts by `keep`. Returns true if the load has changed; then
    /// only the counts of the last few periods are left.
    pub fn fade(&self, keep: f64) -> bool {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.sizes.iter_mut().for_each(|size| size.misses.fade(keep));
        model.references.fade(keep);
        model.lost *= keep;
        model.periods = model.periods.saturating_add(1);
        let changed = model.periods >= CHANGED_APART && model.has_changed();
        if changed {
            model.periods = 0;
            let before = model.references.late;
            model.references.forget();
            model.lost *= model.references.late / before;
            model.sizes.iter_mut().for_each(|size| size.misses.forget());
        }
        changed
    }

    /// Returns the current miss curve.
    pub fn curve(&self) -> MissCurve {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let references = model.references.late;
        let lost = if references > 0.0 { 1.0 + model.lost / references } else { 1.0 };
        let scale = lost / model.rate;
        MissCurve {
            references: references * scale,
            sampled: references,
            seen: model.seen,
            rate: model.rate,
            points: model
                .sizes
                .iter()
                .rev()
                .map(|size| ((size.miniature.slots() as f64 / model.rate) as u64, size.misses.late * scale))
                .collect(),
        }
    }

    /// Changes the largest size to `most_pages`; `bytes_max` as in [`Monitor::new`]. The counts are
    /// converted: the new sizes begin with the misses that the old curve gives for them. Returns
    /// false, and changes nothing, if `bytes_max` is too small.
    pub fn reshape(&self, most_pages: u64, bytes_max: u64, ways: usize) -> bool {
        let Some(plan) = Plan::new(most_pages, bytes_max, ways, RINGS_MAX) else { return false };
        let known = self.curve();
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        // The rings keep their number and size.
        let (taken, seen) = (std::mem::take(&mut model.taken), model.seen);
        *model = Model { taken, seen, periods: 0, ..Model::new(model.policy, &plan, ways) };
        let rate = model.rate;
        let counted = |count: f64| Late { late: count * rate, recent: 0.0, begun: count * rate };
        model.references = counted(known.references);
        for size in &mut model.sizes {
            size.misses = counted(known.misses_at(size.miniature.slots() as f64 / rate));
        }
        self.below.store(plan.below, Relaxed);
        self.bytes.store(plan.bytes, Relaxed);
        true
    }

    /// Continues with another policy.
    pub(crate) fn set_policy(&self, new: PolicyKind, lead: Option<&Lead>) {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut model.policy, new);
        for size in &mut model.sizes {
            size.miniature.change_policy(old, new, lead, &size.balance);
        }
    }
}
