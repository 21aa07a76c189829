//! [`Ring`]: a bounded queue for many senders and many receivers (Dmitry Vyukov's). Each place has
//! its own turn (sequence number), so neither side waits for the other's counter.
//!
//! The ring protects each place: only the sender that took the place writes it, and only the
//! receiver that took it reads it (M2, M3 in `lib.rs`). A place fills whole cache lines, so
//! neighbouring places do not contend.

use std::mem::MaybeUninit;

use crate::broken::{Step, is};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// A value in a cache line of its own.
#[repr(align(64))]
struct Line<T>(T);

/// One place of the queue. It has a new number in each round of the ring. The place is free if
/// `turn` equals its number in the current round, and full if `turn` is that number plus one.
#[repr(align(64))]
struct Place<T> {
    turn: AtomicUsize,
    message: UnsafeCell<MaybeUninit<T>>,
}

pub(crate) struct Ring<T> {
    places: Box<[Place<T>]>,
    /// The number of the next place to write, counted over all rounds.
    tail: Line<AtomicUsize>,
    /// The number of the next place to read, counted over all rounds.
    head: Line<AtomicUsize>,
}

// SAFETY: a message moves from one thread to another and is never shared.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; the protocol decides which thread may access a place (M2, M3).
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    pub fn new(capacity: usize) -> Ring<T> {
        // With one place, its "full" turn in one round would equal its "free" turn in the next.
        assert!(
            capacity.is_power_of_two() && capacity >= 2,
            "a queue has a power of two of places, at least 2, and not {capacity}"
        );
        let place =
            |turn| Place { turn: AtomicUsize::new(turn), message: UnsafeCell::new(MaybeUninit::uninit()) };
        Ring {
            places: (0..capacity).map(place).collect(),
            tail: Line(AtomicUsize::new(0)),
            head: Line(AtomicUsize::new(0)),
        }
    }

    fn place(&self, number: usize) -> &Place<T> {
        &self.places[number & (self.places.len() - 1)]
    }

    /// Adds a message (M2). Returns it if the queue is full.
    pub fn push(&self, message: T) -> Result<(), T> {
        let mut number = self.tail.0.load(Ordering::Relaxed);
        // Repeats only if another sender took the place.
        loop {
            let place = self.place(number);
            // Acquire: pairs with `pop`, which has taken the place's previous message.
            let turn = place.turn.load(Ordering::Acquire);
            let is_free = turn == number || is(Step::SendIntoFull);
            if !is_free && turn.wrapping_sub(number) as isize >= 0 {
                number = self.tail.0.load(Ordering::Relaxed);
                continue;
            }
            if !is_free {
                return Err(message);
            }
            // Relaxed, both: the place's turn orders everything.
            let next = number.wrapping_add(1);
            match self.tail.0.compare_exchange_weak(number, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: the place is free in this round, and the swap gave it to this thread
                    // alone (M2).
                    place.message.with_mut(|at| unsafe { (*at).write(message) });
                    let release =
                        if is(Step::PublishRelaxed) { Ordering::Relaxed } else { Ordering::Release };
                    // Release: pairs with `pop`.
                    place.turn.store(next, release);
                    return Ok(());
                }
                Err(now) => number = now,
            }
        }
    }

    /// Takes the first message, if there is one (M3).
    pub fn pop(&self) -> Option<T> {
        let mut number = self.head.0.load(Ordering::Relaxed);
        // Repeats only if another receiver took the place.
        loop {
            let place = self.place(number);
            // Acquire: pairs with `push`.
            let turn = place.turn.load(Ordering::Acquire);
            let next = number.wrapping_add(1);
            if turn != next {
                if (turn.wrapping_sub(next) as isize) < 0 {
                    return None;
                }
                number = self.head.0.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed, both: as in `push`.
            match self.head.0.compare_exchange_weak(number, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: the place is full in this round, and the swap gave it to this thread
                    // alone (M3).
                    let message = place.message.with_mut(|at| unsafe { at.cast::<T>().read() });
                    let release = if is(Step::FreeRelaxed) { Ordering::Relaxed } else { Ordering::Release };
                    // Release: pairs with `push` in the next round.
                    place.turn.store(number.wrapping_add(self.places.len()), release);
                    return Some(message);
                }
                Err(now) => number = now,
            }
        }
    }

    /// Returns whether the next place to read holds no message.
    pub fn is_empty(&self) -> bool {
        let number = self.head.0.load(Ordering::Relaxed);
        // Relaxed: a hint. Where the answer matters, the fences of M4 order it.
        self.place(number).turn.load(Ordering::Relaxed) != number.wrapping_add(1)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // While a model checker unwinds its threads, it allows no accesses.
        if cfg!(any(loom, shuttle)) && std::thread::panicking() {
            return;
        }
        while self.pop().is_some() {}
    }
}
