//! The buffer share: the part of `memory_max` for buffers, rings and bounce pages, and how much of
//! it is lent to pages while no buffer needs it.
//!
//! `buffers_max` bounds what buffers may take. A cache with a reaper sets only a part of that aside
//! when it is created, and lends the rest to pages:
//!
//! - **L1** Set aside and lent are together `buffers_max`. What is set aside is charged to
//!   `memory_max`; what is lent is charged to the share itself. A charge of a buffer is therefore
//!   still one compare-and-swap, and finds no room in memory that pages have.
//! - **L2** A charge that finds no room takes memory back that no page uses either: what is left of
//!   `memory_max`, such as the part of a segment that no partition has room for. No charge waits.
//! - **L3** If there is none, partitions must shrink (`control/buffers.rs`). Calls that may wait do
//!   that themselves, and charge again, because other charges may take what was freed; others
//!   continue without the memory, and tell the reaper what they wanted ([`Reserve::want`]).
//! - **L4** The reaper lends again what no buffer has needed for [`IDLE_PERIODS`] periods, but
//!   never what was set aside at the beginning. Warm memory of buffers goes back to the kernel
//!   before pages may use its place.
//!
//! Not here: what buffers are (`buffer.rs`, `bounce.rs`), whose pages leave (`control/buffers.rs`).

use super::budget::{Budget, Charge};
use crate::error::Error;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Periods of the reaper for which memory must be idle before pages get it. Buffers whose number
/// rises and falls within seconds then evict no pages every time.
pub(crate) const IDLE_PERIODS: u32 = 10;

/// The share grows and shrinks by at least this many bytes, if they are there: a ring each time
/// would take the lock each time.
const STEP_BYTES: u64 = 128 << 10;

/// How often a charge looks for room again, if other charges take what it has found.
const TRIES: usize = 4;

/// The buffer share; see the module.
pub(crate) struct Reserve {
    share: Arc<Budget>,
    /// Bytes that are always set aside.
    least_bytes: u64,
    division: Mutex<Division>,
    /// Most bytes of one charge that was refused since the reaper looked, and that could not wait.
    wanted_bytes: AtomicU64,
    /// Pages could not leave in time, so until the next period no call tries again.
    is_stuck: AtomicBool,
}

/// Whether a charge has room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is enough now.
    Enough,
    /// This many bytes are lacking, which pages have and could give now.
    Lent(u64),
    /// There is not enough, and pages cannot help before the next period, or at all.
    None,
}

/// What pages have of the share, and what they have not.
struct Division {
    /// Charged to `memory_max`. `None` for a share without a cache, in tests.
    set_aside: Option<Charge>,
    /// Charged to the share. `None` if all is set aside for good.
    lent: Option<Charge>,
    /// Periods since memory was last needed or moved.
    idle_periods: u32,
}

impl Division {
    fn lent_bytes(&self) -> u64 {
        self.lent.as_ref().map_or(0, Charge::bytes)
    }

    /// Sets `bytes` more aside and lends as many less. Returns false if `memory_max` has no room.
    fn take_back(&mut self, bytes: u64) -> bool {
        let (Some(set_aside), Some(lent)) = (&mut self.set_aside, &mut self.lent) else { return false };
        // In this order, so that the bytes are charged to one of both at every moment.
        let taken = set_aside.resize(set_aside.bytes() + bytes, "buffers").is_ok();
        taken && lent.resize(lent.bytes() - bytes, "pages").is_ok()
    }
}

impl Reserve {
    /// Sets `least_bytes` of a share of `max_bytes` aside from the budget of the cache.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the budget has no room for the whole share.
    pub fn new(cache: &Arc<Budget>, max_bytes: u64, least_bytes: u64) -> Result<Arc<Reserve>, Error> {
        let mut set_aside = cache.charge(max_bytes, "the reserve for buffers")?;
        set_aside.resize(least_bytes, "the reserve for buffers")?;
        let reserve = Reserve::of(max_bytes, least_bytes);
        let lent = reserve.share.charge(max_bytes - least_bytes, "pages")?;
        reserve.share.forget_peak();
        *lock(&reserve.division) = Division { set_aside: Some(set_aside), lent: Some(lent), idle_periods: 0 };
        Ok(reserve)
    }

    /// A share of its own, of which nothing is lent.
    #[cfg(all(test, not(shuttle)))]
    pub fn whole(max_bytes: u64) -> Arc<Reserve> {
        Reserve::of(max_bytes, max_bytes)
    }

    fn of(max_bytes: u64, least_bytes: u64) -> Arc<Reserve> {
        Arc::new(Reserve {
            share: Budget::new("buffers_max", max_bytes),
            least_bytes,
            division: Mutex::new(Division { set_aside: None, lent: None, idle_periods: 0 }),
            wanted_bytes: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
        })
    }

    /// `buffers_max`.
    pub fn max_bytes(&self) -> u64 {
        self.share.max_bytes()
    }

    /// Bytes that buffers, rings and bounce pages take.
    pub fn used_bytes(&self) -> u64 {
        // Under the lock, what is lent does not change.
        let division = lock(&self.division);
        self.share.used_bytes() - division.lent_bytes()
    }

    /// Bytes of the share that are in use or lent.
    pub fn taken_bytes(&self) -> u64 {
        self.share.used_bytes()
    }

    /// Bytes that are charged to `memory_max` for the share.
    pub fn set_aside_bytes(&self) -> u64 {
        self.max_bytes() - lock(&self.division).lent_bytes()
    }

    /// Takes `bytes`, if there is room (L2).
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn charge(&self, bytes: u64, what: &str) -> Result<Charge, Error> {
        let mut charged = self.share.charge(bytes, what);
        for _ in 0..TRIES {
            if charged.is_ok() || !self.take_back(bytes) {
                break;
            }
            charged = self.share.charge(bytes, what);
        }
        charged
    }

    /// Returns bytes whose charge was [kept](Charge::keep).
    pub fn uncharge(&self, bytes: u64) {
        self.share.uncharge(bytes);
    }

    /// L2: makes room for a charge of `bytes` from memory that no page uses. Returns whether there
    /// is room.
    pub fn take_back(&self, bytes: u64) -> bool {
        let mut division = lock(&self.division);
        let short = bytes.saturating_sub(self.share.left_bytes());
        let lent = division.lent_bytes();
        if short == 0 || short > lent {
            return short == 0;
        }
        let steps = short.next_multiple_of(STEP_BYTES).min(lent);
        let taken = division.take_back(steps) || division.take_back(short);
        if taken {
            division.idle_periods = 0;
            self.share.forget_peak();
        }
        taken
    }

    /// Returns whether a charge of `bytes` has room, and what pages could do about it if not.
    pub fn room(&self, bytes: u64) -> Room {
        let division = lock(&self.division);
        let short = bytes.saturating_sub(self.share.left_bytes());
        // Relaxed: a hint.
        match short {
            0 => Room::Enough,
            _ if self.is_stuck.load(Ordering::Relaxed) || short > division.lent_bytes() => Room::None,
            _ => Room::Lent(short),
        }
    }

    /// Notes that pages cannot make room before the next period.
    pub fn set_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// L3: notes what a call that cannot wait was refused.
    pub fn want(&self, bytes: u64) {
        self.wanted_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns what was wanted since the last call.
    pub fn take_wanted(&self) -> u64 {
        // Most calls find nothing, and then write nothing.
        if self.wanted_bytes.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.wanted_bytes.swap(0, Ordering::Relaxed)
    }

    /// L4: ends a period, and lends what was idle for long enough. `fit` gives warm memory back to
    /// the kernel that does not fit beside everything in use or lent.
    pub fn end_period(&self, fit: impl FnOnce()) {
        self.is_stuck.store(false, Ordering::Relaxed);
        let Some(idle) = self.begin_lending() else { return };
        // The bytes are charged twice now. Warm memory leaves before pages may take its place.
        fit();
        let mut division = lock(&self.division);
        let set_aside = division.set_aside.as_mut().expect("a share that lends");
        // A smaller charge is never refused.
        let _ = set_aside.resize(set_aside.bytes() - idle, "buffers");
    }

    /// Charges memory to the share that was idle for long enough. Returns the bytes, if any.
    fn begin_lending(&self) -> Option<u64> {
        let mut division = lock(&self.division);
        division.idle_periods += 1;
        if division.idle_periods < IDLE_PERIODS {
            return None;
        }
        division.idle_periods = 0;
        let idle = self.max_bytes() - self.share.peak_bytes();
        let set_aside = self.max_bytes() - division.lent_bytes();
        let idle = idle.min(set_aside.saturating_sub(self.least_bytes));
        let lent = division.lent.as_mut()?;
        let lends = idle >= STEP_BYTES && lent.resize(lent.bytes() + idle, "pages").is_ok();
        self.share.forget_peak();
        lends.then_some(idle)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_random::Random;

    use super::*;
    use crate::memory::BufferPool;

    const MIB: u64 = 1 << 20;

    /// A cache of 16 MiB with a share of 4 MiB, half a MiB of it set aside.
    fn lending() -> (Arc<Budget>, Arc<Reserve>, Arc<BufferPool>) {
        let cache = Budget::new("memory_max", 16 * MIB);
        let reserve = Reserve::new(&cache, 4 * MIB, MIB / 2).unwrap();
        let buffers = BufferPool::new(reserve.clone());
        (cache, reserve, buffers)
    }

    /// L1: whatever buffers and pages take and return, what is set aside is charged to the cache,
    /// covers what buffers use, and is never less than at the beginning. A charge is refused only
    /// where neither the share nor the cache has room.
    #[test]
    fn what_is_set_aside_covers_what_buffers_use() {
        let (cache, reserve, buffers) = lending();
        let mut random = Random::new(18);
        let (mut pages, mut held): (Vec<Charge>, Vec<Charge>) = (Vec::new(), Vec::new());
        for step in 0..20_000 {
            let bytes = 1 + random.below(MIB / 2);
            match random.below(8) {
                0 | 1 => pages.extend(cache.charge(4 * bytes, "pages")),
                2 if !pages.is_empty() => drop(pages.swap_remove(random.below(pages.len() as u64) as usize)),
                3 | 4 => {
                    let left = reserve.max_bytes() - reserve.used_bytes();
                    let free = cache.left_bytes() + reserve.set_aside_bytes() - reserve.used_bytes();
                    let charge = reserve.charge(bytes, "a buffer");
                    assert_eq!(charge.is_ok(), bytes <= left.min(free), "step {step}");
                    held.extend(charge);
                }
                5 | 6 if !held.is_empty() => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
                _ => reserve.end_period(|| buffers.fit()),
            }
            let set_aside = reserve.set_aside_bytes();
            let (of_pages, used) = (pages.iter().map(Charge::bytes).sum::<u64>(), reserve.used_bytes());
            assert_eq!(used, held.iter().map(Charge::bytes).sum::<u64>(), "step {step}");
            assert_eq!(cache.used_bytes(), of_pages + set_aside, "step {step}");
            assert!((MIB / 2..=4 * MIB).contains(&set_aside) && used <= set_aside, "step {step}");
        }
    }

    #[test]
    fn idle_memory_is_lent_after_some_periods_and_peaks_count() {
        let (cache, reserve, buffers) = lending();
        let charge = reserve.charge(3 * MIB, "a buffer").unwrap();
        assert_eq!(reserve.set_aside_bytes(), 3 * MIB);
        (0..4 * IDLE_PERIODS).for_each(|_| reserve.end_period(|| buffers.fit()));
        assert_eq!(reserve.set_aside_bytes(), 3 * MIB, "in use");
        drop(charge);
        // Used for a moment only, and between two periods.
        for _ in 0..4 * IDLE_PERIODS {
            drop(reserve.charge(2 * MIB, "a buffer").unwrap());
            reserve.end_period(|| buffers.fit());
        }
        assert_eq!(reserve.set_aside_bytes(), 2 * MIB, "the peak");
        (0..2 * IDLE_PERIODS).for_each(|_| reserve.end_period(|| buffers.fit()));
        assert_eq!((reserve.set_aside_bytes(), cache.used_bytes()), (MIB / 2, MIB / 2));
    }

    /// Warm memory of buffers is not charged. Lending must not leave it resident, or the process
    /// would have more than `memory_max`.
    #[test]
    fn warm_buffers_leave_before_their_memory_is_lent() {
        let (_cache, reserve, buffers) = lending();
        drop(buffers.borrow(3 << 20).unwrap());
        assert_eq!(buffers.warm_bytes(), 3 * MIB);
        (0..2 * IDLE_PERIODS).for_each(|_| reserve.end_period(|| buffers.fit()));
        assert_eq!(reserve.set_aside_bytes(), MIB / 2);
        assert!(buffers.warm_bytes() <= MIB / 2, "{}", buffers.warm_bytes());
    }

    #[test]
    fn what_pages_cannot_give_is_not_asked_for_twice_in_a_period() {
        let (cache, reserve, buffers) = lending();
        let _pages = cache.charge(cache.left_bytes(), "pages").unwrap();
        assert!(reserve.charge(MIB, "a buffer").is_err());
        assert_eq!(reserve.room(MIB), Room::Lent(MIB / 2));
        assert_eq!((reserve.room(MIB / 2), reserve.room(5 * MIB)), (Room::Enough, Room::None));
        reserve.set_stuck();
        assert_eq!((reserve.room(MIB), reserve.room(MIB / 2)), (Room::None, Room::Enough));
        reserve.end_period(|| buffers.fit());
        assert_eq!(reserve.room(MIB), Room::Lent(MIB / 2));
        reserve.want(7);
        reserve.want(5);
        assert_eq!((reserve.take_wanted(), reserve.take_wanted()), (7, 0));
    }
}
