//! A naive twin of each reference policy: vectors, the oldest page first, searched from end to end.
//!
//! A twin is a function that tells for each page, in order, whether it was resident.

use super::super::lhd::Dice;
use super::super::w_tiny_lfu::{Sketch, parts};
use super::{Reference, SEED};

pub(super) type Twin = Box<dyn FnMut(u64) -> bool>;

/// Pages, each with a mark or a count.
type Marked<T> = Vec<(u64, T)>;

/// Returns the twin of a policy with `capacity` pages.
pub(super) fn twin(reference: Reference, capacity: usize) -> Twin {
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
        Reference::Opt | Reference::SetOpt => unreachable!("the tests of opt.rs have their own"),
    }
}

/// Removes a page and returns whether it was in the list.
fn take(pages: &mut Vec<u64>, page: u64) -> bool {
    let at = pages.iter().position(|other| *other == page);
    at.map(|at| pages.remove(at)).is_some()
}

/// Removes the oldest pages beyond `max`.
fn trim<T>(pages: &mut Vec<T>, max: usize) {
    pages.drain(..pages.len().saturating_sub(max));
}

/// Returns the mark of a page.
fn mark<T>(pages: &mut Marked<T>, page: u64) -> Option<&mut T> {
    pages.iter_mut().find(|known| known.0 == page).map(|known| &mut known.1)
}

fn lru(capacity: usize) -> Twin {
    let mut pages = Vec::new();
    Box::new(move |page| {
        let hit = take(&mut pages, page);
        pages.push(page);
        trim(&mut pages, capacity);
        hit
    })
}

fn fifo(capacity: usize) -> Twin {
    let mut pages = Vec::new();
    Box::new(move |page| {
        let hit = pages.contains(&page);
        if !hit {
            pages.push(page);
            trim(&mut pages, capacity);
        }
        hit
    })
}

/// Returns where the first unmarked page is from `hand` on; marks on the way are cleared.
fn unmarked<T>(pages: &mut [(T, bool)], mut hand: usize) -> usize {
    while std::mem::take(&mut pages[hand].1) {
        hand = (hand + 1) % pages.len();
    }
    hand
}

/// A real clock: pages stay where they are, and the hand goes round.
fn clock(capacity: usize) -> Twin {
    let (mut frames, mut hand) = (Marked::new(), 0);
    Box::new(move |page| {
        if let Some(used) = mark(&mut frames, page) {
            *used = true;
            return true;
        }
        if frames.len() < capacity {
            frames.push((page, false));
            return false;
        }
        hand = unmarked(&mut frames, hand);
        frames[hand] = (page, false);
        hand = (hand + 1) % capacity;
        false
    })
}

fn sieve(capacity: usize) -> Twin {
    let (mut pages, mut hand) = (Marked::new(), 0);
    Box::new(move |page| {
        if let Some(used) = mark(&mut pages, page) {
            *used = true;
            return true;
        }
        if pages.len() == capacity {
            hand = unmarked(&mut pages, hand);
            pages.remove(hand);
            hand %= capacity.max(2) - 1;
        }
        pages.push((page, false));
        false
    })
}

fn lfu(capacity: usize) -> Twin {
    // Each page's count and last access.
    let (mut pages, mut now) = (Marked::new(), 0);
    Box::new(move |page| {
        now += 1;
        if let Some((count, last)) = mark(&mut pages, page) {
            (*count, *last) = (*count + 1, now);
            return true;
        }
        if pages.len() == capacity {
            let victim = (0..capacity).min_by_key(|at| pages[*at].1).unwrap();
            pages.swap_remove(victim);
        }
        pages.push((page, (1, now)));
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
                trim(&mut ghosts, capacity / 2);
            } else {
                main.remove(0);
            }
        }
        if known { &mut main } else { &mut new }.push(page);
        false
    })
}

fn s3_fifo(capacity: usize) -> Twin {
    let (mut small, mut main): (Marked<u32>, Marked<u32>) = (Vec::new(), Vec::new());
    let (mut ghosts, mut evicted) = (Vec::new(), false);
    let small_max = (capacity / 10).max(1);
    Box::new(move |page| {
        if let Some(uses) = mark(&mut small, page).or(mark(&mut main, page)) {
            *uses += 1;
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
                continue;
            }
            // Used pages leave the small queue until one page becomes a ghost.
            let unused = small.iter().position(|(_, uses)| *uses < 2).unwrap_or(small.len());
            main.extend(small.drain(..unused).map(|(page, _)| (page, 0)));
            ghosts.extend(small.drain(..small.len().min(1)).map(|(page, _)| page));
            trim(&mut ghosts, capacity * 9 / 10);
        }
        if ghost || (!evicted && small.len() >= small_max) { &mut main } else { &mut small }.push((page, 0));
        false
    })
}

/// Figure 4 of the ARC paper, line by line; the lists are T1, T2, B1 and B2.
fn arc(capacity: usize) -> Twin {
    fn replace(lists: &mut [Vec<u64>; 4], p: f64, in_b2: bool) {
        let t1 = lists[0].len() as f64;
        let from_t1 = t1 > 0.0 && (t1 > p || (in_b2 && t1 == p)) || lists[1].is_empty();
        let page = lists[usize::from(!from_t1)].remove(0);
        lists[2 + usize::from(!from_t1)].push(page);
    }
    let mut lists: [Vec<u64>; 4] = Default::default();
    let mut p = 0.0_f64;
    Box::new(move |page| {
        let [t1, t2, b1, b2] = lists.each_ref().map(Vec::len);
        let (one, two) = (b1 as f64, b2 as f64);
        let at = lists.iter().position(|list| list.contains(&page));
        match at {
            Some(0 | 1) => {}
            Some(2) => {
                p = f64::min(p + f64::max(1.0, two / one), capacity as f64);
                replace(&mut lists, p, false);
            }
            Some(_) => {
                p = f64::max(p - f64::max(1.0, one / two), 0.0);
                replace(&mut lists, p, true);
            }
            None if t1 == capacity => {
                lists[0].remove(0);
            }
            None => {
                let all = t1 + t2 + b1 + b2;
                if t1 + b1 == capacity {
                    lists[2].remove(0);
                } else if all == 2 * capacity {
                    lists[3].remove(0);
                }
                if all >= capacity {
                    replace(&mut lists, p, false);
                }
            }
        }
        at.map(|at| take(&mut lists[at], page));
        lists[usize::from(at.is_some())].push(page);
        matches!(at, Some(0 | 1))
    })
}

/// Figure 2 of the CAR paper, line by line.
fn car(capacity: usize) -> Twin {
    let (mut t1, mut t2): (Marked<bool>, Marked<bool>) = (Vec::new(), Vec::new());
    let (mut b1, mut b2): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut p = 0.0_f64;
    Box::new(move |page| {
        if let Some(used) = mark(&mut t1, page).or(mark(&mut t2, page)) {
            *used = true;
            return true;
        }
        let (in_b1, in_b2) = (b1.contains(&page), b2.contains(&page));
        if t1.len() + t2.len() == capacity {
            loop {
                let first = t1.len() as f64 >= f64::max(1.0, p);
                let (page, used) = if first { &mut t1 } else { &mut t2 }.remove(0);
                if !used {
                    if first { &mut b1 } else { &mut b2 }.push(page);
                    break;
                }
                t2.push((page, false));
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
        if take(&mut b1, page) {
            p = f64::min(p + f64::max(1.0, two / one), capacity as f64);
        } else if take(&mut b2, page) {
            p = f64::max(p - f64::max(1.0, one / two), 0.0);
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
    let [mut stack, mut low, mut queue, mut ghosts]: [Vec<u64>; 4] = Default::default();
    Box::new(move |page| {
        let hit = low.contains(&page) || queue.contains(&page);
        let stacked = take(&mut stack, page);
        stack.push(page);
        if !hit {
            take(&mut ghosts, page);
            if low.len() + queue.len() == capacity {
                let victim = queue.remove(0);
                ghosts.extend(stack.contains(&victim).then_some(victim));
            }
        }
        if !low.contains(&page) {
            take(&mut queue, page);
            if stacked || (!hit && low.len() < low_max) { &mut low } else { &mut queue }.push(page);
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
            take(&mut stack, ghosts.remove(0));
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

/// CLOCK-Pro's clock as a vector; hands are the pages that they point to.
struct Ring {
    capacity: usize,
    target: usize,
    /// Each page's kind, and whether it was used.
    pages: Marked<(Kind, bool)>,
    /// Hot, cold, test.
    hands: [u64; 3],
}

impl Ring {
    fn count(&self, wanted: &[Kind]) -> usize {
        self.pages.iter().filter(|(_, (kind, _))| wanted.contains(kind)).count()
    }

    fn at(&self, page: u64) -> Option<usize> {
        self.pages.iter().position(|known| known.0 == page)
    }

    fn add(&mut self, page: u64, kind: Kind) {
        if self.pages.is_empty() {
            self.hands = [page; 3];
        }
        let at = self.at(self.hands[0]).unwrap_or(0);
        self.pages.insert(at, (page, (kind, false)));
    }

    fn remove(&mut self, at: usize) -> u64 {
        let next = self.pages[(at + 1) % self.pages.len()].0;
        let (page, _) = self.pages.remove(at);
        self.hands = self.hands.map(|hand| if hand == page { next } else { hand });
        page
    }

    fn move_to_head(&mut self, at: usize, kind: Kind) {
        let page = self.remove(at);
        self.add(page, kind);
    }

    /// Turns a hand and returns where it was.
    fn turn(&mut self, hand: usize) -> usize {
        let at = self.at(self.hands[hand]).unwrap();
        self.hands[hand] = self.pages[(at + 1) % self.pages.len()].0;
        at
    }

    fn raise(&mut self) {
        self.target = (self.target + 1).min((self.capacity - 1).max(1));
    }

    fn end_test(&mut self, at: usize) {
        match self.pages[at].1 {
            (Kind::Ghost, _) => {
                self.remove(at);
            }
            (Kind::Testing, false) => self.pages[at].1.0 = Kind::Cold,
            _ => return,
        }
        self.target = (self.target - 1).max(1);
    }

    fn cool_one(&mut self) {
        let hot = self.count(&[Kind::Hot]);
        while self.count(&[Kind::Hot]) == hot {
            let at = self.turn(0);
            match self.pages[at].1 {
                (Kind::Hot, true) => self.pages[at].1.1 = false,
                (Kind::Hot, false) => self.pages[at].1.0 = Kind::Cold,
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
            match self.pages[at].1 {
                (Kind::Hot | Kind::Ghost, _) => {}
                (Kind::Testing, true) => {
                    self.move_to_head(at, Kind::Hot);
                    self.raise();
                    self.cool();
                }
                (Kind::Cold, true) => self.move_to_head(at, Kind::Testing),
                (Kind::Testing, false) => {
                    self.pages[at].1.0 = Kind::Ghost;
                    while self.count(&[Kind::Ghost]) > self.capacity {
                        let at = self.turn(2);
                        self.end_test(at);
                    }
                    return;
                }
                (Kind::Cold, false) => {
                    self.remove(at);
                    return;
                }
            }
        }
    }

    fn access(&mut self, page: u64) -> bool {
        let known = self.at(page);
        if let Some(at) = known {
            if self.pages[at].1.0 != Kind::Ghost {
                self.pages[at].1.1 = true;
                return true;
            }
            self.remove(at);
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
    let mut ring = Ring { capacity, target: (capacity / 100).max(1), pages: Vec::new(), hands: [0; 3] };
    Box::new(move |page| ring.access(page))
}

/// Linux's lists. The twin never forgets a ghost, which shows that forgetting ghosts makes no
/// difference.
fn linux(capacity: usize, refaults: bool) -> Twin {
    let (mut inactive, mut active): (Marked<bool>, Marked<bool>) = (Vec::new(), Vec::new());
    let mut shadows: Marked<usize> = Vec::new();
    let mut age = 0;
    Box::new(move |page| {
        if let Some(referenced) = mark(&mut active, page) {
            *referenced = true;
            return true;
        }
        if let Some(referenced) = mark(&mut inactive, page) {
            if std::mem::replace(referenced, true) {
                inactive.retain(|known| known.0 != page);
                active.push((page, false));
                age += 1;
            }
            return true;
        }
        let left = mark(&mut shadows, page).copied();
        let activate = refaults && left.is_some_and(|left| age - left <= active.len());
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

/// A page as LHD knows it.
struct Known {
    page: u64,
    used: u64,
    hit_ages: [u64; 2],
    explorer: bool,
}

/// LHD before it has learned anything, with the same dice.
fn lhd(capacity: usize) -> Twin {
    let mut known: Vec<Known> = Vec::new();
    let (mut recent, mut arrivals) = ([None; 8], 0);
    let (mut now, mut victims) = (0, 0.0_f32);
    let mut dice = Dice::new(SEED);
    let mut explorers_left = capacity / 100;
    let density = |page: &Known, now: u64| {
        let ages: u64 = page.hit_ages.iter().sum();
        let class = (0..15).find(|class| ages << class >= 20_000).unwrap_or(15);
        (class + 17) as f32 / (((now - page.used) >> 10) + 1) as f32 + f32::from(u8::from(page.explorer))
    };
    Box::new(move |page| {
        let position = |known: &[Known], page| known.iter().position(|known| known.page == page);
        let at = position(&known, page);
        if at.is_none() && known.len() == capacity {
            let mut numbers: Vec<usize> = (0..8).map(|_| dice.below(capacity as u64) as usize).collect();
            numbers.extend(recent.iter().flatten().filter_map(|page| position(&known, *page)));
            let victim = numbers.into_iter().reduce(|best, other| {
                if density(&known[other], now) < density(&known[best], now) { other } else { best }
            });
            victims = 0.9 * victims + (1.0 - 0.9) * density(&known[victim.unwrap()], now);
            explorers_left += usize::from(known.swap_remove(victim.unwrap()).explorer);
        }
        explorers_left += at.map_or(0, |at| usize::from(known[at].explorer));
        let drawn = dice.below(32) == 0;
        let explorer = drawn && explorers_left > 0;
        explorers_left -= usize::from(explorer);
        let new = Known { page, used: now, hit_ages: [0, 20_000], explorer };
        if let Some(at) = at {
            let known = &mut known[at];
            *known = Known { hit_ages: [(now - known.used) >> 10, known.hit_ages[0]], ..new };
        } else {
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
