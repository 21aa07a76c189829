//! Which policy a table follows, what it has learned, and what is watched of it.

use std::sync::atomic::Ordering;

use super::Table;
use crate::learning::learner::{Learned, Learner};
use crate::learning::monitor::{MissCurve, Monitor};
use crate::policy::balance::Balance;
use crate::policy::lead::Lead;
use crate::policy::{Policy, PolicyKind, with_policy};

impl<const W: usize> Table<W> {
    /// Makes what a policy needs besides the sets. It stays, and rests while another policy is
    /// followed.
    pub(crate) fn prepare(&self, policy: PolicyKind) {
        if with_policy!(policy, P => P::LEARNS) {
            self.learner.get_or_init(|| Learner::new(self.slots_count(), W));
        }
        if with_policy!(policy, P => P::BALANCES) {
            self.balance.get_or_init(|| Balance::new(self.slots_count()));
        }
        // Relaxed, as the policy itself: whoever still follows the old one guesses worse for a moment.
        self.counts_hits.store(with_policy!(policy, P => P::COUNTS_HITS), Ordering::Relaxed);
        self.tell_capacity();
    }

    /// Whether its policy is told of every hit.
    pub(crate) fn counts_hits(&self) -> bool {
        self.counts_hits.load(Ordering::Relaxed)
    }

    /// The policy that its sets follow.
    #[inline(always)]
    pub fn policy(&self) -> PolicyKind {
        PolicyKind::ALL[self.policy.load(Ordering::Relaxed) as usize]
    }

    /// Stores the policy that the sets follow from now on.
    pub(crate) fn follow(&self, policy: PolicyKind) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Begins to watch what the table would miss at sizes up to `most_pages`, with at most so many
    /// bytes. Says how many that takes; 0: too few to say anything.
    pub fn watch(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, false)
    }

    /// `watch`, for a table that one thread at a time uses, whichever it is: what is seen does not
    /// depend on which.
    pub fn watch_alone(&self, most_pages: u64, bytes_max: u64) -> u64 {
        self.begin_watch(most_pages, bytes_max, true)
    }

    fn begin_watch(&self, most_pages: u64, bytes_max: u64, alone: bool) -> u64 {
        let monitor = Monitor::new(self.policy(), most_pages, bytes_max, W, alone);
        monitor.map_or(0, |monitor| self.monitor.get_or_init(|| monitor).bytes())
    }

    /// What is watched of the table, if something is.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.monitor.get()
    }

    /// Takes what the monitor was shown through its miniatures; returns how much there was.
    pub fn drain_monitor(&self) -> u64 {
        self.monitor().map_or(0, |monitor| monitor.drain(self.lead()))
    }

    /// The miss curve of late, if it is watched.
    pub fn miss_curve(&self) -> Option<MissCurve> {
        self.monitor().map(Monitor::curve)
    }

    /// Whether something has been learned, or is to be when a policy that learns is followed again.
    pub fn has_learner(&self) -> bool {
        self.learner.get().is_some()
    }

    /// What the table has learned, if its policy learns.
    pub(crate) fn learner(&self) -> Option<&Learner> {
        self.learner.get()
    }

    /// What victims are chosen by, if the policy learns.
    pub(crate) fn lead(&self) -> Option<&Lead> {
        self.learner().map(Learner::lead)
    }

    /// What the sets aim at together, if their policy balances.
    pub(crate) fn balance(&self) -> Option<&Balance> {
        self.balance.get()
    }

    /// Tells the learner and the balance that the table has become larger or smaller.
    pub(crate) fn tell_capacity(&self) {
        if let Some(learner) = self.learner() {
            learner.set_capacity(self.slots_count());
        }
        if let Some(balance) = self.balance() {
            balance.set_capacity(self.slots_count());
        }
    }

    /// Bytes, besides the table's memory, that a policy takes for what it learns about a table of
    /// `slots`.
    pub fn learning_bytes(policy: PolicyKind, slots: u64) -> usize {
        if with_policy!(policy, P => P::LEARNS) { Learner::bytes(slots, W) } else { 0 }
    }

    /// What its policy has learned, if it learns.
    pub fn learned(&self) -> Option<Learned> {
        self.learner().filter(|_| with_policy!(self.policy(), P => P::LEARNS)).map(Learner::learned)
    }

    /// Goes on with what another table's policy has learned, if its own learns.
    pub fn adopt_learned(&self, learned: &Learned) {
        if let Some(learner) = self.learner() {
            learner.adopt(learned);
        }
    }

    /// Pages that have left and are remembered, at most: none where the policy has no ghosts.
    pub fn remembered_slots(&self) -> u64 {
        let of_a_set = with_policy!(self.policy(), P => <P as Policy>::ghosts_max(W));
        self.slots_count() / W as u64 * of_a_set as u64
    }
}
