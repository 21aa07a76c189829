//! Switches that break one step of the protocol each, so that the tests can show that the model
//! checkers notice.
//!
//! They exist under `--cfg loom` and `--cfg shuttle` only; in every other build `is` is a constant
//! `false` and costs nothing.

/// A step that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(dead_code)]
pub enum Step {
    /// M2 that publishes without release.
    PublishRelaxed = 1,
    /// M3 that frees a place without release.
    FreeRelaxed,
    /// M2 that does not look whether the place is free.
    SendIntoFull,
    /// M4 without the sender's fence.
    SendWithoutFence,
    /// M4 without the receiver's second look.
    SleepWithoutLook,
    /// M5 without the sender's look at the flag.
    SendIgnoresClosing,
    /// M5 of a receiver that looks at the queues, and then at the flag.
    LookBeforeClosing,
}

/// Whether `step` is switched off in this run of a model.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn is(_step: Step) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
mod switch {
    use super::Step;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A plain std atomic, so that reading it is no step of the model.
    static BROKEN: AtomicUsize = AtomicUsize::new(0);

    pub(crate) fn is(step: Step) -> bool {
        BROKEN.load(Ordering::Relaxed) == step as usize
    }

    /// Leaves `step` out until told otherwise; None restores the protocol.
    pub fn set(step: Option<Step>) {
        BROKEN.store(step.map_or(0, |s| s as usize), Ordering::Relaxed);
    }
}

#[cfg(any(loom, shuttle))]
pub(crate) use switch::is;
#[cfg(any(loom, shuttle))]
pub use switch::set;
