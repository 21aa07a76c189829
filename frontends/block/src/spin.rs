//! [`Spin`]: a short busy wait before a sleep, for a client that sends its next request as soon as
//! it has a reply.
//!
//! Waking a sleeping thread on another processor takes longer than serving a resident page; in a
//! virtual machine, several times as long. A busy wait is worth its CPU time only while it succeeds
//! and no other thread needs the processor:
//!
//! - A wait spins for at most [`SPIN_MAX`].
//! - Each failure doubles the number of following waits that sleep at once, up to [`SKIPPED_MAX`].
//!   Each success halves it.
//! - Being preempted counts as a failure: another thread, perhaps the client, needed the processor.
//! - At most half of the processors spin at a time, and none if there is only one.
//!
//! An idle connection therefore spins once and then sleeps.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The longest busy wait: enough for a client to wake up and process a reply of 64 KiB.
pub const SPIN_MAX: Duration = Duration::from_micros(100);

/// The longest time between two looks. If more time has passed, the thread was preempted. A look
/// takes about 1 µs.
pub const GAP_MAX: Duration = Duration::from_micros(40);

/// The most waits that sleep at once after a failure.
pub const SKIPPED_MAX: u32 = 1023;

/// The number of threads of this process that spin now. Relaxed: only the count matters.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// The most threads that may spin at a time: half of the processors that the process may use.
static SPINNING_MAX: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(0, |processors| processors.get() / 2));

/// Decides whether the waits of one connection spin.
#[derive(Default)]
pub struct Spin {
    /// The number of following waits that sleep at once.
    skipped: u32,
    /// The value that the last failure gave `skipped`, halved by each success since.
    penalty: u32,
}

impl Spin {
    /// Calls `look` repeatedly until it finds something. Returns None if the caller should sleep.
    pub fn wait<T>(&mut self, clock: impl Fn() -> Instant, look: impl FnMut() -> Option<T>) -> Option<T> {
        let _place = Place::take()?;
        self.spin(clock, look)
    }

    fn spin<T>(&mut self, clock: impl Fn() -> Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return None;
        }
        let begun = clock();
        let mut last = begun;
        loop {
            let found = look();
            let now = clock();
            let preempted = now.saturating_duration_since(last) > GAP_MAX;
            if found.is_some() && !preempted {
                self.penalty /= 2;
            } else if preempted || now.saturating_duration_since(begun) >= SPIN_MAX {
                self.penalty = (2 * self.penalty + 1).min(SKIPPED_MAX);
                self.skipped = self.penalty;
                return found;
            }
            if found.is_some() {
                return found;
            }
            last = now;
            std::hint::spin_loop();
        }
    }
}

/// Calls `look` until it finds something or `time` has passed, without yielding the processor.
pub fn look_for<T>(
    time: Duration,
    clock: impl Fn() -> Instant,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let begun = clock();
    loop {
        let found = look();
        if found.is_some() || clock().saturating_duration_since(begun) >= time {
            return found;
        }
        std::hint::spin_loop();
    }
}

/// The right to spin, held while a wait spins.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let taken = SPINNING.fetch_update(Relaxed, Relaxed, |now| (now < *SPINNING_MAX).then_some(now + 1));
        taken.is_ok().then(|| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A clock that the test advances, and a count of the looks.
    struct Bench {
        start: Instant,
        elapsed: Cell<Duration>,
        looks: Cell<u32>,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { start: Instant::now(), elapsed: Cell::default(), looks: Cell::default() }
        }

        /// Runs a wait whose looks take `look` each. Look number `found` finds something.
        fn wait(&self, spin: &mut Spin, look: Duration, found: Option<u32>) -> Option<u32> {
            self.looks.set(0);
            let clock = || self.start + self.elapsed.get();
            spin.spin(clock, || {
                self.elapsed.set(self.elapsed.get() + look);
                self.looks.set(self.looks.get() + 1);
                found.filter(|found| *found == self.looks.get())
            })
        }
    }

    const LOOK: Duration = Duration::from_micros(1);

    #[test]
    fn waits_continue_to_spin_while_they_succeed() {
        let (bench, mut spin) = (Bench::new(), Spin::default());
        for _ in 0..1000 {
            assert_eq!(bench.wait(&mut spin, LOOK, Some(30)), Some(30));
        }
    }

    #[test]
    fn spins_that_find_nothing_become_rare() {
        let (bench, mut spin) = (Bench::new(), Spin::default());
        let (mut spins, mut looks) = (0, 0);
        for _ in 0..100_000 {
            assert_eq!(bench.wait(&mut spin, LOOK, None), None);
            spins += u32::from(bench.looks.get() > 0);
            looks += bench.looks.get();
        }
        assert!(spins < 120, "{spins} spins of 100,000 waits");
        assert!(looks <= spins * SPIN_MAX.as_micros() as u32);
    }

    /// The spin kept the processor from the client; without it the request would have come sooner.
    #[test]
    fn a_preempted_spin_counts_as_a_failure_even_if_it_finds_something() {
        let (bench, mut spin) = (Bench::new(), Spin::default());
        assert_eq!(bench.wait(&mut spin, 2 * GAP_MAX, Some(1)), Some(1));
        assert_eq!(bench.wait(&mut spin, LOOK, Some(1)), None);
        assert_eq!(bench.looks.get(), 0, "the next wait sleeps at once");
        assert_eq!(bench.wait(&mut spin, LOOK, Some(1)), Some(1), "the wait after that spins again");
    }
}
