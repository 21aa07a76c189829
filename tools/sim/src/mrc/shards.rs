//! A miss-ratio curve of LRU from a sample of the pages, in bounded memory: SHARDS (Waldspurger,
//! Park, Garthwaite, Ahmad, "Efficient MRC Construction with SHARDS", FAST '15).
//!
//! A page is followed if its number (bits of its tag) lies below a threshold, so either all of its
//! references are seen or none. Of a followed page's reference the *distance* is counted: how many
//! other followed pages were referenced since its last one. Divided by the rate of sampling, that
//! is the size of the smallest LRU cache in which it would have hit. When more pages qualify than
//! there is room for, the threshold falls to the greatest number that is held, and the page that
//! has it goes: *fixed-size* SHARDS. With a start rate below one and room enough the threshold
//! never moves: *fixed-rate*. It is one structure, and its memory is bounded either way.
//!
//! A reference to a page that is not followed costs one comparison. One to a followed page costs a
//! probe of a hash table and a walk up and down a Fenwick tree of a few dozen to a few hundred
//! words; once in as many of them as there is room, the order is packed. Nothing is allocated after
//! creation.
//!
//! *The correction.* Whether a page that has a great share of the references is in the sample is
//! luck, and moves the estimate of all references away from their true number. The paper adds the
//! difference to the shortest distance (SHARDS_adj): right for skewed loads, whose popular pages
//! hit in any cache, and wrong for even ones, where too many references in the sample are too many
//! misses as well. How much of the difference is misses can be estimated, for it is a regression:
//! over pages, the product of references and misses through the square of references. Both sums are
//! counted here. References that are missing beyond what luck explains are left to the shortest
//! distance: there is a popular page that the sample knows nothing of. That helps even loads and
//! does not harm skewed ones.
//!
//! What is not here: which policy the cache has (the distances are LRU's; others are judged by
//! miniatures), forgetting, and time.

use std::collections::BinaryHeap;

use octavo_table::Tag;

/// Pages in the order of their last references. A page has a *place* in the row of references; the
/// newest is the last.
///
/// A bit says whether a place is the last reference of some page, and a Fenwick tree over the bits'
/// words counts them. Used by the sampler, where its length is fixed, and by exact curves, where it
/// grows.
pub struct Stack {
    /// A bit a place: it is some page's last reference.
    bits: Vec<u64>,
    /// Over the words of `bits`; the first is not used.
    tree: Vec<u32>,
    /// Whose reference it was, by place. Means something where the bit is set.
    owners: Vec<u32>,
    /// Places used so far.
    used: usize,
    /// Bits set.
    live: usize,
}

impl Stack {
    /// Room for `pages` pages. It is packed once every so many references.
    pub fn new(pages: usize) -> Stack {
        let words = (2 * pages).div_ceil(64).max(1);
        assert!(words <= (u32::MAX / 64) as usize, "places have 32 bits");
        Stack {
            bits: vec![0; words],
            tree: vec![0; words + 1],
            owners: vec![0; words * 64],
            used: 0,
            live: 0,
        }
    }

    /// Pages in it.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether it has no page.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether `push` has no place left, and `pack` is due.
    pub fn is_full(&self) -> bool {
        self.used == self.owners.len()
    }

    /// A reference by `owner`: its place. There must be one left.
    pub fn push(&mut self, owner: u32) -> u32 {
        let place = self.used;
        self.owners[place] = owner;
        self.bits[place / 64] |= 1 << (place % 64);
        self.add(place / 64, 1);
        self.used += 1;
        self.live += 1;
        place as u32
    }

    /// Forgets the reference at a place.
    pub fn remove(&mut self, place: u32) {
        let (word, bit) = (place as usize / 64, 1u64 << (place % 64));
        debug_assert!(self.bits[word] & bit != 0, "a page has this place");
        self.bits[word] &= !bit;
        self.add(word, u32::MAX);
        self.live -= 1;
    }

    /// How many pages were referenced after the one at `place`.
    pub fn newer(&self, place: u32) -> usize {
        let word = place as usize / 64;
        // Those up to the place, itself with them.
        let mut older = (self.bits[word] << (63 - place % 64)).count_ones();
        let mut node = word;
        while node > 0 {
            older += self.tree[node];
            node &= node - 1;
        }
        self.live - older as usize
    }

    /// Moves all pages to the first places, in their order, and says where each is now; first makes
    /// room for `pages` pages, if that is more.
    pub fn pack(&mut self, pages: usize, mut moved: impl FnMut(u32, u32)) {
        assert!(pages > self.live, "room for one page more");
        let mut next = 0;
        for word in 0..self.used.div_ceil(64) {
            let mut left = std::mem::take(&mut self.bits[word]);
            while left != 0 {
                let owner = self.owners[word * 64 + left.trailing_zeros() as usize];
                left &= left - 1;
                self.owners[next] = owner;
                moved(owner, next as u32);
                next += 1;
            }
        }
        debug_assert_eq!(next, self.live);
        let words = (2 * pages).div_ceil(64).max(self.bits.len());
        assert!(words <= (u32::MAX / 64) as usize, "places have 32 bits");
        self.bits.resize(words, 0);
        self.owners.resize(words * 64, 0);
        self.tree.resize(words + 1, 0);
        self.used = next;
        for word in 0..next.div_ceil(64) {
            let ones = next - word * 64;
            self.bits[word] = if ones >= 64 { u64::MAX } else { (1 << ones) - 1 };
        }
        // The tree anew: each node gives its sum to its parent.
        for word in 0..words {
            self.tree[word + 1] = self.bits[word].count_ones();
        }
        for node in 1..=words {
            let parent = node + (node & node.wrapping_neg());
            if parent <= words {
                self.tree[parent] += self.tree[node];
            }
        }
    }

    fn add(&mut self, word: usize, change: u32) {
        let mut node = word + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(change);
            node += node & node.wrapping_neg();
        }
    }
}

/// What a sampler follows, and how much memory that may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardsOptions {
    /// The share of the pages that it begins with: 1 for the fixed-size variant, less for the
    /// fixed-rate one.
    pub rate: f64,
    /// Pages followed at most; with more, the rate falls.
    pub samples_max: u32,
}

impl ShardsOptions {
    /// The most pages that can be followed.
    pub const SAMPLES_MAX: u32 = 1 << 28;

    /// The share must be above 0 and at most 1, and at least one page must have room.
    pub fn validate(&self) -> Result<(), &'static str> {
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Err("the rate is above 0 and at most 1");
        }
        if !(1..=Self::SAMPLES_MAX).contains(&self.samples_max) {
            return Err("samples are 1 to 2^28");
        }
        Ok(())
    }
}

impl Default for ShardsOptions {
    /// Fixed-size, 8192 samples: errs by 0.003 in the miss ratio, typically.
    fn default() -> Self {
        ShardsOptions { rate: 1.0, samples_max: 8192 }
    }
}

/// A followed page.
#[derive(Clone, Copy, Default)]
struct Followed {
    tag: u64,
    /// Its place in the stack; of an entry that is free: the next free one.
    place: u32,
    /// What its first reference stood for,
    first: f32,
    /// and all of them.
    all: f64,
}

/// One more than the greatest number of a page.
const NUMBERS: u64 = 1 << 32;
const EMPTY: u32 = u32::MAX;

/// The sampler. Fed with the tags of all references, it tells how many misses an LRU cache of any
/// size would have had.
pub struct Shards {
    /// Pages whose numbers lie below are followed.
    threshold: u64,
    samples_max: usize,
    references: u64,
    sampled: u64,
    pages: Vec<Followed>,
    free: u32,
    /// Tag -> index of `pages`, open addressing. A power of two, at most half full.
    index: Vec<u32>,
    /// The followed pages' numbers, greatest first.
    numbers: BinaryHeap<(u32, u32)>,
    stack: Stack,
    histogram: Histogram,
    /// Over the followed: what their references stand for, and the squares of that by page.
    weights: f64,
    squares: f64,
}

impl Shards {
    /// Panics on options that `validate` refuses.
    pub fn new(options: ShardsOptions) -> Shards {
        if let Err(why) = options.validate() {
            panic!("{why}");
        }
        let samples_max = options.samples_max as usize;
        // One more than stay: the newcomer is there before the greatest number goes.
        let room = samples_max + 1;
        let free = |next: usize| Followed {
            place: if next < room { next as u32 } else { EMPTY },
            ..Followed::default()
        };
        Shards {
            threshold: ((options.rate * NUMBERS as f64) as u64).max(1),
            samples_max,
            references: 0,
            sampled: 0,
            pages: (1..=room).map(free).collect(),
            free: 0,
            index: vec![EMPTY; (2 * room).next_power_of_two()],
            numbers: BinaryHeap::with_capacity(room),
            stack: Stack::new(room),
            histogram: Histogram::new(),
            weights: 0.0,
            squares: 0.0,
        }
    }

    /// The number that decides whether a page is followed: the sample bits, and behind them others
    /// for a finer threshold.
    #[inline(always)]
    fn number(tag: Tag) -> u32 {
        u32::from(tag.sample()) << 16 | u32::from(tag.ghost_print())
    }

    /// A reference.
    #[inline(always)]
    pub fn reference(&mut self, tag: Tag) {
        self.references += 1;
        if u64::from(Self::number(tag)) < self.threshold {
            self.follow(tag);
        }
    }

    /// References so far.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// How many of them were to followed pages.
    pub fn sampled(&self) -> u64 {
        self.sampled
    }

    /// The share of the pages that is followed now.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / NUMBERS as f64
    }

    /// About how many pages were referenced so far: the footprint.
    pub fn pages(&self) -> f64 {
        self.stack.len() as f64 / self.rate()
    }

    /// About how many of the references would have missed in an LRU cache of so many pages, had it
    /// begun empty. At most [`Self::references`].
    pub fn misses(&self, capacity_pages: f64) -> f64 {
        self.misses_among(capacity_pages, self.references as f64)
    }

    /// The same, where it is known otherwise how many references the sample stands for.
    pub fn misses_among(&self, capacity_pages: f64, references: f64) -> f64 {
        if self.squares == 0.0 {
            return 0.0;
        }
        let excess = self.explained_excess(references) / self.squares;
        self.histogram.from(capacity_pages, excess).clamp(0.0, references)
    }

    /// By how much there were more references than the sample stands for, as far as that is the
    /// luck of drawing pages like those of the sample.
    fn explained_excess(&self, references: f64) -> f64 {
        let excess = references - self.weights;
        let deviations = excess / (self.squares * (1.0 - self.rate())).sqrt().max(1.0);
        // How many pages of one popularity would be as unlike as these, by their number: near one for an
        // even load.
        let alike = self.weights * self.weights / self.squares;
        let evenness = (alike / self.stack.len().max(1) as f64).min(1.0);
        // Among even pages up to three deviations are luck, and beyond six nothing is. Where some are far
        // more popular than others, more popular ones are missing as soon as references are. The
        // numbers are those that did best on recorded and generated traces.
        let (luck, limit) = (3.0 * evenness, 5.0 * evenness + 1.0);
        excess * (1.0 - ((deviations - luck) / (limit - luck)).clamp(0.0, 1.0))
    }

    /// The misses as a share of the references.
    pub fn miss_ratio(&self, capacity_pages: f64) -> f64 {
        if self.references == 0 { 0.0 } else { self.misses(capacity_pages) / self.references as f64 }
    }

    /// Bytes of memory that it has, all of them from the start.
    pub fn memory_bytes(&self) -> usize {
        let stack = &self.stack;
        size_of_val(&self.pages[..])
            + size_of_val(&self.index[..])
            + self.numbers.capacity() * size_of::<(u32, u32)>()
            + size_of_val(&stack.bits[..])
            + size_of_val(&stack.tree[..])
            + size_of_val(&stack.owners[..])
            + size_of_val(&self.histogram.buckets[..])
    }

    fn follow(&mut self, tag: Tag) {
        self.sampled += 1;
        if self.stack.is_full() {
            let pages = &mut self.pages;
            self.stack.pack(self.samples_max + 1, |page, place| pages[page as usize].place = place);
        }
        // Each reference stands for as many as the rate says now. The counts are of references, not of
        // samples, so that nothing is to be scaled when the rate falls.
        let weight = 1.0 / self.rate();
        let home = self.home(tag.0);
        match self.index[home] {
            EMPTY => {
                self.insert(home, tag, weight);
                self.histogram.cold.count(weight, weight * weight);
                self.weights += weight;
                self.squares += weight * weight;
                if self.stack.len() > self.samples_max {
                    self.lower_threshold();
                }
            }
            page => {
                let Followed { place, first, all, .. } = self.pages[page as usize];
                // The distance counts other pages; a cache of one page more has this one as well.
                let distance = self.stack.newer(place) as f64 * weight;
                // A miss counts with all references to its page, those to come as well. Of misses that are
                // spread evenly over them, half of those are past: so the past is counted
                // twice. The first reference always misses, and is counted with each.
                let first = f64::from(first);
                self.histogram.add(distance, weight, weight * (2.0 * (all - first) + weight));
                self.histogram.cold.count(0.0, weight * first);
                self.weights += weight;
                self.squares += weight * (2.0 * all + weight);
                self.stack.remove(place);
                let place = self.stack.push(page);
                let followed = &mut self.pages[page as usize];
                (followed.place, followed.all) = (place, all + weight);
            }
        }
    }

    fn insert(&mut self, home: usize, tag: Tag, weight: f64) {
        let page = self.free;
        self.free = self.pages[page as usize].place;
        let place = self.stack.push(page);
        self.pages[page as usize] = Followed { tag: tag.0, place, first: weight as f32, all: weight };
        self.index[home] = page;
        self.numbers.push((Self::number(tag), page));
    }

    /// The greatest number goes, with all pages that have it.
    fn lower_threshold(&mut self) {
        let Some(&(greatest, _)) = self.numbers.peek() else { return };
        // A threshold of 0 would follow nothing for ever: two to the power of 32 pages with the number 0 do
        // not exist.
        self.threshold = u64::from(greatest).max(1);
        while let Some(&(number, page)) = self.numbers.peek()
            && u64::from(number) >= self.threshold
        {
            self.numbers.pop();
            let Followed { tag, place, .. } = self.pages[page as usize];
            self.stack.remove(place);
            self.unindex(tag);
            self.pages[page as usize].place = self.free;
            self.free = page;
        }
    }

    /// Where a tag is in the index, or the empty place where it belongs.
    fn home(&self, tag: u64) -> usize {
        let mut home = self.first(tag);
        while self.index[home] != EMPTY && self.pages[self.index[home] as usize].tag != tag {
            home = (home + 1) & (self.index.len() - 1);
        }
        home
    }

    /// The upper half of a tag says nothing about the number, so it is even among the followed.
    fn first(&self, tag: u64) -> usize {
        (tag >> 32) as usize & (self.index.len() - 1)
    }

    /// Removes a tag; those that it kept from their first places move up, so that no gap ends a
    /// probe too soon.
    fn unindex(&mut self, tag: u64) {
        let mask = self.index.len() - 1;
        let mut gap = self.home(tag);
        let mut next = gap;
        loop {
            next = (next + 1) & mask;
            let page = self.index[next];
            if page == EMPTY {
                break;
            }
            let first = self.first(self.pages[page as usize].tag);
            if (next.wrapping_sub(first) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.index[gap] = page;
                gap = next;
            }
        }
        self.index[gap] = EMPTY;
    }
}

/// References by distance: exact below `1 << FINE_BITS`, then so many buckets for each doubling.
struct Histogram {
    buckets: Box<[Bucket]>,
    /// First references: they miss in any cache.
    cold: Bucket,
}

/// References of about the same distance.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// How many.
    references: f64,
    /// Each with how many its page has in all.
    products: f64,
}

impl Bucket {
    fn count(&mut self, references: f64, products: f64) {
        self.references += references;
        self.products += products;
    }

    /// How many there would be, had the sample been lucky: with its share of an excess.
    fn corrected(&self, excess: f64) -> f64 {
        (self.references + excess * self.products).max(0.0)
    }
}

/// 128 buckets a doubling: a width of 0.8 % and less, less than what the distances of 8192 samples
/// err by.
const FINE_BITS: u32 = 7;
/// Distances from here on (64 TiB of pages of 4 KiB) are not told apart.
const DISTANCE_BITS: u32 = 34;
const BUCKETS: usize = ((DISTANCE_BITS - FINE_BITS + 1) as usize) << FINE_BITS;

impl Histogram {
    fn new() -> Histogram {
        Histogram { buckets: vec![Bucket::default(); BUCKETS].into(), cold: Bucket::default() }
    }

    /// The bucket of a distance, and where in it the distance lies, from 0 to 1.
    fn bucket(distance: f64) -> (usize, f64) {
        let distance = distance.clamp(0.0, ((1u64 << DISTANCE_BITS) - 1) as f64);
        let whole = distance as u64;
        let shift = (u64::BITS - whole.leading_zeros()).saturating_sub(FINE_BITS + 1);
        let bucket = ((shift as usize) << FINE_BITS) + (whole >> shift) as usize;
        let begin = (whole >> shift) << shift;
        (bucket, (distance - begin as f64) / (1u64 << shift) as f64)
    }

    fn add(&mut self, distance: f64, references: f64, products: f64) {
        self.buckets[Self::bucket(distance).0].count(references, products);
    }

    /// All at a distance of at least so much; a bucket counts as evenly filled.
    fn from(&self, distance: f64, excess: f64) -> f64 {
        let (bucket, inside) = Self::bucket(distance);
        let beyond: f64 = self.buckets[bucket + 1..].iter().map(|bucket| bucket.corrected(excess)).sum();
        self.cold.corrected(excess) + self.buckets[bucket].corrected(excess) * (1.0 - inside) + beyond
    }
}

#[cfg(test)]
mod tests {
    use octavo_random::Random;
    use octavo_table::Mixer;

    use super::*;

    /// Draws small numbers often: every doubling is about equally likely.
    fn skewed(random: &mut Random, limit: u64) -> u64 {
        let bits = random.below(64 - limit.leading_zeros() as u64 + 1);
        random.below((1 << bits).min(limit))
    }

    /// Mattson's stack, as a list.
    #[derive(Default)]
    struct Naive(Vec<u64>);

    impl Naive {
        /// The distance; None for a page that was not there.
        fn reference(&mut self, page: u64) -> Option<usize> {
            let found = self.0.iter().rposition(|other| *other == page);
            let distance = found.map(|place| self.0.len() - 1 - place);
            found.map(|place| self.0.remove(place));
            self.0.push(page);
            distance
        }
    }

    #[test]
    fn the_stack_counts_what_a_list_counts_while_it_is_packed_and_grows() {
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let (mut stack, mut naive) = (Stack::new(1), Naive::default());
            let mut places = vec![None; 300];
            for step in 0..5_000 {
                let page = skewed(&mut random, places.len() as u64);
                if stack.is_full() {
                    let room = (stack.len() + 1).max(stack.len() * 3 / 2);
                    stack.pack(room, |owner, place| places[owner as usize] = Some(place));
                }
                let distance = places[page as usize].map(|place| {
                    let newer = stack.newer(place);
                    stack.remove(place);
                    newer
                });
                places[page as usize] = Some(stack.push(page as u32));
                assert_eq!(distance, naive.reference(page), "seed {seed}, step {step}");
                assert_eq!(stack.len(), naive.0.len());
            }
        }
    }

    #[test]
    fn a_sampler_with_room_for_all_pages_is_exact() {
        let mixer = Mixer::new(3);
        // Below 128 pages each distance has a bucket of its own.
        let mut shards = Shards::new(ShardsOptions { rate: 1.0, samples_max: 100 });
        let (mut naive, mut random) = (Naive::default(), Random::new(9));
        let mut distances = [0u64; 101];
        for _ in 0..20_000 {
            let page = skewed(&mut random, 100);
            distances[naive.reference(page).unwrap_or(100)] += 1;
            shards.reference(mixer.tag(page));
        }
        for capacity in 0..=100 {
            let exact: u64 = distances[capacity..].iter().sum();
            assert_eq!(shards.misses(capacity as f64), exact as f64, "capacity {capacity}");
        }
        assert_eq!((shards.rate(), shards.sampled()), (1.0, 20_000));
    }

    #[test]
    fn a_full_sampler_follows_the_pages_of_the_least_numbers_and_forgets_the_others() {
        let mixer = Mixer::new(5);
        let mut shards = Shards::new(ShardsOptions { rate: 1.0, samples_max: 500 });
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for step in 0..200_000u64 {
            let page = skewed(&mut random, 1 + step / 4);
            seen.insert(Shards::number(mixer.tag(page)));
            shards.reference(mixer.tag(page));
            if step % 20_000 == 0 {
                let least: Vec<u32> = seen.iter().copied().take(shards.stack.len()).collect();
                let mut followed: Vec<u32> = shards.numbers.iter().map(|(number, _)| *number).collect();
                followed.sort_unstable();
                assert_eq!(followed, least, "step {step}");
                for (number, page) in &shards.numbers {
                    let tag = shards.pages[*page as usize].tag;
                    assert_eq!(Shards::number(Tag(tag)), *number);
                    assert_eq!(shards.index[shards.home(tag)], *page);
                }
                assert_eq!(shards.index.iter().filter(|entry| **entry != EMPTY).count(), least.len());
            }
        }
        assert!(shards.stack.len() <= 500 && shards.stack.len() > 450, "{}", shards.stack.len());
        let error = shards.pages() / seen.len() as f64;
        assert!((0.85..1.15).contains(&error), "the footprint is {error} of what it is");
    }

    #[test]
    fn memory_is_all_there_from_the_start() {
        let mixer = Mixer::new(5);
        let mut shards = Shards::new(ShardsOptions::default());
        let before = shards.memory_bytes();
        (0..100_000).for_each(|page| shards.reference(mixer.tag(page * 7 % 65_537)));
        assert_eq!(shards.memory_bytes(), before);
        assert!(before < 512 << 10, "{before} bytes for 8192 samples");
    }

    #[test]
    fn a_skewed_load_is_estimated_within_a_hundredth_by_size_and_by_rate() {
        let options = [
            ShardsOptions { rate: 1.0, samples_max: 8192 },
            ShardsOptions { rate: 0.1, samples_max: 1 << 20 },
        ];
        for (seed, options) in (0..3).flat_map(|seed| options.map(|options| (seed, options))) {
            const PAGES: u64 = 100_000;
            let mixer = Mixer::new(seed);
            let (mut exact, mut shards) =
                (Shards::new(ShardsOptions { rate: 1.0, samples_max: PAGES as u32 }), Shards::new(options));
            let mut random = Random::new(seed);
            for _ in 0..600_000 {
                let tag = mixer.tag(skewed(&mut random, PAGES));
                exact.reference(tag);
                shards.reference(tag);
            }
            let sizes = (1..=50).map(|step| f64::from(step) * PAGES as f64 / 50.0);
            let error: f64 =
                sizes.map(|size| (exact.miss_ratio(size) - shards.miss_ratio(size)).abs()).sum::<f64>()
                    / 50.0;
            assert!(error < 0.01, "seed {seed}, {options:?}: {error}");
        }
    }

    /// All pages alike, so that too many references in a sample are too many misses; and one page
    /// that has most references and always hits.
    #[test]
    fn an_unlucky_draw_is_corrected_for_even_loads_and_for_skewed_ones() {
        for (popular, seed) in [(0, 1), (0, 2), (0, 3), (4, 1), (4, 2), (4, 3), (4, 4), (4, 5), (4, 6)] {
            let mixer = Mixer::new(seed);
            let mut shards = Shards::new(ShardsOptions { rate: 0.02, samples_max: 1 << 20 });
            let mut random = Random::new(seed);
            const PAGES: u64 = 50_000;
            let mut seen = std::collections::BTreeSet::new();
            // A cache of so many of all pages has so much of all hits, once it is full.
            let mut misses_of_half = 0.0;
            for _ in 0..300_000 {
                let page = random.below(PAGES);
                misses_of_half += 1.0 - seen.len().min(PAGES as usize / 2) as f64 / PAGES as f64;
                seen.insert(page);
                shards.reference(mixer.tag(page));
                (0..popular).for_each(|_| shards.reference(mixer.tag(PAGES)));
            }
            let references = shards.references() as f64;
            let all = seen.len() as f64;
            for (capacity, misses) in [(all, all), (PAGES as f64 / 2.0, misses_of_half)] {
                let error = (shards.misses(capacity) - misses).abs() / references;
                // Uncorrected, a thousand pages err by 3 % here, and by 80 % or 20 where the popular page is
                // in the sample or is not.
                assert!(error < 0.03, "popular {popular}, seed {seed}, {capacity} pages: {error}");
            }
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap_and_hold_what_was_put_in() {
        let mut last = 0;
        for distance in
            (0..70_000u64).chain((18..DISTANCE_BITS).flat_map(|bits| [(1 << bits) - 1, 1 << bits]))
        {
            let (bucket, inside) = Histogram::bucket(distance as f64);
            assert!(bucket >= last && bucket < BUCKETS && (0.0..1.0).contains(&inside), "{distance}");
            assert!(distance >= 70_000 || bucket <= last + 1, "{distance}");
            last = bucket;
        }
        assert_eq!(Histogram::bucket(1e30).0, BUCKETS - 1);
        let mut histogram = Histogram::new();
        histogram.add(1000.0, 2.0, 6.0);
        histogram.cold.count(1.0, 2.0);
        let from = |distance| histogram.from(distance, 0.0);
        assert_eq!((from(0.0), from(990.0), from(1008.0)), (3.0, 3.0, 1.0));
        // An excess of a half: 2 + 3, and 1 + 1; one of minus two leaves nothing.
        assert_eq!((histogram.from(0.0, 0.5), histogram.from(0.0, -2.0)), (7.0, 0.0));
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for (rate, samples_max) in [(0.0, 1), (-1.0, 1), (1.1, 1), (f64::NAN, 1), (0.5, 0), (0.5, u32::MAX)] {
            assert!(ShardsOptions { rate, samples_max }.validate().is_err(), "{rate} {samples_max}");
        }
    }
}
