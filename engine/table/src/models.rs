//! loom models of the protocols (P1 to P14 in `slot`, R1 to R6 in `resize`, T1 to T11 in `twin`):
//! they explore every interleaving of a few threads, with every value that a relaxed load may
//! return.
//!
//! Each model is a function, so that it can run twice: with the whole protocol it must hold; with
//! one step broken (`broken`) it must fail. A model that cannot fail proves nothing.
//!
//! `EVERY` means every interleaving. Models with too many interleavings have a limit on
//! preemptions: a step of the protocol has at most four accesses, so no more preemptions are needed
//! for all interactions of two threads between two of them. Not here: long runs with many threads
//! (see `schedules`), and the lock (see `lock`).

mod away;
mod slot;
mod switch;
mod table;
mod twin;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use std::sync::{Arc, PoisonError, RwLock};

use crate::word::slot::{OneWay, Slot, Word};
use crate::{Claim, Mover, PolicyKind, SetGuard, Shape, SlotIndex, Table, Tag};

/// Models of the whole protocol hold this lock shared; models of a broken protocol hold it
/// exclusively, because the switch is global.
static SWITCH: RwLock<()> = RwLock::new(());

/// No bound on preemptions.
const EVERY: Option<usize> = None;

/// Runs a model in all interleavings, or in those with at most `preemptions_max` preemptions.
fn explore(preemptions_max: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions_max;
    // Each run builds and searches a table. These are thousands of accesses, few of which can be
    // ordered differently.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Asserts that a model holds.
fn holds(preemptions_max: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let _shared = SWITCH.read().unwrap_or_else(PoisonError::into_inner);
    explore(preemptions_max, model);
}

/// The state that the threads of a model share.
trait Scene {
    type Shared;

    /// Runs a thread of the model.
    fn spawn(&self, run: impl FnOnce(&Self::Shared) + 'static) -> JoinHandle<()>;
}

impl<T: 'static> Scene for Arc<T> {
    type Shared = T;

    fn spawn(&self, run: impl FnOnce(&T) + 'static) -> JoinHandle<()> {
        let shared = Arc::clone(self);
        thread::spawn(move || run(&shared))
    }
}

/// The bytes of a frame: two words, each of which names its page and the write that put it there.
struct Frame([AtomicU64; 2]);

impl Frame {
    fn new(value: u64) -> Frame {
        Frame([AtomicU64::new(value), AtomicU64::new(value)])
    }

    fn fill(&self, value: u64) {
        self.put([value; 2]);
    }

    /// Relaxed: the models check that the slot's word orders these accesses.
    fn put(&self, bytes: [u64; 2]) {
        self.0.iter().zip(bytes).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Relaxed: as `put`.
    fn bytes(&self) -> [u64; 2] {
        [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
    }

    /// Reads the bytes, then calls `is_good`. If they are the page's, returns the value, which both
    /// words must hold.
    fn believed(&self, is_good: impl FnOnce() -> bool) -> Option<u64> {
        let bytes = self.bytes();
        is_good().then(|| whole(bytes))
    }

    /// Copies the bytes of another frame, then calls `is_good`. If they were the page's, returns
    /// the value.
    fn copied_from(&self, other: &Frame, is_good: impl FnOnce() -> bool) -> Option<u64> {
        let copied = other.bytes();
        self.put(copied);
        is_good().then(|| whole(copied))
    }

    /// Returns the one value that both words hold.
    fn whole(&self) -> u64 {
        whole(self.bytes())
    }
}

/// Returns the one value that both words hold.
fn whole([first, second]: [u64; 2]) -> u64 {
    assert_eq!(first, second, "a torn page was believed");
    first
}

/// P3 step by step: returns the page's bytes, or `None` if the slot did not hold the page in a
/// readable state all the time.
fn read_by_word(slot: Slot<'_>, frame: &Frame, tag: crate::Tag) -> Option<u64> {
    let word = slot.load();
    let is_here = word.readable() && slot.tag() == tag;
    is_here.then(|| frame.believed(|| slot.unchanged(word))).flatten()
}

/// P13 step by step, likewise.
fn read(way: &OneWay, frame: &Frame, tag: crate::Tag) -> Option<u64> {
    let shown = way.shown();
    let is_here = shown.has(0) && way.slot().tag() == tag;
    is_here.then(|| frame.believed(|| way.holds(shown))).flatten()
}

/// Returns a slot that holds the page, clean or dirty, unpinned.
fn way_with(tag: crate::Tag, dirty: bool) -> OneWay {
    let way = OneWay::new();
    let slot = way.slot();
    assert!(slot.claim(slot.load(), tag));
    assert!(!slot.publish(dirty));
    way
}

/// The registrations of waiters (P12), as in the engine: plain memory, accesses to which the slot's
/// word must order.
struct Waiters {
    registered: [AtomicBool; 3],
    bells: [Notify; 3],
}

impl Waiters {
    fn new() -> Waiters {
        Waiters {
            registered: std::array::from_fn(|_| AtomicBool::new(false)),
            bells: std::array::from_fn(|_| Notify::new()),
        }
    }

    /// P12: sleeps until the busy state `seen` may have ended. A lost wake-up ends the model as a
    /// deadlock.
    fn wait(&self, me: usize, slot: Slot<'_>, seen: Word) {
        // Relaxed: ordered by the swap of `Slot::wait`.
        self.registered[me].store(true, Ordering::Relaxed);
        if slot.wait(seen).is_ok() {
            self.bells[me].wait();
        }
    }

    /// Wakes the waiters; call it when the end of a busy state returned true.
    fn tell(&self) {
        let registered =
            || self.registered.iter().zip(&self.bells).filter(|(r, _)| r.load(Ordering::Relaxed));
        assert!(registered().count() > 0, "a flag without a registration to be seen");
        registered().for_each(|(_, bell)| bell.notify());
    }

    fn tell_if(&self, waited: bool) {
        if waited {
            self.tell();
        }
    }
}

/// A table whose segments are one set of two ways, with frames and waiters.
struct Cache {
    table: Table<2>,
    frames: Vec<Frame>,
    /// By slot.
    waiters: Vec<Waiters>,
    fills: AtomicU64,
}

impl Mover for &Cache {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        self.frame(to).fill(self.frame(from).whole());
    }

    fn wake(&mut self, slot: SlotIndex) {
        self.waiters[slot.0 as usize].tell();
    }
}

impl Cache {
    fn new(segments_max: u32, nodes: u32, segments: u32) -> Arc<Cache> {
        let shape = Shape { segments_max, sets_per_segment: 1 };
        Arc::new(Cache {
            table: Table::spread(shape, nodes, PolicyKind::Fifo, segments),
            frames: (0..2 * segments_max).map(|_| Frame::new(0)).collect(),
            waiters: (0..2 * segments_max).map(|_| Waiters::new()).collect(),
            fills: AtomicU64::new(0),
        })
    }

    fn frame(&self, slot: SlotIndex) -> &Frame {
        &self.frames[slot.0 as usize]
    }

    fn tell_if(&self, slot: SlotIndex, waited: bool) {
        self.waiters[slot.0 as usize].tell_if(waited);
    }

    /// P1, P2: brings a page in that is not resident.
    fn claim_and_fill(&self, mut guard: SetGuard<'_, 2>, tag: Tag, bytes: u64, dirty: bool) -> SlotIndex {
        let Claim::Claimed { slot, .. } = guard.claim(tag) else { panic!("there is room") };
        drop(guard);
        // T7, for a page that is written and not read.
        if dirty && self.table.nodes() > 1 {
            self.table.overtake(tag, self.table.slot(slot).load().twins());
        }
        self.frame(slot).fill(bytes);
        self.tell_if(slot, self.table.publish(slot, dirty));
        slot
    }

    fn fill(&self, tag: Tag, bytes: u64, dirty: bool) {
        self.claim_and_fill(self.table.lock(tag), tag, bytes, dirty);
    }
}
