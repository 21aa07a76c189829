//! LHD: evicts, of a random sample, the page of the lowest hit density. For comparison only.
//!
//! Beckmann, Chen, Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density" (NSDI '18),
//! with the parameters of the authors' code, which libCacheSim has too: 16 classes by the sum of a
//! page's last two ages at a hit, 20 000 age buckets whose width adapts at the 5th and 25th
//! reconfiguration, a reconfiguration every 2^20 accesses with decay 0.9, samples of 32 pages (of 8
//! during the first 51 reconfigurations) and of up to 8 recent arrivals of low density, and a
//! hundredth of the cache for explorers, which are kept though they look bad.
//!
//! So LHD learns nothing from fewer than 2^20 accesses; until then an age bucket is 1024 accesses
//! and the order is that of the start, (class + 17) / (age + 1).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::Policy;
use super::pages::Mix;
use crate::Cache;

const CLASSES: usize = 16;
const AGES: usize = 20_000;
const AGE_MAX: u32 = AGES as u32;
const ACCESSES_PER_RECONFIGURATION: u64 = 1 << 20;
const DECAY: f32 = 0.9;
const AGE_ERROR: f32 = 0.01;
const RECENT: usize = 8;
const SAMPLE: u64 = 32;
const SAMPLE_EARLY: u64 = 8;
const RECONFIGURATIONS_EARLY: u32 = 50;
const EXPLORE_ONE_IN: u64 = 32;

struct Tag {
    page: u64,
    used: u64,
    /// The ages at the last hit and the one before it.
    hit_age: u32,
    hit_age_before: u32,
    explorer: bool,
}

#[derive(Clone)]
struct Class {
    hits: Vec<f32>,
    evictions: Vec<f32>,
    densities: Vec<f32>,
}

pub(super) struct Lhd {
    capacity: u64,
    tags: Vec<Tag>,
    index: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    classes: Vec<Class>,
    dice: Dice,
    /// Accesses so far.
    now: u64,
    /// An age bucket is two to this many accesses.
    age_shift: u32,
    reconfigurations: u32,
    pages_average: f32,
    pages_average_weight: f32,
    recent: [Option<u64>; RECENT],
    recent_next: usize,
    victim_density: f32,
    explorers_left: u64,
}

impl Lhd {
    pub fn new(capacity: u64, seed: u64) -> Self {
        let classes = (0..CLASSES).map(|class| Class {
            hits: vec![0.0; AGES],
            evictions: vec![0.0; AGES],
            densities: (0..AGES).map(|age| (class + CLASSES + 1) as f32 / (age + 1) as f32).collect(),
        });
        Lhd {
            capacity,
            tags: Vec::new(),
            index: HashMap::default(),
            classes: classes.collect(),
            dice: Dice::new(seed),
            now: 0,
            age_shift: 10,
            reconfigurations: 0,
            pages_average: 0.0,
            pages_average_weight: 0.0,
            recent: [None; RECENT],
            recent_next: 0,
            victim_density: 0.0,
            explorers_left: capacity / 100,
        }
    }

    fn age(&self, tag: &Tag) -> u32 {
        ((self.now - tag.used) >> self.age_shift).min(u64::from(AGE_MAX - 1)) as u32
    }

    fn density(&self, tag: &Tag) -> f32 {
        let age = self.age(tag);
        if age == AGE_MAX - 1 {
            return f32::MIN;
        }
        let explorer = if tag.explorer { 1.0 } else { 0.0 };
        self.classes[class(tag.hit_age + tag.hit_age_before)].densities[age as usize] + explorer
    }

    fn victim(&mut self) -> u32 {
        let early = self.reconfigurations <= RECONFIGURATIONS_EARLY;
        let mut victim = (f32::MAX, 0);
        let len = self.tags.len() as u64;
        for _ in 0..if early { SAMPLE_EARLY } else { SAMPLE } {
            let number = self.dice.below(len) as u32;
            let density = self.density(&self.tags[number as usize]);
            if density < victim.0 {
                victim = (density, number);
            }
        }
        for page in self.recent.into_iter().flatten() {
            let Some(number) = self.index.get(&page).copied() else { continue };
            let density = self.density(&self.tags[number as usize]);
            if density < victim.0 {
                victim = (density, number);
            }
        }
        self.victim_density = DECAY * self.victim_density + (1.0 - DECAY) * victim.0;
        victim.1
    }

    fn evict(&mut self) {
        let number = self.victim();
        let tag = self.tags.swap_remove(number as usize);
        let age = self.age(&tag);
        self.classes[class(tag.hit_age + tag.hit_age_before)].evictions[age as usize] += 1.0;
        self.explorers_left += u64::from(tag.explorer);
        self.index.remove(&tag.page);
        if let Some(moved) = self.tags.get(number as usize) {
            self.index.insert(moved.page, number);
        }
    }

    fn hit(&mut self, number: u32) {
        let tag = &self.tags[number as usize];
        let age = self.age(tag);
        self.classes[class(tag.hit_age + tag.hit_age_before)].hits[age as usize] += 1.0;
        self.explorers_left += u64::from(tag.explorer);
        let explorer = self.explores().0;
        let now = self.now;
        let tag = &mut self.tags[number as usize];
        (tag.hit_age_before, tag.hit_age) = (tag.hit_age, age);
        (tag.used, tag.explorer) = (now, explorer);
    }

    fn bring_in(&mut self, page: u64) {
        let (explorer, drawn) = self.explores();
        let tag = Tag { page, used: self.now, hit_age: 0, hit_age_before: AGE_MAX, explorer };
        if !drawn && self.density(&tag) < self.victim_density {
            self.recent[self.recent_next % RECENT] = Some(page);
            self.recent_next += 1;
        }
        self.index.insert(page, self.tags.len() as u32);
        self.tags.push(tag);
    }

    /// Whether a page is an explorer from now on, and whether the dice wanted it.
    fn explores(&mut self) -> (bool, bool) {
        let drawn = self.dice.below(EXPLORE_ONE_IN) == 0;
        let explorer = drawn && self.explorers_left > 0 && self.reconfigurations < RECONFIGURATIONS_EARLY;
        self.explorers_left -= u64::from(explorer);
        (explorer, drawn)
    }

    fn reconfigure(&mut self) {
        for class in &mut self.classes {
            for count in class.hits.iter_mut().chain(&mut class.evictions) {
                *count *= DECAY;
            }
        }
        self.pages_average = DECAY * self.pages_average + self.tags.len() as f32;
        self.pages_average_weight = DECAY * self.pages_average_weight + 1.0;
        if self.reconfigurations == 5 || self.reconfigurations == 25 {
            self.adapt_age_shift();
        }
        for class in &mut self.classes {
            class.densities = densities(&class.hits, &class.evictions);
        }
        self.reconfigurations += 1;
    }

    /// Makes an age bucket about a two-hundredth of the accesses that turn the cache over.
    fn adapt_age_shift(&mut self) {
        let wanted = self.pages_average / self.pages_average_weight / (AGE_ERROR * AGES as f32);
        let mut shift = 1;
        while ((1u64 << shift) as f32) < wanted {
            shift += 1;
        }
        self.pages_average *= 8.0;
        self.pages_average_weight *= 8.0;
        for class in &mut self.classes {
            for counts in [&mut class.hits, &mut class.evictions] {
                if shift < self.age_shift {
                    stretch(counts, self.age_shift - shift);
                } else {
                    compress(counts, shift - self.age_shift);
                }
            }
        }
        self.age_shift = shift;
    }
}

/// The authors' generator, Lehmer's of 128 bits; of libCacheSim's seed, 0xdeadbeef, come the same
/// victims.
pub(super) struct Dice(u128);

impl Dice {
    /// Of an odd seed: the one that is not smaller.
    pub fn new(seed: u64) -> Self {
        Dice(u128::from(seed | 1))
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0xDA94_2042_E4DD_58B5);
        (self.0 >> 64) as u64 % end
    }
}

/// The fewer ages a page's hits needed, the higher its class.
fn class(hit_ages: u32) -> usize {
    if hit_ages == 0 {
        return CLASSES - 1;
    }
    let mut age = hit_ages;
    let mut class = 0;
    while age < AGE_MAX && class < CLASSES - 1 {
        age <<= 1;
        class += 1;
    }
    class
}

/// Hits from an age on for every age bucket that pages live from that age on.
fn densities(hits: &[f32], evictions: &[f32]) -> Vec<f32> {
    let mut densities = vec![0.0; AGES];
    let mut hits_later = hits[AGES - 1];
    let mut events_later = hits[AGES - 1] + evictions[AGES - 1];
    let mut life_later = events_later;
    for age in (0..AGES - 1).rev() {
        hits_later += hits[age];
        events_later += hits[age] + evictions[age];
        life_later += events_later;
        if events_later > 1e-5 {
            densities[age] = hits_later / life_later;
        }
    }
    densities
}

/// Spreads the counts of an age over two to the `shift` narrower ones; what no longer has a bucket
/// goes to the last.
fn stretch(counts: &mut [f32], shift: u32) {
    let last = AGES - 1;
    counts[last] += counts[(AGES >> shift)..last].iter().sum::<f32>();
    for age in (0..last).rev() {
        counts[age] = counts[age >> shift] / (1u32 << shift) as f32;
    }
}

/// Joins the counts of two to the `shift` ages; the last bucket, that of all later ages, stays.
fn compress(counts: &mut [f32], shift: u32) {
    if shift == 0 {
        return;
    }
    let last = AGES - 1;
    let wide = AGES >> shift;
    for age in 0..wide {
        counts[age] = counts[age << shift..last.min((age + 1) << shift)].iter().sum();
    }
    counts[wide..last].fill(0.0);
}

impl Cache for Lhd {
    fn access(&mut self, page: u64) -> bool {
        let known = self.index.get(&page).copied();
        match known {
            Some(number) => self.hit(number),
            None => {
                if self.resident_pages() == self.capacity {
                    self.evict();
                }
                self.bring_in(page);
            }
        }
        self.now += 1;
        if self.now.is_multiple_of(ACCESSES_PER_RECONFIGURATION) {
            self.reconfigure();
        }
        known.is_some()
    }

    fn capacity_pages(&self) -> u64 {
        self.capacity
    }
}

impl Policy for Lhd {
    fn resident_pages(&self) -> u64 {
        self.tags.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::Random;
    use super::*;

    #[test]
    fn densities_are_hits_over_lifetimes_from_an_age_on() {
        let mut random = Random(5);
        let (mut hits, mut evictions) = (vec![0.0; AGES], vec![0.0; AGES]);
        for _ in 0..200 {
            hits[random.below(60) as usize] += 1.0;
            evictions[random.below(90) as usize] += 1.0;
        }
        let made = densities(&hits, &evictions);
        for (age, made) in made.iter().enumerate().take(100) {
            let (mut later, mut life) = (0.0, 0.0);
            for event in age..AGES {
                later += hits[event];
                life += (hits[event] + evictions[event]) * (event - age + 1) as f32;
            }
            let wanted = if life > 0.0 { later / life } else { 0.0 };
            assert!((made - wanted).abs() < 1e-4, "{age}: {made} for {wanted}");
        }
    }

    #[test]
    fn other_widths_of_ages_keep_what_was_counted() {
        let mut random = Random(6);
        let mut counts: Vec<f32> = (0..AGES).map(|_| random.below(10) as f32).collect();
        let all: f32 = counts.iter().sum();
        stretch(&mut counts, 3);
        assert!((counts.iter().sum::<f32>() - all).abs() < 10.0);
        compress(&mut counts, 3);
        assert!((counts.iter().sum::<f32>() - all).abs() < 10.0);
        let before = counts.clone();
        compress(&mut counts, 0);
        assert_eq!(counts, before);
    }

    #[test]
    fn the_class_is_the_higher_the_younger_the_page_is_at_its_hits() {
        assert_eq!([0, 1, 2, 10_000, 19_999, 20_000].map(class), [15, 15, 14, 1, 1, 0]);
    }

    #[test]
    fn it_learns_to_keep_what_is_used_again() {
        let mut lhd = Lhd::new(200, 1);
        let mut scan = 1 << 32;
        let mut hits = 0;
        for access in 0..6 * ACCESSES_PER_RECONFIGURATION {
            hits = if access % 4096 == 0 { 0 } else { hits };
            if access % 2 == 0 {
                scan += 1;
                lhd.access(scan);
            } else {
                hits += u64::from(lhd.access(access / 2 % 100));
            }
        }
        assert!(hits > 1900, "{hits} of 2048");
    }
}
