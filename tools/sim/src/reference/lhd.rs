//! LHD: evicts the page with the lowest hit density in a random sample. For comparison only.
//!
//! Beckmann, Chen, Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density" (NSDI '18),
//! with the parameters of the authors' code, which libCacheSim has too: 16 classes by the sum of a
//! page's last two ages at a hit, 20 000 age buckets whose width adapts at the 5th and 25th
//! reconfiguration, a reconfiguration every 2^20 accesses with decay 0.9, samples of 32 pages (of 8
//! during the first 51 reconfigurations) and of up to 8 recent arrivals of low density, and a
//! hundredth of the cache for explorers: pages that are kept in spite of a low density.
//!
//! LHD learns nothing from fewer than 2^20 accesses. Until then an age bucket is 1024 accesses wide
//! and a page's density is (class + 17) / (age + 1).

use std::collections::HashMap;

use crate::cache::Cache;
use crate::footprint::BuildPageHasher;

const CLASSES: usize = 16;
const AGES: usize = 20_000;
const AGE_MAX: u32 = AGES as u32;
const ACCESSES_PER_RECONFIGURATION: u64 = 1 << 20;
const DECAY: f32 = 0.9;
const AGE_ERROR: f32 = 0.01;
const RECENT: usize = 8;
const SAMPLE: usize = 32;
const SAMPLE_EARLY: usize = 8;
const RECONFIGURATIONS_EARLY: u32 = 50;
const EXPLORE_ONE_IN: u64 = 32;

struct Tag {
    page: u64,
    /// When the page was last accessed.
    used: u64,
    /// The age buckets of the last two hits, the later one first.
    hit_ages: [u32; 2],
    explorer: bool,
}

impl Tag {
    fn class(&self) -> usize {
        class(self.hit_ages[0] + self.hit_ages[1])
    }
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
    /// Page -> its place in `tags`.
    index: HashMap<u64, u32, BuildPageHasher>,
    classes: Vec<Class>,
    dice: Dice,
    /// Accesses so far.
    now: u64,
    /// An age bucket is 2^`age_shift` accesses wide.
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
        self.classes[tag.class()].densities[age as usize] + explorer
    }

    fn victim(&mut self) -> u32 {
        let early = self.reconfigurations <= RECONFIGURATIONS_EARLY;
        let sample = if early { SAMPLE_EARLY } else { SAMPLE };
        let len = self.tags.len() as u64;
        let mut candidates = [0; SAMPLE + RECENT];
        candidates[..sample].fill_with(|| self.dice.below(len) as u32);
        let recent = self.recent.iter().flatten().filter_map(|page| self.index.get(page).copied());
        let recent = candidates[sample..].iter_mut().zip(recent).map(|(to, from)| *to = from).count();
        let mut victim = (f32::MAX, 0);
        for number in &candidates[..sample + recent] {
            let density = self.density(&self.tags[*number as usize]);
            if density < victim.0 {
                victim = (density, *number);
            }
        }
        self.victim_density = DECAY * self.victim_density + (1.0 - DECAY) * victim.0;
        victim.1
    }

    fn evict(&mut self) {
        let number = self.victim();
        let tag = self.tags.swap_remove(number as usize);
        let age = self.age(&tag);
        self.classes[tag.class()].evictions[age as usize] += 1.0;
        self.explorers_left += u64::from(tag.explorer);
        self.index.remove(&tag.page);
        if let Some(moved) = self.tags.get(number as usize) {
            self.index.insert(moved.page, number);
        }
    }

    fn hit(&mut self, number: u32) {
        let tag = &self.tags[number as usize];
        let age = self.age(tag);
        self.classes[tag.class()].hits[age as usize] += 1.0;
        self.explorers_left += u64::from(tag.explorer);
        let (explorer, _) = self.explores();
        let tag = &mut self.tags[number as usize];
        *tag = Tag { page: tag.page, used: self.now, hit_ages: [age, tag.hit_ages[0]], explorer };
    }

    fn bring_in(&mut self, page: u64) {
        let (explorer, drawn) = self.explores();
        let tag = Tag { page, used: self.now, hit_ages: [0, AGE_MAX], explorer };
        if !drawn && self.density(&tag) < self.victim_density {
            self.recent[self.recent_next % RECENT] = Some(page);
            self.recent_next += 1;
        }
        self.index.insert(page, self.tags.len() as u32);
        self.tags.push(tag);
    }

    /// Returns two values: whether a page is an explorer from now on, and whether the dice drew it
    /// as one.
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

    /// Sets the width of an age bucket to about 1/200 of the accesses in which the cache turns
    /// over.
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

/// The authors' generator, Lehmer's of 128 bits. From libCacheSim's seed, 0xdeadbeef, it draws the
/// same victims.
pub(super) struct Dice(u128);

impl Dice {
    /// Starts from `seed`; an even seed is raised by one, because it must be odd.
    pub fn new(seed: u64) -> Self {
        Dice(u128::from(seed | 1))
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0xDA94_2042_E4DD_58B5);
        (self.0 >> 64) as u64 % end
    }
}

/// Returns the class of a page: the smaller the sum of its last two hit ages, the higher.
fn class(hit_ages: u32) -> usize {
    if hit_ages == 0 {
        return CLASSES - 1;
    }
    (0..CLASSES - 1).find(|class| hit_ages << class >= AGE_MAX).unwrap_or(CLASSES - 1)
}

/// Returns the hit density of each age: the hits at this age or later, divided by the total
/// remaining lifetime of the pages that reach it, in age buckets.
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

/// Spreads the count of each age over 2^`shift` narrower buckets; counts beyond the last bucket go
/// to the last.
fn stretch(counts: &mut [f32], shift: u32) {
    let last = AGES - 1;
    counts[last] += counts[(AGES >> shift)..last].iter().sum::<f32>();
    for age in (0..last).rev() {
        counts[age] = counts[age >> shift] / (1u32 << shift) as f32;
    }
}

/// Joins the counts of 2^`shift` ages; the last bucket, which holds all later ages, stays.
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

    fn resident_pages(&self) -> u64 {
        self.tags.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;

    use super::*;

    #[test]
    fn a_density_is_later_hits_over_later_lifetime() {
        let mut random = Random::new(5);
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
    fn changing_the_width_of_ages_keeps_the_sum_of_the_counts() {
        let mut random = Random::new(6);
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
    fn pages_hit_at_younger_ages_have_higher_classes() {
        assert_eq!([0, 1, 2, 10_000, 19_999, 20_000].map(class), [15, 15, 14, 1, 1, 0]);
    }

    #[test]
    fn reused_pages_stay_and_scanned_pages_leave_once_densities_are_learned() {
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
