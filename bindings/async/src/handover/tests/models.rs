//! Two tasks and a driver under shuttle, in random schedules and in schedules with few preemptions
//! (PCT): each call runs at most once, no wake-up is lost, nothing is left, and the bytes that a
//! task wrote last stay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

use super::*;
use crate::broken::set;

const TASKS: u32 = 2;

struct Scene {
    handover: Handover<Toy>,
    /// What the changes have written; one byte for each task.
    bytes: Mutex<[u64; TASKS as usize]>,
}

impl Scene {
    /// The driver. Its I/O ends while it sleeps, in any order.
    fn drive(&self) {
        let (mut taken, mut running, mut ended) = (Taken::default(), Vec::new(), Vec::new());
        loop {
            match self.handover.take(&mut taken) {
                Next::Start => running.append(&mut taken.works),
                Next::Sleep if running.is_empty() => {
                    self.handover.bell().wait();
                    self.handover.bell().clear();
                }
                Next::Sleep => {
                    let (ticket, toy) = running.swap_remove(thread_rng().gen_range(0..running.len()));
                    if let Some(byte) = toy.byte {
                        self.bytes.lock().unwrap()[byte as usize] = toy.number;
                    }
                    ended.push((ticket, Ended::Done(toy.number)));
                }
                Next::Finish => return assert!(running.is_empty()),
            }
            taken.notes.clear();
            self.handover.end(&mut ended);
        }
    }

    /// Begins a call and gives it up after `polls` polls, unless it has ended.
    fn give_up(&self, toy: Toy, polls: u32) {
        let ticket = self.handover.add(toy, Waker::noop()).unwrap();
        for _ in 0..polls {
            if self.handover.poll(ticket, &mut Context::from_waker(Waker::noop())).is_ready() {
                return;
            }
            thread::yield_now();
        }
        self.handover.abandon(ticket);
    }

    /// Runs a call to its end. The waker of its first poll wakes nothing.
    fn complete(&self, toy: Toy) {
        let number = toy.number;
        let ticket = self.handover.add(toy, Waker::noop()).unwrap();
        let ended = block_on(std::future::poll_fn(|context| self.handover.poll(ticket, context)));
        assert_eq!(ended, Ended::Done(number));
    }

    fn task(&self, byte: u32) {
        let number = |step| u64::from(byte) * 10 + step;
        self.give_up(change(number(1), byte), byte + 1);
        self.complete(change(number(2), byte));
        self.handover.add_note(number(3));
        self.give_up(read(number(4), 2), byte);
        self.complete(read(number(5), 1));
    }
}

fn scene() {
    // Two reads do not fit beside each other.
    let scene = Arc::new(Scene { handover: handover(2, 2), bytes: Mutex::default() });
    let spawn = |act: Box<dyn FnOnce(&Scene) + Send>| {
        let scene = scene.clone();
        thread::spawn(move || act(&scene))
    };
    let driver = spawn(Box::new(Scene::drive));
    let tasks: Vec<_> = (0..TASKS).map(|byte| spawn(Box::new(move |scene| scene.task(byte)))).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    scene.handover.close();
    driver.join().unwrap();
    assert_eq!(scene.handover.counts(), Counts::default(), "a call was left");
    assert_eq!(*scene.bytes.lock().unwrap(), [2, 12], "a write that was given up came last");
}

fn explore() {
    shuttle::check_random(scene, 10_000);
    shuttle::check_pct(scene, 10_000, 3);
}

// One test, because the process has only one switch.
#[test]
fn calls_end_once_and_are_woken_and_broken_steps_are_noticed_a1_to_a8() {
    explore();
    for step in [
        Step::AddWithoutRing,
        Step::SleepWithoutLook,
        Step::EndWithoutWake,
        Step::PollKeepsWaker,
        Step::AbandonKeepsCall,
        Step::ChangeBesideOrphan,
    ] {
        set(Some(step));
        let result = catch_unwind(AssertUnwindSafe(explore));
        set(None);
        assert!(result.is_err(), "nobody notices {step:?}");
    }
}
