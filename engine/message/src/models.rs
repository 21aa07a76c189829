//! loom models of M1 to M5: two or three threads, in all interleavings with a few preemptions. Each
//! model also runs with a step left out, and must then fail.

use loom::sync::Notify;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use crate::broken::{Step, set};
use crate::{Exchange, Received, Sent};

/// Models of the whole protocol hold this lock shared; models with a broken step hold it
/// exclusively, because the process has only one switch.
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

/// The shared state of a model: which messages were handled, each of which must be handled exactly
/// once, and the place where one receiver sleeps.
struct Scene {
    exchange: Exchange<usize>,
    done: [AtomicUsize; 6],
    bed: Notify,
}

impl Scene {
    /// Creates two nodes with queues of two messages.
    fn new() -> Arc<Scene> {
        let done = std::array::from_fn(|_| AtomicUsize::new(0));
        Arc::new(Scene { exchange: Exchange::new(2, 2), done, bed: Notify::new() })
    }

    fn spawn(self: &Arc<Scene>, run: impl FnOnce(&Scene) + 'static) -> thread::JoinHandle<()> {
        let scene = self.clone();
        thread::spawn(move || run(&scene))
    }

    fn mark(&self, message: usize) {
        assert_eq!(
            self.done[message].fetch_add(1, Ordering::Relaxed),
            0,
            "message {message} was handled twice"
        );
    }

    /// Sends as the engine does: the sender handles a refused message itself, and empties the queue
    /// of an orphaned one.
    fn send(&self, from: usize, to: usize, message: usize) -> Option<u32> {
        match self.exchange.send(from, to, message) {
            Sent::Delivered(sleeper) => return sleeper,
            Sent::Refused(message) => self.mark(message),
            Sent::Orphaned => self.empty(to),
        }
        None
    }

    /// Handles a message to a node, if there is one.
    fn receive(&self, to: usize) -> bool {
        let message = self.exchange.receive(to, 0);
        message.inspect(|message| self.mark(*message)).is_some()
    }

    fn empty(&self, to: usize) {
        while self.receive(to) {}
    }

    /// Asserts that the first `count` messages were handled.
    fn handled(&self, count: usize) {
        (0..count).for_each(|n| assert_eq!(self.done[n].load(Ordering::Relaxed), 1, "message {n}"));
    }
}

/// M1 to M3: two senders and a receiver that takes at most one message. The other messages are
/// taken at the end.
fn two_senders_and_a_receiver() {
    let scene = Scene::new();
    let senders = [0, 1].map(|number| scene.spawn(move |scene| _ = scene.send(0, 1, number)));
    scene.receive(1);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    scene.empty(1);
    scene.handled(2);
}

/// M2, M3 over several rounds: a sender reuses a place that a receiver may still be reading.
fn a_queue_that_goes_round() {
    let scene = Scene::new();
    let receiver = scene.spawn(|scene| (0..2).for_each(|_| _ = scene.receive(1)));
    (0..4).for_each(|message| _ = scene.send(0, 1, message));
    receiver.join().unwrap();
    scene.empty(1);
    scene.handled(4);
}

/// Two nodes send to each other through full queues: each handles its own refused message, receives
/// one from the other, and none waits.
fn both_ways_full() {
    let scene = Scene::new();
    (0..2).for_each(|message| _ = scene.send(0, 1, message));
    (2..4).for_each(|message| _ = scene.send(1, 0, message));
    let act = |scene: &Scene, node: usize, message: usize| {
        scene.send(node, 1 - node, message);
        scene.receive(node);
    };
    let other = scene.spawn(move |scene| act(scene, 1, 5));
    act(&scene, 0, 4);
    other.join().unwrap();
    (0..2).for_each(|node| scene.empty(node));
    scene.handled(6);
}

/// M4: a receiver sleeps until its message arrives. A lost wake-up ends the model as a deadlock.
fn a_receiver_that_sleeps() {
    let scene = Scene::new();
    let receiver = scene.spawn(|scene| {
        while !scene.receive(1) {
            if scene.exchange.drowse(1, 0) {
                scene.bed.wait();
                scene.exchange.wake_up(1, 0);
            }
        }
    });
    if scene.send(0, 1, 0).is_some() {
        scene.bed.notify();
    }
    receiver.join().unwrap();
    scene.handled(1);
}

/// M5: a message that is sent while the exchange closes is handled once.
fn a_closing() {
    let scene = Scene::new();
    let sender = scene.spawn(|scene| _ = scene.send(0, 1, 0));
    scene.exchange.close();
    scene.empty(1);
    sender.join().unwrap();
    scene.handled(1);
}

/// M5: a receiver ends when the exchange closes, while a message is sent.
fn a_receiver_that_goes() {
    let scene = Scene::new();
    let sender = scene.spawn(|scene| _ = scene.send(0, 1, 0));
    let receiver = scene.spawn(|scene| {
        loop {
            match scene.exchange.take(1, 0) {
                Received::Message(message) => scene.mark(message),
                Received::Nothing => thread::yield_now(),
                Received::Closed => return,
            }
        }
    });
    scene.exchange.close();
    sender.join().unwrap();
    receiver.join().unwrap();
    scene.handled(1);
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

/// The steps, as `broken` explains them, each with the model that must notice its absence.
const MODELS: [(Step, fn()); 7] = [
    (Step::PublishRelaxed, two_senders_and_a_receiver),
    (Step::FreeRelaxed, a_queue_that_goes_round),
    (Step::SendIntoFull, both_ways_full),
    (Step::SendWithoutFence, a_receiver_that_sleeps),
    (Step::SleepWithoutLook, a_receiver_that_sleeps),
    (Step::SendIgnoresClosing, a_closing),
    (Step::LookBeforeClosing, a_receiver_that_goes),
];

#[test]
fn every_step_that_is_left_out_is_noticed_m2_to_m5() {
    for (step, model) in MODELS {
        let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
        set(Some(step));
        let result = catch_unwind(AssertUnwindSafe(|| explore(Some(3), model)));
        set(None);
        assert!(result.is_err(), "no model notices {step:?}");
    }
}
