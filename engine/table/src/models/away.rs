//! Models of a page whose main moves to another node (T9 to T11 in `twin`): reads, writes and
//! evictions against the switch, on two and three nodes.

use super::twin::{A, A1, B, HERE, PAGE, in_order, nodes};
use super::{Cache, Scene, holds};
use crate::word::slot::State;
use crate::{NodeId, SlotIndex, Tag};

const THIRD: NodeId = NodeId(2);

impl Cache {
    fn switch(&self, node: NodeId) -> bool {
        self.table.bring_main(PAGE, node, false, &mut &*self).to.is_some()
    }

    /// P3, wherever the page is.
    fn read_main(&self) -> Option<u64> {
        let found = self.table.find(PAGE).filter(|found| found.word.readable())?;
        self.frame(found.index).believed(|| found.slot().unchanged(found.word))
    }

    /// Writes as the engine does: in place if the page is found, first without and then with the
    /// lock; otherwise into a newly claimed slot.
    fn write_or_bring(&self, value: u64) {
        loop {
            let found = self.table.find(PAGE);
            if found.is_some_and(|found| self.write_in_place(found, value)) {
                return;
            }
            let guard = self.table.lock(PAGE);
            if let Some(found) = guard.find(PAGE) {
                drop(guard);
                if self.write_in_place(found, value) {
                    return;
                }
                loom::thread::yield_now();
                continue;
            }
            self.claim_and_fill(guard, PAGE, value, true);
            return;
        }
    }

    fn write_in_place(&self, found: crate::Found<'_>, value: u64) -> bool {
        let Ok(taken) = found.slot().begin_write(found.word) else { return false };
        if taken.twins() != 0 {
            self.table.overtake(PAGE, taken.twins());
        }
        self.frame(found.index).fill(value);
        assert!(!self.table.end_write(&found, taken, true));
        true
    }

    /// Looks at every slot, and returns those that hold the page.
    fn slots(&self) -> Vec<(SlotIndex, State, u64)> {
        let mut slots = Vec::new();
        self.table.for_each_page(|_, found| {
            if found.tag() == PAGE {
                slots.push((found.index, found.word.state(), self.frame(found.index).whole()));
            }
        });
        slots
    }

    /// Brings in two other pages in the set where the page is while it is away, which evicts the
    /// page.
    fn crowd_out(&self) {
        let other = |number: u64| Tag(self.table.twin_place(PAGE, HERE).0 | number << 32);
        (1..=2).for_each(|number| self.fill(other(number), B, false));
    }
}

#[test]
fn a_switch_loses_no_write_and_no_read_notices_it_t9_t10() {
    holds(Some(2), || {
        let nodes = nodes(2);
        nodes.fill(PAGE, A, false);
        let writer = nodes.spawn(|nodes| nodes.write_or_bring(A1));
        let switched = nodes.switch(HERE);
        in_order(&[nodes.read_main(), nodes.read_main()]);
        writer.join().unwrap();
        let slots = nodes.slots();
        assert_eq!(slots.len(), 1, "{slots:?}");
        assert_eq!((slots[0].1, slots[0].2), (State::Dirty, A1));
        let lies_on = nodes.table.node_of_segment(nodes.table.segment_of(slots[0].0));
        assert_eq!(lies_on, if switched { HERE } else { NodeId(0) });
        assert_eq!(nodes.read_main(), Some(A1));
    });
}

#[test]
fn a_reader_of_a_page_that_switches_between_nodes_sees_only_its_bytes_t10() {
    holds(Some(2), || {
        let nodes = nodes(2);
        nodes.fill(PAGE, A, true);
        let mover = nodes.spawn(|nodes| {
            assert!(nodes.switch(HERE));
            nodes.write_or_bring(A1);
            assert!(nodes.switch(NodeId(0)), "home is as good as anywhere");
        });
        in_order(&[nodes.read_main(), nodes.read_main()]);
        mover.join().unwrap();
        assert_eq!(nodes.read_main(), Some(A1));
        assert_eq!(nodes.slots().len(), 1);
    });
}

/// The home node keeps a copy of a page that is away, as any node may.
#[test]
fn writes_overtake_the_home_nodes_copy_of_a_page_that_is_away_t5_t10() {
    holds(Some(2), || {
        let nodes = nodes(2);
        nodes.fill(PAGE, A, false);
        assert!(nodes.switch(HERE));
        let writer = nodes.spawn(|nodes| nodes.write_or_bring(A1));
        in_order(&[nodes.make(NodeId(0)), nodes.read_twin(NodeId(0))]);
        writer.join().unwrap();
        assert!(nodes.read_twin(NodeId(0)).is_none_or(|bytes| bytes == A1), "an old copy at home");
    });
}

/// A page that is away is evicted there, and written at the same time.
pub(super) fn write_that_finds_its_page_away() {
    let nodes = nodes(2);
    nodes.fill(PAGE, A, false);
    assert!(nodes.switch(HERE));
    let evictor = nodes.spawn(|nodes| nodes.crowd_out());
    // A reader without a lock may miss the page; a thread with the lock finds it or brings it in.
    let guard = nodes.table.lock(PAGE);
    let is_away = guard.find(PAGE).is_some();
    let away = nodes.slots_now();
    assert!(is_away || away == 0, "a page that is there was not found under its lock");
    drop(guard);
    nodes.write_or_bring(A1);
    evictor.join().unwrap();
    let slots = nodes.slots();
    assert_eq!(slots.len(), 1, "{slots:?}");
    assert_eq!((slots[0].1, slots[0].2), (State::Dirty, A1), "a dirty page is lost");
}

impl Cache {
    /// Returns the number of slots that hold the page, read without a lock while no other thread
    /// holds the page's.
    fn slots_now(&self) -> usize {
        let words = (0..2 * self.table.nodes()).map(|slot| self.table.slot(SlotIndex(slot)));
        words.filter(|slot| slot.load().readable() && slot.tag() == PAGE).count()
    }
}

#[test]
fn a_page_evicted_away_from_home_while_it_is_written_is_in_one_slot_t9_t11() {
    holds(Some(2), write_that_finds_its_page_away);
}

/// A copy on a third node is not affected by the switch, and the next write overtakes it.
pub(super) fn switch_and_write_against_read_of_a_third_node() {
    let nodes = nodes(3);
    nodes.fill(PAGE, A, false);
    assert_eq!(nodes.make(THIRD), Some(A));
    let writer = nodes.spawn(|nodes| {
        assert!(nodes.switch(HERE));
        nodes.write_or_bring(A1);
    });
    in_order(&[nodes.read_twin(THIRD), nodes.read_main()]);
    writer.join().unwrap();
    assert!(nodes.read_twin(THIRD).is_none(), "a write has ended, and a twin has the old bytes");
}

#[test]
fn a_copy_on_a_third_node_is_overtaken_by_the_first_write_after_a_switch_t5_t10() {
    holds(Some(2), switch_and_write_against_read_of_a_third_node);
}

/// A main is evicted away from home, and a writer that finds no slot writes the page.
pub(super) fn orphan_of_a_page_that_was_away() {
    let nodes = nodes(3);
    nodes.fill(PAGE, A, false);
    assert!(nodes.switch(HERE));
    assert_eq!(nodes.make(THIRD), Some(A));
    nodes.crowd_out();
    assert!(nodes.table.find(PAGE).is_none());
    let writer = nodes.spawn(|nodes| nodes.write_or_bring(A1));
    assert!(nodes.read_twin(THIRD).is_none_or(|bytes| bytes == A));
    writer.join().unwrap();
    assert!(nodes.read_twin(THIRD).is_none(), "a write has ended, and an orphan has the old bytes");
}

#[test]
fn a_copy_whose_main_was_evicted_away_is_overtaken_when_the_page_comes_home_t7_t11() {
    holds(Some(2), orphan_of_a_page_that_was_away);
}
