//! Switches that break one step of the protocol each, so that tests can show that the model
//! checkers notice.
//!
//! The switches exist only under `--cfg loom` and `--cfg shuttle`. In every other build `is` is the
//! constant `false` and costs nothing.

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
    /// M5: let a receiver look at the queues first, and then at the flag.
    LookBeforeClosing,
}

/// Returns whether this run of a model leaves out `step`.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn is(_step: Step) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
mod switch {
    use super::Step;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An atomic of std, so that the model does not explore accesses to it. Relaxed: it orders
    /// nothing.
    static BROKEN: AtomicUsize = AtomicUsize::new(0);

    pub(crate) fn is(step: Step) -> bool {
        BROKEN.load(Ordering::Relaxed) == step as usize
    }

    /// Leaves out `step` until the next call. None restores the whole protocol.
    pub fn set(step: Option<Step>) {
        BROKEN.store(step.map_or(0, |s| s as usize), Ordering::Relaxed);
    }
}

#[cfg(any(loom, shuttle))]
pub(crate) use switch::is;
#[cfg(any(loom, shuttle))]
pub use switch::set;
