//! Who writes a page again and again from afar: its main comes there (T10 of `octavo_table`'s
//! `twin`).
//!
//! A node that has written a page so many times in a row, with nobody's write between, gets its
//! main. Whether somebody wrote between tells the version in the page's word, which each write
//! moves on by one: so writes of a page that lies on the writer's node pay nothing for this, and
//! those from afar a look at a line of their own node.
//!
//! Each node follows up to two thousand pages, by a hash of their tags. Where two pages meet, the
//! one that is followed stays until the other has asked so often in vain that it seems to be idle.
//! All is Relaxed and read-modify-write nowhere: what two threads lose to each other are guesses.
//! What is not here: the switch itself.

use octavo_table::{NodeId, Tag};

use crate::numa::SWITCH_WRITES_MAX;
use crate::sync::{AtomicU64, Ordering};

/// Pages that a node follows at a time: a quarter of those that the partition begins with, and so
/// many at most, which are 16 KiB.
const FOLLOWED_MAX: u64 = 2048;
const FOLLOWED_MIN: u64 = 16;

/// Requests of other pages until a page is given up.
const IDLE_MAX: u64 = u8::MAX as u64;

/// What is known of a page: its print above, the version that its last write left, writes in a row,
/// and requests of others since.
const IDLE_BITS: u32 = 8;
const RUN_BITS: u32 = 8;
const VERSION_BITS: u32 = 24;

const _: () = assert!(SWITCH_WRITES_MAX < 1 << RUN_BITS);

/// The pages that nodes follow in a partition.
#[derive(Default)]
pub(crate) struct Writers(Vec<Box<[AtomicU64]>>);

impl Writers {
    /// For so many nodes, none where mains stay at home, and a partition that begins with so many
    /// slots.
    pub fn new(nodes: u32, slots: u64) -> Writers {
        let cells = || (0..Self::followed(slots)).map(|_| AtomicU64::new(0)).collect();
        Writers((0..nodes).map(|_| cells()).collect())
    }

    /// What `new` takes.
    pub fn bytes(nodes: u32, slots: u64) -> u64 {
        u64::from(nodes) * Self::followed(slots) * size_of::<AtomicU64>() as u64
    }

    fn followed(slots: u64) -> u64 {
        (slots / 4).clamp(FOLLOWED_MIN, FOLLOWED_MAX)
    }

    /// A thread of a node has written a page that was in this version before and is in the next one
    /// now. True: it was the `wanted`th in a row, and nobody else's came between.
    pub fn wrote(&self, node: NodeId, tag: Tag, before: u64, wanted: u32) -> bool {
        let Some(cells) = self.0.get(node.0 as usize) else { return false };
        // Bits that say nothing of the page's node or set: neighbours in a set meet no more often than
        // others.
        let (at, print) = (tag.sample() as usize % cells.len(), (tag.0 >> 16) & 0xFF_FFFF);
        let known = cells[at].load(Ordering::Relaxed);
        let part = |shift: u32, bits: u32| known >> shift & ((1 << bits) - 1);
        let (idle, run) = (part(0, IDLE_BITS), part(IDLE_BITS, RUN_BITS));
        let version = part(IDLE_BITS + RUN_BITS, VERSION_BITS);
        let is_known = run > 0 && known >> (IDLE_BITS + RUN_BITS + VERSION_BITS) == print;
        if !is_known && run > 0 && idle < IDLE_MAX {
            cells[at].store(known + 1, Ordering::Relaxed);
            return false;
        }
        let low = |version: u64| version & ((1 << VERSION_BITS) - 1);
        let run = if is_known && version == low(before) { run + 1 } else { 1 };
        let is_enough = run >= u64::from(wanted);
        let next = print << (IDLE_BITS + RUN_BITS + VERSION_BITS)
            | low(before + 1) << (IDLE_BITS + RUN_BITS)
            | run.min(u64::from(SWITCH_WRITES_MAX)) << IDLE_BITS;
        cells[at].store(if is_enough { 0 } else { next }, Ordering::Relaxed);
        is_enough
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn only_writes_in_a_row_count() {
        let (writers, node, page) = (Writers::new(2, 64), NodeId(1), Tag(7 << 20 | 5));
        let mut version = 100;
        let mut write = |by_it: bool| {
            version += 1;
            by_it && writers.wrote(node, page, version - 1, 4)
        };
        assert_eq!([true, true, true, true].map(&mut write), [false, false, false, true]);
        // From the first again.
        assert_eq!([true, true, true, false, true].map(&mut write), [false; 5]);
        assert_eq!([true, true, true].map(&mut write), [false, false, true]);
        assert!(!Writers::new(0, 64).wrote(node, page, 0, 1));
    }

    #[test]
    fn a_page_that_is_followed_stays_until_it_is_idle() {
        let (writers, node) = (Writers::new(1, 64), NodeId(0));
        let (one, other) = (Tag(1 << 20 | 5), Tag(2 << 20 | 5));
        assert!(!writers.wrote(node, one, 0, 2));
        (0..IDLE_MAX).for_each(|version| assert!(!writers.wrote(node, other, version, 2)));
        assert!(!writers.wrote(node, other, 300, 2), "its first that counts");
        assert!(writers.wrote(node, other, 301, 2));
    }

    #[test]
    fn versions_count_by_their_lowest_bits() {
        let (writers, node, page) = (Writers::new(1, 64), NodeId(0), Tag(9));
        let last = (1 << VERSION_BITS) - 1;
        assert!(!writers.wrote(node, page, last, 2));
        assert!(writers.wrote(node, page, last + 1, 2));
    }
}
