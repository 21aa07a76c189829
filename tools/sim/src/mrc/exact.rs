//! The exact miss-ratio curve of LRU, from the distances of all references.

use std::collections::HashMap;

use super::curve::CurvePoint;
use super::stack::Stack;
use crate::footprint::BuildPageHasher;
use crate::row::ratio;

/// Counts the distances of all references exactly.
pub(super) struct ExactLru {
    /// Page -> its number, in the order of first references.
    numbers: HashMap<u64, u32, BuildPageHasher>,
    /// Number -> its place in the stack.
    places: Vec<u32>,
    stack: Stack,
    /// References by distance.
    distances: Vec<u64>,
    requests: u64,
}

impl ExactLru {
    /// Starts with no page referenced.
    pub fn new() -> ExactLru {
        ExactLru {
            numbers: HashMap::default(),
            places: Vec::new(),
            stack: Stack::new(1 << 12),
            distances: Vec::new(),
            requests: 0,
        }
    }

    /// Counts a reference.
    pub fn reference(&mut self, page: u64) {
        self.requests += 1;
        if self.stack.is_full() {
            // With this room, at least twice as many references as pages pass until the next pack.
            let room = self.stack.len() + self.stack.len() / 2 + 1;
            let places = &mut self.places;
            self.stack.pack(room, |number, place| places[number as usize] = place);
        }
        let new = u32::try_from(self.places.len()).expect("fewer than 2^32 pages");
        let number = *self.numbers.entry(page).or_insert(new);
        if number == new {
            self.places.push(self.stack.push(number));
            return;
        }
        let place = self.places[number as usize];
        let distance = self.stack.newer(place);
        if distance >= self.distances.len() {
            self.distances.resize(distance + 1, 0);
        }
        self.distances[distance] += 1;
        self.stack.remove(place);
        self.places[number as usize] = self.stack.push(number);
    }

    /// Returns the number of different pages so far.
    pub fn footprint_pages(&self) -> u64 {
        self.places.len() as u64
    }

    /// Returns the misses of an LRU cache of `capacity_pages` that began empty.
    pub fn misses(&self, capacity_pages: u64) -> u64 {
        let hits = self.distances.iter().take(usize::try_from(capacity_pages).unwrap_or(usize::MAX));
        self.requests - hits.sum::<u64>()
    }

    pub(super) fn point(&self, capacity_pages: u64) -> CurvePoint {
        CurvePoint::new(capacity_pages, ratio(self.misses(capacity_pages), self.requests), 0.0)
    }
}
