//! Models of one slot, most of them with two threads.

use std::sync::Arc;

use super::{EVERY, Frame, Scene, Waiters, holds, read, read_by_word, way_with};
use crate::Tag;
use crate::word::slot::{OneWay, Slot, State};

const PAGE_A: Tag = Tag(0xA << 24);
const PAGE_B: Tag = Tag(0xB << 24);
/// Contents of frames: page A at first, page B, and page A after one and two writes.
const A: u64 = 0xA00;
const B: u64 = 0xB00;
const A1: u64 = 0xA01;
const A2: u64 = 0xA02;

struct Way {
    way: OneWay,
    frame: Frame,
    waiters: Waiters,
}

impl Way {
    fn with_a(dirty: bool) -> Arc<Way> {
        Arc::new(Way { way: way_with(PAGE_A, dirty), frame: Frame::new(A), waiters: Waiters::new() })
    }

    fn slot(&self) -> Slot<'_> {
        self.way.slot()
    }

    fn read_a(&self) -> Option<u64> {
        at_a_glance(self, PAGE_A)
    }

    /// P6, P7.
    fn write(&self, value: u64, dirty: bool) -> bool {
        if self.slot().begin_write(self.slot().load()).is_err() {
            return false;
        }
        self.frame.fill(value);
        self.waiters.tell_if(self.slot().end_write(dirty));
        true
    }

    /// P1, P2: page B takes the slot if the protocol allows it.
    fn replace_by_b(&self) -> bool {
        let word = self.slot().load();
        if !word.evictable() || !self.slot().claim(word, PAGE_B) {
            return false;
        }
        self.frame.fill(B);
        self.waiters.tell_if(self.slot().publish(false));
        true
    }
}

/// A kind of read: returns the bytes of a page, if the slot holds it.
type Read = fn(&Way, Tag) -> Option<u64>;

/// P13.
fn at_a_glance(way: &Way, tag: Tag) -> Option<u64> {
    read(&way.way, &way.frame, tag)
}

/// P3.
fn by_word(way: &Way, tag: Tag) -> Option<u64> {
    read_by_word(way.slot(), &way.frame, tag)
}

fn hit_against_evict(read: Read) {
    let way = Way::with_a(false);
    let evictor = way.spawn(|way| assert!(way.replace_by_b()));
    assert!(read(&way, PAGE_A).is_none_or(|bytes| bytes == A));
    let found_b = read(&way, PAGE_B);
    assert!(found_b.is_none_or(|bytes| bytes == B));
    assert!(found_b.is_none() || way.read_a().is_none(), "a page that left came back");
    evictor.join().unwrap();
}

pub(super) fn glance_against_evict() {
    hit_against_evict(at_a_glance);
}

#[test]
fn a_reader_at_a_glance_gets_its_page_or_nothing_while_the_slot_is_claimed_for_another_p1_p2_p13() {
    holds(Some(4), glance_against_evict);
}

pub(super) fn word_against_evict() {
    hit_against_evict(by_word);
}

#[test]
fn a_reader_by_the_word_gets_its_page_or_nothing_while_the_slot_is_claimed_for_another_p1_p2_p3() {
    holds(Some(4), word_against_evict);
}

fn write_against_read(read: Read) {
    let way = Way::with_a(false);
    let writer = way.spawn(|way| assert!(way.write(A1, true)));
    let first = read(&way, PAGE_A);
    let second = read(&way, PAGE_A);
    for bytes in [first, second].into_iter().flatten() {
        assert!(bytes == A || bytes == A1);
    }
    assert!(first != Some(A1) || second == Some(A1), "a reader went back in time");
    writer.join().unwrap();
    assert_eq!(read(&way, PAGE_A), Some(A1));
}

pub(super) fn write_against_glance() {
    write_against_read(at_a_glance);
}

#[test]
fn a_reader_at_a_glance_never_sees_half_a_write_and_never_older_bytes_p6_p7_p13() {
    holds(Some(5), write_against_glance);
}

pub(super) fn write_against_word() {
    write_against_read(by_word);
}

#[test]
fn a_reader_by_the_word_never_sees_half_a_write_and_never_older_bytes_p3_p6_p7() {
    holds(Some(5), write_against_word);
}

/// After one kind of read has returned newer bytes, the other kind does not return older ones.
#[test]
fn a_reader_that_switches_between_both_kinds_of_read_never_sees_older_bytes_p3_p7_p13() {
    holds(Some(4), || {
        let way = Way::with_a(false);
        let writer = way.spawn(|way| assert!(way.write(A1, true)));
        let reads = [way.read_a(), by_word(&way, PAGE_A), way.read_a()];
        let seen: Vec<u64> = reads.into_iter().flatten().collect();
        assert!(seen.is_sorted() && seen.iter().all(|bytes| [A, A1].contains(bytes)), "{reads:?}");
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_sleeps_through_two_writes_accepts_no_mixed_bytes_p3_p6_p7() {
    holds(Some(5), || {
        let way = Way::with_a(false);
        let writer = way.spawn(|way| {
            assert!(way.write(A1, true));
            assert!(way.write(A2, true));
        });
        let bytes = way.read_a();
        assert!(bytes.is_none_or(|bytes| [A, A1, A2].contains(&bytes)));
        writer.join().unwrap();
        assert_eq!(way.read_a(), Some(A2));
    });
}

fn pinned_reads(way: &Way) {
    let word = way.slot().load();
    if word.readable() && way.slot().tag() == PAGE_A && way.slot().pin(word).is_ok() {
        let bytes = way.frame.whole();
        assert!(bytes == A || bytes == A1);
        assert_eq!(way.frame.whole(), bytes, "a pinned page changed");
        way.slot().unpin();
    }
}

#[test]
fn a_pinned_page_is_not_evicted_and_a_claimed_slot_is_not_pinned_for_its_old_page_p1_p4_p5() {
    holds(EVERY, || {
        let way = Way::with_a(false);
        let evictor = way.spawn(|way| {
            way.replace_by_b();
        });
        pinned_reads(&way);
        evictor.join().unwrap();
        assert_eq!(way.slot().load().pins(), 0);
    });
}

pub(super) fn write_against_pin() {
    let way = Way::with_a(false);
    let writer = way.spawn(|way| {
        way.write(A1, true);
    });
    pinned_reads(&way);
    writer.join().unwrap();
    assert_eq!(way.slot().load().pins(), 0);
}

#[test]
fn a_write_never_changes_pinned_bytes_p4_p5_p6() {
    holds(EVERY, write_against_pin);
}

#[test]
fn pins_of_other_threads_do_not_make_a_read_fail_p3_p4_p5() {
    holds(EVERY, || {
        let way = Way::with_a(false);
        let other = way.spawn(|way| {
            for _ in 0..2 {
                way.slot().pin(way.slot().load()).unwrap();
                way.slot().unpin();
            }
        });
        assert_eq!(way.read_a(), Some(A));
        other.join().unwrap();
    });
}

#[test]
fn a_write_back_and_the_announcement_of_a_store_do_not_make_a_read_fail_p3_p8_p10_p11() {
    holds(EVERY, || {
        let way = Way::with_a(true);
        let cleaner = way.spawn(|way| {
            let word = way.slot().load();
            way.slot().begin_writeback(word).unwrap();
            assert!(way.slot().end_writeback(word.version(), true).cleaned);
            way.slot().begin_store(way.slot().load()).unwrap();
        });
        assert_eq!(way.read_a(), Some(A));
        cleaner.join().unwrap();
    });
}

/// Increments the page, waiting for other writers by P12.
fn increment(way: &Way, me: usize) {
    loop {
        let word = way.slot().load();
        match way.slot().begin_write(word) {
            Ok(_) => break,
            Err(now) if now.owned() => way.waiters.wait(me, way.slot(), now),
            Err(_) => {}
        }
    }
    way.frame.fill(way.frame.whole() + 1);
    way.waiters.tell_if(way.slot().end_write(true));
}

#[test]
fn two_writers_of_one_page_take_turns_and_see_each_others_bytes_p6_p7_p12() {
    holds(Some(4), || {
        let way = Way::with_a(false);
        let before = way.slot().load().version();
        let other = way.spawn(|way| increment(way, 1));
        increment(&way, 0);
        other.join().unwrap();
        assert_eq!(way.read_a(), Some(A2));
        assert_eq!(way.slot().load().version(), before + 2);
    });
}

pub(super) fn writeback_against_write() {
    let way = Way::with_a(true);
    let writer = way.spawn(|way| assert!(way.write(A1, true)));
    let word = way.slot().load();
    let mut stored = None;
    if word.state() == State::Dirty && way.slot().begin_writeback(word).is_ok() {
        assert!(
            way.slot().begin_writeback(way.slot().load()).is_err(),
            "two write-backs of a page in flight"
        );
        stored = Some(way.frame.bytes());
        let ended = way.slot().end_writeback(word.version(), true);
        assert!(!ended.waited);
    }
    writer.join().unwrap();
    let word = way.slot().load();
    assert!(!word.writeback());
    if word.state() == State::Clean {
        assert_eq!(stored, Some([A1; 2]), "a page became clean that the store does not hold");
    }
}

#[test]
fn a_page_that_was_written_again_during_its_write_back_stays_dirty_p10_p11() {
    holds(Some(5), writeback_against_write);
}

#[test]
fn a_failed_write_back_leaves_the_page_dirty_and_wakes_its_waiters_p11_p12() {
    holds(EVERY, || {
        let way = Way::with_a(true);
        let word = way.slot().load();
        way.slot().begin_writeback(word).unwrap();
        let waiter = way.spawn(wait_until_quiet::<1>);
        let ended = way.slot().end_writeback(word.version(), false);
        assert!(!ended.cleaned);
        way.waiters.tell_if(ended.waited);
        waiter.join().unwrap();
        assert_eq!(way.slot().load().state(), State::Dirty);
    });
}

#[test]
fn a_held_page_is_not_written_and_is_unchanged_if_the_store_refuses_the_clear_p6_p14() {
    holds(EVERY, || {
        let way = Way::with_a(true);
        let writer = way.spawn(|way| {
            if way.write(A1, true) {
                assert_eq!(way.read_a(), Some(A1));
            }
        });
        let word = way.slot().load();
        if word.state() == State::Dirty && way.slot().hold(word).is_ok() {
            let held = way.frame.whole();
            assert!(way.slot().begin_writeback(way.slot().load()).is_err());
            assert_eq!(way.read_a(), Some(held));
            assert!(!way.slot().let_go());
        }
        writer.join().unwrap();
        let word = way.slot().load();
        assert!(word.state() == State::Dirty && !word.writeback(), "{word:?}");
        assert!(way.read_a().is_some());
    });
}

#[test]
fn a_held_page_that_is_dropped_stays_a_snapshot_for_its_pins_p9_p14() {
    holds(EVERY, || {
        let way = Way::with_a(true);
        way.slot().hold(way.slot().load()).unwrap();
        let reader = way.spawn(|way| {
            let word = way.slot().load();
            if word.held() && way.slot().pin(word).is_ok() {
                assert_eq!(way.frame.whole(), A);
                way.slot().unpin();
            }
        });
        assert!(!way.slot().remove().waited());
        let word = way.slot().load();
        if word.state() == State::Free && way.slot().claim(word, PAGE_B) {
            way.frame.fill(B);
            assert!(!way.slot().publish(false));
        }
        reader.join().unwrap();
        let word = way.slot().load();
        assert!(matches!(word.state(), State::Free | State::Clean) && word.pins() == 0, "{word:?}");
    });
}

#[test]
fn readers_and_pins_keep_the_old_bytes_until_a_store_may_change_them_p8_p9() {
    holds(Some(4), || {
        let way = Way::with_a(false);
        let writer = way.spawn(|way| {
            way.slot().begin_store(way.slot().load()).unwrap();
            if way.slot().store_to_write().is_some() {
                way.frame.fill(A1);
                assert!(!way.slot().end_write(false));
            } else {
                assert!(!way.slot().remove().waited());
            }
        });
        pinned_reads(&way);
        let bytes = way.read_a();
        assert!(bytes.is_none_or(|bytes| bytes == A || bytes == A1));
        writer.join().unwrap();
        let word = way.slot().load();
        assert!(matches!(word.state(), State::Clean | State::Free) && word.pins() == 0);
        assert!(word.state() == State::Free || way.read_a() == Some(A1));
    });
}

/// Three threads.
#[test]
fn of_two_last_unpins_and_a_removal_exactly_one_frees_the_slot_and_no_snapshot_changes_p5_p9() {
    holds(Some(4), || {
        let way = Way::with_a(false);
        let before = way.slot().load();
        way.slot().pin(before).unwrap();
        way.slot().pin(before).unwrap();
        let holders = [0, 1].map(|_| {
            way.spawn(|way| {
                assert_eq!(way.frame.whole(), A);
                way.slot().unpin();
            })
        });
        let removed = way.slot().remove_quiet(way.slot().load(), false);
        assert_eq!(removed.unwrap().state(), State::Clean);
        let word = way.slot().load();
        if word.state() == State::Free && way.slot().claim(word, PAGE_B) {
            way.frame.fill(B);
            assert!(!way.slot().publish(false));
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        let word = way.slot().load();
        let versions = if word.state() == State::Free { 1 } else { 2 };
        assert_eq!((word.pins(), word.version()), (0, before.version() + versions));
        assert!(matches!(word.state(), State::Free | State::Clean), "{word:?}");
    });
}

/// Waits by P12 until the slot is not busy.
fn wait_until_quiet<const ME: usize>(way: &Way) {
    loop {
        let word = way.slot().load();
        if !word.owned() && !word.writeback() {
            return;
        }
        way.waiters.wait(ME, way.slot(), word);
    }
}

/// Brings the slot into a busy state, and ends that state while another thread waits.
fn wait_against(begin: fn(&Way), end: fn(&Way) -> bool) {
    let way = Way::with_a(true);
    begin(&way);
    let waiter = way.spawn(wait_until_quiet::<1>);
    way.waiters.tell_if(end(&way));
    waiter.join().unwrap();
    assert!(!way.slot().load().waited());
}

fn begin_fill(way: &Way) {
    way.slot().remove_quiet(way.slot().load(), true).unwrap();
    assert!(way.slot().claim(way.slot().load(), PAGE_A));
}

fn begin_write(way: &Way) {
    way.slot().begin_write(way.slot().load()).unwrap();
}

fn begin_writeback(way: &Way) {
    way.slot().begin_writeback(way.slot().load()).unwrap();
}

fn begin_store(way: &Way) {
    begin_writeback(way);
    assert!(way.slot().end_writeback(way.slot().load().version(), true).cleaned);
    way.slot().begin_store(way.slot().load()).unwrap();
}

fn end_store(way: &Way) -> bool {
    assert!(way.slot().store_to_write().is_some());
    way.slot().end_write(false)
}

fn pin_and_begin_move(way: &Way) {
    way.slot().pin(way.slot().load()).unwrap();
    way.slot().begin_move(way.slot().load()).unwrap();
}

fn remove_and_unpin(way: &Way) -> bool {
    let waited = remove(way);
    assert!(way.slot().unpin());
    waited
}

fn hold(way: &Way) {
    way.slot().hold(way.slot().load()).unwrap();
}

fn remove(way: &Way) -> bool {
    way.slot().remove().waited()
}

pub(super) fn wait_against_publish() {
    wait_against(begin_fill, |way| way.slot().publish(false));
}

#[test]
fn a_waiter_is_woken_at_the_end_of_every_busy_state_p2_p7_p8_p9_p11_p12_p14() {
    holds(EVERY, wait_against_publish);
    let end_writeback = |way: &Way| way.slot().end_writeback(way.slot().load().version(), true).waited;
    let busy_states: [(_, fn(&Way), fn(&Way) -> bool); 7] = [
        // A fill that fails.
        (EVERY, begin_fill, remove),
        (EVERY, begin_write, |way| way.slot().end_write(true)),
        // A page that leaves a snapshot behind.
        (Some(4), pin_and_begin_move, remove_and_unpin),
        (EVERY, begin_writeback, end_writeback),
        // A store is ended by a write.
        (Some(4), begin_store, end_store),
        (EVERY, hold, |way| way.slot().let_go()),
        (EVERY, hold, remove),
    ];
    for (preemptions_max, begin, end) in busy_states {
        holds(preemptions_max, move || wait_against(begin, end));
    }
}

/// Three threads. The second waiter may find the first one's flag set, and the state may end before
/// its swap. An earlier `wait` relied on the flag in the word that it had loaded, and the second
/// waiter was never woken.
#[test]
fn a_second_waiter_that_finds_the_firsts_flag_is_woken_too_p12() {
    holds(Some(3), || {
        let way = Way::with_a(false);
        begin_write(&way);
        let first = way.spawn(wait_until_quiet::<1>);
        let second = way.spawn(wait_until_quiet::<2>);
        way.waiters.tell_if(way.slot().end_write(true));
        first.join().unwrap();
        second.join().unwrap();
        assert!(!way.slot().load().waited());
    });
}

/// Three threads.
#[test]
fn a_waiter_for_a_write_back_is_woken_although_a_write_overlaps_it_p7_p11_p12() {
    holds(Some(3), || {
        let way = Way::with_a(true);
        let word = way.slot().load();
        way.slot().begin_writeback(word).unwrap();
        let waiter = way.spawn(wait_until_quiet::<1>);
        let writer = way.spawn(|way| assert!(way.write(A1, true)));
        way.waiters.tell_if(way.slot().end_writeback(word.version(), true).waited);
        waiter.join().unwrap();
        writer.join().unwrap();
        let word = way.slot().load();
        assert!(!word.waited() && !word.writeback());
        assert_eq!(word.state(), State::Dirty);
    });
}
