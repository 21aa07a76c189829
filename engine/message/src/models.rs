//! loom models of M1 to M5: two or three threads, in all interleavings with a few preemptions. Each
//! model also runs with a step left out, and must then fail.

use loom::sync::Notify;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use crate::broken::{Step, set};
use crate::{Exchange, Received, Sent};

/// Models of the whole protocol hold this lock shared, models with a broken step exclusively,
/// because the process has only one switch.
static SWITCH: RwLock<()> = RwLock::new(());

fn explore(preemptions_max: Option<usize>, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions_max;
    builder.check(model);
}

fn holds(preemptions_max: Option<usize>, model: fn()) {
    let _shared = SWITCH.read().unwrap_or_else(PoisonError::into_inner);
    explore(preemptions_max, model);
}

fn fails_without(step: Step, model: fn()) {
    let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
    set(Some(step));
    let result = catch_unwind(AssertUnwindSafe(|| explore(Some(3), model)));
    set(None);
    assert!(result.is_err(), "no model notices {step:?}");
}

/// What became of messages: each must be done exactly once.
struct Done([AtomicUsize; 6]);

impl Done {
    fn new() -> Done {
        Done(std::array::from_fn(|_| AtomicUsize::new(0)))
    }

    fn mark(&self, message: usize) {
        assert_eq!(self.0[message].fetch_add(1, Ordering::Relaxed), 0, "message {message} was handled twice");
    }

    fn all(&self, count: usize) {
        (0..count).for_each(|n| assert_eq!(self.0[n].load(Ordering::Relaxed), 1, "message {n}"));
    }
}

/// Sends as the engine does: the sender handles a refused message itself, and empties the queue of
/// an orphaned one.
fn send(exchange: &Exchange<usize>, (from, to): (usize, usize), message: usize, done: &Done) -> Option<u32> {
    match exchange.send(from, to, message) {
        Sent::Delivered(sleeper) => return sleeper,
        Sent::Refused(message) => done.mark(message),
        Sent::Orphaned => {
            while let Some(message) = exchange.receive(to, 0) {
                done.mark(message);
            }
        }
    }
    None
}

/// M1 to M3: two senders and a receiver that takes at most one message. The end takes the others.
fn two_senders_and_a_receiver() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new()));
    let senders = [0, 1].map(|number| {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done) = &*shared;
            send(exchange, (0, 1), number, done);
        })
    });
    let (exchange, done) = &*shared;
    exchange.receive(1, 0).into_iter().for_each(|message| done.mark(message));
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    while let Some(message) = exchange.receive(1, 0) {
        done.mark(message);
    }
    done.all(2);
}

/// M2, M3 over several rounds: a sender writes a place again that its receiver may still read.
fn a_queue_that_goes_round() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new()));
    let receiver = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done) = &*shared;
            (0..2).filter_map(|_| exchange.receive(1, 0)).for_each(|message| done.mark(message));
        })
    };
    let (exchange, done) = &*shared;
    (0..4).for_each(|message| _ = send(exchange, (0, 1), message, done));
    receiver.join().unwrap();
    while let Some(message) = exchange.receive(1, 0) {
        done.mark(message);
    }
    done.all(4);
}

/// Two nodes send to each other through full queues: each handles its own refused message, receives
/// one from the other, and none waits.
fn both_ways_full() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new()));
    {
        let (exchange, done) = &*shared;
        (0..2).for_each(|message| _ = send(exchange, (0, 1), message, done));
        (2..4).for_each(|message| _ = send(exchange, (1, 0), message, done));
    }
    let act = |node: usize, message: usize| {
        let shared = shared.clone();
        move || {
            let (exchange, done) = &*shared;
            send(exchange, (node, 1 - node), message, done);
            exchange.receive(node, 0).into_iter().for_each(|message| done.mark(message));
        }
    };
    let other = thread::spawn(act(1, 5));
    act(0, 4)();
    other.join().unwrap();
    let (exchange, done) = &*shared;
    for node in [0, 1] {
        while let Some(message) = exchange.receive(node, 0) {
            done.mark(message);
        }
    }
    done.all(6);
}

/// M4: a receiver sleeps until its message arrives. A lost wake-up ends the model as a deadlock.
fn a_receiver_that_sleeps() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new(), Notify::new()));
    let receiver = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done, bed) = &*shared;
            loop {
                if let Some(message) = exchange.receive(1, 0) {
                    return done.mark(message);
                }
                if exchange.drowse(1, 0) {
                    bed.wait();
                    exchange.wake_up(1, 0);
                }
            }
        })
    };
    let (exchange, done, bed) = &*shared;
    if send(exchange, (0, 1), 0, done).is_some() {
        bed.notify();
    }
    receiver.join().unwrap();
    done.all(1);
}

/// M5: a message that is sent while the exchange closes is handled once.
fn a_closing() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new()));
    let sender = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done) = &*shared;
            send(exchange, (0, 1), 0, done);
        })
    };
    let (exchange, done) = &*shared;
    exchange.close();
    while let Some(message) = exchange.receive(1, 0) {
        done.mark(message);
    }
    sender.join().unwrap();
    done.all(1);
}

/// M5: a receiver ends when the exchange closes, while a message is sent.
fn a_receiver_that_goes() {
    let shared = Arc::new((Exchange::new(2, 2), Done::new()));
    let sender = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done) = &*shared;
            send(exchange, (0, 1), 0, done);
        })
    };
    let receiver = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (exchange, done) = &*shared;
            loop {
                match exchange.take(1, 0) {
                    Received::Message(message) => done.mark(message),
                    Received::Nothing => thread::yield_now(),
                    Received::Closed => return,
                }
            }
        })
    };
    let (exchange, done) = &*shared;
    exchange.close();
    sender.join().unwrap();
    receiver.join().unwrap();
    done.all(1);
}

#[test]
fn every_message_is_received_once_m1_to_m3() {
    holds(None, two_senders_and_a_receiver);
    holds(Some(3), a_queue_that_goes_round);
}

#[test]
fn full_queues_in_both_directions_block_no_thread_m2() {
    holds(Some(3), both_ways_full);
}

#[test]
fn no_wake_up_is_lost_m4() {
    holds(None, a_receiver_that_sleeps);
}

#[test]
fn no_message_is_left_in_a_closed_exchange_m5() {
    holds(None, a_closing);
    holds(Some(3), a_receiver_that_goes);
}

#[test]
fn publishing_without_release_is_noticed_m2() {
    fails_without(Step::PublishRelaxed, two_senders_and_a_receiver);
}

#[test]
fn freeing_without_release_is_noticed_m3() {
    fails_without(Step::FreeRelaxed, a_queue_that_goes_round);
}

#[test]
fn sending_into_a_full_queue_is_noticed_m2() {
    fails_without(Step::SendIntoFull, both_ways_full);
}

#[test]
fn sending_without_a_fence_is_noticed_m4() {
    fails_without(Step::SendWithoutFence, a_receiver_that_sleeps);
}

#[test]
fn sleeping_without_a_second_look_is_noticed_m4() {
    fails_without(Step::SleepWithoutLook, a_receiver_that_sleeps);
}

#[test]
fn sending_without_a_look_at_the_flag_is_noticed_m5() {
    fails_without(Step::SendIgnoresClosing, a_closing);
}

#[test]
fn looking_at_the_queues_before_the_flag_is_noticed_m5() {
    fails_without(Step::LookBeforeClosing, a_receiver_that_goes);
}
