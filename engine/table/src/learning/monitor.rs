//! What a partition would miss at other sizes: a live miss curve of its own policy, from a sample
//! of its pages.
//!
//! *The sample* is the pages whose tags' sample bits lie below a threshold: one page in 32 at most,
//! and fewer of a large partition. All accesses to them are seen: misses by the claim, hits by
//! keeping a sampled page's mark down, so that its hits never take the way that stores
//! nothing (`Table::touch`). All other pages pay nothing.
//!
//! *The miniatures* run the partition's policy on the sample at sizes from a 64th of the largest to
//! the largest, four to a doubling. Misses are counted per size and fade: whoever looks once a
//! period decides how fast ([`Monitor::fade`]). Where the last few periods' counts say something
//! else than all counts of late do, the load has changed, and what was counted before is forgotten.
//!
//! *The rings.* Whoever accesses a sampled page puts it into a ring and goes on; [`Monitor::drain`]
//! takes it through the miniatures later, on the thread of whoever asks for curves. If nobody
//! drains, the oldest entries are overwritten and counted as lost; what is left is taken for all. A
//! page that comes again within eight entries is not put in again: it hits in every miniature,
//! whatever is done in between. Each thread has a ring of its own, as long as there are not more
//! threads than rings: what it stores there nobody reads but the drain, some times a second.
//! Between two drains, so, what one thread did comes after all that another did. There are as many
//! rings as the miniatures leave room for; a small partition has one.
//!
//! What is not here: what a miss costs, and who gets memory for it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::miniature::{Miniature, Plain};
use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{PolicyKind, with_policy};
use crate::word::tag::Tag;

/// Slots of the largest miniature: with fewer of them, curves err.
const SLOTS_MAX: u64 = 8192;

/// At most one page in so many is followed.
const RATE_MIN: u64 = 32;

/// The largest size over the smallest.
const RANGE: u64 = 64;

/// Sizes to a doubling.
const PER_DOUBLING: u32 = 4;

/// A miniature of fewer slots says nothing.
const SLOTS_MIN: u64 = 4;

/// A page that comes again within so many entries is not put into the ring again. Fewer than the
/// ways of a miniature's set.
const NEAR: u64 = 8;
const RECENT: usize = 64;

/// What is left in the next period of the counts that tell a change.
const RECENT_KEEP: f64 = 0.7;

/// The load has changed where the miss ratio at some size was so different in the last few periods,
/// and by so many deviations of a count as small.
const CHANGED: f64 = 0.25;
const CHANGED_DEVIATIONS: f64 = 4.0;

/// Between two changes so many periods pass: a load that goes to and fro, as scans do that come
/// again, is one load.
const CHANGED_APART: u32 = 40;

/// Rings at most; and from how many bytes of miniatures on there is more than one: partitions of
/// some 32 MiB.
const RINGS_MAX: usize = 16;
const SIZES_BYTES_SHARED: usize = 128 << 10;

/// Entries that are taken through the miniatures at a time.
const BATCH: usize = 256;

/// An entry is there: tags have 48 bits of interest, those above the sample bits.
const PRESENT: u64 = 1 << 63;

/// The miss would have been read ahead: more memory does not save it.
const EXPLAINED: u64 = 1 << 62;

/// See the module.
pub struct Monitor {
    /// Pages whose sample number is below this are followed.
    below: AtomicU32,
    rings: Box<[Ring]>,
    model: Mutex<Model>,
    bytes: AtomicU64,
}

/// What one thread has seen, or a few.
#[repr(align(128))]
struct Ring {
    /// Entries put in so far.
    put: AtomicU64,
    /// The last entries, by a few bits of their prints: position and print.
    recent: [AtomicU64; RECENT],
    entries: Box<[AtomicU64]>,
}

thread_local! {
    /// The number of this thread's ring, modulo how many there are.
    static RING: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed)
    };
}

/// What only the drain touches.
struct Model {
    policy: PolicyKind,
    /// Entries taken so far, by ring.
    taken: Vec<u64>,
    /// Entries of all rings since it began.
    seen: u64,
    /// The largest first.
    sizes: Vec<Size>,
    /// Of late, as the misses.
    references: Late,
    lost: f64,
    rate: f64,
    /// Periods since the load changed.
    periods: u32,
}

/// A count that fades, and what it was in the last few periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Late {
    late: f64,
    recent: f64,
    /// What it was when the period began.
    begun: f64,
}

impl Late {
    /// Counts so many more.
    pub fn add(&mut self, count: f64) {
        self.late += count;
    }

    /// The count of late.
    pub fn count(&self) -> f64 {
        self.late
    }

    /// A period is over: all that was counted is worth so much of what it was.
    pub fn fade(&mut self, keep: f64) {
        self.recent = self.recent * RECENT_KEEP + (self.late - self.begun);
        self.late *= keep;
        self.begun = self.late;
    }

    /// Only the last few periods count.
    pub fn forget(&mut self) {
        self.late = self.recent;
        self.begun = self.late;
    }
}

/// The partition at one size.
struct Size {
    miniature: Miniature,
    balance: Balance,
    /// Of late.
    misses: Late,
}

/// How well a cache of some size would have done of late.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissCurve {
    /// References of late, about.
    pub references: f64,
    /// How many of the sample they were estimated from.
    pub sampled: f64,
    /// References of the sample since it began.
    pub seen: u64,
    /// The share of the pages that is followed.
    pub rate: f64,
    /// (pages, misses), sizes rising.
    pub points: Vec<(u64, f64)>,
}

impl MissCurve {
    /// Misses at a size: a straight line between two known sizes, and beyond the last as there.
    fn misses_at(&self, pages: f64) -> f64 {
        let next = self.points.partition_point(|(size, _)| (*size as f64) <= pages);
        let (from, misses) = next.checked_sub(1).map_or((0, self.references), |before| self.points[before]);
        let Some((to, later)) = self.points.get(next) else { return misses };
        misses + (later - misses) * (pages - from as f64) / (to - from) as f64
    }
}

/// How a monitor is laid out.
struct Plan {
    below: u32,
    rings: usize,
    /// Entries of each.
    ring: usize,
    /// Slots by size, the largest first.
    slots: Vec<usize>,
    bytes: u64,
}

impl Plan {
    /// For sizes up to `most_pages`, in at most so many bytes, with at most so many rings. None
    /// where there is no room for three sizes.
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
            // Nobody's many threads are busy with a small partition.
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
    /// Nothing is known.
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

    /// Takes what is in a ring; returns how much came since it was last looked at.
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
                // 0: whoever took this place has not put his page in yet. It will be found a turn later.
                if entry & PRESENT != 0 {
                    batch[count] = (Tag(entry << Tag::SAMPLE_BITS), entry & EXPLAINED == 0);
                    count += 1;
                }
            }
            self.run(&batch[..count], lead);
        }
        self.taken[number] = taken;
        waiting
    }

    /// Takes pages through all sizes; those that count are counted.
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

    /// Whether the last few periods tell another curve than all that is counted. Both are of the
    /// same miniatures.
    fn has_changed(&self) -> bool {
        let Late { late, recent, .. } = self.references;
        let most = CHANGED + CHANGED_DEVIATIONS * 0.5 / recent.sqrt();
        let difference = |misses: &Late| (misses.recent / recent - misses.late / late).abs();
        recent > 0.0 && self.sizes.iter().any(|size| difference(&size.misses) > most)
    }
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
        // Added to at once: a thread's ring may be another's too.
        let put = self.put.fetch_add(1, Relaxed);
        recent.store((put + 1) << 16 | print, Relaxed);
        let entry = tag.0 >> Tag::SAMPLE_BITS | PRESENT | flags;
        self.entries[put as usize % self.entries.len()].store(entry, Relaxed);
    }
}

impl Monitor {
    /// Follows pages for sizes up to `most_pages`, with at most `bytes_max` of memory. None where
    /// that is too little to say anything. `alone`: one thread at a time shows what it sees,
    /// whichever it is, and in that order all is taken.
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

    /// Bytes that one would take.
    pub fn bytes_for(most_pages: u64, bytes_max: u64, ways: usize) -> u64 {
        Plan::new(most_pages, bytes_max, ways, RINGS_MAX).map_or(0, |plan| plan.bytes)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether a page is in the sample.
    #[inline(always)]
    pub fn follows(&self, tag: Tag) -> bool {
        // Relaxed, here and below: a sample orders nothing.
        u32::from(tag.sample()) < self.below.load(Relaxed)
    }

    /// Rings that threads share out among themselves.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// An access to a page of the sample. `explained`: it would have been read ahead whatever the
    /// size.
    pub fn show(&self, tag: Tag, explained: bool) {
        let ring = &self.rings[RING.with(|number| *number) % self.rings.len()];
        ring.put(tag, if explained { EXPLAINED } else { 0 });
    }

    /// Takes what was put in through the miniatures; returns how much there was. One at a time: who
    /// comes meanwhile finds nothing.
    pub(crate) fn drain(&self, lead: Option<&Lead>) -> u64 {
        let Ok(mut model) = self.model.try_lock() else { return 0 };
        self.rings.iter().enumerate().map(|(number, ring)| model.drain(ring, number, lead)).sum()
    }

    /// A period is over: what was counted so far is worth so much of what it was. True: the load
    /// has changed, and only what was counted in the last few periods is left.
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

    /// The curve of late.
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

    /// Goes on with sizes up to another; `bytes_max` as at the start. What was counted is taken
    /// over: the new sizes begin with what the old ones told of them. False: nothing is
    /// changed, that is too little.
    pub fn reshape(&self, most_pages: u64, bytes_max: u64, ways: usize) -> bool {
        let Some(plan) = Plan::new(most_pages, bytes_max, ways, RINGS_MAX) else { return false };
        let known = self.curve();
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        // The rings stay.
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

    /// The partition goes on with another policy.
    pub(crate) fn set_policy(&self, new: PolicyKind, lead: Option<&Lead>) {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut model.policy, new);
        for size in &mut model.sizes {
            size.miniature.change_policy(old, new, lead, &size.balance);
        }
    }
}
