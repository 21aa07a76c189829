//! The policy that a table follows, the state that the policy has learned, and the monitor, which
//! estimates the table's misses at other sizes.

use std::sync::atomic::Ordering;

use super::Table;
use crate::learning::learner::{Learned, Learner};
use crate::learning::monitor::{MissCurve, Monitor};
use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{Policy, PolicyKind, with_policy};

impl<const W: usize> Table<W> {
    /// Creates the learner or the balance, if a policy needs one. Both stay allocated, and idle,
    /// while another policy is followed.
    pub(crate) fn prepare(&self, policy: PolicyKind) {
        if with_policy!(policy, P => P::LEARNS) {
            self.learner.get_or_init(|| Learner::new(self.slots_count(), W));
        }
        if with_policy!(policy, P => P::BALANCES) {
            self.balance.get_or_init(|| Balance::new(self.slots_count()));
        }
        // Relaxed, as for the policy itself: a thread that still follows the old policy makes worse
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

    /// Starts the monitor, which estimates the misses at sizes up to `most_pages` pages and uses at
    /// most `bytes_max` bytes of memory. Returns the bytes that it uses, or 0 if no monitor was
    /// started because `bytes_max` is too small for a useful estimate.
    pub fn watch(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, false)
    }

    /// Starts the monitor as [`Table::watch`] does, for a table that only one thread at a time
    /// uses. The estimate then depends only on the order of accesses and not on which threads make
    /// them.
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

    /// Returns the eviction order and the densities in use, if the table has a learner.
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

    /// Returns the maximum number of bytes that the policy's learner uses, besides the table's
    /// memory, for a table of `slots` slots; 0 if the policy does not learn.
    pub fn learning_bytes(policy: PolicyKind, slots: u64) -> usize {
        if with_policy!(policy, P => P::LEARNS) { Learner::bytes(slots, W) } else { 0 }
    }

    /// Returns the policy's learned state, if the policy learns.
    pub fn learned(&self) -> Option<Learned> {
        self.learner().filter(|_| with_policy!(self.policy(), P => P::LEARNS)).map(Learner::learned)
    }

    /// Continues with the learned state of another table's policy, if this table has a learner.
    pub fn adopt_learned(&self, learned: &Learned) {
        if let Some(learner) = self.learner() {
            learner.adopt(learned);
        }
    }

    /// Returns the maximum number of ghosts in all sets; 0 if the policy has none.
    pub fn remembered_slots(&self) -> u64 {
        let of_a_set = with_policy!(self.policy(), P => <P as Policy>::ghosts_max(W));
        self.slots_count() / W as u64 * of_a_set as u64
    }
}
