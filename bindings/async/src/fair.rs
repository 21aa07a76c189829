//! Fairness among the tasks of an executor. A call that hits is ready at its first poll, so a task
//! that only hits would never return to its executor, and others would starve.
//!
//! Each thread counts the calls that began since a call last made its task wait. Each time the
//! count has reached [`TURNS`], the next call wakes its own task and is pending once, so the
//! executor runs other tasks first. The count is per thread, because a future cannot tell which
//! task polls it: the call that yields may be any task's, but no task gets more than `TURNS` calls
//! in a row.

use std::cell::Cell;
use std::task::{Context, Poll};

/// Calls in a row: as many operations as tokio lets a task do. Yielding costs about a microsecond,
/// a hit about a tenth of that.
const TURNS: u32 = 128;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(TURNS) };
}

/// Begins a call. Pending if it is others' turn; the next poll is then ready.
#[inline]
pub(crate) fn poll_turn(context: &mut Context<'_>) -> Poll<()> {
    LEFT.with(|left| match left.get().checked_sub(1) {
        Some(fewer) => {
            left.set(fewer);
            Poll::Ready(())
        }
        None => {
            left.set(TURNS);
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
}

/// Awaits the task's turn.
#[inline]
pub(crate) async fn turn() {
    std::future::poll_fn(poll_turn).await;
}

/// Notes that a call makes its task wait: the executor runs others now.
pub(crate) fn waits() {
    LEFT.with(|left| left.set(TURNS));
}
