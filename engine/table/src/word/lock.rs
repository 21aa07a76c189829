//! The short lock of a set: four bytes that live in the set's own lines.
//!
//! The lock protects the state of one set that fills, evictions and resizes change together: which
//! ways are claimed, the policy's state, the ghosts. Hits never take it. A thread holds it for the
//! duration of a few cache misses and never across I/O, so a contender first spins briefly and then
//! sleeps in the kernel.
//!
//! Not here: fairness, poisoning (a panic under the lock unlocks it; the caller is responsible for
//! the invariants of the set), recursion and timeouts.
//!
//! # Protocol
//!
//! The word is 0 (free), 1 (held) or 2 (held, and a thread may sleep): the third mutex of Drepper,
//! "Futexes Are Tricky". Zeroed memory is a free lock.
//!
//! * **L1** Only the thread that takes the lock moves the word from 0 to 1 or 2, with Acquire. It
//!   pairs with L2 of the previous holder, whose writes are therefore visible.
//! * **L2** Only the holder puts the word back to 0, with Release, by a swap that returns the
//!   replaced value (1 or 2).
//! * **L3** A thread sleeps only after it swapped 2 into the word and the swap returned a value
//!   other than 0, and the kernel lets it sleep only while the word is still 2. From that swap on
//!   the word is 2 until the next unlock, which therefore replaces a 2. If the unlock comes before
//!   the sleep, the kernel refuses the sleep.
//! * **L4** An unlock that replaced 2 wakes one sleeper. A thread that has contended takes the lock
//!   by writing 2, not 1, because it cannot know whether others sleep. So its unlock wakes the next
//!   sleeper, and no wake-up is lost. The price is one needless system call after the last sleeper.
//! * **L5** The memory of a lock goes back to the kernel only when no thread holds or awaits the
//!   lock: a sleeper would see the zero page and never be woken. The thread that empties a segment
//!   makes sure that no thread can reach it any more.
//! * **L6** The wake-up of L4 uses only the address of the lock, and does not access its memory. It
//!   may therefore come after L5. Then it wakes no thread, or one that finds the word not free and
//!   sleeps again.
//!
//! The futexes are private to the process. A table in shared memory would need shared futexes.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::spin_loop;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_AWAITED: u32 = 2;

/// Maximum number of pauses before a contender sleeps. A pause is 40 to 140 cycles on current x86:
/// 63 of them last about as long as the sleep and the wake-up that they may save. Under loom the
/// maximum is 0, because every pause multiplies the schedules to visit.
const PAUSES_MAX: u32 = if cfg!(loom) { 0 } else { 63 };

/// A mutex in four bytes; all-zero memory is a free one.
///
/// ```ignore
/// let lock = SetLock::default();
/// let guard = lock.lock();
/// assert!(lock.try_lock().is_none());
/// drop(guard);
/// assert!(lock.try_lock().is_some());
/// ```
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SetLock(AtomicU32);

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<SetLock>() == 4 && align_of::<SetLock>() == 4);

/// Holds the lock until it is dropped.
#[derive(Debug)]
#[must_use = "the lock is free again when the guard is dropped"]
pub struct SetLockGuard<'a> {
    lock: &'a SetLock,
}

impl SetLock {
    /// Takes the lock. Waits while another thread holds it; by contract no thread holds it across
    /// I/O.
    #[inline]
    pub fn lock(&self) -> SetLockGuard<'_> {
        if !self.take_free() {
            self.lock_contended();
        }
        SetLockGuard { lock: self }
    }

    /// Takes the lock if it is free.
    #[cfg(test)]
    #[inline]
    pub fn try_lock(&self) -> Option<SetLockGuard<'_>> {
        self.take_free().then(|| SetLockGuard { lock: self })
    }

    #[inline]
    fn take_free(&self) -> bool {
        // Acquire: L1, pairs with `unlock`. Relaxed on failure: nothing is read under a lock that
        // was not taken.
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_contended(&self) {
        // 1. Spin, each time twice as long, while the lock is held and no thread sleeps. If a
        //   thread sleeps, the holder is slow or has lost its core: spinning does not pay.
        let mut pauses = 1;
        while pauses <= PAUSES_MAX {
            for _ in 0..pauses {
                spin_loop();
            }
            pauses *= 2;
            // Relaxed: a hint. The compare-and-exchange, which does the ordering, is tried only if
            // it is likely to succeed, because it takes the cache line from other threads.
            match self.0.load(Ordering::Relaxed) {
                FREE if self.take_free() => return,
                HELD_AND_AWAITED => break,
                _ => {}
            }
        }
        // 2. Sleep. Every iteration but the first follows a wake-up (L4), a refused sleep (L3), or
        //   a spurious wake-up. Acquire: L1, pairs with `unlock`.
        while self.0.swap(HELD_AND_AWAITED, Ordering::Acquire) != FREE {
            park(&self.0);
        }
    }

    #[inline]
    fn unlock(&self) {
        // Release: L2, pairs with `take_free` and `lock_contended`.
        if self.0.swap(FREE, Ordering::Release) == HELD_AND_AWAITED {
            unpark_one(&self.0);
        }
    }
}

impl Drop for SetLockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// Sleeps until woken, but only while the word is `HELD_AND_AWAITED` (L3). May return spuriously.
#[cfg(all(target_os = "linux", not(any(miri, loom, shuttle))))]
fn park(word: &AtomicU32) {
    // SAFETY: FUTEX_WAIT reads four aligned bytes at the address, which the reference keeps valid,
    // and it reads them atomically. No timeout is passed. An error (EINTR, or EAGAIN as the word
    // has changed) is a reason to look again, which the caller does.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            HELD_AND_AWAITED,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

#[cfg(all(target_os = "linux", not(any(miri, loom, shuttle))))]
#[cold]
fn unpark_one(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address as a name and accesses no memory there (L6).
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// The model checkers and miri have no sleep that depends on a word. A sleep may return spuriously,
/// so a yield is a valid one.
#[cfg(not(all(target_os = "linux", not(any(miri, loom, shuttle)))))]
fn park(_word: &AtomicU32) {
    crate::sync::yield_now();
}

#[cfg(not(all(target_os = "linux", not(any(miri, loom, shuttle)))))]
fn unpark_one(_word: &AtomicU32) {}

/// A counter that is safe to use from several threads only because of the lock, and threads that
/// add to it.
#[cfg(test)]
mod counter {
    use super::*;
    #[cfg(loom)]
    use loom::{cell::UnsafeCell, sync::Arc, thread};
    #[cfg(shuttle)]
    use shuttle::{sync::Arc, thread};
    #[cfg(not(loom))]
    use std::cell::UnsafeCell;
    #[cfg(not(any(loom, shuttle)))]
    use std::{sync::Arc, thread};

    struct Counter {
        lock: SetLock,
        value: UnsafeCell<u64>,
    }

    // SAFETY: `value` is accessed under `lock` only.
    unsafe impl Sync for Counter {}
    // SAFETY: it owns nothing that is bound to a thread.
    unsafe impl Send for Counter {}

    impl Counter {
        /// Call it with the lock held. loom's cell fails the model if two accesses are not ordered
        /// by the lock.
        fn add(&self, addition: u64) -> u64 {
            #[cfg(loom)]
            let value = self.value.get_mut();
            // SAFETY: the guard excludes all other accesses (L1, L2), which loom verifies.
            #[cfg(loom)]
            let value = unsafe { value.deref() };
            // SAFETY: the guard excludes all other accesses (L1, L2).
            #[cfg(not(loom))]
            let value = unsafe { &mut *self.value.get() };
            let before = *value;
            // shuttle switches threads only at its own operations.
            #[cfg(shuttle)]
            crate::sync::yield_now();
            *value = before + addition;
            *value
        }
    }

    fn new() -> Arc<Counter> {
        Arc::new(Counter { lock: SetLock::default(), value: UnsafeCell::new(0) })
    }

    fn add_under_the_lock(counter: &Counter, additions: u64) {
        for _ in 0..additions {
            let _guard = counter.lock.lock();
            counter.add(1);
        }
    }

    /// Asserts that `threads` threads, this one included, lose no addition.
    fn add_in_threads(threads: u64, additions: u64) {
        let counter = new();
        let spawn = |_| {
            let counter = Arc::clone(&counter);
            thread::spawn(move || add_under_the_lock(&counter, additions))
        };
        let others: Vec<_> = (1..threads).map(spawn).collect();
        add_under_the_lock(&counter, additions);
        others.into_iter().for_each(|thread| thread.join().expect("a thread panicked"));
        let _guard = counter.lock.try_lock().expect("all have unlocked");
        assert_eq!(counter.add(0), threads * additions);
    }

    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn four_threads_that_add_under_the_lock_lose_no_addition() {
        add_in_threads(4, if cfg!(miri) { 50 } else { 100_000 });
    }

    /// L1 and L2.
    #[cfg(loom)]
    #[test]
    fn two_threads_exclude_each_other_in_every_interleaving() {
        loom::model(|| add_in_threads(2, 1));
    }

    #[cfg(loom)]
    #[test]
    fn a_try_lock_never_succeeds_while_another_thread_holds_the_lock() {
        loom::model(|| {
            let counter = new();
            let other = Arc::clone(&counter);
            let thread = thread::spawn(move || add_under_the_lock(&other, 1));
            if let Some(_guard) = counter.lock.try_lock() {
                counter.add(0);
            }
            thread.join().expect("the other thread panicked");
        });
    }

    /// L1 to L4 under random schedules, with more threads than loom can enumerate.
    #[cfg(shuttle)]
    #[test]
    fn three_threads_that_add_under_the_lock_lose_no_addition() {
        shuttle::check_random(|| add_in_threads(3, 3), 2_000);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_held_lock_is_not_taken_and_a_dropped_guard_frees_it() {
        let lock = SetLock::default();
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        let guard = lock.try_lock();
        assert!(guard.is_some());
        assert!(lock.try_lock().is_none());
    }

    #[test]
    fn a_panic_under_the_lock_frees_it() {
        let lock = SetLock::default();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("this panic is part of the test");
        }));
        assert!(result.is_err());
        assert!(lock.try_lock().is_some());
    }

    /// L3 and L4: several sleepers, one unlock by the first holder, and each sleeper gets the lock.
    #[test]
    fn each_unlock_wakes_the_next_sleeper_until_all_have_run() {
        const SLEEPERS: usize = 4;
        let lock = SetLock::default();
        let start = Barrier::new(SLEEPERS + 1);
        let (done, dones) = mpsc::channel();
        std::thread::scope(|scope| {
            let guard = lock.lock();
            for _ in 0..SLEEPERS {
                let done = done.clone();
                let (lock, start) = (&lock, &start);
                scope.spawn(move || {
                    start.wait();
                    drop(lock.lock());
                    done.send(()).expect("the receiver lives as long as the scope");
                });
            }
            start.wait();
            // Long enough for all sleepers to sleep. If one does not yet, the test is weaker but
            // still correct.
            std::thread::sleep(Duration::from_millis(50));
            assert!(dones.try_recv().is_err());
            drop(guard);
            for _ in 0..SLEEPERS {
                dones.recv_timeout(Duration::from_secs(20)).expect("a sleeper was not woken");
            }
        });
        assert_eq!(lock.0.load(Ordering::Relaxed), FREE);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_thread_that_waits_long_uses_no_cpu() {
        fn thread_cpu_time() -> Duration {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` is a valid place for the result.
            let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
            assert_eq!(result, 0);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        }
        let lock = SetLock::default();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            let guard = lock.lock();
            let waiter = scope.spawn(|| {
                start.wait();
                let before = thread_cpu_time();
                drop(lock.lock());
                thread_cpu_time() - before
            });
            start.wait();
            std::thread::sleep(Duration::from_millis(300));
            drop(guard);
            let used = waiter.join().expect("the waiter panicked");
            assert!(used < Duration::from_millis(30), "the waiter used {used:?} of CPU in 300 ms");
        });
    }
}
