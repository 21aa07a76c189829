//! The learner of a partition: one miniature per eviction order, all of which see the same sample
//! of pages. The best miniature decides which order the partition follows.
//!
//! A miniature is a cache of a few sets without pages, run by the policy's own code (`miniature`).
//! The tag's sample bits, which do not place a page, select the pages that it follows. The share of
//! pages that it follows equals its size relative to the partition, so that its miss ratio is that
//! of the whole. The miniature sees every miss of these pages, but only hits that mark a page: the
//! first hit of a page between two arrivals in its set. A hit of a page that is already marked does
//! not reach the learner.
//!
//! The order whose miniature missed least leads the whole partition: every set reads one byte, the
//! leading order, when it chooses a victim. Recent misses and all misses since start have equal
//! weight. Recent misses matter because a load may have changed; all misses matter because an order
//! that leads only for a moment fills the partition with pages that the next order does not want.
//! The miniature of `Order::Density` also counts, by history and age, how many pages were used
//! again and how many were not. From these counts the densities are computed again every few
//! turnovers.
//!
//! A partition that is too small for a table of densities does without `Order::Density`. If there
//! is not even room for one set per miniature, the partition learns nothing.
//!
//! One thread at a time reports to the learner (*teaches* it). A thread that finds the learner busy
//! skips the access, which makes the sample a little smaller. Not here: the definitions of the
//! orders (`octavo`).

use std::sync::{Mutex, PoisonError, TryLockError};

use super::miniature::{Guide, Miniature};
use crate::policy::View;
use crate::policy::lead::{BUCKETS, CLASSES, Lead, ONLY_ORDER, Order, comparable};
use crate::policy::octavo::{Octavo, age, cell, victim_by};
use crate::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use crate::word::tag::Tag;

/// Maximum number of slots of a miniature.
const SLOTS_MAX: u64 = 1024;

/// Share of a partition's memory that the learner uses, in thousandths. The rest of one hundredth
/// is left for the monitor, which makes better use of it. For partitions of 512 to 4096 pages, the
/// learner chose no better orders with a sixth of this share, twice this share or thirty times this
/// share. With one and a half times this share, the reaper took 37 periods instead of 22 to follow
/// a change of phase, because the monitor had less.
const SHARE: u64 = 3;

/// Share for partitions below `SMALL_PAGES` pages, in thousandths, but at most the bytes that the
/// learner of a partition of `SMALL_PAGES` pages gets. In small partitions a few more slots matter,
/// and a monitor has too few samples to be of much use.
const SHARE_OF_SMALL: u64 = 8;
const SMALL_PAGES: u64 = 512;

/// Below this number of slots per miniature the table of densities uses more memory than it is
/// worth. Any limit from 64 to 256 does nearly as well.
const SLOTS_WITH_DENSITIES: u32 = 64;

/// Minimum size of a page in bytes.
const PAGE_BYTES: u64 = 4096;

/// Number of judgements per turnover. One turnover lasts until the first miniature has had as many
/// misses as it has slots.
const JUDGEMENTS_PER_TURNOVER: u64 = 16;

/// Factor by which recent misses decay at each judgement: a half-life of three turnovers.
const JUDGEMENT_DECAY: f32 = 0.985;

/// A challenger must lead by more than one miss per this number of slots of its miniature; a
/// smaller lead may be luck.
const LUCK: u32 = 50;

/// The densities are computed again after this number of turnovers, measured in events, and after
/// `LESSON_EVENTS_MIN` events at least. A tenth of the counts is then dropped.
const LESSON_TURNOVERS: u64 = 4;
const LESSON_EVENTS_MIN: u64 = 2000;

/// Number of average events that are added to each class, so that a class with few events of its
/// own behaves like the average.
const PRIOR_EVENTS: f32 = 50.0;

/// Number of distinct values of `Tag::sample`.
const SAMPLES: u64 = 1 << Tag::SAMPLE_BITS;

/// The order that leads until something is learned. In a small partition it is `Lfu`, the best
/// order for loops: a load that does not fit there is often a loop. A large partition turns over so
/// seldom that pages kept by a wrong order cost more than a turnover of a loop.
const FIRST_OF_SMALL: Order = Order::Lfu;
const FIRST_OF_LARGE: Order = Order::Rate;
const LARGE_PAGES: u64 = 4096;

/// The learner of one partition.
pub(crate) struct Learner {
    ways: usize,
    /// Pages whose sample number is below this are followed.
    below: AtomicU32,
    /// The size that the miniatures should have, encoded. The next thread that teaches creates them
    /// anew if their size differs.
    size: AtomicU32,
    lead: Lead,
    /// By order: the misses at the last judgement, as in `Learned::misses`. A copy for readers: a
    /// reader that held the lock of `lessons` would make a teaching thread skip an access.
    judged: [(AtomicU32, AtomicU32); Order::ALL.len()],
    lessons: Mutex<Lessons>,
}

/// What a partition has learned, in a form that another partition can continue with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The leading order, as an index of `Order::ALL`.
    pub leader: u8,
    /// By order: the recent misses and all misses of its miniature at the last judgement, in
    /// thousandths of its slots.
    pub misses: Vec<(u32, u32)>,
    /// The densities by `cell`; empty if there is no table of densities.
    pub densities: Vec<u16>,
}

impl Learned {
    /// Number of orders.
    pub const ORDERS: usize = Order::ALL.len();

    /// Maximum number of densities.
    pub const DENSITIES_MAX: usize = CLASSES * BUCKETS;
}

/// The size of a learner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    /// Number of slots of each miniature: whole sets.
    slots: u32,
    /// Whether `Order::Density` takes part.
    densities: bool,
}

/// Returns the bytes that the learner of a partition of `capacity` pages may use.
fn room(capacity: u64) -> u64 {
    let share = |pages: u64, share: u64| pages * PAGE_BYTES * share / 1000;
    share(capacity, SHARE_OF_SMALL).min(share(capacity.max(SMALL_PAGES), SHARE))
}

impl Size {
    /// Returns the largest size that fits into the learner's bytes, with at most half of the
    /// partition's slots; without densities if they would leave too little room.
    fn of(capacity: u64, ways: usize) -> Size {
        let room = room(capacity);
        let sizes = [true, false].map(|densities| {
            let size = Size { slots: 0, densities };
            let room = room.saturating_sub(size.bytes(ways));
            let slots = (room / size.bytes_per_slot(ways)).min(capacity / 2).min(SLOTS_MAX);
            Size { slots: (slots / ways as u64 * ways as u64) as u32, densities }
        });
        let is_worth = |size: &Size| size.slots >= if size.densities { SLOTS_WITH_DENSITIES } else { 1 };
        sizes.into_iter().find(is_worth).unwrap_or_default()
    }

    fn orders(self) -> &'static [Order] {
        if self.densities { &Order::ALL } else { &Order::ALL[1..] }
    }

    fn bytes(self, ways: usize) -> u64 {
        let cells = if self.densities { CLASSES * BUCKETS } else { 0 };
        let a_cell = size_of::<AtomicU16>() + 2 * size_of::<u16>();
        let fixed = size_of::<Learner>() + cells * a_cell + self.orders().len() * size_of::<Contender>();
        fixed as u64 + self.slots as u64 * self.bytes_per_slot(ways)
    }

    /// Returns the bytes per slot of all miniatures together, rounded up.
    fn bytes_per_slot(self, ways: usize) -> u64 {
        (self.orders().len() * Miniature::bytes_per_slot(ways)) as u64
    }

    fn encoded(self) -> u32 {
        self.slots << 1 | self.densities as u32
    }

    fn decoded(code: u32) -> Size {
        Size { slots: code >> 1, densities: code & 1 == 1 }
    }
}

impl Learner {
    /// Creates the learner of a table of `capacity` slots in sets of `ways`. The miniatures are
    /// created when there is something to learn.
    pub fn new(capacity: u64, ways: usize) -> Learner {
        let learner = Learner {
            ways,
            below: AtomicU32::new(0),
            size: AtomicU32::new(Size::default().encoded()),
            lead: Lead::new(),
            judged: Default::default(),
            lessons: Mutex::new(Lessons::new(Size::default(), ways)),
        };
        learner.set_capacity(capacity);
        learner
    }

    /// Returns the maximum number of bytes that the learner of such a table uses.
    pub fn bytes(capacity: u64, ways: usize) -> usize {
        Size::of(capacity, ways).bytes(ways) as usize
    }

    fn size(&self) -> Size {
        Size::decoded(self.size.load(Relaxed))
    }

    /// Adapts to a table that has grown or shrunk. The miniatures are kept while they are neither
    /// larger than the new size nor smaller than half of it.
    pub fn set_capacity(&self, capacity: u64) {
        let (old, new) = (self.size(), Size::of(capacity, self.ways));
        let is_kept = old.densities == new.densities && (new.slots / 2..=new.slots).contains(&old.slots);
        let size = if is_kept { old } else { new };
        self.size.store(size.encoded(), Relaxed);
        match (old.slots, size.slots) {
            (0, 1..) => {
                let first = if capacity < LARGE_PAGES { FIRST_OF_SMALL } else { FIRST_OF_LARGE };
                self.lead.set_order(first);
            }
            (1.., 0) => self.lead.set_order(ONLY_ORDER),
            _ => {}
        }
        let below = (SAMPLES * size.slots as u64).div_ceil(capacity.max(1)).min(SAMPLES);
        self.below.store(below as u32, Relaxed);
    }

    /// Returns what the learner has learned.
    pub fn learned(&self) -> Learned {
        let densities = self.lead.densities_made().filter(|_| self.size().densities);
        Learned {
            leader: self.lead.order() as u8,
            misses: self.judged.iter().map(|(late, all)| (late.load(Relaxed), all.load(Relaxed))).collect(),
            densities: densities.into_iter().flatten().map(|density| density.load(Relaxed)).collect(),
        }
    }

    /// Adopts the learned state of another learner, without the parts that this one is too small
    /// for. The miniatures are emptied.
    pub fn adopt(&self, learned: &Learned) {
        let size = self.size();
        if let Some(order) = Order::ALL.get(usize::from(learned.leader)).filter(|_| size.slots > 0) {
            self.lead.set_order(*order);
        }
        if size.densities && learned.densities.len() == Learned::DENSITIES_MAX {
            let densities = self.lead.densities().iter().zip(&learned.densities);
            densities.for_each(|(density, learned)| density.store(*learned, Relaxed));
        }
        let mut lessons = self.lessons.lock().unwrap_or_else(PoisonError::into_inner);
        *lessons = Lessons::new(size, self.ways);
        for contender in &mut lessons.contenders {
            let (late, all) = learned.misses.get(contender.order as usize).copied().unwrap_or_default();
            let misses = |thousandths: u32| f64::from(thousandths) * f64::from(size.slots) / 1000.0;
            (contender.misses, contender.misses_all) = (misses(late) as f32, misses(all) as u64);
        }
    }

    /// Returns whether a page is followed.
    #[inline(always)]
    pub fn follows(&self, tag: Tag) -> bool {
        (tag.sample() as u32) < self.below.load(Relaxed)
    }

    /// Reports a miss, or a hit that marked its page.
    #[cold]
    pub fn show(&self, tag: Tag) {
        let mut lessons = match self.lessons.try_lock() {
            Ok(lessons) => lessons,
            // Miniatures are only statistics: the state that a panic left behind is good enough.
            Err(TryLockError::Poisoned(lessons)) => lessons.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        lessons.show(tag, self);
    }

    /// Returns the order and the densities that the sets follow.
    pub fn lead(&self) -> &Lead {
        &self.lead
    }
}

/// The state that only the thread that is teaching uses.
struct Lessons {
    size: Size,
    contenders: Box<[Contender]>,
    tally: Option<Tally>,
    /// Number of misses of the first contender at which the next judgement is due.
    judge_at: u64,
}

impl Lessons {
    fn new(size: Size, ways: usize) -> Lessons {
        let slots = size.slots as usize;
        let orders = if slots > 0 { size.orders() } else { &[] };
        Lessons {
            size,
            contenders: orders.iter().map(|order| Contender::new(*order, slots, ways)).collect(),
            tally: size.densities.then(|| Tally::new(size.slots as u64)),
            judge_at: 0,
        }
    }

    fn show(&mut self, tag: Tag, learner: &Learner) {
        if self.size != learner.size() {
            *self = Lessons::new(learner.size(), learner.ways);
        }
        // The page's sets in the miniatures lie far apart and are probably not cached: prefetching
        // loads them together instead of one after the other.
        let Some(set) = self.contenders.first().map(|contender| contender.miniature.set_of(tag)) else {
            return;
        };
        self.contenders.iter().for_each(|contender| contender.miniature.prefetch(set));
        let densities = if self.size.densities { learner.lead.densities() } else { &[] };
        for contender in &mut self.contenders {
            let tally = if contender.order == Order::Density { self.tally.as_mut() } else { None };
            contender.access(set, tag, densities, tally);
        }
        // None if the learner has just become too small to learn.
        let Some(misses) = self.contenders.first().map(|contender| contender.misses_all) else { return };
        if misses >= self.judge_at {
            self.judge_at = misses + (self.size.slots as u64 / JUDGEMENTS_PER_TURNOVER).max(1);
            self.judge(learner);
        }
        if let Some(tally) = self.tally.as_mut().filter(|tally| tally.events >= tally.lesson_at) {
            tally.learn(learner.lead.densities());
        }
    }

    /// Makes the order with the fewest misses the leader, if its lead is too large to be luck.
    fn judge(&mut self, learner: &Learner) {
        let of_late: f32 = self.contenders.iter().map(|contender| contender.misses).sum();
        let of_all: u64 = self.contenders.iter().map(|contender| contender.misses_all).sum();
        // Recent misses and all misses, each as a share of those of all contenders, so that both
        // have equal weight.
        let mark = |contender: &Contender| {
            contender.misses / of_late.max(1.0) + (contender.misses_all as f64 / of_all.max(1) as f64) as f32
        };
        let best = self.contenders.iter().min_by(|a, b| mark(a).total_cmp(&mark(b)));
        let leads = learner.lead.order();
        let leads = self.contenders.iter().find(|contender| contender.order == leads);
        if let Some(best) = best {
            let ahead = |leads: &Contender| {
                leads.misses - best.misses + (leads.misses_all as i64 - best.misses_all as i64) as f32
            };
            // An order that no longer takes part does not stay the leader.
            if leads.is_none_or(|leads| ahead(leads) * LUCK as f32 > self.size.slots as f32) {
                learner.lead.set_order(best.order);
            }
        }
        let thousandths = |misses: f64| (misses * 1000.0 / f64::from(self.size.slots)) as u32;
        for contender in &mut self.contenders {
            contender.misses *= JUDGEMENT_DECAY;
            let (late, all) = &learner.judged[contender.order as usize];
            late.store(thousandths(f64::from(contender.misses)), Relaxed);
            all.store(thousandths(contender.misses_all as f64), Relaxed);
        }
    }
}

/// An order, its miniature and its misses.
struct Contender {
    order: Order,
    miniature: Miniature,
    /// Recent misses. The count decays.
    misses: f32,
    misses_all: u64,
}

impl Contender {
    fn new(order: Order, slots: usize, ways: usize) -> Contender {
        Contender { order, miniature: Miniature::new(slots, ways), misses: 0.0, misses_all: 0 }
    }

    fn access(&mut self, set: usize, tag: Tag, densities: &[AtomicU16], tally: Option<&mut Tally>) {
        if !self.miniature.access_in(set, tag, &mut OneOrder { order: self.order, densities, tally }) {
            self.misses += 1.0;
            self.misses_all += 1;
        }
    }
}

/// Runs the policy with a fixed order instead of the leading one.
struct OneOrder<'a> {
    order: Order,
    densities: &'a [AtomicU16],
    tally: Option<&'a mut Tally>,
}

impl Guide for OneOrder<'_> {
    type Policy = Octavo;

    #[inline(always)]
    fn victim(&self, view: &View<'_>, candidates: u32) -> usize {
        victim_by(self.order, view, candidates, |cell| self.densities[cell].load(Relaxed))
    }

    #[inline(always)]
    fn used(&mut self, meta: u16, clock: u16) {
        if let Some(tally) = &mut self.tally {
            tally.count(|tally| &mut tally.hits, meta, clock);
        }
    }

    #[inline(always)]
    fn forgotten(&mut self, meta: u16, clock: u16) {
        if let Some(tally) = &mut self.tally {
            tally.count(|tally| &mut tally.evictions, meta, clock);
        }
    }
}

/// How often pages were used again, and how often their ghosts were dropped, by history and age.
struct Tally {
    hits: Box<[u16]>,
    evictions: Box<[u16]>,
    events: u64,
    lesson_at: u64,
    lesson_events: u64,
}

impl Tally {
    fn new(slots: u64) -> Tally {
        let lesson_events = (LESSON_TURNOVERS * slots).max(LESSON_EVENTS_MIN);
        let cells = || vec![0; CLASSES * BUCKETS].into();
        Tally { hits: cells(), evictions: cells(), events: 0, lesson_at: lesson_events, lesson_events }
    }

    /// Counts an event of a page with these bits at `clock`.
    fn count(&mut self, counts: impl Fn(&mut Tally) -> &mut [u16], meta: u16, clock: u16) {
        let count = &mut counts(self)[cell(meta, age(meta, clock))];
        *count = count.saturating_add(1);
        self.events += 1;
    }

    /// Computes the densities. The density of a class at an age is the number of its hits at that
    /// age and later, divided by the time that its pages spent from that age on.
    fn learn(&mut self, densities: &[AtomicU16]) {
        self.lesson_at = self.events + self.lesson_events;
        let sum = |counts: &mut dyn Iterator<Item = &u16>| counts.map(|count| f32::from(*count)).sum::<f32>();
        let total = sum(&mut self.hits.iter().chain(&self.evictions)).max(1.0);
        let of_all = |counts: &[u16], bucket: usize| {
            sum(&mut counts.iter().skip(bucket).step_by(BUCKETS)) * PRIOR_EVENTS / total
        };
        let priors: [(f32, f32); BUCKETS] =
            std::array::from_fn(|bucket| (of_all(&self.hits, bucket), of_all(&self.evictions, bucket)));
        for class in 0..CLASSES {
            let (mut hits, mut events, mut time) = (0.0, 0.0, 0.0);
            for bucket in (0..BUCKETS).rev() {
                let cell = class * BUCKETS + bucket;
                let (prior_hits, prior_evictions) = priors[bucket];
                let hits_here = f32::from(self.hits[cell]) + prior_hits;
                hits += hits_here;
                events += hits_here + f32::from(self.evictions[cell]) + prior_evictions;
                time += events * width(bucket);
                let density = if time > 0.0 { hits / time } else { 0.0 };
                densities[cell].store(comparable(density), Relaxed);
            }
        }
        // Each count keeps nine tenths.
        self.hits.iter_mut().chain(&mut self.evictions).for_each(|count| *count -= count.div_ceil(10));
    }
}

/// Returns the ticks in a bucket of ages, at least half a tick.
fn width(bucket: usize) -> f32 {
    let edge = |bucket: usize| (bucket as f32 / 4.0).exp2();
    (edge(bucket + 1) - edge(bucket)).max(0.5)
}

// Not under miri: no unsafe code runs here, and the tests do much work.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests;
