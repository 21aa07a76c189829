//! Finds remote pages that a node writes repeatedly, so that the page's main can move to that node
//! (T10 of `octavo_table`'s `twin`).
//!
//! A node gets a page's main when it has written the page a given number of times in a row (default
//! 16), with no write of another node in between. The version in the page's word, which every write
//! increments, shows whether there was one. Writes to a page on the writer's own node therefore pay
//! nothing, and remote writes pay one access to a cache line of their own node.
//!
//! Each node follows up to 2,048 pages, in cells chosen by bits of the tag. If two pages share a
//! cell, the page that is followed keeps the cell until 255 writes to other pages of the cell have
//! come since its own last write; then it counts as idle. Every access is a Relaxed load or store,
//! never an atomic read-modify-write: if two threads interfere, a move may only come later or
//! earlier than it should.
//!
//! Not here: the move of the main.

use octavo_table::{NodeId, Tag};

use crate::numa::SWITCH_WRITES_MAX;
use crate::sync::{AtomicU64, Ordering};

/// Limits of the number of pages that a node follows at a time, which is a quarter of the
/// partition's initial slots. The most take 16 KiB.
const FOLLOWED_MAX: u64 = 2048;
const FOLLOWED_MIN: u64 = 16;

/// Writes to other pages of a cell after which the followed page counts as idle and loses the cell.
const IDLE_MAX: u64 = u8::MAX as u64;

/// The bits of a cell, from high to low: the page's fingerprint (24 bits), the version after its
/// last write, the number of writes in a row, and the number of writes to other pages of the cell
/// since then.
const IDLE_BITS: u32 = 8;
const RUN_BITS: u32 = 8;
const VERSION_BITS: u32 = 24;

/// The lowest of the tag's upper bits that are the fingerprint.
const FINGERPRINT_SHIFT: u32 = u64::BITS - 24;

const _: () = assert!(SWITCH_WRITES_MAX < 1 << RUN_BITS);

/// The pages that each node follows in one partition.
#[derive(Default)]
pub(crate) struct Writers(Vec<Box<[AtomicU64]>>);

impl Writers {
    /// Takes cells for `nodes` nodes (0 where mains stay at home) and a partition that begins
    /// with `slots` slots.
    pub fn new(nodes: u32, slots: u64) -> Writers {
        let cells = || (0..Self::followed(slots)).map(|_| AtomicU64::new(0)).collect();
        Writers((0..nodes).map(|_| cells()).collect())
    }

    /// Returns the bytes of memory that `new` takes.
    pub fn bytes(nodes: u32, slots: u64) -> u64 {
        u64::from(nodes) * Self::followed(slots) * size_of::<AtomicU64>() as u64
    }

    fn followed(slots: u64) -> u64 {
        (slots / 4).clamp(FOLLOWED_MIN, FOLLOWED_MAX)
    }

    /// Notes that a thread of `node` has written a page whose version was `before`, and is one
    /// higher now. Returns `true` if this was the `wanted`th write in a row, with no write of
    /// another node in between.
    pub fn wrote(&self, node: NodeId, tag: Tag, before: u64, wanted: u32) -> bool {
        let Some(cells) = self.0.get(node.0 as usize) else { return false };
        // The draw is independent of the page's node and set, so pages of one set share a cell no
        // more often than others do.
        let (at, print) = (tag.draw() as usize % cells.len(), tag.0 >> FINGERPRINT_SHIFT);
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
    fn only_uninterrupted_writes_of_one_node_count() {
        let (writers, node, page) = (Writers::new(2, 64), NodeId(1), Tag(7 << 44 | 5 << 32));
        let mut version = 100;
        let mut write = |by_node: bool| {
            version += 1;
            by_node && writers.wrote(node, page, version - 1, 4)
        };
        assert_eq!([true, true, true, true].map(&mut write), [false, false, false, true]);
        // The count starts again.
        assert_eq!([true, true, true, false, true].map(&mut write), [false; 5]);
        assert_eq!([true, true, true].map(&mut write), [false, false, true]);
        assert!(!Writers::new(0, 64).wrote(node, page, 0, 1));
    }

    #[test]
    fn a_followed_page_keeps_its_cell_until_it_is_idle() {
        let (writers, node) = (Writers::new(1, 64), NodeId(0));
        let (one, other) = (Tag(1 << 44 | 5 << 32), Tag(2 << 44 | 5 << 32));
        assert!(!writers.wrote(node, one, 0, 2));
        (0..IDLE_MAX).for_each(|version| assert!(!writers.wrote(node, other, version, 2)));
        assert!(!writers.wrote(node, other, 300, 2), "the first write that counts");
        assert!(writers.wrote(node, other, 301, 2));
    }

    #[test]
    fn versions_are_compared_by_their_lowest_bits() {
        let (writers, node, page) = (Writers::new(1, 64), NodeId(0), Tag(9));
        let last = (1 << VERSION_BITS) - 1;
        assert!(!writers.wrote(node, page, last, 2));
        assert!(writers.wrote(node, page, last + 1, 2));
    }
}
