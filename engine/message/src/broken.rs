//! Switches that each break one step of the protocol, so that tests can show that the model
//! checkers notice.
//!
//! The switches can be set only under `--cfg loom` and `--cfg shuttle`. In every other build `is`
//! is the constant `false` and costs nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A step that a model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(dead_code)]
pub enum Step {
    /// M2: publish without release.
    PublishRelaxed = 1,
    /// M3: free a place without release.
    FreeRelaxed,
    /// M2: do not check whether the place is free.
    SendIntoFull,
    /// M4: leave out the sender's fence.
    SendWithoutFence,
    /// M4: leave out the receiver's second look.
    SleepWithoutLook,
    /// M5: leave out the sender's look at the flag.
    SendIgnoresClosing,
    /// M5: let a receiver look at the queues before it looks at the flag.
    LookBeforeClosing,
}

/// A plain atomic of std, so that reading it is not a step of the model. Relaxed: it orders
/// nothing.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this run of a model leaves out `step`.
#[inline(always)]
pub(crate) fn is(step: Step) -> bool {
    cfg!(any(loom, shuttle)) && BROKEN.load(Relaxed) == step as usize
}

/// Leaves out `step` until the next call. None restores the whole protocol.
#[cfg(any(loom, shuttle))]
pub fn set(step: Option<Step>) {
    BROKEN.store(step.map_or(0, |step| step as usize), Relaxed);
}
