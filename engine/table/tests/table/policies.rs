//! Each policy inside one set against a naive twin that does without bits, bytes and wrapping
//! clocks.
//!
//! Here are the decisions of `octavo` in a partition too small to learn; the tests of the learner
//! are beside the learner.

use std::collections::VecDeque;

use octavo_table::{PolicyKind, Tag, ghosts_of};

use crate::setup::{one_set, replace};
use octavo_random::{Random, for_seeds};

/// A page as the twins see it. Times count arrivals; `tick` counts all accesses.
#[derive(Clone, Copy)]
struct Way {
    page: u64,
    came: u64,
    used: u64,
    used_tick: u64,
    referenced: bool,
    frequency: u64,
    changed: u64,
    /// Number of intervals between arrivals in which the page was used, and whether the current
    /// interval is one of them.
    uses: u64,
    counted: bool,
    /// For `car`: the page's clock, and the time when it joined that clock.
    again: bool,
    entered: u64,
}

/// One set under any policy; each policy uses its own fields.
#[derive(Default)]
struct Twin {
    kind: PolicyKind,
    ways: Vec<Way>,
    count: usize,
    /// Number of pages that came in so far.
    arrivals: u64,
    tick: u64,
    hand: usize,
    ghosts: VecDeque<(u64, u64)>,
    /// B1, B2 and p of the paper on CAR.
    left_once: VecDeque<u64>,
    left_again: VecDeque<u64>,
    target: f64,
}

impl Twin {
    fn new(kind: PolicyKind, count: usize) -> Twin {
        Twin { kind, count, ..Twin::default() }
    }

    fn hit(&mut self, page: u64) -> bool {
        self.tick += 1;
        let Some(way) = self.ways.iter_mut().find(|way| way.page == page) else { return false };
        (way.used, way.used_tick, way.referenced) = (self.arrivals, self.tick, true);
        if way.frequency < 255 {
            (way.frequency, way.changed) = (way.frequency + 1, self.arrivals);
        }
        way.uses += u64::from(!std::mem::replace(&mut way.counted, true));
        if let Some(most) = uses_max(self.kind) {
            way.uses = way.uses.min(most);
        }
        true
    }

    /// Returns the way of the victim.
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
            PolicyKind::Car => loop {
                let once = self.ways.iter().filter(|way| !way.again).count();
                let again = (once as f64) < self.target.round().max(1.0);
                // A page that the hand has not passed for 12288 arrivals has reached the maximum
                // age.
                let since = |way: &usize| self.ways[*way].entered.max(self.arrivals.saturating_sub(12_288));
                let clock = (0..self.count).filter(|way| self.ways[*way].again == again);
                let first = clock.min_by_key(since).unwrap();
                if !std::mem::take(&mut self.ways[first].referenced) {
                    break first;
                }
                (self.ways[first].again, self.ways[first].entered) = (true, self.arrivals);
            },
            PolicyKind::Mq => least(&|way| {
                let lifetime = self.count as u64;
                // Nine bits tell ages up to 480.
                let mut since = way.used.max(self.arrivals.saturating_sub(480));
                let mut queue = (0..).find(|queue| way.uses < 2 << queue).unwrap();
                while queue > 0 && self.arrivals - since >= lifetime {
                    (queue, since) = (queue - 1, since + lifetime);
                }
                (queue, since)
            }),
            // A partition of so few pages learns nothing: the square root of uses per time since
            // the last one decides. Eight bits tell ages up to 180.
            PolicyKind::Octavo => least(&|way| {
                let age = (self.arrivals - way.used).min(180);
                // A quotient of 24 bits, rounded up, as in the policy's table.
                (((way.uses << 16).isqrt() * (1u64 << 24).div_ceil(age + 1)) >> 16, 180 - age)
            }),
            PolicyKind::Lfu | PolicyKind::NrLfu => {
                if self.ways.iter().any(|way| way.frequency == 255) {
                    self.ways.iter_mut().for_each(|way| way.frequency /= 2);
                    self.ghosts.iter_mut().for_each(|ghost| ghost.1 /= 2);
                }
                // The policy stores one byte of the time of the last change.
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
        let again = self.kind == PolicyKind::Car && self.car_remembers(page, over);
        let ghost =
            self.ghosts.iter().position(|ghost| ghost.0 == page).and_then(|at| self.ghosts.remove(at));
        let remembered = match self.kind {
            PolicyKind::NrLfu => left.map(|left| (left.page, left.frequency)),
            PolicyKind::Mq | PolicyKind::Octavo => left.map(|left| (left.page, left.uses)),
            _ => None,
        };
        if let Some(remembered) = remembered {
            self.ghosts.push_back(remembered);
            if self.ghosts.len() > ghosts_of(self.count) {
                self.ghosts.pop_front();
            }
        }
        self.arrivals += 1;
        self.tick += 1;
        let (now, tick) = (self.arrivals, self.tick);
        let uses = ghost.map_or(0, |ghost| ghost.1) + 1;
        let way = Way {
            page,
            came: now,
            used: now,
            used_tick: tick,
            referenced: false,
            frequency: uses.min(255),
            changed: now,
            uses: uses.min(uses_max(self.kind).unwrap_or(uses)),
            counted: false,
            again,
            entered: now,
        };
        self.ways.iter_mut().for_each(|way| way.counted = false);
        match over {
            Some(over) => self.ways[over] = way,
            None => self.ways.push(way),
        }
        left.map(|left| left.page)
    }

    /// Lines 5 to 19 of figure 2 of the paper on CAR: an evicted page becomes a ghost, one ghost
    /// too many is dropped, and a page with a ghost moves the target. Returns whether the page had
    /// a ghost.
    fn car_remembers(&mut self, page: u64, over: Option<usize>) -> bool {
        if let Some(left) = over.map(|way| self.ways[way]) {
            let list = if left.again { &mut self.left_again } else { &mut self.left_once };
            list.push_back(left.page);
        }
        let (once, again) = (self.left_once.len() as f64, self.left_again.len() as f64);
        if let Some(at) = self.left_once.iter().position(|ghost| *ghost == page) {
            self.left_once.remove(at);
            self.target = (self.target + (again / once).max(1.0)).min(self.count as f64);
            return true;
        }
        if let Some(at) = self.left_again.iter().position(|ghost| *ghost == page) {
            self.left_again.remove(at);
            self.target = (self.target - (once / again).max(1.0)).max(0.0);
            return true;
        }
        if let Some(over) = over {
            let t1 = (0..self.count).filter(|way| *way != over && !self.ways[*way].again).count();
            if t1 + self.left_once.len() == self.count {
                self.left_once.pop_front();
            } else if self.count - 1 + self.left_once.len() + self.left_again.len() == 2 * self.count {
                self.left_again.pop_front();
            }
        }
        false
    }
}

/// Returns the number of intervals with a use at which a policy stops counting.
fn uses_max(kind: PolicyKind) -> Option<u64> {
    match kind {
        PolicyKind::Mq => Some(128),
        PolicyKind::Octavo => Some(63),
        _ => None,
    }
}

/// Returns the tag of a page: all pages are in one set and differ in print and fingerprint.
fn tag(page: u64) -> Tag {
    Tag((page % 256) << 56 | (page / 256) << 48)
}

/// Draws a page: half of the draws go to an eighth of the pages, and from time to time another
/// eighth.
fn draw(random: &mut Random, pages: usize, step: usize) -> u64 {
    let few = pages.div_ceil(8);
    let shift = step / 5_000;
    match random.below(2) {
        0 => (random.below(few as u64) + (shift * few) as u64) % pages as u64,
        _ => random.below(pages as u64),
    }
}

/// Runs a policy beside its twin. Returns how often it evicted another page than the twin, which
/// only `lru` may do.
fn compare<const W: usize>(kind: PolicyKind, pages: usize, seed: u64) -> u64 {
    let table = one_set::<W>(kind);
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
        let evicted = replace(&table, tag(page));
        let mut over = (twin.ways.len() == W).then(|| twin.victim());
        if let (PolicyKind::Lru, Some(exact), Some(evicted)) = (kind, over, evicted) {
            // The allowed difference: `lru` cannot order pages that were last used between the same
            // two arrivals.
            let actual = twin
                .ways
                .iter()
                .position(|way| tag(way.page) == evicted)
                .expect("the evicted page was resident");
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

/// The allowed difference of `lru` is that of `compare`.
#[test]
fn every_policy_evicts_the_pages_and_keeps_the_ghosts_that_its_twin_does() {
    std::thread::scope(|scope| {
        for kind in PolicyKind::ALL {
            scope.spawn(move || agrees_with_its_twin(kind));
        }
    });
}
