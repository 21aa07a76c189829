//! The numbers of a partition's objects. They return, so a partition opens objects without end.
//!
//! The number of an object is a part of the key, and so of the tag, of each of its pages. It has 24
//! bits. Everything that finds a page by its tag would take a page of one object for that of
//! another if both had one number at the same time. One *life* of a number lasts from the opening
//! of an object to the number's return:
//!
//! - **N1 open** [`Numbers::take`] returns a number that no object has. The caller holds the list
//!   of objects.
//! - **N2 close** `ObjectInner::set_closed` is called while the whole range is closed and all pages
//!   were taken (C3 of `flight/discard.rs`): no page, fill, write, write-back or stray of the
//!   object is left, and its twins are stale (T7). None comes later. A request that was checked
//!   before the close may still try to bring a page in. It looks whether the object is closed,
//!   under the lock of the page's set and after its look at the closed ranges, before it claims a
//!   slot or begins a stray. (A write looks at the length, which is 0 by then.)
//! - **N3 last reference** The number returns when the last reference to the closed object is
//!   dropped. Each handle, task, transfer, bundle and borrowed pin has one. A thread that has
//!   computed a tag, and looks for the page without a lock, therefore has it too: it cannot find a
//!   page of the next life.
//! - **N4 recording** `Event::Closed` is in every recording before the number returns, and after
//!   all other events of that life.
//! - **N5 rest** A number that returns rests behind all that returned earlier. It is taken only if
//!   more than [`REST`] numbers rest, or if no new number is left.
//!
//! An object that is dropped without a close keeps its number: only a cache that is dropped does
//! that.
//!
//! What may name an old life after its end, and why that does no harm:
//! - *Snapshots* (Detached) that owned pins keep: no lookup finds them, and pages that were
//!   superseded leave such slots beside the page itself.
//! - *Stale twins*: each must be copied anew from the main before it is read (T1). The main is that
//!   of the new life.
//! - *Ghosts, the learner's and the monitor's samples*: they say that a page was wanted some time
//!   ago, and decide what is evicted, never what is read. A wrong one costs or saves a miss. N5
//!   makes them rare: meanwhile, 4,096 other objects were closed.
//! - *A tag that a resize read without a lock* (`settle` in `control/resize.rs`): it leads to a
//!   write-back that was not needed.
//! - *A successor's expected pages* (`evacuation/`): numbers of the catalog belong to their stores
//!   until the pages have come in ([`Numbers::reserve`]).
//!
//! Resting numbers are a list through `links`: four bytes a number, at most doubled by growth. As
//! new numbers are taken only while few rest, there are about as many numbers as objects that were
//! open at once, plus [`REST`]. A return is a compare-and-swap: neither an open nor a close takes a
//! lock for it.

use std::collections::HashSet;
use std::sync::OnceLock;

use crate::sync::{AtomicU32, Ordering};

/// Bits of a number. The page index has the other bits of a page's key.
pub(crate) const NUMBER_BITS: u32 = 24;

/// One more than the highest number.
const NUMBERS_END: u32 = 1 << NUMBER_BITS;

/// Resting numbers up to this count are left alone while there are new ones. A number that was
/// closed for this long has few ghosts left; and it costs 16 KiB.
const REST: u32 = 4096;

/// The numbers in the first block of `links`. Each later block is as long as all before it
/// together. Small: most partitions open a few objects.
const FIRST_BLOCK: u32 = 64;

/// No number: an end of a list.
const NONE: u32 = 0;

const BLOCKS: usize = (NUMBERS_END / FIRST_BLOCK).ilog2() as usize + 1;

/// What is taken under the lock of the list of objects.
pub(crate) struct Numbers {
    /// The lowest number that no object has had, except those in `reserved`.
    new: u32,
    end: u32,
    /// [`REST`], or less in tests.
    rest: u32,
    /// Numbers from `new` on that an expected object has, had or will have.
    reserved: HashSet<u32>,
    /// The resting numbers: a list from the one that returned first to the one that returned last.
    first: u32,
    last: u32,
    count: u32,
}

/// Numbers that have returned and are not in the list yet, and the links of both lists.
pub(crate) struct Returned {
    /// The number that returned last. Its link leads to the one before.
    top: AtomicU32,
    /// By number. A link is written by the thread that returns its number, and after `take_all`
    /// under the lock of the list of objects.
    links: [OnceLock<Box<[AtomicU32]>>; BLOCKS],
}

impl Returned {
    pub fn new() -> Returned {
        Returned { top: AtomicU32::new(NONE), links: [const { OnceLock::new() }; BLOCKS] }
    }

    /// N3: returns a number that [`Numbers::take`] has returned, without a lock.
    pub fn push(&self, number: u64) {
        let number = u32::try_from(number).expect("a number that was taken");
        let link = self.link(number);
        // Relaxed: only the value is compared. A number that was taken and has returned meanwhile
        // is as good a neighbour as before.
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // Relaxed: the exchange publishes it.
            link.store(top, Ordering::Relaxed);
            // Release: pairs with `take_all`. All that happened in the old life, its last event
            // included, comes before the new life.
            match self.top.compare_exchange_weak(top, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes all numbers that have returned: the one that returned last, and its links lead to the
    /// others.
    fn take_all(&self) -> u32 {
        // Relaxed: a number that is overlooked is taken later.
        if self.top.load(Ordering::Relaxed) == NONE {
            return NONE;
        }
        // Acquire: pairs with each `push`. Exchanges continue the release sequences of earlier
        // ones.
        self.top.swap(NONE, Ordering::Acquire)
    }

    /// The link of a number. Its block is made by the first of its numbers that is taken.
    fn link(&self, number: u32) -> &AtomicU32 {
        let (block, at) = place(number);
        let len = if block == 0 { FIRST_BLOCK } else { FIRST_BLOCK << (block - 1) };
        let links = || (0..len).map(|_| AtomicU32::new(NONE)).collect();
        &self.links[block].get_or_init(links)[at]
    }
}

/// The block of `links` in which a number's link is, and where.
fn place(number: u32) -> (usize, usize) {
    match (number / FIRST_BLOCK).checked_ilog2() {
        None => (0, number as usize),
        Some(doublings) => (doublings as usize + 1, (number - (FIRST_BLOCK << doublings)) as usize),
    }
}

impl Numbers {
    pub fn new() -> Numbers {
        Numbers {
            new: 1,
            end: NUMBERS_END,
            rest: REST,
            reserved: HashSet::new(),
            first: NONE,
            last: NONE,
            count: 0,
        }
    }

    /// Sets aside a number for an expected object. Returns false, and does nothing, if it is no
    /// number or was set aside before. Call it before any number is taken.
    pub fn reserve(&mut self, number: u64) -> bool {
        let number = u32::try_from(number).ok().filter(|number| (self.new..self.end).contains(number));
        number.is_some_and(|number| self.reserved.insert(number))
    }

    /// Gives up a reserved number that its object has not taken.
    pub fn give_up(&mut self, returned: &Returned, number: u64) {
        if number < u64::from(self.new) {
            returned.push(number);
        } else {
            self.reserved.remove(&(number as u32));
        }
    }

    /// N1: takes a number. `None`: all of them are in use.
    pub fn take(&mut self, returned: &Returned) -> Option<u64> {
        self.collect(returned);
        let is_rested = self.count > self.rest;
        let number = if is_rested { None } else { self.take_new(returned) };
        number.or_else(|| self.take_rested(returned)).map(u64::from)
    }

    fn take_new(&mut self, returned: &Returned) -> Option<u32> {
        while self.new < self.end {
            let number = self.new;
            self.new += 1;
            if !self.reserved.remove(&number) {
                // Made here, so that a return allocates nothing.
                let _ = returned.link(number);
                return Some(number);
            }
        }
        None
    }

    fn take_rested(&mut self, returned: &Returned) -> Option<u32> {
        let number = self.first;
        if number == NONE {
            return None;
        }
        // Relaxed, here and below: the lock of the list of objects orders these accesses.
        self.first = returned.link(number).load(Ordering::Relaxed);
        self.count -= 1;
        Some(number)
    }

    /// N5: puts the numbers that have returned behind those that rest, in the order of return.
    fn collect(&mut self, returned: &Returned) {
        let last = returned.take_all();
        if last == NONE {
            return;
        }
        // Turns the links round: each leads to the number that returned next.
        let mut first = NONE;
        let mut at = last;
        while at != NONE {
            let before = returned.link(at).load(Ordering::Relaxed);
            returned.link(at).store(first, Ordering::Relaxed);
            first = at;
            at = before;
            self.count += 1;
        }
        if self.first == NONE {
            self.first = first;
        } else {
            returned.link(self.last).store(first, Ordering::Relaxed);
        }
        self.last = last;
    }

    /// Returns a bound above all numbers that objects have or had.
    pub fn bound(&self) -> u64 {
        self.reserved.iter().map(|number| number + 1).fold(self.new, u32::max).into()
    }

    /// Tests only: leaves `most` numbers, which need not rest.
    pub fn limit(&mut self, most: u32) {
        self.end = most + 1;
        self.rest = 0;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::sync::Mutex;

    use octavo_random::Random;

    use super::*;

    fn rounds(variable: &str, few: u64) -> u64 {
        std::env::var(variable).map_or(few, |rounds| rounds.parse().expect("a number"))
    }

    #[test]
    fn every_number_has_a_link_of_its_own() {
        assert_eq!(place(1), (0, 1));
        assert_eq!([63, 64, 127, 128].map(place), [(0, 63), (1, 0), (1, 63), (2, 0)]);
        let (block, at) = place(NUMBERS_END - 1);
        assert_eq!((block, at), (BLOCKS - 1, NUMBERS_END as usize / 2 - 1));
    }

    #[test]
    fn new_numbers_are_taken_until_enough_rest_and_then_the_one_that_rested_longest() {
        let (mut numbers, returned) = (Numbers::new(), Returned::new());
        for number in 1..=u64::from(REST) + 1 {
            assert_eq!(numbers.take(&returned), Some(number));
            returned.push(number);
        }
        for round in 0..3 * u64::from(REST) {
            let number = numbers.take(&returned).unwrap();
            assert_eq!(number, round % (u64::from(REST) + 1) + 1);
            returned.push(number);
        }
    }

    #[test]
    fn when_all_numbers_are_in_use_none_is_taken_until_one_returns() {
        let (mut numbers, returned) = (Numbers::new(), Returned::new());
        for number in 1..u64::from(NUMBERS_END) {
            assert_eq!(numbers.take(&returned), Some(number));
        }
        assert_eq!(numbers.take(&returned), None);
        returned.push(16_777_215);
        returned.push(77);
        assert_eq!([(); 3].map(|()| numbers.take(&returned)), [Some(16_777_215), Some(77), None]);
        assert_eq!(numbers.bound(), 1 << 24);
    }

    #[test]
    fn reserved_numbers_are_passed_over_until_they_are_given_up_or_return() {
        let (mut numbers, returned) = (Numbers::new(), Returned::new());
        assert_eq!(
            [2, 3, 5, 9, 2, 0, 1 << 24].map(|number| numbers.reserve(number)),
            [true, true, true, true, false, false, false]
        );
        assert_eq!([(); 2].map(|()| numbers.take(&returned)), [Some(1), Some(4)]);
        assert_eq!(numbers.bound(), 10);
        // The objects of 3 and 9 have come. 2 was passed over, 5 was not.
        [2, 5].into_iter().for_each(|number| numbers.give_up(&returned, number));
        numbers.limit(10);
        let rest: Vec<u64> = std::iter::from_fn(|| numbers.take(&returned)).collect();
        assert_eq!(rest, [2, 5, 6, 7, 8, 10]);
        [9, 3].into_iter().for_each(|number| returned.push(number));
        assert_eq!([(); 3].map(|()| numbers.take(&returned)), [Some(9), Some(3), None]);
    }

    /// Random opens and closes agree with a queue. `OCTAVO_OPENS=1000000000` is the long form.
    #[test]
    fn numbers_agree_with_a_naive_queue_without_end() {
        let mut random = Random::new(17);
        let (mut numbers, returned) = (Numbers::new(), Returned::new());
        let (mut open, mut is_open) = (Vec::new(), vec![false; 8193]);
        let (mut resting, mut new) = (VecDeque::new(), 1);
        let opens = rounds("OCTAVO_OPENS", 1_000_000);
        let (mut opened, mut goal) = (0, 0);
        while opened < opens {
            if open.len() == goal {
                goal = random.below(4096) as usize;
            }
            if open.len() < goal {
                let number = numbers.take(&returned).unwrap();
                let expected = if resting.len() > REST as usize {
                    resting.pop_front().unwrap()
                } else {
                    new += 1;
                    new - 1
                };
                assert_eq!(number, expected, "open {opened}");
                assert!(!std::mem::replace(&mut is_open[number as usize], true));
                open.push(number);
                opened += 1;
            } else if open.len() > goal {
                let number = open.swap_remove(random.below(open.len() as u64) as usize);
                is_open[number as usize] = false;
                returned.push(number);
                resting.push_back(number);
            }
        }
        assert!(numbers.bound() <= 8193, "as many numbers as were open at once, and those that rest");
    }

    #[test]
    fn numbers_that_threads_return_while_others_are_taken_have_one_holder_each() {
        let numbers = Mutex::new(Numbers::new());
        let returned = Returned::new();
        numbers.lock().unwrap().limit(12);
        let held = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let numbers = &numbers;
                let returned = &returned;
                let held = &held;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut mine = Vec::new();
                    for _ in 0..if cfg!(miri) { 100 } else { 50_000 } {
                        if mine.len() < 3 && random.coin() {
                            let number = numbers.lock().unwrap().take(returned).unwrap();
                            assert!(held.lock().unwrap().insert(number), "{number} has two holders");
                            mine.push(number);
                        } else if let Some(number) = mine.pop() {
                            assert!(held.lock().unwrap().remove(&number));
                            returned.push(number);
                        }
                    }
                    mine.into_iter().for_each(|number| {
                        held.lock().unwrap().remove(&number);
                        returned.push(number);
                    });
                });
            }
        });
        let mut numbers = numbers.into_inner().unwrap();
        let mut all: Vec<u64> = std::iter::from_fn(|| numbers.take(&returned)).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=12).collect::<Vec<u64>>(), "none is lost");
    }
}
