//! The bell that wakes the cleaner: writers ring it when a page becomes dirty, the cleaner's
//! lane hears it.
//!
//! Not here: what the cleaner does (`control/cleaner.rs`).

use std::sync::{OnceLock, Weak};

use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence};
use crate::wait::Mailbox;

/// Tells the cleaner about dirty pages.
pub(crate) struct Bell {
    /// Which news the cleaner wants: `ASLEEP`, `RESTING` or `AWAKE`.
    mood: AtomicU32,
    has_rung: AtomicBool,
    cleaner: OnceLock<Weak<Mailbox>>,
}

/// The cleaner knows of no dirty page and wants to hear of the first.
const ASLEEP: u32 = 0;
/// The cleaner knows of dirty pages and lets them age. It wants urgent news only.
const RESTING: u32 = 1;
/// The cleaner looks by itself, or there is no cleaner. It wants no news.
const AWAKE: u32 = 2;

impl Bell {
    /// Creates a bell without a cleaner: nobody hears it.
    pub fn new() -> Bell {
        Bell { mood: AtomicU32::new(AWAKE), has_rung: AtomicBool::new(false), cleaner: OnceLock::new() }
    }

    /// Connects the cleaner's mailbox, which hears the bell from now on.
    pub fn connect(&self, cleaner: &Arc<Mailbox>) {
        assert!(self.cleaner.set(Arc::downgrade(cleaner)).is_ok(), "a second cleaner");
        self.mood.store(ASLEEP, Ordering::Relaxed);
    }

    /// Reports that a page became dirty; `urgent` if a partition has many. Costs one load while
    /// the cleaner wants no news.
    pub fn tell(&self, urgent: bool) {
        // Pairs with the fence in `begin_look`: this thread sees the cleaner's mood, or the cleaner
        // sees the dirty page.
        fence(Ordering::SeqCst);
        let mood = self.mood.load(Ordering::Relaxed);
        if mood == ASLEEP || mood == RESTING && urgent {
            self.ring();
        }
    }

    /// Makes the cleaner look at the cache, or notice that the cache is gone.
    #[cold]
    pub fn ring(&self) {
        self.mood.store(AWAKE, Ordering::Relaxed);
        // Relaxed, as the mood: the fences order what the cleaner must see, and a wake is never
        // lost.
        self.has_rung.store(true, Ordering::Relaxed);
        if let Some(cleaner) = self.cleaner.get().and_then(Weak::upgrade) {
            cleaner.wake();
        }
    }

    pub fn has_rung(&self) -> bool {
        self.has_rung.load(Ordering::Relaxed)
    }

    /// Begins a look at all partitions: asks for news of every later dirty page. Returns false if
    /// the cache is `closed`.
    pub fn begin_look(&self, closed: &AtomicBool) -> bool {
        // News first, then the look: no page that becomes dirty now is missed, and no drop of the
        // cache. The fence pairs with those in `tell` and `close`.
        self.has_rung.store(false, Ordering::Relaxed);
        self.mood.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !closed.load(Ordering::Relaxed)
    }

    /// Marks the cache as `closed` and wakes the cleaner.
    pub fn close(&self, closed: &AtomicBool) {
        closed.store(true, Ordering::Release);
        // Pairs with the fence in `begin_look`: if the cleaner forgets the ring, it sees the flag.
        fence(Ordering::SeqCst);
        self.ring();
    }

    /// Ends a look that found dirty pages: the cleaner looks again by itself, immediately if
    /// `is_urgent`, else when the pages have aged.
    pub fn rest(&self, is_urgent: bool) {
        self.mood.store(if is_urgent { AWAKE } else { RESTING }, Ordering::Relaxed);
    }
}

#[cfg(all(test, shuttle))]
mod schedules {
    use super::*;

    /// The cleaner once looked at the flag first and forgot earlier rings then. A drop of the cache
    /// between the two waited for the cleaner for ever.
    #[test]
    fn a_cleaner_that_sleeps_has_not_missed_the_drop_of_its_cache() {
        let scene = || {
            let (bell, closed) = (Arc::new(Bell::new()), Arc::new(AtomicBool::new(false)));
            let cleaner = {
                let (bell, closed) = (bell.clone(), closed.clone());
                shuttle::thread::spawn(move || {
                    // Looks until it sees the end, or finds no reason to look again and sleeps.
                    while bell.begin_look(&closed) {
                        bell.rest(false);
                        if !bell.has_rung() {
                            return true;
                        }
                    }
                    false
                })
            };
            bell.close(&closed);
            let sleeps = cleaner.join().unwrap();
            assert!(!sleeps || bell.has_rung(), "nothing wakes the cleaner");
        };
        shuttle::check_random(scene, 2000);
        shuttle::check_pct(scene, 2000, 3);
    }
}
