//! Models of a page and its copy on another node (T1 to T7 in `twin`): a main, a twin, and two or
//! three threads.

use std::sync::Arc;

use super::{Cache, Frame, Scene, holds, read, read_by_word, way_with};
use crate::moves::twin::bit_of;
use crate::word::slot::{OneWay, Slot, State};
use crate::{NodeId, Tag};

pub(super) const PAGE: Tag = Tag(0xA << 24);
const OTHER: Tag = Tag(0xB << 24);
/// Contents of the page at first, and after one and two writes; and of the other page.
pub(super) const A: u64 = 0xA00;
pub(super) const A1: u64 = 0xA01;
const A2: u64 = 0xA02;
pub(super) const B: u64 = 0xB00;

pub(super) const HERE: NodeId = NodeId(1);

struct Pair {
    main: OneWay,
    twin: OneWay,
    /// Those of the main, and of the twin.
    frames: [Frame; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair { main: way_with(PAGE, false), twin: OneWay::new(), frames: [Frame::new(A), Frame::new(0)] }
    }

    /// Creates a pair whose twin may be read.
    fn with_twin() -> Arc<Pair> {
        let pair = Pair::new();
        assert_eq!(pair.make(), Some(A));
        Arc::new(pair)
    }

    /// Creates a pair whose main has the bit of a twin that was evicted.
    fn with_bit() -> Arc<Pair> {
        let pair = Pair::new();
        assert!(pair.main.slot().link(pair.main.slot().load(), bit_of(HERE)).is_some());
        Arc::new(pair)
    }

    /// T1 to T4: returns the copied bytes, if they were the page's.
    fn make(&self) -> Option<u64> {
        let (twin, main) = (self.twin.slot(), self.main.slot());
        let seen = twin.load();
        let begun = match seen.state() {
            State::Free if twin.claim_as(State::Copying, seen, PAGE, 0) => twin.load(),
            State::Stale if twin.tag() == PAGE => twin.begin_refresh(seen)?,
            _ => return None,
        };
        let Some(word) = main.link(main.load(), bit_of(HERE)) else {
            twin.give_up_copy();
            return None;
        };
        let copied = self.frames[1].copied_from(&self.frames[0], || main.unchanged(word));
        match copied {
            Some(_) => _ = twin.publish_copy(begun),
            None => twin.give_up_copy(),
        }
        copied
    }

    /// T6.
    fn read_twin(&self) -> Option<u64> {
        let twin = self.twin.slot();
        let word = twin.load();
        if word.state() != State::Twin || twin.tag() != PAGE {
            return None;
        }
        self.frames[1].believed(|| twin.is_still_twin(word))
    }

    fn read_main(&self) -> Option<u64> {
        read(&self.main, &self.frames[0], PAGE)
    }

    /// Reads as a thread of the twin's node does.
    fn read_near(&self) -> Option<u64> {
        self.read_twin().or_else(|| self.read_main())
    }

    fn overtake(&self, bits: u8) {
        let twin = self.twin.slot();
        let word = twin.load();
        if bits & bit_of(HERE) != 0 && word.is_copy() && twin.tag() == PAGE {
            twin.overtake(word);
        }
    }

    /// P6, T5, P7. `late`: T5 comes last.
    fn write_in_order(&self, value: u64, late: bool) {
        let main = self.main.slot();
        let before = main.begin_write(main.load()).expect("one writer at a time");
        if !late {
            self.overtake(before.twins());
        }
        self.frames[0].fill(value);
        assert!(!main.end_write(true));
        if late {
            self.overtake(before.twins());
        }
    }

    fn write(&self, value: u64) {
        self.write_in_order(value, false);
    }
}

pub(super) fn in_order(reads: &[Option<u64>]) {
    let seen: Vec<u64> = reads.iter().copied().flatten().collect();
    assert!(seen.is_sorted() && seen.iter().all(|bytes| [A, A1, A2].contains(bytes)), "{reads:?}");
}

pub(super) fn twin_against_write() {
    let pair = Pair::with_twin();
    let writer = pair.spawn(|pair| pair.write(A1));
    in_order(&[pair.read_near(), pair.read_main(), pair.read_near()]);
    writer.join().unwrap();
    assert!(pair.read_twin().is_none(), "a write has ended, and a twin has the old bytes");
    assert_eq!(pair.read_near(), Some(A1));
}

#[test]
fn no_read_on_any_node_returns_older_bytes_after_a_write_to_a_page_with_a_twin_t5_t6() {
    holds(Some(3), twin_against_write);
}

/// One reader per node. Nothing but the order of events synchronises the readers.
#[test]
fn a_write_that_one_node_has_seen_the_other_sees_too_t5() {
    holds(Some(2), || {
        let pair = Pair::with_twin();
        let writer = pair.spawn(|pair| pair.write(A1));
        let told = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let tells = told.clone();
        let near = pair.spawn(move |pair| {
            let before = tells.load(super::Ordering::Acquire);
            let now = pair.read_near();
            assert!(before != A1 || now != Some(A), "a read went back behind another node's");
        });
        if let Some(bytes) = pair.read_main() {
            told.store(bytes, super::Ordering::Release);
        }
        writer.join().unwrap();
        near.join().unwrap();
    });
}

/// Shows why T5 comes before the bytes.
#[test]
#[should_panic]
fn a_twin_that_is_marked_after_the_write_is_noticed_t5() {
    super::explore(None, || {
        let pair = Pair::with_twin();
        let writer = pair.spawn(|pair| pair.write_in_order(A1, true));
        in_order(&[pair.read_main(), pair.read_near()]);
        writer.join().unwrap();
    });
}

pub(super) fn copy_against_write() {
    let pair = Arc::new(Pair::new());
    let writer = pair.spawn(|pair| pair.write(A1));
    in_order(&[pair.make(), pair.read_near()]);
    writer.join().unwrap();
    assert!(pair.read_twin().is_none_or(|bytes| bytes == A1), "a copy of old bytes was published");
    assert!(pair.twin.slot().load().state() != State::Copying);
    assert_eq!(pair.read_near(), Some(A1));
}

#[test]
fn a_copy_that_a_write_overtakes_is_not_published_t1_t2_t3_t4_t5() {
    holds(Some(3), copy_against_write);
}

pub(super) fn copy_where_a_bit_is_set_against_write() {
    let pair = Pair::with_bit();
    let writer = pair.spawn(|pair| pair.write(A1));
    in_order(&[pair.make(), pair.read_near()]);
    writer.join().unwrap();
    assert!(pair.read_twin().is_none_or(|bytes| bytes == A1), "a copy of old bytes was published");
}

#[test]
fn a_bit_left_by_an_earlier_copy_does_not_hide_this_copy_from_a_write_t2() {
    holds(Some(3), copy_where_a_bit_is_set_against_write);
}

#[test]
fn a_twin_refreshed_between_two_writes_shows_no_old_bytes_after_both_t1_t4_t5() {
    holds(Some(2), || {
        let pair = Pair::with_twin();
        let writer = pair.spawn(|pair| {
            pair.write(A1);
            pair.write(A2);
        });
        in_order(&[pair.read_near(), pair.make(), pair.read_near()]);
        writer.join().unwrap();
        assert!(pair.read_twin().is_none_or(|bytes| bytes == A2), "an old twin");
        pair.make();
        assert_eq!(pair.read_twin(), Some(A2));
    });
}

/// A reader of the node may be reading the twin when it is refreshed.
pub(super) fn twin_against_refresh() {
    let pair = Pair::with_twin();
    let refresher = pair.spawn(|pair| {
        pair.write(A1);
        pair.make();
    });
    in_order(&[pair.read_twin(), pair.read_twin()]);
    refresher.join().unwrap();
    assert_eq!(pair.read_twin(), Some(A1));
}

#[test]
fn a_twin_that_is_refreshed_is_never_read_torn_t1_t6() {
    holds(Some(3), twin_against_refresh);
}

/// Three threads.
#[test]
fn two_threads_that_refresh_a_twin_and_a_writer_leave_no_old_bytes_t1_t4_t5() {
    holds(Some(2), || {
        let pair = Pair::with_twin();
        pair.write(A1);
        let writer = pair.spawn(|pair| pair.write(A2));
        let other = pair.spawn(|pair| in_order(&[pair.make(), pair.read_near()]));
        in_order(&[pair.make(), pair.read_near()]);
        writer.join().unwrap();
        other.join().unwrap();
        assert!(pair.read_twin().is_none_or(|bytes| bytes == A2), "an old twin");
    });
}

/// A twin's slot is claimed for another page while a write looks for the twin and a reader reads
/// it.
#[test]
fn a_twin_evicted_while_its_page_is_written_is_not_read_and_its_successor_is_unharmed_p1_t5_t6() {
    holds(Some(2), || {
        let pair = Pair::with_twin();
        let writer = pair.spawn(|pair| pair.write(A1));
        let evictor = pair.spawn(|pair| {
            let (twin, word) = (pair.twin.slot(), pair.twin.slot().load());
            if word.evictable() && twin.claim(word, OTHER) {
                pair.frames[1].fill(B);
                assert!(!twin.publish(false));
            }
        });
        in_order(&[pair.read_near(), pair.read_near()]);
        writer.join().unwrap();
        evictor.join().unwrap();
        assert!(pair.read_twin().is_none());
        let there = read_by_word(pair.twin.slot(), &pair.frames[1], OTHER);
        assert!(there.is_none_or(|bytes| bytes == B));
    });
}

/// A write-through keeps its page readable while the new bytes travel to the store. Copies of the
/// old bytes are made in the meantime, and overtaken.
#[test]
fn a_copy_made_while_its_page_is_being_stored_does_not_outlive_the_store_p8_t5() {
    holds(Some(3), || {
        let pair = Arc::new(Pair::new());
        let writer = pair.spawn(|pair| {
            let main: Slot<'_> = pair.main.slot();
            main.begin_store(main.load()).unwrap();
            let taken = main.store_to_write().expect("no thread pins it");
            pair.overtake(taken.twins());
            pair.frames[0].fill(A1);
            assert!(!main.end_write(false));
        });
        in_order(&[pair.make(), pair.read_near()]);
        writer.join().unwrap();
        assert!(pair.read_twin().is_none_or(|bytes| bytes == A1), "an old twin");
    });
}

/// Creates nodes with one segment each. The page belongs to the first node.
pub(super) fn nodes(count: u32) -> Arc<Cache> {
    Cache::new(count, count, count)
}

impl Cache {
    pub(super) fn make(&self, node: NodeId) -> Option<u64> {
        let copying = self.table.begin_copy(PAGE, node, false)?;
        let main = self.table.find(PAGE)?;
        let word = copying.link(&main)?;
        let is_good = || main.slot().unchanged(word);
        let copied = self.frame(copying.index).copied_from(self.frame(main.index), is_good)?;
        copying.publish();
        Some(copied)
    }

    pub(super) fn read_twin(&self, node: NodeId) -> Option<u64> {
        let found = self.table.find_twin(PAGE, node).filter(|found| found.word.state() == State::Twin)?;
        self.frame(found.index).believed(|| found.slot().is_still_twin(found.word))
    }
}

/// The main is evicted, and comes back with newer bytes by a write that found the page not
/// resident.
pub(super) fn orphan_against_write() {
    let nodes = nodes(2);
    assert_eq!((nodes.table.owner_of(PAGE), nodes.table.nodes()), (NodeId(0), 2));
    nodes.fill(PAGE, A, false);
    assert_eq!(nodes.make(HERE), Some(A));
    (1..=2).for_each(|number| nodes.fill(Tag(number << 32), B, false));
    assert!(nodes.table.find(PAGE).is_none());
    let writer = nodes.spawn(|nodes| nodes.fill(PAGE, A1, true));
    assert!(nodes.read_twin(HERE).is_none_or(|bytes| bytes == A));
    writer.join().unwrap();
    assert!(nodes.read_twin(HERE).is_none(), "a write has ended, and an orphan has the old bytes");
}

#[test]
fn a_twin_whose_main_was_evicted_is_read_until_the_page_is_written_t7() {
    holds(Some(3), orphan_against_write);
}

#[test]
fn a_main_evicted_while_its_copy_is_made_leaves_an_orphan_that_is_found_t2_t7() {
    holds(Some(2), || {
        let nodes = nodes(2);
        nodes.fill(PAGE, A, false);
        nodes.fill(Tag(1 << 32), B, false);
        let maker = nodes.spawn(|nodes| {
            nodes.make(HERE);
        });
        nodes.fill(Tag(2 << 32), B, false);
        // If the main is linked at this very moment, it stays, and another page is evicted.
        if nodes.table.find(PAGE).is_none() {
            nodes.fill(PAGE, A1, true);
        }
        maker.join().unwrap();
        assert!(
            nodes.table.find(PAGE).is_some_and(|main| main.word.twins() != 0)
                || nodes.read_twin(HERE).is_none_or(|bytes| bytes == A1),
            "an orphan has the old bytes"
        );
    });
}
