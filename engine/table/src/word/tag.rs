//! The tag of a page: the keyed bijection that makes it from the page's 64-bit key, and its fields.
//!
//! The tag says where a page may be (directory entry, set) and how a lookup finds it there
//! (fingerprint). This file protects three properties:
//!
//! * *Exactness.* Different keys have different tags, and the key can be recovered. A table that
//!   stores whole tags needs no keys and never confuses two pages.
//! * *Even load.* Keys are regular (page 0, 1, 2, ... of object 1, 2, ...). Every field of their
//!   tags is spread evenly. The fields are disjoint, so the pages of one set still differ in their
//!   fingerprints, and a sample of pages is a sample of all sets.
//! * *Secrecy.* The mix depends on a seed. Without the seed, a tenant cannot choose keys that all
//!   belong to one set.
//!
//! Not here: what a key is made of, and cryptography. The mix is three keyed rounds of xor,
//! multiply, xor-shift (the finalisers of MurmurHash3 and SplitMix64 with secret constants). It
//! stops a tenant that can choose keys. It is not meant to stop one that can read tags.
//!
//! Every tag is legal, including zero. Whether a slot is empty follows from its state and not from
//! its tag, and a fingerprint of 0 is a fingerprint like any other.

use octavo_random::Random;

/// A page's key, mixed. The fields are disjoint, from the top:
///
/// | bits | field | for |
/// |---|---|---|
/// | 63..42 | directory | which entry, and so which segment and node; as many top bits as needed |
/// | 41..36 | set | which set of the segment |
/// | 35..32 | node | not used to find a page; miniatures and simulations divide pages by it |
/// | 31..16 | print | 31..24 fingerprint of a resident page, 31..16 print of a ghost |
/// | 15..0 | sample | whether a miniature follows the page |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Tag(pub u64);

impl Tag {
    /// The lowest directory bit.
    pub const DIRECTORY_SHIFT: u32 = 42;
    /// Number of directory bits; a directory has at most two to the power of this many entries.
    pub const DIRECTORY_BITS: u32 = 22;
    /// The lowest set bit.
    pub const SET_SHIFT: u32 = 36;
    /// Number of set bits; a segment has at most two to the power of this many sets.
    pub const SET_BITS: u32 = 6;
    /// The lowest node bit.
    pub const NODE_SHIFT: u32 = 32;
    /// Number of node bits.
    pub const NODE_BITS: u32 = 4;
    /// The lowest bit of a ghost's print.
    pub const GHOST_PRINT_SHIFT: u32 = 16;
    /// Number of bits of a ghost's print.
    pub const GHOST_PRINT_BITS: u32 = 16;
    /// The lowest bit of a resident page's fingerprint: the upper half of its ghost's print.
    pub const FINGERPRINT_SHIFT: u32 = 24;
    /// Number of bits of a resident page's fingerprint.
    pub const FINGERPRINT_BITS: u32 = 8;
    /// The lowest sample bit.
    pub const SAMPLE_SHIFT: u32 = 0;
    /// Number of sample bits.
    pub const SAMPLE_BITS: u32 = 16;

    /// Returns the page's entry in a directory of two to the power of `bits` entries: the top
    /// `bits` of the tag. A directory that doubles thus puts the two halves of an entry side by
    /// side.
    #[inline(always)]
    pub fn directory(self, bits: u32) -> usize {
        debug_assert!(bits <= Self::DIRECTORY_BITS);
        // Two shifts, because a directory of one entry uses no bits, and a shift by all 64 bits is
        // not allowed.
        ((self.0 >> Self::DIRECTORY_SHIFT) >> (Self::DIRECTORY_BITS - bits)) as usize
    }

    /// Returns the page's set in a segment of `mask + 1` sets, a power of two.
    #[inline(always)]
    pub fn set(self, mask: usize) -> usize {
        debug_assert!((mask + 1).is_power_of_two() && mask < 1 << Self::SET_BITS);
        (self.0 >> Self::SET_SHIFT) as usize & mask
    }

    /// Returns the node bits: a number below two to the power of `NODE_BITS`. The table does not
    /// use it; `Table::owner_of` returns a page's node.
    #[inline(always)]
    pub fn node(self) -> usize {
        (self.0 >> Self::NODE_SHIFT) as usize & ((1 << Self::NODE_BITS) - 1)
    }

    /// Returns the fingerprint: the byte that a probe looks for.
    #[inline(always)]
    pub fn fingerprint(self) -> u8 {
        (self.0 >> Self::FINGERPRINT_SHIFT) as u8
    }

    /// Returns the sixteen bits that a ghost remembers of the page.
    #[inline(always)]
    pub fn ghost_print(self) -> u16 {
        (self.0 >> Self::GHOST_PRINT_SHIFT) as u16
    }

    /// Returns the number that a sampler compares with its threshold.
    #[inline(always)]
    pub fn sample(self) -> u16 {
        (self.0 >> Self::SAMPLE_SHIFT) as u16
    }
}

// The fields follow each other without gap or overlap.
const _: () = assert!(Tag::DIRECTORY_SHIFT + Tag::DIRECTORY_BITS == u64::BITS);
const _: () = assert!(Tag::SET_SHIFT + Tag::SET_BITS == Tag::DIRECTORY_SHIFT);
const _: () = assert!(Tag::NODE_SHIFT + Tag::NODE_BITS == Tag::SET_SHIFT);
const _: () = assert!(Tag::GHOST_PRINT_SHIFT + Tag::GHOST_PRINT_BITS == Tag::NODE_SHIFT);
const _: () = assert!(Tag::SAMPLE_SHIFT + Tag::SAMPLE_BITS == Tag::GHOST_PRINT_SHIFT);
const _: () = assert!(Tag::FINGERPRINT_SHIFT + Tag::FINGERPRINT_BITS == Tag::NODE_SHIFT);

/// The shifts of the rounds' xor-shifts, in bits. At least half a word, so that each is its own
/// inverse.
const XOR_SHIFTS: [u32; ROUNDS] = [32, 32, 32];
const ROUNDS: usize = 3;

/// The keyed mix of one partition. It is secret: a tenant that knows the seed can choose pages that
/// all belong to one set.
#[derive(Clone)]
pub struct Mixer {
    rounds: [Round; ROUNDS],
}

/// A mix that [`Mixer::begin`] has begun and [`Mixer::tag_among`] completes.
#[derive(Clone, Copy)]
pub struct Begun(u64);

/// The key of one round, and the inverse of its multiplication.
#[derive(Clone, Copy)]
struct Round {
    xor: u64,
    /// Odd, so that multiplying by it is a bijection.
    multiplier: u64,
    /// `multiplier * inverse` is 1 modulo two to the power of 64.
    inverse: u64,
}

/// Prints no field: a secret must not leak through a log.
impl std::fmt::Debug for Mixer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Mixer").finish_non_exhaustive()
    }
}

impl Mixer {
    /// Returns the mix of `seed`. Equal seeds give equal tags on every machine.
    ///
    /// # Examples
    ///
    /// ```
    /// use octavo_table::Mixer;
    /// let mixer = Mixer::new(42);
    /// assert_eq!(mixer.key(mixer.tag(7)), 7);
    /// ```
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rounds = std::array::from_fn(|_| {
            let xor = random.next_u64();
            let multiplier = random.next_u64() | 1;
            Round { xor, multiplier, inverse: inverse(multiplier) }
        });
        Self { rounds }
    }

    /// Returns a mix for tests that hardly mixes. Keys that differ only in their lower half have
    /// tags that differ only there. So the first 65,536 pages of an object belong to one set and
    /// share one fingerprint.
    pub fn weak() -> Self {
        Self { rounds: [Round { xor: 0, multiplier: 1, inverse: 1 }; ROUNDS] }
    }

    /// Returns the tag of a key.
    #[inline(always)]
    pub fn tag(&self, key: u64) -> Tag {
        self.tag_among(self.begin(key), 0)
    }

    /// Begins the mix of a key. [`Mixer::tag_among`] completes it, for this key and for every key
    /// that has more bits set.
    #[inline(always)]
    pub fn begin(&self, key: u64) -> Begun {
        Begun(key ^ self.rounds[0].xor)
    }

    /// Returns the tag of `key | bits`, where `key` is the one passed to [`Mixer::begin`] and has
    /// none of these `bits` set.
    #[inline(always)]
    pub fn tag_among(&self, begun: Begun, bits: u64) -> Tag {
        let mut mixed = begun.0 ^ bits;
        for (number, (round, shift)) in self.rounds.iter().zip(XOR_SHIFTS).enumerate() {
            let xor = if number == 0 { 0 } else { round.xor };
            mixed = (mixed ^ xor).wrapping_mul(round.multiplier);
            mixed ^= mixed >> shift;
        }
        Tag(mixed)
    }

    /// Returns the key of a tag: the rounds backwards, each undone step by step.
    pub fn key(&self, tag: Tag) -> u64 {
        let mut mixed = tag.0;
        // By index: reversed iterators take five times the instructions, and a recording calls this
        // at every access.
        for number in 0..ROUNDS {
            let last = ROUNDS - 1 - number;
            mixed ^= mixed >> XOR_SHIFTS[last];
            mixed = mixed.wrapping_mul(self.rounds[last].inverse) ^ self.rounds[last].xor;
        }
        mixed
    }
}

const _: () = {
    let mut round = 0;
    while round < ROUNDS {
        assert!(XOR_SHIFTS[round] >= u64::BITS / 2);
        round += 1;
    }
};

/// Returns the inverse of an odd number modulo two to the power of 64, by Newton's iteration. An
/// odd number is its own inverse in the lowest three bits, and each turn doubles the number of
/// correct bits: 3, 6, 12, 24, 48, 96.
fn inverse(odd: u64) -> u64 {
    debug_assert!(odd & 1 == 1);
    let mut inverse = odd;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const EDGES: [u64; 8] = [0, 1, 2, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, (1 << 32) - 1];

    /// Throws numbers below `cells` into `cells` cells and returns chi-square in standard
    /// deviations from its mean. Random numbers give -5 to 5. Much less than -5 is more even than
    /// chance; a bijection of few bits may be that.
    #[cfg(not(miri))]
    fn unevenness(cells: usize, numbers: impl Iterator<Item = usize>) -> f64 {
        let mut hits = vec![0u64; cells];
        numbers.for_each(|number| hits[number] += 1);
        let count: u64 = hits.iter().sum();
        let expected = count as f64 / cells as f64;
        assert!(expected >= 16.0, "too few throws for a test");
        let chi_square: f64 = hits.iter().map(|&hit| (hit as f64 - expected).powi(2) / expected).sum();
        let freedom = (cells - 1) as f64;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    fn random(count: usize, seed: u64) -> impl Iterator<Item = u64> {
        let mut random = Random::new(seed);
        std::iter::repeat_with(move || random.next_u64()).take(count)
    }

    #[test]
    fn the_key_is_recovered_from_every_tag_and_the_tag_from_every_key() {
        for seed in EDGES.into_iter().chain(random(if cfg!(miri) { 2 } else { 200 }, 1)) {
            let mixer = Mixer::new(seed);
            let numbers = EDGES.into_iter().chain((0..64).map(|bit| 1 << bit)).chain(random(100, seed));
            for number in numbers {
                assert_eq!(mixer.key(mixer.tag(number)), number, "seed {seed:#x}");
                assert_eq!(mixer.tag(mixer.key(Tag(number))), Tag(number), "seed {seed:#x}");
            }
        }
    }

    #[test]
    fn the_weak_mix_puts_neighbouring_pages_into_one_set_and_is_a_bijection() {
        let mixer = Mixer::weak();
        let first = mixer.tag(7 << 40);
        // Under miri only every 257th page: all of them took three minutes.
        for page in (0..1 << 16).step_by(if cfg!(miri) { 257 } else { 1 }) {
            let tag = mixer.tag(7 << 40 | page);
            assert_eq!(tag.0 >> Tag::GHOST_PRINT_SHIFT, first.0 >> Tag::GHOST_PRINT_SHIFT);
            assert_eq!(mixer.key(tag), 7 << 40 | page);
        }
    }

    #[test]
    fn a_seed_gives_the_same_tags_on_every_machine() {
        let tags = [0, 1, u64::MAX].map(|key| Mixer::new(42).tag(key).0);
        // Computed by another program from the description above.
        assert_eq!(tags, [0x26A7_D5CC_92D5_7C49, 0xCB86_85D3_9D1D_799A, 0x3772_2D4E_A987_53B9]);
    }

    #[test]
    fn the_fields_are_the_documented_bits_and_disjoint() {
        let all = Tag(u64::MAX);
        assert_eq!(all.directory(22), (1 << 22) - 1);
        assert_eq!(all.directory(1), 1);
        assert_eq!(all.directory(0), 0);
        assert_eq!((all.set(63), all.set(31), all.node()), (63, 31, 15));
        assert_eq!((all.fingerprint(), all.ghost_print(), all.sample()), (0xFF, 0xFFFF, 0xFFFF));
        for bit in 0..64 {
            let tag = Tag(1 << bit);
            let fields =
                [tag.directory(22), tag.set(63), tag.node(), tag.ghost_print().into(), tag.sample().into()];
            let field = match bit {
                42.. => 0,
                36.. => 1,
                32.. => 2,
                16.. => 3,
                _ => 4,
            };
            for (index, value) in fields.into_iter().enumerate() {
                assert_eq!(value != 0, index == field, "bit {bit}, field {index}");
            }
            assert_eq!(tag.fingerprint() != 0, (24..32).contains(&bit), "bit {bit}");
        }
        assert_eq!(Tag(0xABCD_0000).fingerprint(), 0xAB);
        assert_eq!(Tag(0xABCD_0000).ghost_print(), 0xABCD);
    }

    #[cfg(not(miri))]
    #[test]
    fn every_key_bit_flips_every_tag_bit_half_of_the_time() {
        const KEYS_PER_SEED: usize = 64;
        const SEEDS: usize = 128;
        let mut flips = vec![[0u32; 64]; 64];
        for seed in random(SEEDS, 7) {
            let mixer = Mixer::new(seed);
            // Half the keys are small, as page numbers are.
            let keys = random(KEYS_PER_SEED, seed).enumerate();
            for key in keys.map(|(index, key)| if index % 2 == 0 { key } else { key >> 44 }) {
                let tag = mixer.tag(key).0;
                for (bit, row) in flips.iter_mut().enumerate() {
                    let flipped = tag ^ mixer.tag(key ^ (1 << bit)).0;
                    for (place, count) in row.iter_mut().enumerate() {
                        *count += (flipped >> place) as u32 & 1;
                    }
                }
            }
        }
        for (bit, row) in flips.iter().enumerate() {
            for (place, &count) in row.iter().enumerate() {
                let share = f64::from(count) / (KEYS_PER_SEED * SEEDS) as f64;
                assert!((0.45..0.55).contains(&share), "key bit {bit} flips tag bit {place} in {share}");
            }
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn regular_keys_spread_evenly_over_every_field() {
        const COUNT: u64 = 1 << 18;
        // Pages of one object, of many objects, and every 512th page (a stride of 2 MiB).
        let shapes: [fn(u64) -> u64; 4] =
            [|i| i, |i| i << 40, |i| ((i >> 4) << 40) | (i & 15), |i| (1 << 40) | (i * 512)];
        type Field = fn(Tag) -> usize;
        let fields: [(usize, Field); 10] = [
            (1 << 12, |tag| tag.directory(12)),
            (1 << 10, |tag| tag.directory(22) & 1023),
            (64, |tag| tag.set(63)),
            (16, Tag::node),
            (256, |tag| tag.fingerprint().into()),
            (256, |tag| usize::from(tag.ghost_print() & 255)),
            (1 << 12, |tag| usize::from(tag.sample() >> 4)),
            (1 << 12, |tag| usize::from(tag.sample() & 4095)),
            // Two fields together: the place of a page is independent of its fingerprint and of
            // whether it is sampled.
            (1 << 12, |tag| (tag.set(63) << 6) | usize::from(tag.fingerprint() & 63)),
            (1 << 12, |tag| (tag.directory(6) << 6) | usize::from(tag.sample() & 63)),
        ];
        for seed in [0, 1, 2, 0xDEAD_BEEF, u64::MAX] {
            let mixer = Mixer::new(seed);
            for (shape, key) in shapes.into_iter().enumerate() {
                let tags = || (0..COUNT).map(|index| mixer.tag(key(index)));
                for (field, (cells, number)) in fields.into_iter().enumerate() {
                    let value = unevenness(cells, tags().map(number));
                    assert!(value < 6.0, "seed {seed:#x}, keys {shape}, field {field}: {value} deviations");
                }
            }
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn tags_under_different_seeds_are_independent() {
        const COUNT: u64 = 1 << 16;
        // Neighbouring seeds, seeds that differ in the top bit, and two at random.
        for (first, second) in [(0, 1), (1, 2), (5, 5 | (1 << 63)), (0xDEAD_BEEF, 0xFEED_FACE)] {
            let (one, two) = (Mixer::new(first), Mixer::new(second));
            let pairs = || (0..COUNT).map(|key| (one.tag(key), two.tag(key)));
            let mut agreements = [0u32; 64];
            for (left, right) in pairs() {
                let same = !(left.0 ^ right.0);
                for (bit, count) in agreements.iter_mut().enumerate() {
                    *count += (same >> bit) as u32 & 1;
                }
            }
            for (bit, &count) in agreements.iter().enumerate() {
                let share = f64::from(count) / COUNT as f64;
                assert!(
                    (0.485..0.515).contains(&share),
                    "seeds {first}, {second}: bit {bit} agrees in {share}"
                );
            }
            let sets = unevenness(1 << 12, pairs().map(|(left, right)| (left.set(63) << 6) | right.set(63)));
            let entries = unevenness(
                1 << 12,
                pairs().map(|(left, right)| (left.directory(6) << 6) | right.directory(6)),
            );
            assert!(sets < 6.0 && entries < 6.0, "seeds {first}, {second}: {sets}, {entries}");
        }
    }
}
