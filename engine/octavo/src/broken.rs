//! Switches that each break one step of a protocol, so that tests can show that the model checker
//! notices.
//!
//! They can be set only under `--cfg shuttle`; in every other build `is` is the constant `false`
//! and costs nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A step that a model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Step {
    /// N2: claim a page of an object that was closed in the meantime.
    ClaimAfterClose = 1,
    /// N3: a number returns when its object is closed, although other threads still use it.
    ReturnAtClose,
}

/// A plain atomic of std, so that reading it is not a step of the model. Relaxed: it orders
/// nothing.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this run of a model leaves out `step`.
#[inline(always)]
pub(crate) fn is(step: Step) -> bool {
    cfg!(shuttle) && BROKEN.load(Relaxed) == step as usize
}

/// Leaves out `step` until the next call. `None` restores the protocol.
#[cfg(shuttle)]
pub fn set(step: Option<Step>) {
    BROKEN.store(step.map_or(0, |step| step as usize), Relaxed);
}
