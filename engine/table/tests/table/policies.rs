//! Each policy inside one set against a naive twin that knows nothing of bits, bytes and wrapping clocks.

use std::collections::VecDeque;

use octavo_table::{Claim, GHOSTS_PER_WAY, PolicyKind, Shape, Table, Tag};

use crate::random::{Random, for_seeds};

/// A page as the twins remember it. Times count the pages that came in; `tick` counts everything.
#[derive(Clone, Copy)]
struct Way {
    page: u64,
    came: u64,
    used: u64,
    used_tick: u64,
    referenced: bool,
    frequency: u64,
    changed: u64,
}

/// One set of every policy; each looks at its own fields.
struct Twin {
    kind: PolicyKind,
    ways: Vec<Way>,
    count: usize,
    /// Pages that came in so far.
    arrivals: u64,
    tick: u64,
    hand: usize,
    ghosts: VecDeque<(u64, u64)>,
}

impl Twin {
    fn new(kind: PolicyKind, count: usize) -> Twin {
        Twin { kind, ways: Vec::new(), count, arrivals: 0, tick: 0, hand: 0, ghosts: VecDeque::new() }
    }

    fn hit(&mut self, page: u64) -> bool {
        self.tick += 1;
        let Some(way) = self.ways.iter_mut().find(|way| way.page == page) else { return false };
        (way.used, way.used_tick, way.referenced) = (self.arrivals, self.tick, true);
        if way.frequency < 255 {
            (way.frequency, way.changed) = (way.frequency + 1, self.arrivals);
        }
        true
    }

    /// The way that must leave.
    fn victim(&mut self) -> usize {
        let least = |key: &dyn Fn(&Way) -> (u64, u64)| {
            (0..self.count).min_by_key(|way| key(&self.ways[*way])).unwrap()
        };
        match self.kind {
            PolicyKind::Fifo => least(&|way| (way.came, 0)),
            PolicyKind::Lru => least(&|way| (way.used_tick, 0)),
            PolicyKind::Clock => loop {
                let way = self.hand;
                self.hand = (way + 1) % self.count;
                if !std::mem::take(&mut self.ways[way].referenced) {
                    break way;
                }
            },
            PolicyKind::Octavo => unreachable!("its decisions are tested where they are made"),
            PolicyKind::Lfu | PolicyKind::NrLfu => {
                if self.ways.iter().any(|way| way.frequency == 255) {
                    self.ways.iter_mut().for_each(|way| way.frequency /= 2);
                    self.ghosts.iter_mut().for_each(|ghost| ghost.1 /= 2);
                }
                // The policy keeps a byte of the time of the last change.
                let age = |way: &Way| (self.arrivals - way.changed) % 256;
                (0..self.count)
                    .min_by_key(|way| (self.ways[*way].frequency, 255 - age(&self.ways[*way])))
                    .unwrap()
            }
        }
    }

    /// A page comes in, over the way `over` if the set is full. Returns the page that left.
    fn admit(&mut self, page: u64, over: Option<usize>) -> Option<u64> {
        let left = over.map(|way| self.ways[way]);
        if let (PolicyKind::NrLfu, Some(left)) = (self.kind, left) {
            self.ghosts.push_back((left.page, left.frequency));
            if self.ghosts.len() > self.count * GHOSTS_PER_WAY {
                self.ghosts.pop_front();
            }
        }
        let ghost =
            self.ghosts.iter().position(|ghost| ghost.0 == page).and_then(|at| self.ghosts.remove(at));
        self.arrivals += 1;
        self.tick += 1;
        let (now, tick) = (self.arrivals, self.tick);
        let frequency = (ghost.map_or(0, |ghost| ghost.1) + 1).min(255);
        let way =
            Way { page, came: now, used: now, used_tick: tick, referenced: false, frequency, changed: now };
        match over {
            Some(over) => self.ways[over] = way,
            None => self.ways.push(way),
        }
        left.map(|left| left.page)
    }
}

/// A page's tag: one set, and a print and fingerprint of its own.
fn tag(page: u64) -> Tag {
    Tag((page % 256) << 24 | (page / 256) << 16)
}

/// Half of the draws go to an eighth of the pages, and now and then the favourites change.
fn draw(random: &mut Random, pages: usize, step: usize) -> u64 {
    let few = pages.div_ceil(8);
    let shift = step / 5_000;
    match random.below(2) {
        0 => ((random.below(few) + shift * few) % pages) as u64,
        _ => random.below(pages) as u64,
    }
}

/// Runs a policy beside its twin; returns how often it evicted another page than the twin named, which only `lru` may.
fn compare<const W: usize>(kind: PolicyKind, pages: usize, seed: u64) -> u64 {
    let table = Table::<W>::new(Shape { segments_max: 1, sets_per_segment: 1 }, kind, 1);
    let mut twin = Twin::new(kind, W);
    let mut random = Random::new(seed);
    let mut ties = 0;
    for step in 0..if cfg!(miri) { 100 } else { 250_000 } {
        let page = draw(&mut random, pages, step);
        if let Some(found) = table.find(tag(page)) {
            table.touch(&found);
            assert!(twin.hit(page), "step {step}: {kind:?} kept page {page}");
            continue;
        }
        assert!(!twin.hit(page), "step {step}: {kind:?} lost page {page}");
        let Claim::Claimed { slot, evicted } = table.lock(tag(page)).claim(tag(page)) else {
            panic!("all are clean")
        };
        assert!(!table.publish(slot, false));
        let mut over = (twin.ways.len() == W).then(|| twin.victim());
        if let (PolicyKind::Lru, Some(exact), Some(evicted)) = (kind, over, evicted) {
            // The allowed difference: pages that were last used between the same two arrivals are not told apart.
            let actual = twin.ways.iter().position(|way| tag(way.page) == evicted).expect("it was there");
            assert_eq!(
                twin.ways[actual].used, twin.ways[exact].used,
                "step {step}: a page of a later interval left"
            );
            ties += u64::from(actual != exact);
            over = Some(actual);
        }
        assert_eq!(evicted, twin.admit(page, over).map(tag), "step {step}: {kind:?} of {W}");
    }
    ties
}

fn agrees_with_its_twin(kind: PolicyKind) {
    if cfg!(miri) {
        compare::<8>(kind, 16, 0);
        return;
    }
    for_seeds(0..2, |seed| {
        for pages_per_way in [2, 5] {
            let ties = [
                compare::<8>(kind, 8 * pages_per_way, seed),
                compare::<16>(kind, 16 * pages_per_way, seed),
                compare::<32>(kind, 32 * pages_per_way, seed),
            ];
            assert!(kind == PolicyKind::Lru || ties == [0; 3]);
        }
    });
}

#[test]
fn fifo_evicts_what_its_twin_evicts() {
    agrees_with_its_twin(PolicyKind::Fifo);
}

#[test]
fn lru_evicts_what_exact_lru_evicts_or_a_page_last_used_between_the_same_arrivals() {
    agrees_with_its_twin(PolicyKind::Lru);
}

#[test]
fn clock_evicts_what_its_twin_evicts() {
    agrees_with_its_twin(PolicyKind::Clock);
}

#[test]
fn lfu_evicts_what_its_twin_evicts() {
    agrees_with_its_twin(PolicyKind::Lfu);
}

#[test]
fn nrlfu_evicts_what_its_twin_evicts_and_remembers_what_it_remembers() {
    agrees_with_its_twin(PolicyKind::NrLfu);
}
