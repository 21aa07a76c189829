//! A miniature: a small cache of metadata, run by a policy's own code. It shows how often a cache
//! of some size would miss under the accesses that the miniature is given.
//!
//! A miniature has sets as the table has: prints, policy bits, ghosts, and a clock that moves when
//! a page comes in. If it sees one *n*-th of all pages, chosen by hash, and has one *n*-th of a
//! cache's slots, it has one *n*-th of the cache's misses.
//!
//! Each access to a miniature has a [`Guide`]: it names the policy, may choose victims itself, and
//! is notified when a page is used and when a ghost is dropped.
//!
//! Not here: which pages a miniature is given, and how its misses are used (`monitor`, `learner`).

use std::marker::PhantomData;

use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{Policy, PolicyKind, View, change};
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};
use crate::word::ghost::{Ghosts, ghosts_of};
use crate::word::prefetch::prefetch;
use crate::word::tag::Tag;

/// The caller's part in running a miniature.
pub(crate) trait Guide {
    /// The policy, which says what hits and arrivals do to a page's bits.
    type Policy: Policy;

    /// Returns the order and densities, and the balance, that the policy's sets read.
    #[inline(always)]
    fn shared(&self) -> (Option<&Lead>, Option<&Balance>) {
        (None, None)
    }

    /// Returns the way to evict among `candidates`.
    #[inline(always)]
    fn victim(&self, view: &View<'_>, candidates: u32) -> usize {
        Self::Policy::victim(view, candidates)
    }

    /// Called when a page with these bits, or its ghost, is used at `clock`.
    #[inline(always)]
    fn used(&mut self, _meta: u16, _clock: u16) {}

    /// Called when the ghost of a page with these bits is dropped at `clock`: from then on a return
    /// of the page no longer counts as a use.
    #[inline(always)]
    fn forgotten(&mut self, _meta: u16, _clock: u16) {}
}

/// A policy exactly as the table runs it.
pub(crate) struct Plain<'a, P> {
    lead: Option<&'a Lead>,
    balance: &'a Balance,
    policy: PhantomData<P>,
}

impl<'a, P: Policy> Plain<'a, P> {
    pub fn new(lead: Option<&'a Lead>, balance: &'a Balance) -> Self {
        Plain { lead, balance, policy: PhantomData }
    }
}

impl<P: Policy> Guide for Plain<'_, P> {
    type Policy = P;

    #[inline(always)]
    fn shared(&self) -> (Option<&Lead>, Option<&Balance>) {
        (self.lead, Some(self.balance))
    }
}

/// A cache of a few sets without pages.
pub(crate) struct Miniature {
    ways: usize,
    sets: Box<[Set]>,
    prints: Box<[u16]>,
    meta: Box<[AtomicU16]>,
    ghosts: Box<[AtomicU32]>,
}

const LINE_BYTES: usize = 64;

/// Bytes per way: print, policy bits, ghosts.
const BYTES_PER_WAY: usize =
    size_of::<u16>() + size_of::<AtomicU16>() + ghosts_of(1) * size_of::<AtomicU32>();

/// The fields of a set that do not exist per way.
#[derive(Default)]
struct Set {
    marks: u32,
    clock: u16,
    count: u8,
    hand: AtomicU8,
    ghost_head: AtomicU8,
    ghost_count: AtomicU8,
}

impl Set {
    /// Returns the policy's view of the set, with its fields per way and what it shares with other
    /// sets.
    #[inline(always)]
    fn view<'s>(
        &'s self,
        meta: &'s [AtomicU16],
        ring: &'s [AtomicU32],
        (lead, balance): (Option<&'s Lead>, Option<&'s Balance>),
    ) -> View<'s> {
        let ghosts = Ghosts::new(ring, &self.ghost_head, &self.ghost_count);
        View::new(meta, &self.hand, self.clock, ghosts, lead, balance)
    }
}

impl Miniature {
    /// Returns the number of slots of a miniature that should have `slots`: rounded to whole sets
    /// of `ways`, but at least one set. A miniature that should have fewer slots than `ways` is one
    /// set of `slots` ways.
    pub fn slots_for(slots: usize, ways: usize) -> usize {
        let ways = ways.min(slots.max(1));
        ((slots + ways / 2) / ways).max(1) * ways
    }

    /// Creates a miniature of about `slots` slots ([`Self::slots_for`]).
    pub fn new(slots: usize, ways: usize) -> Miniature {
        let sets = Self::slots_for(slots, ways) / ways.min(slots.max(1));
        let ways = ways.min(slots.max(1));
        Miniature {
            ways,
            sets: (0..sets).map(|_| Set::default()).collect(),
            prints: vec![0; sets * ways].into(),
            meta: (0..sets * ways).map(|_| AtomicU16::new(0)).collect(),
            ghosts: (0..sets * ghosts_of(ways)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Returns the bytes of a miniature of `slots` slots, rounded up.
    pub fn bytes(slots: usize, ways: usize) -> usize {
        let slots = slots.next_multiple_of(ways.min(slots.max(1)));
        size_of::<Miniature>() + slots * BYTES_PER_WAY + slots.div_ceil(ways) * size_of::<Set>()
    }

    /// Returns the bytes of a slot and its share of its set, rounded up.
    pub const fn bytes_per_slot(ways: usize) -> usize {
        BYTES_PER_WAY + size_of::<Set>().div_ceil(ways)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.prints.len()
    }

    /// Returns the set of a page, which is the same in all miniatures of this size: a multiple of
    /// the reversed place, scaled. The sample of a run is as evenly spread over these sets as the
    /// run is over the table's, because reversed places of a sample of a run are equally far apart,
    /// and multiples of the golden ratio spread such numbers evenly (Fibonacci hashing; Knuth,
    /// volume 3, 6.4).
    #[inline(always)]
    pub fn set_of(&self, tag: Tag) -> usize {
        const GOLDEN: u32 = 0x9E37_79B1;
        let spread = tag.place().reverse_bits().wrapping_mul(GOLDEN);
        ((u64::from(spread) * self.sets.len() as u64) >> u32::BITS) as usize
    }

    /// Prefetches what an access to a page of this set will touch.
    #[inline(always)]
    pub fn prefetch(&self, set: usize) {
        prefetch(&self.sets[set]);
        prefetch(&self.prints[set * self.ways]);
        prefetch(&self.meta[set * self.ways]);
        let per_set = ghosts_of(self.ways);
        let ghosts = &self.ghosts[set * per_set..][..per_set];
        ghosts.iter().step_by(LINE_BYTES / size_of::<u32>()).for_each(|ghost| prefetch(ghost));
    }

    /// Runs an access to a page. Returns true if it was a hit.
    #[inline(always)]
    pub fn access<G: Guide>(&mut self, tag: Tag, guide: &mut G) -> bool {
        self.access_in(self.set_of(tag), tag, guide)
    }

    /// Runs an access as [`Self::access`] does, to a page of set `number`.
    #[inline(always)]
    pub fn access_in<G: Guide>(&mut self, number: usize, tag: Tag, guide: &mut G) -> bool {
        debug_assert_eq!(number, self.set_of(tag));
        let at = number * self.ways;
        let (prints, meta) = (&mut self.prints[at..at + self.ways], &self.meta[at..at + self.ways]);
        let set = &mut self.sets[number];
        let print = tag.ghost_print();
        let count = set.count as usize;
        if has(prints, print)
            && let Some(way) = prints[..count].iter().position(|other| *other == print)
        {
            // As with the table's marks, several hits between two arrivals count as one for a
            // policy that does not count hits.
            if G::Policy::COUNTS_HITS || set.marks >> way & 1 == 0 {
                set.marks |= 1 << way;
                let old = meta[way].load(Relaxed);
                guide.used(old, set.clock);
                meta[way].store(G::Policy::touched(old, set.clock, self.ways), Relaxed);
            }
            return true;
        }
        set.marks = 0;
        let per_set = ghosts_of(self.ways);
        let ring = &self.ghosts[number * per_set..][..per_set];
        // In the same order as in the table's sets: choose the victim, take the page's ghost, add
        // the victim's ghost, admit the page.
        let ghosts = Ghosts::new(ring, &set.ghost_head, &set.ghost_count);
        let way = if count < self.ways {
            count
        } else {
            let all = u32::MAX >> (u32::BITS - self.ways as u32);
            guide.victim(&set.view(meta, ring, guide.shared()), all)
        };
        let ghost = G::Policy::GHOSTS.then(|| ghosts.take(print)).flatten();
        if let Some(ghost) = ghost {
            guide.used(ghost, set.clock);
        }
        if G::Policy::GHOSTS
            && count == self.ways
            && let Some(forgotten) = ghosts.push(prints[way], meta[way].load(Relaxed))
        {
            guide.forgotten(forgotten, set.clock);
        }
        set.clock = set.clock.wrapping_add(1);
        set.count = set.count.max(way as u8 + 1);
        prints[way] = print;
        let view = set.view(meta, ring, guide.shared());
        view.set_meta(way, G::Policy::admitted(&view, ghost));
        false
    }

    /// Continues with another policy (see `policy::change`).
    pub fn change_policy(
        &mut self,
        old: PolicyKind,
        new: PolicyKind,
        lead: Option<&Lead>,
        balance: &Balance,
    ) {
        let per_set = ghosts_of(self.ways);
        for (number, set) in self.sets.iter_mut().enumerate() {
            let meta = &self.meta[number * self.ways..][..self.ways];
            let ring = &self.ghosts[number * per_set..][..per_set];
            let shared = (lead, Some(balance));
            let occupied = ((1u64 << set.count) - 1) as u32;
            let view = set.view(meta, ring, shared);
            let (order, count) = change::order(old, &view, occupied);
            view.start_over();
            for (turn, way) in order[..count].iter().enumerate() {
                set.clock = set.clock.wrapping_add(1);
                let view = set.view(meta, ring, shared);
                change::readmit(new, &view, *way as usize, turn >= count / 2);
            }
            set.marks = 0;
        }
    }
}

/// Returns whether a print is among others, free ways included. The comparison of eight prints at
/// a time rules most pages out at little cost.
#[inline(always)]
fn has(prints: &[u16], print: u16) -> bool {
    let (eights, rest) = prints.as_chunks::<8>();
    let in_eight = |eight: &[u16; 8]| eight.iter().fold(false, |has, other| has | (*other == print));
    eights.iter().any(in_eight) || rest.contains(&print)
}

/// For the tests of policies, which look into one set.
#[cfg(all(test, not(any(loom, shuttle))))]
impl Miniature {
    /// Creates one empty set, whose clock shows `clock`.
    pub fn of_one_set(ways: usize, clock: u16) -> Miniature {
        let mut miniature = Miniature::new(ways, ways);
        miniature.sets[0].clock = clock;
        miniature
    }

    pub fn first_set<'s>(&'s self, balance: Option<&'s Balance>) -> View<'s> {
        self.sets[0].view(&self.meta, &self.ghosts, (None, balance))
    }

    /// Returns the print of each slot.
    pub fn prints(&self) -> &[u16] {
        &self.prints
    }
}
