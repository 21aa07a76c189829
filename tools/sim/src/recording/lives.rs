//! Tells apart the objects that had one number one after the other.
//!
//! A partition gives the numbers of closed objects to new ones. A replay of every step needs the
//! numbers themselves, because they place pages in sets. Everything else that reads accesses would
//! take the pages of the new object for those of the old one.

use std::collections::HashMap;

use octavo_recording::{Event, PAGE_BITS};

/// One more than the highest number of an object.
const NUMBERS_END: u64 = 1 << (u64::BITS - PAGE_BITS);

/// The current life of each number.
pub(super) struct Lives {
    /// The number that stands for the current life, for each number that has lived before.
    stand_ins: HashMap<u64, u64>,
    /// The next number to stand for a life: from the top down, because a partition takes its
    /// numbers from the bottom. After 16 million lives they begin anew.
    next: u64,
}

impl Lives {
    pub fn new() -> Lives {
        Lives { stand_ins: HashMap::new(), next: NUMBERS_END - 1 }
    }

    /// Ends the current life of a number.
    pub fn end(&mut self, number: u64) {
        self.stand_ins.insert(number, self.next);
        self.next = if self.next > 1 { self.next - 1 } else { NUMBERS_END - 1 };
    }

    /// Puts the number of its life into the key of an event.
    pub fn told_apart(&self, event: Event) -> Event {
        if self.stand_ins.is_empty() {
            return event;
        }
        match event {
            Event::Access { key, write, hit } => Event::Access { key: self.key(key), write, hit },
            Event::Step { key, step } => Event::Step { key: self.key(key), step },
            Event::Resident { key, dirty, bits } => Event::Resident { key: self.key(key), dirty, bits },
            other => other,
        }
    }

    fn key(&self, key: u64) -> u64 {
        let page = key & ((1 << PAGE_BITS) - 1);
        self.stand_ins.get(&(key >> PAGE_BITS)).map_or(key, |number| number << PAGE_BITS | page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_of_a_number_has_keys_of_its_own() {
        let mut lives = Lives::new();
        let mut keys = Vec::new();
        for _ in 0..3 {
            for number in [1, 2] {
                let key = number << PAGE_BITS | 77;
                match lives.told_apart(Event::Access { key, write: false, hit: true }) {
                    Event::Access { key, write: false, hit: true } => keys.push(key),
                    other => panic!("{other:?}"),
                }
            }
            lives.end(1);
        }
        assert!(keys.iter().all(|key| key & ((1 << PAGE_BITS) - 1) == 77));
        let numbers: Vec<u64> = keys.iter().map(|key| key >> PAGE_BITS).collect();
        assert_eq!(numbers, [1, 2, NUMBERS_END - 1, 2, NUMBERS_END - 2, 2]);
        (0..NUMBERS_END).for_each(|_| lives.end(3));
        assert!((1..NUMBERS_END).contains(&lives.next), "the numbers begin anew");
    }
}
