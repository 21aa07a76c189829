//! A short busy wait before a sleep, for a client that sends its next request as soon as it has a
//! reply.
//!
//! To wake a sleeping thread on another processor takes longer than to serve a resident page, in a
//! virtual machine several times as long. Such a wait is worth its processor time only while it
//! succeeds and nobody else wants the processor:
//!
//! - it ends after [`SPIN_MAX`];
//! - each failure doubles the number of waits that sleep at once, up to [`SKIPPED_MAX`]; each
//!   success halves it;
//! - being preempted counts as a failure: another thread wanted the processor, perhaps the client;
//! - at most half of the processors spin at a time, none where there is only one.
//!
//! An idle connection therefore spins once and then sleeps.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The longest busy wait: a client's wake-up, and its work on a reply of 64 KiB.
pub const SPIN_MAX: Duration = Duration::from_micros(100);

/// Time between two looks after which the thread must have been preempted; a look takes about a
/// microsecond.
pub const GAP_MAX: Duration = Duration::from_micros(40);

/// Waits that sleep at once after the last of many failures.
pub const SKIPPED_MAX: u32 = 1023;

/// Threads of this process that spin now. Relaxed: only the count matters.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// How many may: half of the processors that the process was given.
static SPINNING_MAX: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(0, |processors| processors.get() / 2));

/// Whether the waits of one connection spin.
#[derive(Default)]
pub struct Spin {
    /// Waits that sleep at once, from now.
    skipped: u32,
    /// What the last failure set `skipped` to, halved by each success since.
    penalty: u32,
}

impl Spin {
    /// Looks again and again until `look` finds something. None: sleep.
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

/// One of the processors that may spin.
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

    /// A clock that a test turns, and the looks that were taken.
    struct Bench {
        start: Instant,
        elapsed: Cell<Duration>,
        looks: Cell<u32>,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { start: Instant::now(), elapsed: Cell::default(), looks: Cell::default() }
        }

        /// A wait whose looks take `look` each; look number `found` finds something.
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
    fn a_spin_finds_what_comes_in_time_and_goes_on_spinning() {
        let (bench, mut spin) = (Bench::new(), Spin::default());
        for _ in 0..1000 {
            assert_eq!(bench.wait(&mut spin, LOOK, Some(30)), Some(30));
        }
    }

    #[test]
    fn a_spin_that_finds_nothing_ends_and_becomes_rare() {
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

    /// The client's reply would have come at once, had the spin not kept the processor from the
    /// client.
    #[test]
    fn a_preempted_spin_counts_as_a_failure_even_if_it_finds_something() {
        let (bench, mut spin) = (Bench::new(), Spin::default());
        assert_eq!(bench.wait(&mut spin, 2 * GAP_MAX, Some(1)), Some(1));
        assert_eq!(bench.wait(&mut spin, LOOK, Some(1)), None);
        assert_eq!(bench.looks.get(), 0, "the next wait sleeps at once");
        assert_eq!(bench.wait(&mut spin, LOOK, Some(1)), Some(1), "the one after tries again");
    }
}
