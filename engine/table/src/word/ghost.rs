//! Ghosts: a set's records of pages that it has evicted.
//!
//! A ring of [`ghosts_of`] entries, oldest first. An entry consists of sixteen bits of the page's
//! tag (its *print*) and the policy's sixteen bits. Two pages can have the same print; a false
//! match reinstates a wrong history, never wrong bytes. All accesses happen under the set's lock,
//! which orders them, so they are Relaxed.

use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use crate::word::probe::has_lower_half;

/// Returns the number of ghosts of a set: two per way. A set of eight ways has 14, because 16 would
/// exceed the metadata budget by one word.
pub const fn ghosts_of(ways: usize) -> usize {
    if ways == 8 { 14 } else { 2 * ways }
}

/// The ghosts of one set, while its lock is held.
pub struct Ghosts<'s> {
    ring: &'s [AtomicU32],
    head: &'s AtomicU8,
    count: &'s AtomicU8,
}

impl<'s> Ghosts<'s> {
    pub(crate) fn new(ring: &'s [AtomicU32], head: &'s AtomicU8, count: &'s AtomicU8) -> Self {
        debug_assert!(ring.len() <= u8::MAX as usize);
        Ghosts { ring, head, count }
    }

    /// Returns the number of ghosts.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// Adds a ghost. If the ring is full the oldest ghost is dropped, and its policy bits are
    /// returned.
    pub fn push(&self, print: u16, meta: u16) -> Option<u16> {
        let count = self.count();
        let is_full = count == self.ring.len();
        let entry = self.entry(count);
        let forgotten = is_full.then(|| (entry.load(Relaxed) >> 16) as u16);
        entry.store((meta as u32) << 16 | print as u32, Relaxed);
        match is_full {
            false => self.count.store(count as u8 + 1, Relaxed),
            true => {
                let next = self.head() + 1;
                self.head.store(if next == self.ring.len() { 0 } else { next as u8 }, Relaxed);
            }
        }
        forgotten
    }

    /// Drops all ghosts.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
    }

    /// Removes the ghost of a page and returns its policy bits.
    #[inline(always)]
    pub fn take(&self, print: u16) -> Option<u16> {
        // Most misses have no ghost. This comparison with the whole ring, stale entries included,
        // rules a ghost out at little cost.
        if !has_lower_half(self.ring, print) {
            return None;
        }
        self.take_found(print)
    }

    #[cold]
    #[inline(never)]
    fn take_found(&self, print: u16) -> Option<u16> {
        self.take_first(|entry| entry as u16 == print)
    }

    /// Drops the oldest ghost whose policy bits satisfy `of`, and returns those bits.
    pub fn forget_oldest(&self, of: impl Fn(u16) -> bool) -> Option<u16> {
        self.take_first(|entry| of((entry >> 16) as u16))
    }

    /// Returns the number of ghosts whose policy bits satisfy `of`.
    pub fn count_of(&self, of: impl Fn(u16) -> bool) -> usize {
        (0..self.count()).filter(|place| of((self.entry(*place).load(Relaxed) >> 16) as u16)).count()
    }

    /// Replaces the policy bits of every ghost.
    pub fn change_all(&self, change: impl Fn(u16) -> u16) {
        for age in 0..self.count() {
            let entry = self.entry(age);
            let old = entry.load(Relaxed);
            entry.store((change((old >> 16) as u16) as u32) << 16 | old & 0xffff, Relaxed);
        }
    }

    #[inline(always)]
    fn take_first(&self, is_it: impl Fn(u32) -> bool) -> Option<u16> {
        let count = self.count();
        let after = |at: usize| if at + 1 == self.ring.len() { 0 } else { at + 1 };
        let mut at = self.head();
        let mut later = 0..count;
        later.find(|_| {
            let found = is_it(self.ring[at].load(Relaxed));
            at = if found { at } else { after(at) };
            found
        })?;
        let meta = (self.ring[at].load(Relaxed) >> 16) as u16;
        for _ in later {
            let next = after(at);
            self.ring[at].store(self.ring[next].load(Relaxed), Relaxed);
            at = next;
        }
        self.count.store(count as u8 - 1, Relaxed);
        Some(meta)
    }

    fn head(&self) -> usize {
        self.head.load(Relaxed) as usize
    }

    /// The entry `place` steps after the oldest.
    fn entry(&self, place: usize) -> &AtomicU32 {
        let number = self.head() + place;
        // The number is less than twice the length: a subtraction replaces the division.
        &self.ring[if number < self.ring.len() { number } else { number - self.ring.len() }]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_ring_agrees_with_a_queue_under_random_operations() {
        let ring: Vec<AtomicU32> = (0..32).map(|_| AtomicU32::new(0)).collect();
        let (head, count) = (AtomicU8::new(0), AtomicU8::new(0));
        let ghosts = Ghosts::new(&ring, &head, &count);
        let mut twin: VecDeque<(u16, u16)> = VecDeque::new();
        let mut random = octavo_random::Random::new(1);
        for step in 0..if cfg!(miri) { 600 } else { 20_000u32 } {
            let print = random.below(50) as u16;
            match random.below(16) {
                0 => {
                    ghosts.change_all(|m| m / 2);
                    twin.iter_mut().for_each(|g| g.1 /= 2);
                }
                1 => {
                    let is_odd = |meta: u16| meta % 2 == 1;
                    assert_eq!(ghosts.count_of(is_odd), twin.iter().filter(|g| is_odd(g.1)).count());
                    let expected = twin.iter().position(|g| is_odd(g.1)).map(|at| twin.remove(at).unwrap().1);
                    assert_eq!(ghosts.forget_oldest(is_odd), expected, "step {step}");
                }
                2..6 => {
                    let expected =
                        twin.iter().position(|g| g.0 == print).map(|at| twin.remove(at).unwrap().1);
                    assert_eq!(ghosts.take(print), expected, "step {step}");
                }
                _ => {
                    let forgotten = ghosts.push(print, step as u16);
                    twin.push_back((print, step as u16));
                    let oldest = if twin.len() > 32 { twin.pop_front() } else { None };
                    assert_eq!(forgotten, oldest.map(|ghost| ghost.1), "step {step}");
                }
            }
            assert_eq!(ghosts.count(), twin.len());
        }
    }
}
