//! A stack of pages by recency, for distances between references (Mattson et al. 1970; a tree over
//! time as in Olken 1981). The sampler uses one of fixed size, exact curves one that grows.

/// Pages in the order of their last references. Each page has a *place* in the row of references;
/// the newest is the last.
///
/// A bit per place tells whether the place is the last reference of some page, and a Fenwick tree
/// over the words of these bits counts them.
pub(super) struct Stack {
    /// A bit per place, set if the place is some page's last reference.
    bits: Vec<u64>,
    /// The Fenwick tree over the words of `bits`; entry 0 is not used.
    tree: Vec<u32>,
    /// The page of each place whose bit is set.
    owners: Vec<u32>,
    /// Places used so far.
    used: usize,
    /// Set bits: the pages in the stack.
    live: usize,
}

impl Stack {
    /// Creates a stack with room for `pages` pages. It is full after twice as many references, and
    /// must then be packed.
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

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns whether `push` has no place left and `pack` is due.
    pub fn is_full(&self) -> bool {
        self.used == self.owners.len()
    }

    /// Adds the reference of page `owner` and returns its place. The stack must not be full.
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

    /// Returns how many pages were referenced after the one at `place`.
    pub fn newer(&self, place: u32) -> usize {
        let word = place as usize / 64;
        // The pages of this word up to and including the one at the place.
        let mut older = (self.bits[word] << (63 - place % 64)).count_ones();
        let mut node = word;
        while node > 0 {
            older += self.tree[node];
            node &= node - 1;
        }
        self.live - older as usize
    }

    /// Moves all pages to the first places, in their order, and calls `moved` with each page and
    /// its new place. Grows to room for `pages` pages if it has less.
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
        // Rebuild the tree: each node adds its sum to its parent.
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

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&self.bits[..]) + size_of_val(&self.tree[..]) + size_of_val(&self.owners[..])
    }

    fn add(&mut self, word: usize, change: u32) {
        let mut node = word + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(change);
            node += node & node.wrapping_neg();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use octavo_random::Random;

    use super::*;

    /// Draws small numbers often: every doubling is about equally likely.
    pub fn skewed(random: &mut Random, limit: u64) -> u64 {
        let bits = random.below(64 - limit.leading_zeros() as u64 + 1);
        random.below((1 << bits).min(limit))
    }

    /// Mattson's stack, as a list.
    #[derive(Default)]
    pub struct Naive(Vec<u64>);

    impl Naive {
        /// Returns the distance; None for the first reference of a page.
        pub fn reference(&mut self, page: u64) -> Option<usize> {
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
}
