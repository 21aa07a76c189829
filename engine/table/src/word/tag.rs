//! The tag of a page: the keyed bijection that makes it from the page's 64-bit key, and its fields.
//!
//! The tag says where a page may be (its *place*: set and directory entry) and how a lookup finds
//! it there (fingerprint). This file protects four properties:
//!
//! * *Exactness.* Different keys have different tags, and the key can be recovered. A table that
//!   stores whole tags needs no keys and never confuses two pages.
//! * *Even runs.* Every aligned block of 2^n pages of an object meets every value of the lowest n
//!   bits of the place exactly once, for all n up to 32. Real footprints are runs of neighbouring
//!   pages, and a run therefore loads all sets equally. Neighbours lie in neighbouring sets.
//! * *Even load otherwise.* Strides, scattered pages and many small files load the sets no worse
//!   than random placement does, and all other fields are as if random.
//! * *Secrecy.* The mix depends on a seed. Without the seed, a tenant cannot choose keys that all
//!   belong to one set.
//!
//! # The place
//!
//! A map of words is *triangular* if, for every n, it permutes the values of the lowest n bits of
//! the pages in each aligned block of 2^n pages. The place is the composition of three such maps,
//! applied to the lowest 32 bits of the key:
//!
//! 1. *Offset.* Xor with a secret and with a hash of the key's upper half, so objects begin at
//!    different places.
//! 2. *Near.* Xor of the lowest five bits with a hash of the bits above them. It maps each aligned
//!    block to an aligned block, and each group of 32 pages goes through the sets in an order of
//!    its own.
//! 3. *Far.* `swap(swap(x) * m)`, where `swap` reverses the bytes and `m` is odd. An odd
//!    multiplication is a T-function (Klimov and Shamir, 2002): each bit of the product depends
//!    only on lower bits of the factor, and the lowest n bits of a factor and its product determine
//!    each other. Byte reversal turns this around for whole bytes: each byte of the result is a
//!    byte of x plus a number that depends on higher bytes of x only. An aligned block of 2^n pages
//!    varies the lowest bits of one byte and all of the bytes below it. In the first, it meets each
//!    value of the lowest bits once, since adding a constant permutes them; for each of these
//!    values it meets each value of the bytes below once, for the same reason. The lowest byte of
//!    `m` is 1, so neighbours stay neighbours. The others are 1 modulo 4, so that strides of powers
//!    of two move all bits: a byte such as 255 could cancel out with the carry from below it.
//!
//! Not here: what a key is made of, and cryptography. The hashes are multiplications by secret
//! numbers and squares. They stop a tenant that can choose keys. They are not meant to stop one
//! that can read tags.
//!
//! Every tag is legal, including zero. Whether a slot is empty follows from its state and not from
//! its tag, and a fingerprint of 0 is a fingerprint like any other.

use octavo_random::Random;

/// A page's key, mixed. The fields are disjoint, from the top:
///
/// | bits | field | for |
/// |---|---|---|
/// | 63..48 | print | 63..56 fingerprint of a resident page, 63..48 print of a ghost |
/// | 47..32 | draw | not used to find a page: choices by chance |
/// | 31..0 | place | from the bottom: set of the segment, directory entry |
///
/// The lowest 16 bits of the place also say whether a page is in a sample ([`Tag::sample`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Tag(pub u64);

impl Tag {
    /// Maximum number of directory bits; a directory has at most two to the power of this many
    /// entries. They lie above the set bits.
    pub const DIRECTORY_BITS: u32 = 22;
    /// Maximum number of set bits, the lowest of a tag; a segment has at most two to the power of
    /// this many sets.
    pub const SET_BITS: u32 = 6;
    /// Number of place bits.
    pub const PLACE_BITS: u32 = 32;
    /// The lowest bit of the draw.
    pub const DRAW_SHIFT: u32 = 32;
    /// Number of bits of the draw.
    pub const DRAW_BITS: u32 = 16;
    /// The lowest bit of a ghost's print.
    pub const GHOST_PRINT_SHIFT: u32 = 48;
    /// Number of bits of a ghost's print.
    pub const GHOST_PRINT_BITS: u32 = 16;
    /// The lowest bit of a resident page's fingerprint: the upper half of its ghost's print.
    pub const FINGERPRINT_SHIFT: u32 = 56;
    /// Number of bits of a resident page's fingerprint.
    pub const FINGERPRINT_BITS: u32 = 8;
    /// Number of bits of the number that decides whether a page is in a sample.
    pub const SAMPLE_BITS: u32 = 16;

    /// Returns the page's set in a segment of `mask + 1` sets, a power of two.
    #[inline(always)]
    pub fn set(self, mask: usize) -> usize {
        debug_assert!((mask + 1).is_power_of_two() && mask < 1 << Self::SET_BITS);
        self.0 as usize & mask
    }

    /// Returns the page's entry in a directory of `mask + 1` entries, a power of two, of a table
    /// with two to the power of `set_shift` sets in a segment. When a directory of n entries
    /// doubles, the pages of entry e go to the entries e and e + n.
    #[inline(always)]
    pub fn entry(self, set_shift: u32, mask: usize) -> usize {
        debug_assert!((mask + 1).is_power_of_two() && mask < 1 << Self::DIRECTORY_BITS);
        (self.0 >> set_shift) as usize & mask
    }

    /// Returns the place: all set and directory bits.
    #[inline(always)]
    pub fn place(self) -> u32 {
        self.0 as u32
    }

    /// Returns bits that are independent of the page's place, print and sample.
    #[inline(always)]
    pub fn draw(self) -> u16 {
        (self.0 >> Self::DRAW_SHIFT) as u16
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

    /// Returns the number that a sampler compares with its threshold: the lowest bits of the place,
    /// reversed. A sample of one page in 2^n is therefore one page of each aligned block of 2^n, as
    /// evenly spread over a run as sets are.
    #[inline(always)]
    pub fn sample(self) -> u16 {
        (self.0 as u16).reverse_bits()
    }
}

// The fields follow each other without gap or overlap.
const _: () = assert!(Tag::SET_BITS + Tag::DIRECTORY_BITS <= Tag::PLACE_BITS);
const _: () = assert!(Tag::PLACE_BITS == Tag::DRAW_SHIFT && Tag::SAMPLE_BITS <= Tag::PLACE_BITS);
const _: () = assert!(Tag::DRAW_SHIFT + Tag::DRAW_BITS == Tag::GHOST_PRINT_SHIFT);
const _: () = assert!(Tag::GHOST_PRINT_SHIFT + Tag::GHOST_PRINT_BITS == u64::BITS);
const _: () = assert!(Tag::FINGERPRINT_SHIFT + Tag::FINGERPRINT_BITS == u64::BITS);

/// The bits above the place.
const ABOVE: u64 = u64::MAX << Tag::PLACE_BITS;

/// Number of lowest bits that step *near* changes: a group has 32 pages.
const NEAR_BITS: u32 = 5;

/// The lowest bit of an object's number in a key, and the number of bits of a page's number, for
/// [`Mixer::weak`].
const OBJECT_SHIFT: u32 = 40;
const WEAK_PAGE_BITS: u32 = 20;

/// The keyed mix of one partition. It is secret: a tenant that knows the seed can choose pages that
/// all belong to one set.
#[derive(Clone)]
pub struct Mixer {
    /// Xored with the key.
    secret: u64,
    /// The odd multipliers of the hash of the upper half, from which objects' offsets come.
    offset: [u64; 2],
    /// The odd multiplier of step *near*.
    near: u64,
    /// The multiplier of step *far*: its lowest byte is 1, and the others are 1 modulo 4.
    far: u32,
    /// The odd multiplier of the bits above the place.
    upper: u64,
    /// The bits above the place. Not a constant, because the instruction that applies it takes it
    /// from memory, but has no room for it.
    above: u64,
    /// `far * far_inverse` and `upper * upper_inverse` are 1 modulo two to the power of 32.
    far_inverse: u32,
    upper_inverse: u32,
}

/// The mix of a key whose lowest 32 bits are 0, as [`Mixer::begin`] makes it.
#[derive(Clone, Copy)]
pub struct Begun {
    /// The key after step *offset*.
    mixed: u64,
    key: u64,
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
        let mut next = || random.next_u64();
        let (secret, offset, near) = (next(), [next() | 1, next() | 1], next() | 1);
        let far = next() as u32 & 0xFDFD_FD00 | 0x0101_0101;
        let upper = next() | 1;
        let (far_inverse, upper_inverse) = (inverse(far.into()) as u32, inverse(upper) as u32);
        Self { secret, offset, near, far, upper, above: ABOVE, far_inverse, upper_inverse }
    }

    /// Returns a mix for tests that does not mix: all pages belong to one set, and neighbours share
    /// a fingerprint. It is exact for objects below 2^12 and pages below 2^20: the multiplier puts
    /// both side by side above the place.
    pub fn weak() -> Self {
        let upper = 1 << Tag::PLACE_BITS | 1 << (WEAK_PAGE_BITS - (OBJECT_SHIFT - Tag::PLACE_BITS));
        let (far_inverse, upper_inverse) = (0, 0);
        Self { secret: 0, offset: [0, 0], near: 0, far: 0, upper, above: ABOVE, far_inverse, upper_inverse }
    }

    /// Returns the tag of a key.
    #[inline(always)]
    pub fn tag(&self, key: u64) -> Tag {
        let low = key & u64::from(u32::MAX);
        self.tag_among(self.begin(key ^ low), low)
    }

    /// Begins the mix of a key. [`Mixer::tag_among`] completes it, for this key and for every key
    /// that has more bits set.
    #[inline(always)]
    pub fn begin(&self, key: u64) -> Begun {
        let mixed = key ^ self.secret;
        Begun { mixed: mixed ^ self.offset(mixed), key }
    }

    /// Returns the tag of `key | bits`, where `key` is the one passed to [`Mixer::begin`] and has
    /// none of these `bits` set.
    #[inline(always)]
    pub fn tag_among(&self, begun: Begun, bits: u64) -> Tag {
        match u32::try_from(bits).is_ok() {
            true => self.tag_near(begun, bits),
            false => self.tag_of_far_page(begun, bits),
        }
    }

    /// Does what [`Mixer::tag_among`] does, for callers that know that the page is one of the first
    /// 2^32 of its object.
    #[inline(always)]
    pub fn tag_near(&self, begun: Begun, bits: u64) -> Tag {
        debug_assert!(u32::try_from(bits).is_ok());
        let mixed = begun.mixed ^ bits;
        let near = self.near(mixed);
        let mixed = mixed ^ near >> (u64::BITS - NEAR_BITS);
        let upper = near.wrapping_add(mixed).wrapping_mul(self.upper);
        let place = (mixed as u32).swap_bytes().wrapping_mul(self.far).swap_bytes();
        Tag(upper & self.above | u64::from(place))
    }

    /// Returns the key of a tag: the steps backwards.
    #[inline]
    pub fn key(&self, tag: Tag) -> u64 {
        if self.far == 0 {
            let upper = tag.0 >> Tag::PLACE_BITS;
            return upper >> WEAK_PAGE_BITS << OBJECT_SHIFT | upper & ((1 << WEAK_PAGE_BITS) - 1);
        }
        let low = tag.place().swap_bytes().wrapping_mul(self.far_inverse).swap_bytes();
        let near = self.near(low.into());
        // `tag_among` multiplied `near + low` and, 32 bits higher, the key's upper half. Below that
        // half, there was no carry.
        let lower = near.wrapping_add(low.into()).wrapping_mul(self.upper);
        let difference = (tag.0 >> Tag::PLACE_BITS).wrapping_sub(lower >> Tag::PLACE_BITS) as u32;
        let high = u64::from(difference.wrapping_mul(self.upper_inverse)) << Tag::PLACE_BITS;
        let mixed = high | u64::from(low) ^ near >> (u64::BITS - NEAR_BITS);
        mixed ^ self.offset(high) ^ self.secret
    }

    /// Continues `tag_among` for a page beyond the first 2^32 of an object.
    #[cold]
    #[inline(never)]
    fn tag_of_far_page(&self, begun: Begun, bits: u64) -> Tag {
        self.tag(begun.key | bits)
    }

    /// Step *offset* for all keys with this upper half after the xor with the secret.
    #[inline]
    fn offset(&self, mixed: u64) -> u64 {
        let high = (mixed >> Tag::PLACE_BITS).wrapping_mul(self.offset[0]);
        (high ^ high >> Tag::PLACE_BITS).wrapping_mul(self.offset[1]) >> Tag::PLACE_BITS
    }

    /// Hashes the number of a page's group. The upper bits of a square depend on all bits, and
    /// unlike those of a product they have no period that strides could meet.
    #[inline(always)]
    fn near(&self, mixed: u64) -> u64 {
        let product = u64::from(mixed as u32 >> NEAR_BITS).wrapping_mul(self.near);
        product.wrapping_mul(product)
    }
}

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
    /// chance.
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
                let begun = mixer.begin(number >> 40 << 40);
                assert_eq!(mixer.tag_among(begun, number & ((1 << 40) - 1)), mixer.tag(number));
            }
        }
    }

    #[test]
    fn the_weak_mix_puts_all_pages_into_one_set_and_is_exact() {
        let mixer = Mixer::weak();
        // Under miri only every 257th page: all of them took three minutes.
        for page in (0..1 << 20).step_by(if cfg!(miri) { 1 << 16 | 1 } else { 257 }) {
            for object in [0, 1, 7, (1 << 12) - 1] {
                let tag = mixer.tag(object << 40 | page);
                assert_eq!((tag.place(), u64::from(tag.fingerprint())), (0, object >> 4));
                assert_eq!(mixer.key(tag), object << 40 | page);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_tags_on_every_machine() {
        let tags = [0, 1, 7 << 40 | 123_456, u64::MAX].map(|key| Mixer::new(42).tag(key).0);
        // Computed by another program from the description above.
        assert_eq!(
            tags,
            [0xF768_F93B_7F7B_C999, 0xD5AD_2B36_7F7B_C99A, 0xEECB_69E0_6243_BF92, 0xA5B2_D1C2_FD65_2BA2]
        );
    }

    #[test]
    fn the_fields_are_the_documented_bits_and_disjoint() {
        let all = Tag(u64::MAX);
        assert_eq!((all.entry(6, (1 << 22) - 1), all.entry(0, 1), all.entry(5, 0)), ((1 << 22) - 1, 1, 0));
        assert_eq!((all.set(63), all.set(31), all.draw(), all.place()), (63, 31, 0xFFFF, u32::MAX));
        assert_eq!((all.fingerprint(), all.ghost_print(), all.sample()), (0xFF, 0xFFFF, 0xFFFF));
        for bit in 0..64 {
            let tag = Tag(1 << bit);
            let fields =
                [tag.set(31), tag.entry(5, (1 << 22) - 1), tag.draw().into(), tag.ghost_print().into()];
            let field = match bit {
                0..5 => 0,
                5..27 => 1,
                32..48 => 2,
                48.. => 3,
                _ => 4,
            };
            for (index, value) in fields.into_iter().enumerate() {
                assert_eq!(value != 0, index == field, "bit {bit}, field {index}");
            }
            assert_eq!(tag.fingerprint() != 0, bit >= 56, "bit {bit}");
            assert_eq!(tag.place() != 0, bit < 32, "bit {bit}");
            assert_eq!(tag.sample(), if bit < 16 { 1 << (15 - bit) } else { 0 }, "bit {bit}");
        }
        assert_eq!(Tag(0xABCD << 48).fingerprint(), 0xAB);
    }

    #[test]
    fn every_aligned_block_meets_every_value_of_the_lowest_place_bits_once() {
        let bits = if cfg!(miri) { 6 } else { 17 };
        for seed in random(if cfg!(miri) { 2 } else { 12 }, 3) {
            let mixer = Mixer::new(seed);
            for bits in 0..=bits {
                for base in random(3, seed ^ bits).map(|base| base >> bits << bits) {
                    let mut met = vec![false; 1 << bits];
                    for page in 0..1 << bits {
                        let low = mixer.tag(base | page).place() as usize & ((1 << bits) - 1);
                        assert!(!std::mem::replace(&mut met[low], true), "{bits} bits at {base:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn sixteen_neighbours_touch_as_few_lines_of_fingerprints_as_they_can() {
        let mut lines_all = 0;
        for seed in random(if cfg!(miri) { 2 } else { 100 }, 5) {
            let mixer = Mixer::new(seed);
            for base in random(10, seed).map(|base| base >> 4 << 4) {
                // Fingerprints of four sets share a line.
                let lines = (0..16).map(|page| mixer.tag(base | page).place() >> 2);
                let mut lines: Vec<u32> = lines.collect();
                lines.sort_unstable();
                lines.dedup();
                assert!(lines.len() <= 8);
                lines_all += lines.len();
            }
        }
        assert!(lines_all < if cfg!(miri) { 20 } else { 1000 } * 7, "{lines_all} lines in all runs");
    }

    /// Footprints of `count` pages: strides of all powers of two, scattered pages, and files of a
    /// few pages.
    #[cfg(not(miri))]
    fn footprints(count: u64, seed: u64) -> Vec<(String, Vec<u64>)> {
        let strides =
            (0..=24).map(|bits| (format!("stride 2^{bits}"), (0..count).map(|i| i << bits).collect()));
        let files = [1, 7, 100].map(|pages| {
            let keys = (0..count).map(|i| ((i / pages + 1) << 40) | (i % pages));
            (format!("files of {pages}"), keys.collect())
        });
        let scattered = random(count as usize, seed).map(|key| key >> 38).collect();
        strides.chain(files).chain([("scattered".into(), scattered)]).collect()
    }

    #[cfg(not(miri))]
    #[test]
    fn no_regular_footprint_loads_a_set_more_than_random_placement_does() {
        // Thirty-two pages for each of 64 sets in 1000 seeds.
        const SETS: usize = 64;
        const SEEDS: u64 = 1000;
        let count = 32 * SETS as u64;
        let heaviest = |places: &mut dyn Iterator<Item = u64>| {
            let mut loads = [0u32; SETS];
            places.for_each(|place| loads[place as usize % SETS] += 1);
            *loads.iter().max().expect("there are sets")
        };
        let sorted = |loads: &mut dyn Iterator<Item = u32>| {
            let mut loads: Vec<u32> = loads.collect();
            loads.sort_unstable();
            loads
        };
        let chance = sorted(&mut (0..SEEDS).map(|seed| heaviest(&mut random(count as usize, seed))));
        let mean = |loads: &[u32]| loads.iter().sum::<u32>() as f64 / loads.len() as f64;
        for (number, (name, keys)) in footprints(count, 1).into_iter().enumerate() {
            let of_seed = |seed| {
                let mixer = Mixer::new(seed << 8 | number as u64);
                heaviest(&mut keys.iter().map(|key| mixer.tag(*key).place().into()))
            };
            let loads = sorted(&mut (0..SEEDS).map(of_seed));
            // On average, and in the worst two hundredths of all seeds.
            for (what, seeds, slack) in
                [("all seeds", 0, 1.01), ("worst seeds", SEEDS as usize * 49 / 50, 1.05)]
            {
                let (load, by_chance) = (mean(&loads[seeds..]), mean(&chance[seeds..]));
                assert!(load <= by_chance * slack, "{name}, {what}: {load} of {by_chance}");
            }
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn every_key_bit_flips_every_bit_above_the_place_half_of_the_time() {
        const KEYS_PER_SEED: usize = 64;
        const SEEDS: usize = 256;
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
            for (place, &count) in row.iter().enumerate().skip(Tag::PLACE_BITS as usize) {
                let share = f64::from(count) / (KEYS_PER_SEED * SEEDS) as f64;
                // One secret number decides how a page of a group differs from another.
                let most = if bit < NEAR_BITS as usize { 0.1 } else { 0.05 };
                assert!((share - 0.5).abs() < most, "key bit {bit} flips tag bit {place} in {share}");
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
        let fields: [(usize, Field); 6] = [
            (64, |tag| tag.set(63)),
            (1 << 12, |tag| usize::from(tag.draw() >> 4)),
            (1 << 12, |tag| usize::from(tag.draw() & 4095)),
            (256, |tag| tag.fingerprint().into()),
            (256, |tag| usize::from(tag.ghost_print() & 255)),
            (1 << 12, |tag| usize::from(tag.sample() >> 4)),
        ];
        // The place of a page is independent of its fingerprint and of its draw. Pages of a group
        // share an entry, and their prints and draws are at equal distances, which adds to
        // chi-square. These shapes have one page of a group.
        let apart: [fn(u64) -> u64; 3] = [|i| i * 37, |i| i << 40, |i| (1 << 40) | (i * 512)];
        let joint: [(usize, Field); 4] = [
            (1 << 12, |tag| tag.entry(5, (1 << 12) - 1)),
            (1 << 12, |tag| (tag.set(63) << 6) | usize::from(tag.fingerprint() & 63)),
            (1 << 12, |tag| (tag.entry(5, 63) << 6) | usize::from(tag.ghost_print() & 63)),
            (1 << 12, |tag| (tag.entry(5, 63) << 6) | usize::from(tag.draw() & 63)),
        ];
        for seed in [0, 1, 2, 0xDEAD_BEEF, u64::MAX] {
            let mixer = Mixer::new(seed);
            let check = |shapes: &[fn(u64) -> u64], fields: &[(usize, Field)], most: f64| {
                for (shape, key) in shapes.iter().enumerate() {
                    let tags = || (0..COUNT).map(|index| mixer.tag(key(index)));
                    for (field, (cells, number)) in fields.iter().enumerate() {
                        let value = unevenness(*cells, tags().map(number));
                        let what = format!("seed {seed:#x}, keys {shape}, field {field} of {}", fields.len());
                        assert!(value < most, "{what}: {value} deviations");
                    }
                }
            };
            check(&shapes, &fields, 10.0);
            check(&apart, &fields, 6.0);
            check(&apart, &joint, 6.0);
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn the_prints_of_a_sample_of_a_run_are_random() {
        // Miniatures tell pages of a sample apart by their prints.
        for seed in 0..20 {
            let mixer = Mixer::new(seed);
            let sampled = (0..1 << 22).map(|page| mixer.tag(page)).filter(|tag| tag.sample() < 1 << 11);
            let tags: Vec<Tag> = sampled.collect();
            assert_eq!(tags.len(), 1 << 17, "a 32nd of each block");
            for shift in [0, 4, 8] {
                let value =
                    unevenness(256, tags.iter().map(|tag| usize::from(tag.ghost_print() >> shift & 255)));
                assert!(value < 6.0, "seed {seed}, print bits from {shift}: {value} deviations");
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
            // Of one object's pages, the directory bits of two seeds may go in step.
            for (bit, &count) in agreements.iter().enumerate().skip(Tag::PLACE_BITS as usize) {
                let share = f64::from(count) / COUNT as f64;
                assert!(
                    (0.485..0.515).contains(&share),
                    "seeds {first}, {second}: bit {bit} agrees in {share}"
                );
            }
            let sets = unevenness(1 << 10, pairs().map(|(left, right)| (left.set(31) << 5) | right.set(31)));
            assert!(sets < 6.0, "seeds {first}, {second}: {sets}");
        }
    }
}
