//! The bell that wakes the cleaner. Writers ring it when a page becomes dirty, which wakes the
//! cleaner's lane.
//!
//! Not here: what the cleaner does (`control/cleaner.rs`).

use std::sync::{OnceLock, Weak};

use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence};
use crate::wait::Mailbox;

/// The bell by which writers wake the cleaner.
pub(crate) struct Bell {
    /// Which news the cleaner wants: `ASLEEP`, `RESTING` or `AWAKE`.
    mood: AtomicU32,
    has_rung: AtomicBool,
    cleaner: OnceLock<Weak<Mailbox>>,
}

/// The cleaner knows of no dirty page: ring for the first one.
const ASLEEP: u32 = 0;
/// The cleaner knows of dirty pages and lets them age: ring only for urgent news.
const RESTING: u32 = 1;
/// The cleaner is about to look at the cache anyway, or there is no cleaner: do not ring.
const AWAKE: u32 = 2;

impl Bell {
    /// Creates a bell without a cleaner.
    pub fn new() -> Bell {
        Bell { mood: AtomicU32::new(AWAKE), has_rung: AtomicBool::new(false), cleaner: OnceLock::new() }
    }

    /// Connects the cleaner's mailbox. From now on the bell wakes its owner.
    pub fn connect(&self, cleaner: &Arc<Mailbox>) {
        assert!(self.cleaner.set(Arc::downgrade(cleaner)).is_ok(), "a second cleaner");
        self.mood.store(ASLEEP, Ordering::Relaxed);
    }

    /// Reports that a page became dirty; `urgent` if its partition has many dirty pages. Costs a
    /// fence and a load unless the cleaner must be woken.
    pub fn tell(&self, urgent: bool) {
        // Pairs with the fence in `begin_look`: either this thread sees the cleaner's mood, or the
        // cleaner sees the dirty page.
        fence(Ordering::SeqCst);
        let mood = self.mood.load(Ordering::Relaxed);
        if mood == ASLEEP || mood == RESTING && urgent {
            self.ring();
        }
    }

    /// Wakes the cleaner: it looks at the cache, or notices that the cache was dropped.
    #[cold]
    pub fn ring(&self) {
        self.mood.store(AWAKE, Ordering::Relaxed);
        // Relaxed, like the mood: the fences order what the cleaner must see, and no wake-up is
        // lost.
        self.has_rung.store(true, Ordering::Relaxed);
        if let Some(cleaner) = self.cleaner.get().and_then(Weak::upgrade) {
            cleaner.wake();
        }
    }

    pub fn has_rung(&self) -> bool {
        self.has_rung.load(Ordering::Relaxed)
    }

    /// Called before the cleaner looks at all partitions: every page that becomes dirty from now on
    /// rings the bell. Returns false if the cache is `closed`.
    pub fn begin_look(&self, closed: &AtomicBool) -> bool {
        // First ask for news, then look: the cleaner then misses neither a page that becomes dirty
        // now nor a drop of the cache. The fence pairs with those in `tell` and `close`.
        self.has_rung.store(false, Ordering::Relaxed);
        self.mood.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !closed.load(Ordering::Relaxed)
    }

    /// Marks the cache as `closed` and wakes the cleaner.
    pub fn close(&self, closed: &AtomicBool) {
        closed.store(true, Ordering::Release);
        // Pairs with the fence in `begin_look`: if the cleaner clears `has_rung` after this ring,
        // it sees the flag.
        fence(Ordering::SeqCst);
        self.ring();
    }

    /// Called after a look that found dirty pages: the cleaner will look again without a ring,
    /// immediately if `is_urgent`, else when the pages have aged.
    pub fn rest(&self, is_urgent: bool) {
        self.mood.store(if is_urgent { AWAKE } else { RESTING }, Ordering::Relaxed);
    }
}

#[cfg(all(test, shuttle))]
mod schedules {
    use super::*;

    /// Regression: the cleaner checked the flag first and cleared earlier rings after that. If the
    /// cache was dropped between the two, the drop waited for the cleaner forever.
    #[test]
    fn a_cleaner_that_sleeps_has_not_missed_the_drop_of_its_cache() {
        let scene = || {
            let (bell, closed) = (Arc::new(Bell::new()), Arc::new(AtomicBool::new(false)));
            let cleaner = {
                let (bell, closed) = (bell.clone(), closed.clone());
                shuttle::thread::spawn(move || {
                    // Looks until the cache is closed (false), or until there is no reason to look
                    // again and the cleaner sleeps (true).
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
