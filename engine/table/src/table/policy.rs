//! The policy that a table follows, what it learns, and the monitor that estimates its misses at
//! other sizes.

use std::sync::atomic::Ordering;

use super::Table;
use crate::learning::learner::{Learned, Learner};
use crate::learning::monitor::{MissCurve, Monitor};
use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{Policy, PolicyKind, with_policy};

impl<const W: usize> Table<W> {
    /// Creates what a policy needs besides the sets. It stays allocated, and idle, while another
    /// policy is followed.
    pub(crate) fn prepare(&self, policy: PolicyKind) {
        if with_policy!(policy, P => P::LEARNS) {
            self.learner.get_or_init(|| Learner::new(self.slots_count(), W));
        }
        if with_policy!(policy, P => P::BALANCES) {
            self.balance.get_or_init(|| Balance::new(self.slots_count()));
        }
        // Relaxed, as the policy itself: a thread that still follows the old policy makes worse
        // guesses for a moment.
        self.counts_hits.store(with_policy!(policy, P => P::COUNTS_HITS), Ordering::Relaxed);
        self.tell_capacity();
    }

    /// Returns whether the policy must see every hit.
    pub(crate) fn counts_hits(&self) -> bool {
        self.counts_hits.load(Ordering::Relaxed)
    }

    /// Returns the policy that the sets follow.
    #[inline(always)]
    pub fn policy(&self) -> PolicyKind {
        PolicyKind::ALL[self.policy.load(Ordering::Relaxed) as usize]
    }

    /// Stores the policy that the sets follow from now on.
    pub(crate) fn follow(&self, policy: PolicyKind) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Starts the monitor, which estimates the misses at sizes up to `most_pages` pages with at
    /// most `bytes_max` bytes of memory. Returns the bytes that it uses; 0 if `bytes_max` is too
    /// small for a useful estimate, and no monitor was started.
    pub fn watch(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, false)
    }

    /// Starts the monitor as [`Table::watch`] does, for a table that one thread at a time uses. The
    /// estimate does not depend on which thread that is.
    pub fn watch_alone(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, true)
    }

    fn begin_watch(&self, most_pages: u64, bytes_max: u64, alone: bool) -> u64 {
        let monitor = Monitor::new(self.policy(), most_pages, bytes_max, W, alone);
        monitor.map_or(0, |monitor| self.monitor.get_or_init(|| monitor).bytes())
    }

    /// Returns the monitor, if one was started.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.monitor.get()
    }

    /// Runs the accesses that the monitor has recorded through its miniatures. Returns their
    /// number.
    pub fn drain_monitor(&self) -> u64 {
        self.monitor().map_or(0, |monitor| monitor.drain(self.lead()))
    }

    /// Returns the current miss curve, if there is a monitor.
    pub fn miss_curve(&self) -> Option<MissCurve> {
        self.monitor().map(Monitor::curve)
    }

    /// Returns whether the table has a learner, active or idle.
    pub fn has_learner(&self) -> bool {
        self.learner.get().is_some()
    }

    /// Returns the learner, if the table has one.
    pub(crate) fn learner(&self) -> Option<&Learner> {
        self.learner.get()
    }

    /// Returns the order and the densities that victims are chosen by, if the table has a learner.
    pub(crate) fn lead(&self) -> Option<&Lead> {
        self.learner().map(Learner::lead)
    }

    /// Returns the balance that the sets share, if their policy balances.
    pub(crate) fn balance(&self) -> Option<&Balance> {
        self.balance.get()
    }

    /// Passes the number of slots to the learner and to the balance.
    pub(crate) fn tell_capacity(&self) {
        if let Some(learner) = self.learner() {
            learner.set_capacity(self.slots_count());
        }
        if let Some(balance) = self.balance() {
            balance.set_capacity(self.slots_count());
        }
    }

    /// Returns the bytes that the policy's learner uses besides the table's memory, for a table of
    /// `slots` slots.
    pub fn learning_bytes(policy: PolicyKind, slots: u64) -> usize {
        if with_policy!(policy, P => P::LEARNS) { Learner::bytes(slots, W) } else { 0 }
    }

    /// Returns what the policy has learned, if it learns.
    pub fn learned(&self) -> Option<Learned> {
        self.learner().filter(|_| with_policy!(self.policy(), P => P::LEARNS)).map(Learner::learned)
    }

    /// Continues with what another table's policy has learned, if the own policy learns.
    pub fn adopt_learned(&self, learned: &Learned) {
        if let Some(learner) = self.learner() {
            learner.adopt(learned);
        }
    }

    /// Returns the maximum number of ghosts: 0 if the policy has none.
    pub fn remembered_slots(&self) -> u64 {
        let of_a_set = with_policy!(self.policy(), P => <P as Policy>::ghosts_max(W));
        self.slots_count() / W as u64 * of_a_set as u64
    }
}
