//! The hand-over by itself: step by step here, and in random schedules in `models.rs`.

#[cfg(shuttle)]
mod models;

use super::*;

/// Work with a number, that may change one byte.
#[derive(Debug, PartialEq)]
struct Toy {
    number: u64,
    memory_bytes: u64,
    byte: Option<u32>,
}

#[derive(Debug, PartialEq)]
enum Ended {
    Done(u64),
    Refused(u64),
}

impl Overlap for u32 {
    fn overlaps(&self, other: &u32) -> bool {
        self == other
    }
}

impl Work for Toy {
    type Outcome = Ended;
    type Note = u64;
    type Bytes = u32;

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn changes(&self) -> Option<u32> {
        self.byte
    }

    fn refused(self) -> Ended {
        Ended::Refused(self.number)
    }
}

fn read(number: u64, memory_bytes: u64) -> Toy {
    Toy { number, memory_bytes, byte: None }
}

fn change(number: u64, byte: u32) -> Toy {
    Toy { number, memory_bytes: 0, byte: Some(byte) }
}

fn handover(calls: usize, memory_bytes: u64) -> Handover<Toy> {
    Handover::new(Bell::new().unwrap(), Limits { calls, memory_bytes })
}

/// The tests without threads, which need no model checker.
#[cfg(not(shuttle))]
mod steps {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    fn add(handover: &Handover<Toy>, toy: Toy) -> Ticket {
        handover.add(toy, Waker::noop()).unwrap()
    }

    /// The numbers of the works that the driver takes.
    fn take(handover: &Handover<Toy>) -> Vec<u64> {
        let mut taken = Taken::default();
        handover.take(&mut taken);
        taken.works.iter().map(|(_, toy)| toy.number).collect()
    }

    fn end(handover: &Handover<Toy>, ticket: Ticket, number: u64) {
        handover.end(&mut vec![(ticket, Ended::Done(number))]);
    }

    fn poll(handover: &Handover<Toy>, ticket: Ticket) -> Poll<Ended> {
        handover.poll(ticket, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn calls_run_in_the_order_of_their_arrival_within_the_limits() {
        let handover = handover(3, 100);
        let tickets: Vec<_> =
            [60, 60, 10, 0, 0].iter().zip(1..).map(|(bytes, n)| add(&handover, read(n, *bytes))).collect();
        // The second does not fit beside the first, and the third does not overtake it.
        assert_eq!(take(&handover), [1]);
        assert_eq!(take(&handover), []);
        end(&handover, tickets[0], 1);
        assert_eq!(take(&handover), [2, 3, 4]);
        assert_eq!(poll(&handover, tickets[0]), Poll::Ready(Ended::Done(1)));
        end(&handover, tickets[2], 3);
        assert_eq!(take(&handover), [5]);
    }

    #[test]
    fn a_call_that_blocks_others_lets_them_run_when_it_is_dropped_a6() {
        let handover = handover(3, 100);
        add(&handover, read(1, 60));
        assert_eq!(take(&handover), [1]);
        let large = add(&handover, read(2, 60));
        add(&handover, read(3, 10));
        assert_eq!(take(&handover), []);
        handover.abandon(large);
        handover.bell().clear();
        assert_eq!(take(&handover), [3]);
    }

    #[test]
    fn a_change_waits_for_the_dropped_change_of_the_same_bytes_a7() {
        let handover = handover(9, 100);
        let old = add(&handover, change(1, 7));
        assert_eq!(take(&handover), [1]);
        assert!(!handover.has_orphan_changes());
        handover.abandon(old);
        assert!(handover.has_orphan_changes());
        let new = add(&handover, change(2, 7));
        add(&handover, change(3, 8));
        add(&handover, read(4, 1));
        let given_up = add(&handover, change(5, 7));
        assert_eq!(take(&handover), [3, 4]);
        assert_eq!(take(&handover), []);
        handover.abandon(given_up);
        end(&handover, old, 1);
        assert!(!handover.has_orphan_changes());
        assert_eq!(take(&handover), [2]);
        end(&handover, new, 2);
        assert_eq!(poll(&handover, new), Poll::Ready(Ended::Done(2)));
    }

    #[test]
    fn nothing_is_left_of_a_dropped_call_at_any_stage_a6() {
        let handover = handover(2, 100);
        let tickets: Vec<_> = (0..4).map(|number| add(&handover, read(number, 1))).collect();
        assert_eq!(take(&handover), [0, 1]);
        end(&handover, tickets[0], 0);
        tickets.iter().for_each(|ticket| handover.abandon(*ticket));
        assert_eq!(handover.counts(), Counts { orphans: 1, ..Counts::default() });
        end(&handover, tickets[1], 1);
        assert_eq!(handover.counts(), Counts::default());
        assert_eq!(take(&handover), []);
    }

    #[test]
    fn a_closed_driver_refuses_what_waits_and_ends_what_runs_a8() {
        let handover = handover(1, 100);
        let tickets: Vec<_> = (0..2).map(|number| add(&handover, read(number, 1))).collect();
        assert_eq!(take(&handover), [0]);
        handover.close();
        assert_eq!(poll(&handover, tickets[1]), Poll::Ready(Ended::Refused(1)));
        assert_eq!(handover.add(read(2, 1), Waker::noop()), Err(Ended::Refused(2)));
        assert_eq!(handover.take(&mut Taken::default()), Next::Sleep);
        end(&handover, tickets[0], 0);
        assert_eq!(poll(&handover, tickets[0]), Poll::Ready(Ended::Done(0)));
        assert_eq!(handover.take(&mut Taken::default()), Next::Finish);
    }

    #[test]
    fn notes_beyond_the_most_are_dropped() {
        let handover = handover(1, 1);
        (0..100).for_each(|note| handover.add_note(note));
        let mut taken = Taken::default();
        assert_eq!(handover.take(&mut taken), Next::Start);
        assert_eq!(taken.notes, (0..NOTES_MAX as u64).collect::<Vec<_>>());
    }

    /// Counts wakes, then panics.
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
            panic!("an executor that panics");
        }
    }

    #[test]
    fn a_panic_of_one_executor_does_not_keep_others_asleep() {
        let handover = handover(2, 100);
        let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
        let waker = Waker::from(wakes.clone());
        let tickets: Vec<_> = (0..2).map(|n| handover.add(read(n, 1), &waker).unwrap()).collect();
        assert_eq!(take(&handover), [0, 1]);
        handover.end(&mut tickets.iter().map(|ticket| (*ticket, Ended::Done(*ticket))).collect());
        assert_eq!(wakes.0.load(Relaxed), 2);
    }
}
