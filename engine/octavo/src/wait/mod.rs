//! Waiting: what a task can wait for, and how it is woken.
//!
//! A task registers a [`Waiter`] with the thing that it waits for: a slot's busy state, a stray, a
//! closed range, a flush. The thread that ends the condition takes the lock under which the waiter
//! was registered, and then wakes the waiter, so no wake-up is lost. A wake-up puts the task into
//! the [`Mailbox`] of its lane, where the lane's owner finds it.
//!
//! Not here: what a task does after it is woken (`flight`).

mod flushes;
mod mailbox;
mod ranges;
mod slots;
mod strays;

pub(crate) use flushes::{Flush, Flushes};
pub(crate) use mailbox::{Mailbox, RESUME, Ready, TaskId, Waiter};
pub(crate) use ranges::Ranges;
pub(crate) use slots::SlotWaiters;
pub(crate) use strays::Strays;
