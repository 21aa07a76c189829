//! Naive twins of the reference policies, for the tests: vectors that are searched from end to end,
//! the oldest first.

use super::lhd::Dice;
use super::pages::Random;
use super::w_tiny_lfu::{Sketch, parts};
use super::{Policy, Reference, opt};
use crate::source::{Source, SourceError};

/// Pages, each with a mark or a count.
type Marked<T> = Vec<(u64, T)>;

/// Says of each page whether it was there.
type Twin = Box<dyn FnMut(u64) -> bool>;

fn position(pages: &[u64], page: u64) -> Option<usize> {
    pages.iter().position(|other| *other == page)
}

/// Takes a page out; true: it was there.
fn take(pages: &mut Vec<u64>, page: u64) -> bool {
    position(pages, page).map(|at| pages.remove(at)).is_some()
}

fn twin(reference: Reference, capacity: usize) -> Twin {
    match reference {
        Reference::Lru => lru(capacity),
        Reference::Fifo => fifo(capacity),
        Reference::Clock => clock(capacity),
        Reference::Sieve => sieve(capacity),
        Reference::Lfu => lfu(capacity),
        Reference::TwoQ => two_q(capacity),
        Reference::S3Fifo => s3_fifo(capacity),
        Reference::Arc => arc(capacity),
        Reference::Car => car(capacity),
        Reference::Lirs => lirs(capacity),
        Reference::ClockPro => clock_pro(capacity),
        Reference::Linux => linux(capacity, false),
        Reference::LinuxRefault => linux(capacity, true),
        Reference::WTinyLfu => w_tiny_lfu(capacity),
        Reference::Lhd => lhd(capacity),
        Reference::Opt | Reference::SetOpt => unreachable!("opt.rs has its own"),
    }
}

fn lru(capacity: usize) -> Twin {
    let mut pages = Vec::new();
    Box::new(move |page| {
        let hit = take(&mut pages, page);
        pages.push(page);
        pages.drain(..pages.len().saturating_sub(capacity));
        hit
    })
}

fn fifo(capacity: usize) -> Twin {
    let mut pages = Vec::new();
    Box::new(move |page| {
        let hit = pages.contains(&page);
        if !hit {
            pages.push(page);
            pages.drain(..pages.len().saturating_sub(capacity));
        }
        hit
    })
}

/// A real clock: pages stay where they are, and the hand goes round.
fn clock(capacity: usize) -> Twin {
    let mut frames: Vec<(u64, bool)> = Vec::new();
    let mut hand = 0;
    Box::new(move |page| {
        if let Some(frame) = frames.iter_mut().find(|frame| frame.0 == page) {
            frame.1 = true;
            return true;
        }
        if frames.len() < capacity {
            frames.push((page, false));
            return false;
        }
        while frames[hand].1 {
            frames[hand].1 = false;
            hand = (hand + 1) % capacity;
        }
        frames[hand] = (page, false);
        hand = (hand + 1) % capacity;
        false
    })
}

fn sieve(capacity: usize) -> Twin {
    let mut pages: Vec<(u64, bool)> = Vec::new();
    let mut hand = 0;
    Box::new(move |page| {
        if let Some(known) = pages.iter_mut().find(|known| known.0 == page) {
            known.1 = true;
            return true;
        }
        if pages.len() == capacity {
            while pages[hand].1 {
                pages[hand].1 = false;
                hand = (hand + 1) % capacity;
            }
            pages.remove(hand);
            hand %= capacity.max(2) - 1;
        }
        pages.push((page, false));
        false
    })
}

fn lfu(capacity: usize) -> Twin {
    let mut pages: Vec<(u64, u64, u64)> = Vec::new();
    let mut now = 0;
    Box::new(move |page| {
        now += 1;
        if let Some(known) = pages.iter_mut().find(|known| known.0 == page) {
            (known.1, known.2) = (known.1 + 1, now);
            return true;
        }
        if pages.len() == capacity {
            let victim = (0..capacity).min_by_key(|at| (pages[*at].1, pages[*at].2)).unwrap();
            pages.swap_remove(victim);
        }
        pages.push((page, 1, now));
        false
    })
}

fn two_q(capacity: usize) -> Twin {
    let (mut new, mut main, mut ghosts) = (Vec::new(), Vec::new(), Vec::new());
    Box::new(move |page| {
        if new.contains(&page) {
            return true;
        }
        if take(&mut main, page) {
            main.push(page);
            return true;
        }
        let known = take(&mut ghosts, page);
        if new.len() + main.len() == capacity {
            if new.len() > capacity / 4 || main.is_empty() {
                ghosts.push(new.remove(0));
                ghosts.drain(..ghosts.len().saturating_sub(capacity / 2));
            } else {
                main.remove(0);
            }
        }
        if known {
            main.push(page)
        } else {
            new.push(page)
        }
        false
    })
}

fn s3_fifo(capacity: usize) -> Twin {
    let (mut small, mut main): (Marked<u32>, Marked<u32>) = (Vec::new(), Vec::new());
    let (mut ghosts, mut evicted) = (Vec::new(), false);
    let small_max = (capacity / 10).max(1);
    Box::new(move |page| {
        if let Some(known) = small.iter_mut().chain(&mut main).find(|known| known.0 == page) {
            known.1 += 1;
            return true;
        }
        let ghost = take(&mut ghosts, page);
        while small.len() + main.len() >= capacity {
            evicted = true;
            if main.len() > capacity - small_max || small.is_empty() {
                let (page, uses) = main.remove(0);
                if uses > 0 {
                    main.push((page, uses.min(3) - 1));
                }
            } else {
                let (page, uses) = small.remove(0);
                if uses >= 2 {
                    main.push((page, 0));
                    // The small queue goes on until a page has left it for good.
                    while !small.is_empty() && small[0].1 >= 2 {
                        main.push((small.remove(0).0, 0));
                    }
                    if small.is_empty() {
                        continue;
                    }
                    ghosts.push(small.remove(0).0);
                } else {
                    ghosts.push(page);
                }
                ghosts.drain(..ghosts.len().saturating_sub(capacity * 9 / 10));
            }
        }
        if ghost || (!evicted && small.len() >= small_max) { &mut main } else { &mut small }.push((page, 0));
        false
    })
}

/// Figure 4 of the ARC paper, line by line.
fn arc(capacity: usize) -> Twin {
    let [mut t1, mut t2, mut b1, mut b2]: [Vec<u64>; 4] = Default::default();
    let mut p = 0.0_f64;
    Box::new(move |page| {
        let replace =
            |t1: &mut Vec<u64>, b1: &mut Vec<u64>, b2: &mut Vec<u64>, t2: &mut Vec<u64>, in_b2, p| {
                if !t1.is_empty() && (t1.len() as f64 > p || (in_b2 && t1.len() as f64 == p)) || t2.is_empty()
                {
                    b1.push(t1.remove(0));
                } else {
                    b2.push(t2.remove(0));
                }
            };
        let (one, two) = (b1.len() as f64, b2.len() as f64);
        if take(&mut t1, page) || take(&mut t2, page) {
            t2.push(page);
            return true;
        }
        if b1.contains(&page) {
            p = f64::min(p + f64::max(1.0, two / one), capacity as f64);
            replace(&mut t1, &mut b1, &mut b2, &mut t2, false, p);
            take(&mut b1, page);
            t2.push(page);
            return false;
        }
        if b2.contains(&page) {
            p = f64::max(p - f64::max(1.0, one / two), 0.0);
            replace(&mut t1, &mut b1, &mut b2, &mut t2, true, p);
            take(&mut b2, page);
            t2.push(page);
            return false;
        }
        let all = t1.len() + t2.len() + b1.len() + b2.len();
        if t1.len() + b1.len() == capacity {
            if t1.len() < capacity {
                b1.remove(0);
                replace(&mut t1, &mut b1, &mut b2, &mut t2, false, p);
            } else {
                t1.remove(0);
            }
        } else if all >= capacity {
            if all == 2 * capacity {
                b2.remove(0);
            }
            replace(&mut t1, &mut b1, &mut b2, &mut t2, false, p);
        }
        t1.push(page);
        false
    })
}

/// Figure 2 of the CAR paper, line by line.
fn car(capacity: usize) -> Twin {
    let (mut t1, mut t2): (Marked<bool>, Marked<bool>) = (Vec::new(), Vec::new());
    let (mut b1, mut b2): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut p = 0.0_f64;
    Box::new(move |page| {
        if let Some(known) = t1.iter_mut().chain(&mut t2).find(|known| known.0 == page) {
            known.1 = true;
            return true;
        }
        let (in_b1, in_b2) = (b1.contains(&page), b2.contains(&page));
        if t1.len() + t2.len() == capacity {
            loop {
                let first = t1.len() as f64 >= f64::max(1.0, p);
                let (page, used) = if first { t1.remove(0) } else { t2.remove(0) };
                if used {
                    t2.push((page, false));
                    continue;
                }
                if first {
                    b1.push(page)
                } else {
                    b2.push(page)
                }
                break;
            }
            if !in_b1 && !in_b2 {
                if t1.len() + b1.len() == capacity {
                    b1.remove(0);
                } else if t1.len() + t2.len() + b1.len() + b2.len() == 2 * capacity {
                    b2.remove(0);
                }
            }
        }
        let (one, two) = (b1.len() as f64, b2.len() as f64);
        if in_b1 {
            p = f64::min(p + f64::max(1.0, two / one), capacity as f64);
            take(&mut b1, page);
        } else if in_b2 {
            p = f64::max(p - f64::max(1.0, one / two), 0.0);
            take(&mut b2, page);
        }
        if in_b1 || in_b2 { &mut t2 } else { &mut t1 }.push((page, false));
        false
    })
}

fn lirs(capacity: usize) -> Twin {
    if capacity == 1 {
        return lru(1);
    }
    let low_max = capacity - (capacity / 100).max(1);
    let (mut stack, mut low): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let (mut queue, mut ghosts): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    Box::new(move |page| {
        let hit = low.contains(&page) || queue.contains(&page);
        let stacked = take(&mut stack, page);
        stack.push(page);
        if !hit {
            take(&mut ghosts, page);
            if low.len() + queue.len() == capacity {
                let victim = queue.remove(0);
                if stack.contains(&victim) {
                    ghosts.push(victim);
                }
            }
        }
        if !low.contains(&page) {
            take(&mut queue, page);
            if stacked || (!hit && low.len() < low_max) {
                low.push(page);
            } else {
                queue.push(page);
            }
        }
        if low.len() > low_max {
            let oldest = *stack.iter().find(|page| low.contains(page)).unwrap();
            take(&mut low, oldest);
            queue.push(oldest);
        }
        let below = stack.iter().position(|page| low.contains(page)).unwrap();
        for page in stack.drain(..below) {
            take(&mut ghosts, page);
        }
        while stack.len() > 2 * capacity && !ghosts.is_empty() {
            let ghost = ghosts.remove(0);
            take(&mut stack, ghost);
        }
        hit
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Hot,
    Cold,
    Testing,
    Ghost,
}

/// A clock as a vector; hands are the pages that they point to.
struct ClockProTwin {
    capacity: usize,
    target: usize,
    ring: Vec<(u64, Kind, bool)>,
    /// Hot, cold, test.
    hands: [u64; 3],
}

impl ClockProTwin {
    fn count(&self, wanted: &[Kind]) -> usize {
        self.ring.iter().filter(|(_, kind, _)| wanted.contains(kind)).count()
    }

    fn at(&self, page: u64) -> Option<usize> {
        self.ring.iter().position(|entry| entry.0 == page)
    }

    fn add(&mut self, page: u64, kind: Kind) {
        if self.ring.is_empty() {
            self.hands = [page; 3];
        }
        let at = self.at(self.hands[0]).unwrap_or(0);
        self.ring.insert(at, (page, kind, false));
    }

    fn remove(&mut self, page: u64) {
        let at = self.at(page).unwrap();
        let next = self.ring[(at + 1) % self.ring.len()].0;
        self.ring.remove(at);
        for hand in &mut self.hands {
            if *hand == page {
                *hand = next;
            }
        }
    }

    /// Where a hand was; it goes on.
    fn turn(&mut self, hand: usize) -> usize {
        let at = self.at(self.hands[hand]).unwrap();
        self.hands[hand] = self.ring[(at + 1) % self.ring.len()].0;
        at
    }

    fn raise(&mut self) {
        self.target = (self.target + 1).min((self.capacity - 1).max(1));
    }

    fn end_test(&mut self, at: usize) {
        let (page, kind, used) = self.ring[at];
        if kind == Kind::Ghost {
            self.remove(page);
        } else if kind == Kind::Testing && !used {
            self.ring[at].1 = Kind::Cold;
        } else {
            return;
        }
        self.target = (self.target - 1).max(1);
    }

    fn cool_one(&mut self) {
        let hot = self.count(&[Kind::Hot]);
        while self.count(&[Kind::Hot]) == hot {
            let at = self.turn(0);
            match self.ring[at] {
                (_, Kind::Hot, true) => self.ring[at].2 = false,
                (_, Kind::Hot, false) => self.ring[at].1 = Kind::Cold,
                _ => self.end_test(at),
            }
        }
    }

    fn cool(&mut self) {
        while self.count(&[Kind::Hot]) > self.capacity - self.target {
            self.cool_one();
        }
    }

    fn evict(&mut self) {
        loop {
            if self.count(&[Kind::Cold, Kind::Testing]) == 0 {
                self.cool_one();
            }
            let at = self.turn(1);
            let (page, kind, used) = self.ring[at];
            match (kind, used) {
                (Kind::Hot | Kind::Ghost, _) => {}
                (Kind::Testing, true) => {
                    self.remove(page);
                    self.add(page, Kind::Hot);
                    self.raise();
                    self.cool();
                }
                (Kind::Cold, true) => {
                    self.remove(page);
                    self.add(page, Kind::Testing);
                }
                (Kind::Testing, false) => {
                    self.ring[at].1 = Kind::Ghost;
                    while self.count(&[Kind::Ghost]) > self.capacity {
                        let at = self.turn(2);
                        self.end_test(at);
                    }
                    return;
                }
                (Kind::Cold, false) => return self.remove(page),
            }
        }
    }

    fn access(&mut self, page: u64) -> bool {
        let known = self.at(page);
        if let Some(at) = known {
            if self.ring[at].1 != Kind::Ghost {
                self.ring[at].2 = true;
                return true;
            }
            self.remove(page);
            self.raise();
        }
        let full = self.count(&[Kind::Hot, Kind::Cold, Kind::Testing]) == self.capacity;
        if full {
            self.evict();
        }
        let hot = known.is_some() || (!full && self.count(&[Kind::Hot]) < self.capacity - self.target);
        self.add(page, if hot { Kind::Hot } else { Kind::Testing });
        self.cool();
        false
    }
}

fn clock_pro(capacity: usize) -> Twin {
    let mut twin =
        ClockProTwin { capacity, target: (capacity / 100).max(1), ring: Vec::new(), hands: [0; 3] };
    Box::new(move |page| twin.access(page))
}

/// Ghosts are kept for ever here: that forgetting them makes no difference is shown so.
fn linux(capacity: usize, refaults: bool) -> Twin {
    let (mut inactive, mut active): (Marked<bool>, Marked<bool>) = (Vec::new(), Vec::new());
    let mut shadows: Vec<(u64, usize)> = Vec::new();
    let mut age = 0;
    Box::new(move |page| {
        if let Some(known) = active.iter_mut().find(|known| known.0 == page) {
            known.1 = true;
            return true;
        }
        if let Some(at) = inactive.iter().position(|known| known.0 == page) {
            if inactive[at].1 {
                inactive.remove(at);
                active.push((page, false));
                age += 1;
            }
            if let Some(known) = inactive.get_mut(at).filter(|known| known.0 == page) {
                known.1 = true;
            }
            return true;
        }
        let shadow = shadows.iter().rev().find(|shadow| shadow.0 == page);
        let activate = refaults && shadow.is_some_and(|shadow| age - shadow.1 <= active.len());
        shadows.retain(|shadow| shadow.0 != page);
        if inactive.len() + active.len() == capacity {
            while inactive.len() < active.len() {
                inactive.push(active.remove(0));
            }
            shadows.push((inactive.remove(0).0, age));
            age += 1;
        }
        if activate {
            active.push((page, true));
            age += 1;
        } else {
            inactive.push((page, true));
        }
        false
    })
}

fn w_tiny_lfu(capacity: usize) -> Twin {
    let [_, probation_max, protected_max] = parts(capacity as u64).map(|part| part as usize);
    let main_max = probation_max + protected_max;
    let (mut window, mut probation, mut protected) = (Vec::new(), Vec::new(), Vec::new());
    let mut sketch = Sketch::new(main_max as u64);
    let mut hits = 0;
    Box::new(move |page| {
        if take(&mut window, page) {
            window.push(page);
            return true;
        }
        if take(&mut probation, page) || take(&mut protected, page) {
            protected.push(page);
            if protected.len() > protected_max {
                probation.push(protected.remove(0));
            }
            sketch.count(page);
            hits += 1;
            if hits == 32 * main_max {
                sketch.halve();
                hits = 0;
            }
            return true;
        }
        let mut full = window.len() + probation.len() + protected.len() == capacity;
        while full {
            if window.is_empty() {
                if probation.is_empty() { &mut protected } else { &mut probation }.remove(0);
                break;
            }
            let candidate: u64 = window.remove(0);
            if probation.len() + protected.len() == main_max {
                full = false;
                let main = if probation.is_empty() { &mut protected } else { &mut probation };
                let better =
                    main.first().is_some_and(|victim| sketch.estimate(candidate) > sketch.estimate(*victim));
                sketch.count(candidate);
                if !better {
                    continue;
                }
                main.remove(0);
            } else {
                sketch.count(candidate);
            }
            let to_protected = probation.len() >= probation_max && protected.len() < protected_max;
            if to_protected { &mut protected } else { &mut probation }.push(candidate);
        }
        window.push(page);
        sketch.count(page);
        false
    })
}

/// LHD before it has learnt anything, with the same dice.
fn lhd(capacity: usize) -> Twin {
    struct Known {
        page: u64,
        used: u64,
        last: u64,
        before: u64,
        explorer: bool,
    }
    let mut known: Vec<Known> = Vec::new();
    let (mut recent, mut arrivals) = ([None; 8], 0);
    let (mut now, mut victims) = (0, 0.0_f32);
    let mut dice = Dice::new(SEED);
    let mut explorers_left = capacity / 100;
    let density = |page: &Known, now: u64| {
        let class = (0..15).find(|class| (page.last + page.before) << class >= 20_000).unwrap_or(15);
        (class + 17) as f32 / (((now - page.used) >> 10) + 1) as f32 + f32::from(u8::from(page.explorer))
    };
    Box::new(move |page| {
        let at = known.iter().position(|known| known.page == page);
        if at.is_none() && known.len() == capacity {
            let mut numbers: Vec<usize> = (0..8).map(|_| dice.below(capacity as u64) as usize).collect();
            let position = |page| known.iter().position(|known: &Known| known.page == page);
            numbers.extend(recent.iter().flatten().filter_map(|page| position(*page)));
            let victim = numbers.into_iter().reduce(|best, other| {
                if density(&known[other], now) < density(&known[best], now) { other } else { best }
            });
            victims = 0.9 * victims + (1.0 - 0.9) * density(&known[victim.unwrap()], now);
            explorers_left += usize::from(known.swap_remove(victim.unwrap()).explorer);
        }
        if let Some(at) = at {
            explorers_left += usize::from(known[at].explorer);
        }
        let drawn = dice.below(32) == 0;
        let explorer = drawn && explorers_left > 0;
        explorers_left -= usize::from(explorer);
        if let Some(at) = at {
            let known = &mut known[at];
            let age = (now - known.used) >> 10;
            (known.last, known.before, known.used, known.explorer) = (age, known.last, now, explorer);
        } else {
            let new = Known { page, used: now, last: 0, before: 20_000, explorer };
            if !drawn && density(&new, now) < victims {
                recent[arrivals % 8] = Some(page);
                arrivals += 1;
            }
            known.push(new);
        }
        now += 1;
        at.is_some()
    })
}

const SEED: u64 = 77;

/// Popular and rare pages, with scans and loops between.
fn accesses(random: &mut Random, capacity: u64, count: usize) -> Vec<u64> {
    let mut pages = Vec::new();
    while pages.len() < count {
        let run = 1 + random.below(4 * capacity);
        let base = random.below(3 * capacity);
        match random.below(6) {
            0 => pages.extend(base..base + run),
            1 => pages.extend((0..run).map(|n| base + n % (capacity + 1))),
            _ => pages.extend((0..run).map(|_| random.clone().below(1 + random.below(3 * capacity)))),
        }
    }
    pages
}

#[test]
fn every_policy_agrees_with_its_naive_twin_and_keeps_its_capacity() {
    let mut random = Random(SEED);
    for (capacity, count) in
        [(1, 2000), (2, 4000), (3, 4000), (5, 4000), (12, 6000), (40, 8000), (230, 12_000)]
    {
        for reference in Reference::ALL.into_iter().filter(|reference| !reference.needs_future()) {
            let pages = accesses(&mut random, capacity, count);
            let mut policy = reference.policy(capacity, SEED).unwrap();
            let mut twin = twin(reference, capacity as usize);
            for (number, page) in pages.iter().enumerate() {
                assert_eq!(
                    policy.access(*page),
                    twin(*page),
                    "{reference} of {capacity}, access {number}, seed {SEED}"
                );
                assert!(policy.resident_pages() <= capacity, "{reference} of {capacity}, access {number}");
            }
            assert_eq!(policy.capacity_pages(), capacity);
            assert!(policy.access(pages[pages.len() - 1]), "{reference} of {capacity} has its newest page");
        }
    }
}

struct Given(Vec<u64>);

impl Source for Given {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        pages.append(&mut self.0);
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        None
    }
}

#[test]
fn nothing_misses_less_than_the_optimum() {
    let mut random = Random(SEED + 1);
    for round in 0..20 {
        let capacity = 1 + random.below(60);
        let pages = accesses(&mut random, capacity, 5000);
        let mut future =
            opt::Future::read(&mut Given(pages.clone()), &std::env::temp_dir(), u64::MAX).unwrap();
        let optimum = opt::misses(&mut future, &[capacity], None, 0).unwrap()[0];
        for reference in Reference::ALL {
            let misses = match reference.cache(capacity, SEED) {
                Some(mut cache) => cache.run(&pages),
                // Sets that together have no more pages than the whole.
                None => opt::misses(&mut future, &[capacity], Some(4.min(capacity as u32)), 3).unwrap()[0],
            };
            assert!(misses >= optimum, "{reference} of {capacity}, round {round}: {misses} for {optimum}");
        }
    }
}

#[test]
fn a_larger_lru_has_every_page_of_a_smaller_one() {
    let mut random = Random(SEED + 2);
    let mut sizes: Vec<Box<dyn Policy>> =
        [1, 2, 5, 17, 60].iter().map(|size| Reference::Lru.policy(*size, 0).unwrap()).collect();
    for page in accesses(&mut random, 30, 20_000) {
        let hits: Vec<bool> = sizes.iter_mut().map(|lru| lru.access(page)).collect();
        assert!(hits.is_sorted(), "{hits:?}");
    }
}

#[test]
fn belady_s_anomaly_is_fifo_s() {
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    let misses = |reference: Reference, capacity| reference.cache(capacity, 0).unwrap().run(&pages);
    assert_eq!((misses(Reference::Fifo, 3), misses(Reference::Fifo, 4)), (9, 10));
    assert_eq!((misses(Reference::Lru, 3), misses(Reference::Lru, 4)), (10, 8));
}

#[test]
fn names_are_read_back_and_unknown_ones_are_answered_with_the_known() {
    for reference in Reference::ALL {
        assert_eq!(reference.name().parse(), Ok(reference));
    }
    let error = "global-mru".parse::<Reference>().unwrap_err();
    assert!(error.contains("\"global-mru\"") && error.contains("global-lru, global-fifo"), "{error}");
}
