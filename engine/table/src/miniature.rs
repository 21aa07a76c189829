//! A small cache without pages, run by a policy's own code: how a cache of some size would do with the pages that it is shown.
//!
//! It has sets as the table has: prints, policy bits, ghosts, a clock that moves when a page comes in. If it is shown a share of all pages, chosen
//! by hash, and is smaller than the cache in question by the same share, it misses that share of what the cache would miss.
//!
//! What is not here: which pages are shown (`monitor`).

use crate::ghost::{GHOSTS_PER_WAY, Ghosts};
use crate::policy::change;
use crate::policy::{Balance, Learner, Policy, PolicyKind, View, with_policy};
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};
use crate::tag::Tag;

/// A cache of a few sets without pages.
pub(crate) struct Miniature {
    ways: usize,
    sets: Box<[Set]>,
    prints: Box<[u16]>,
    meta: Box<[AtomicU16]>,
    ghosts: Box<[AtomicU32]>,
    balance: Balance,
}

/// A set, besides what it has per way.
#[derive(Default)]
struct Set {
    marks: u32,
    clock: u16,
    count: u8,
    hand: AtomicU8,
    ghost_head: AtomicU8,
    ghost_count: AtomicU8,
}

impl Miniature {
    /// The slots of one that is to have so many: whole sets of `ways` or, where that is more, one set.
    pub fn slots_for(slots: usize, ways: usize) -> usize {
        let ways = ways.min(slots.max(1));
        ((slots + ways / 2) / ways).max(1) * ways
    }

    /// Of about so many slots.
    pub fn new(slots: usize, ways: usize) -> Miniature {
        let sets = Self::slots_for(slots, ways) / ways.min(slots.max(1));
        let ways = ways.min(slots.max(1));
        Miniature {
            ways,
            sets: (0..sets).map(|_| Set::default()).collect(),
            prints: vec![0; sets * ways].into(),
            meta: (0..sets * ways).map(|_| AtomicU16::new(0)).collect(),
            ghosts: (0..sets * ways * GHOSTS_PER_WAY).map(|_| AtomicU32::new(0)).collect(),
            balance: Balance::new((sets * ways) as u64),
        }
    }

    /// Bytes of one with so many slots, rounded up.
    pub fn bytes(slots: usize, ways: usize) -> usize {
        let a_slot = size_of::<u16>() + size_of::<AtomicU16>() + GHOSTS_PER_WAY * size_of::<AtomicU32>();
        let slots = slots.next_multiple_of(ways.min(slots.max(1)));
        size_of::<Miniature>() + slots * a_slot + slots.div_ceil(ways) * size_of::<Set>()
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.prints.len()
    }

    /// An access to a page by a policy. True: it was there.
    #[inline(always)]
    pub fn access<P: Policy>(&mut self, tag: Tag, learner: Option<&Learner>) -> bool {
        // The bits above a ghost's print choose the set: none of those that say whether the page is followed.
        let number = (((tag.0 >> 32) * self.sets.len() as u64) >> 32) as usize;
        let at = number * self.ways;
        let (prints, meta) = (&mut self.prints[at..at + self.ways], &self.meta[at..at + self.ways]);
        let set = &mut self.sets[number];
        let print = tag.ghost_print();
        let count = set.count as usize;
        if let Some(way) = prints[..count].iter().position(|other| *other == print) {
            // As with the table's marks: several hits between two arrivals are one, for a policy that does not count them.
            if P::COUNTS_HITS || set.marks >> way & 1 == 0 {
                set.marks |= 1 << way;
                let old = meta[way].load(Relaxed);
                meta[way].store(P::touched(old, set.clock, self.ways), Relaxed);
            }
            return true;
        }
        set.marks = 0;
        let per_set = self.ways * GHOSTS_PER_WAY;
        let ring = &self.ghosts[number * per_set..][..per_set];
        let view = |clock| {
            let ghosts = Ghosts::new(ring, &set.ghost_head, &set.ghost_count);
            View::new(meta, &set.hand, clock, ghosts, learner).with_balance(Some(&self.balance))
        };
        // In the order of the table's sets: the victim, what is remembered of the page, the victim's ghost, the admission.
        let before = view(set.clock);
        let (way, ghost) = if count < self.ways {
            (count, P::GHOSTS.then(|| before.ghosts.take(print)).flatten())
        } else {
            let all = u32::MAX >> (u32::BITS - self.ways as u32);
            let way = P::victim(&before, all);
            let meta = before.meta(way);
            let ghost = P::GHOSTS.then(|| before.ghosts.take(print)).flatten();
            if P::GHOSTS {
                before.ghosts.push(prints[way], meta);
            }
            (way, ghost)
        };
        let after = view(set.clock.wrapping_add(1));
        after.set_meta(way, P::admitted(&after, ghost));
        prints[way] = print;
        set.clock = set.clock.wrapping_add(1);
        set.count = set.count.max(way as u8 + 1);
        false
    }

    /// Goes on with another policy (see `policy::change`).
    pub fn change_policy(&mut self, old: PolicyKind, new: PolicyKind, learner: Option<&Learner>) {
        let per_set = self.ways * GHOSTS_PER_WAY;
        for (number, set) in self.sets.iter_mut().enumerate() {
            let meta = &self.meta[number * self.ways..][..self.ways];
            let ring = &self.ghosts[number * per_set..][..per_set];
            let view = |clock| {
                let ghosts = Ghosts::new(ring, &set.ghost_head, &set.ghost_count);
                View::new(meta, &set.hand, clock, ghosts, learner).with_balance(Some(&self.balance))
            };
            let occupied = ((1u64 << set.count) - 1) as u32;
            let (order, count) = change::order(old, &view(set.clock), occupied);
            view(set.clock).start_over();
            for (turn, way) in order[..count].iter().enumerate() {
                set.clock = set.clock.wrapping_add(1);
                let ghosts = Ghosts::new(ring, &set.ghost_head, &set.ghost_count);
                let view =
                    View::new(meta, &set.hand, set.clock, ghosts, learner).with_balance(Some(&self.balance));
                change::readmit(new, &view, *way as usize, turn >= count / 2);
            }
            set.marks = 0;
        }
    }
}

/// Runs pages through several miniatures of one policy, and counts what each misses.
pub(crate) fn run(
    policy: PolicyKind,
    sizes: &mut [(Miniature, f64)],
    pages: &[(Tag, bool)],
    learner: Option<&Learner>,
) {
    with_policy!(policy, P => for (miniature, misses) in sizes {
        for (tag, counts) in pages {
            let hit = miniature.access::<P>(*tag, learner);
            *misses += f64::from(u8::from(!hit && *counts));
        }
    });
}
