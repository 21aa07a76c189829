//! Switches that each break one step of a protocol, so that tests can show that the model checkers
//! notice.
//!
//! They can be set only under `--cfg loom` and `--cfg shuttle`; in every other build `is` is the
//! constant `false` and costs nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A step that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(dead_code)]
pub enum Step {
    /// P3 without the second look at the word.
    NoRecheck = 1,
    /// P1 and P6 without the fence between the word and the bytes.
    NoReleaseFence,
    /// P7 that leaves the version unchanged.
    NoVersionBump,
    /// P13 that hides a page and leaves the set's version unchanged.
    HideKeepsVersion,
    /// P6 that changes pinned bytes.
    WriteIgnoresPins,
    /// P11 that makes a page clean although it was written again.
    WritebackIgnoresVersion,
    /// P9 that does not count the page's arrival in its new slot.
    ForgetArrival,
    /// P12 that sets its flag without checking the word.
    WaitWithoutSwap,
    /// R5 that gives back the frames of snapshots.
    GiveBackSnapshots,
    /// R6 that gives the entries of a segment with pages away.
    GiveWithPages,
    /// T2 that sets no bit.
    NoLink,
    /// T2 that trusts a bit that is already set.
    LinkOnce,
    /// T4 that publishes an overtaken copy.
    PublishOvertaken,
    /// T5 left out.
    NoOvertake,
    /// T7 that ignores the set's bits.
    ForgetOrphans,
    /// T9 that locks a page's home and no other place.
    LockHomeOnly,
    /// T10 that leaves the page's bits behind.
    SwitchWithoutBits,
    /// T11 that does not set the bits of the home set.
    ForgetAwayOrphans,
}

/// A plain atomic of std, so that reading it is not a step of the model. Relaxed: it orders
/// nothing.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether `step` is broken in this run of a model.
#[inline(always)]
pub(crate) fn is(step: Step) -> bool {
    cfg!(any(loom, shuttle)) && BROKEN.load(Relaxed) == step as usize
}

/// Breaks `step` until the next call; `None` restores the protocol.
#[cfg(any(loom, shuttle))]
pub fn set(step: Option<Step>) {
    BROKEN.store(step.map_or(0, |step| step as usize), Relaxed);
}
