//! Switches that each break one step of the protocol of `handover.rs`, so that tests can show that
//! the models notice. They can be set only under `--cfg shuttle`; in every other build `is` is the
//! constant `false`.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A step that a model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Step {
    /// A1: do not ring for a driver that sleeps.
    AddWithoutRing = 1,
    /// A3: fall asleep without a look at the calls that wait.
    SleepWithoutLook,
    /// A4: do not wake the task.
    EndWithoutWake,
    /// A5: keep the waker of an earlier poll.
    PollKeepsWaker,
    /// A6: forget a call that waits, instead of taking it back.
    AbandonKeepsCall,
    /// A7: let a change begin beside an orphan.
    ChangeBesideOrphan,
}

/// A plain atomic of std, so that reading it is not a step of the model. Relaxed: it orders
/// nothing.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this run of a model leaves out `step`.
#[inline(always)]
pub(crate) fn is(step: Step) -> bool {
    cfg!(shuttle) && BROKEN.load(Relaxed) == step as usize
}

/// Leaves out `step` until the next call. None restores the whole protocol.
#[cfg(all(test, shuttle))]
pub(crate) fn set(step: Option<Step>) {
    BROKEN.store(step.map_or(0, |step| step as usize), Relaxed);
}
