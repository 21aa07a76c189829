//! How calls of tasks get to the driver thread and back.
//!
//! A *call* is one piece of work of one future. All calls of a driver are in one table, under one
//! lock that is held for well under a microsecond: the work of a call takes tens of microseconds in
//! the driver alone. No code of users runs under the lock: wakers, works and outcomes are moved out
//! and woken or dropped afterwards.
//!
//! - **A1** A future's first poll adds its call, with its waker, to those that *wait*. If the
//!   driver is asleep, the call that finds the flag set clears it and rings the bell. So there is
//!   one ring for each sleep, however many calls arrive.
//! - **A2** The driver takes waiting calls in the order of their arrival, as many as its limits
//!   (calls, and bytes that it must allocate) admit. They *run* now.
//! - **A3** If there is nothing to take, the driver sets the flag in the same critical section, and
//!   sleeps at its queue and at the bell. A call that is added later sees the flag. While the
//!   limits keep calls waiting, the flag stays clear: only a call that ends can change that, and it
//!   ends in the driver.
//! - **A4** The driver ends calls: it stores their outcomes, releases the lock, and wakes their
//!   tasks.
//! - **A5** A poll takes the outcome, or stores its waker in the same critical section. So A4
//!   either sees the waker, or the poll sees the outcome.
//! - **A6** A future that is dropped *abandons* its call. If the call waits, it is taken back, and
//!   never runs; a driver that sleeps because of the limits is woken, because the next call may be
//!   smaller. If it has ended, its outcome is dropped. If it runs, it becomes an *orphan*, and the
//!   driver drops its outcome when it ends.
//! - **A7** An orphan that changes an object keeps later changes of the same bytes waiting (*held*)
//!   until it has ended. Otherwise bytes of a write that a task has given up could replace those of
//!   its next write. `orphan_changes` is their number, for calls that would change bytes without
//!   the driver: it is stored before the drop of the future returns.
//! - **A8** `close` ends all waiting calls as refused, and refuses later ones. The driver ends when
//!   nothing runs.
//!
//! Not here: what the work is (`driver.rs`), the future (`call.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use crate::bell::Bell;
use crate::broken::{self, Step};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Most notes that wait. Further ones are dropped: notes are hints.
const NOTES_MAX: usize = 32;

/// A piece of work.
pub(crate) trait Work: Sized {
    /// What becomes of it.
    type Outcome;

    /// A hint to the driver that nobody waits for.
    type Note;

    /// The bytes that a change concerns. Nothing for work that changes none.
    type Bytes: Overlap;

    /// Bytes of memory that the driver allocates for it.
    fn memory_bytes(&self) -> u64;

    fn changes(&self) -> Option<Self::Bytes>;

    /// The outcome of work that a closed driver does not do.
    fn refused(self) -> Self::Outcome;
}

/// Ranges of bytes that may overlap.
pub(crate) trait Overlap {
    fn overlaps(&self, other: &Self) -> bool;
}

/// The number of a call. Later calls have higher ones.
pub(crate) type Ticket = u64;

/// What runs at most at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub calls: usize,
    pub memory_bytes: u64,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Work was taken: start it, take what has ended, and come back.
    Start,
    /// Sleep until a call ends or the bell rings.
    Sleep,
    /// The driver was closed and nothing runs.
    Finish,
}

/// Calls by their stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub waiting: usize,
    pub running: usize,
    pub orphans: usize,
    /// Calls whose outcomes no poll has taken yet.
    pub ended: usize,
}

pub(crate) struct Handover<W: Work> {
    state: Mutex<State<W>>,
    bell: Bell,
    limits: Limits,
    orphan_changes: AtomicUsize,
}

struct State<W: Work> {
    calls: BTreeMap<Ticket, Call<W>>,
    waiting: BTreeSet<Ticket>,
    /// Calls that wait for orphans (A7).
    held: BTreeSet<Ticket>,
    /// The changes among the orphans.
    orphans: BTreeMap<Ticket, W::Bytes>,
    notes: Vec<W::Note>,
    running: usize,
    running_bytes: u64,
    last_ticket: Ticket,
    /// The driver sleeps, and nothing waits for it (A3).
    is_asleep: bool,
    /// The driver sleeps, because the first call that waits exceeds the limits (A6).
    is_blocked: bool,
    is_closed: bool,
}

struct Call<W: Work> {
    stage: Stage<W>,
    waker: Option<Waker>,
}

enum Stage<W: Work> {
    Waiting(W),
    Running { memory_bytes: u64, changes: Option<W::Bytes> },
    Orphan { memory_bytes: u64 },
    Ended(W::Outcome),
}

/// What a driver has taken. Kept by it to reuse the memory.
pub(crate) struct Taken<W: Work> {
    pub works: Vec<(Ticket, W)>,
    pub notes: Vec<W::Note>,
}

impl<W: Work> Default for Taken<W> {
    fn default() -> Taken<W> {
        Taken { works: Vec::new(), notes: Vec::new() }
    }
}

impl<W: Work> Handover<W> {
    pub fn new(bell: Bell, limits: Limits) -> Handover<W> {
        let state = State {
            calls: BTreeMap::new(),
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
            orphans: BTreeMap::new(),
            notes: Vec::new(),
            running: 0,
            running_bytes: 0,
            last_ticket: 0,
            is_asleep: false,
            is_blocked: false,
            is_closed: false,
        };
        Handover { state: Mutex::new(state), bell, limits, orphan_changes: AtomicUsize::new(0) }
    }

    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A1: adds a call.
    ///
    /// # Errors
    /// The outcome of the refused work, if the driver was closed.
    pub fn add(&self, work: W, waker: &Waker) -> Result<Ticket, W::Outcome> {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return Err(work.refused());
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.calls.insert(ticket, Call { stage: Stage::Waiting(work), waker: Some(waker) });
        state.waiting.insert(ticket);
        self.ring_if_asleep(state);
        Ok(ticket)
    }

    /// A1: adds a note.
    pub fn add_note(&self, note: W::Note) {
        let mut state = lock(&self.state);
        if state.is_closed || state.notes.len() >= NOTES_MAX {
            drop(state);
            return;
        }
        state.notes.push(note);
        self.ring_if_asleep(state);
    }

    fn ring_if_asleep(&self, mut state: crate::sync::MutexGuard<'_, State<W>>) {
        let rings = std::mem::take(&mut state.is_asleep);
        drop(state);
        if rings && !broken::is(Step::AddWithoutRing) {
            self.bell.ring();
        }
    }

    /// A2, A3: appends what runs from now on to `taken`. Only the driver calls it.
    pub fn take(&self, taken: &mut Taken<W>) -> Next {
        let mut state = lock(&self.state);
        (state.is_asleep, state.is_blocked) = (false, false);
        taken.notes.append(&mut state.notes);
        while let Some(ticket) = state.waiting.first().copied() {
            if state.may_start(ticket, self.limits) {
                taken.works.push((ticket, state.start(ticket)));
            } else if state.waiting.contains(&ticket) {
                break;
            }
        }
        if !taken.works.is_empty() || !taken.notes.is_empty() {
            return Next::Start;
        }
        if state.is_closed && state.running == 0 {
            return Next::Finish;
        }
        let is_idle = state.waiting.is_empty();
        if broken::is(Step::SleepWithoutLook) {
            drop(state);
            state = lock(&self.state);
        }
        (state.is_asleep, state.is_blocked) = (is_idle, !is_idle);
        Next::Sleep
    }

    /// A4: ends calls, in any order. Leaves `ended` empty.
    pub fn end(&self, ended: &mut Vec<(Ticket, W::Outcome)>) {
        if ended.is_empty() {
            return;
        }
        let (mut wakers, mut unwanted) = (Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        for (ticket, outcome) in ended.drain(..) {
            match state.end(ticket, outcome) {
                Ok(waker) => wakers.extend(waker),
                Err(outcome) => unwanted.push(outcome),
            }
        }
        self.publish(&state);
        drop(state);
        if broken::is(Step::EndWithoutWake) {
            return;
        }
        wakers.into_iter().for_each(wake);
        for outcome in unwanted {
            unless_panics(|| drop(outcome));
        }
    }

    /// A5: takes the outcome of a call. The call is gone then.
    pub fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<W::Outcome> {
        let mut state = lock(&self.state);
        let call = state.calls.get_mut(&ticket).expect("a call is in the table until its future ends");
        if let Stage::Ended(_) = call.stage {
            let call = state.calls.remove(&ticket).expect("it was found");
            drop(state);
            let Stage::Ended(outcome) = call.stage else { unreachable!("it has ended") };
            return Poll::Ready(outcome);
        }
        let is_same = call.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_same || broken::is(Step::PollKeepsWaker) {
            return Poll::Pending;
        }
        // A waker may run its executor's code when it is cloned and when it is dropped.
        drop(state);
        let waker = context.waker().clone();
        let mut state = lock(&self.state);
        let call = state.calls.get_mut(&ticket).expect("only its future removes it");
        let old = call.waker.replace(waker);
        let has_ended = matches!(call.stage, Stage::Ended(_));
        drop(state);
        drop(old);
        // It ended between the two looks, and woke the old waker.
        if has_ended { self.poll(ticket, context) } else { Poll::Pending }
    }

    /// A6: gives a call up.
    pub fn abandon(&self, ticket: Ticket) {
        let mut state = lock(&self.state);
        let rest = state.abandon(ticket);
        self.publish(&state);
        let rings = rest.0.is_some() && std::mem::take(&mut state.is_blocked);
        drop(state);
        if rings {
            self.bell.ring();
        }
        drop(rest);
    }

    /// A7: whether a dropped call may still change bytes of some object.
    #[inline]
    pub fn has_orphan_changes(&self) -> bool {
        // Pairs with `publish`: a task that learns of a drop sees the orphan, or that it has ended.
        self.orphan_changes.load(Ordering::Acquire) > 0
    }

    fn publish(&self, state: &State<W>) {
        // Pairs with `has_orphan_changes`.
        self.orphan_changes.store(state.orphans.len(), Ordering::Release);
    }

    /// A8: refuses all calls that do not run.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.is_asleep = false;
        state.notes.clear();
        let mut waiting = std::mem::take(&mut state.waiting);
        waiting.append(&mut state.held);
        let mut refused = Vec::new();
        for ticket in waiting {
            // From here on it runs, for as long as it takes to refuse it.
            let call = state.calls.get_mut(&ticket).expect("it waits");
            let stage = Stage::Running { memory_bytes: 0, changes: None };
            if let Stage::Waiting(work) = std::mem::replace(&mut call.stage, stage) {
                refused.push((ticket, work));
            }
        }
        state.running += refused.len();
        drop(state);
        self.end(&mut refused.into_iter().map(|(ticket, work)| (ticket, work.refused())).collect());
        self.bell.ring();
    }

    pub fn counts(&self) -> Counts {
        let state = lock(&self.state);
        let count = |is: fn(&Stage<W>) -> bool| state.calls.values().filter(|call| is(&call.stage)).count();
        Counts {
            waiting: count(|stage| matches!(stage, Stage::Waiting(_))),
            running: count(|stage| matches!(stage, Stage::Running { .. })),
            orphans: count(|stage| matches!(stage, Stage::Orphan { .. })),
            ended: count(|stage| matches!(stage, Stage::Ended(_))),
        }
    }
}

impl<W: Work> State<W> {
    /// Whether the first waiting call may run now. A call that must wait for an orphan is held.
    fn may_start(&mut self, ticket: Ticket, limits: Limits) -> bool {
        let Stage::Waiting(work) = &self.calls[&ticket].stage else { unreachable!("it waits") };
        let changes = if self.orphans.is_empty() { None } else { work.changes() };
        let must_wait = changes.is_some_and(|new| self.orphans.values().any(|old| old.overlaps(&new)));
        if must_wait && !broken::is(Step::ChangeBesideOrphan) {
            self.waiting.remove(&ticket);
            self.held.insert(ticket);
            return false;
        }
        let bytes = work.memory_bytes();
        self.running < limits.calls
            && (bytes == 0 || self.running_bytes.saturating_add(bytes) <= limits.memory_bytes)
    }

    fn start(&mut self, ticket: Ticket) -> W {
        self.waiting.remove(&ticket);
        let call = self.calls.get_mut(&ticket).expect("it waits");
        let Stage::Waiting(work) = &call.stage else { unreachable!("it waits") };
        let stage = Stage::Running { memory_bytes: work.memory_bytes(), changes: work.changes() };
        let Stage::Waiting(work) = std::mem::replace(&mut call.stage, stage) else {
            unreachable!("it waits")
        };
        self.running += 1;
        self.running_bytes += work.memory_bytes();
        work
    }

    /// Returns the waker of the call's task. If the call is an orphan, returns its outcome.
    fn end(&mut self, ticket: Ticket, outcome: W::Outcome) -> Result<Option<Waker>, W::Outcome> {
        let call = self.calls.get_mut(&ticket).expect("a running call is in the table");
        self.running -= 1;
        match call.stage {
            Stage::Running { memory_bytes, .. } => {
                self.running_bytes -= memory_bytes;
                call.stage = Stage::Ended(outcome);
                Ok(call.waker.take())
            }
            Stage::Orphan { memory_bytes } => {
                self.running_bytes -= memory_bytes;
                self.calls.remove(&ticket);
                if self.orphans.remove(&ticket).is_some() {
                    self.waiting.append(&mut self.held);
                }
                Err(outcome)
            }
            Stage::Waiting(_) | Stage::Ended(_) => unreachable!("only running calls end"),
        }
    }

    /// Returns what is left of the call, to be dropped.
    fn abandon(&mut self, ticket: Ticket) -> (Option<Call<W>>, Option<Waker>) {
        let call = self.calls.get_mut(&ticket).expect("a call is in the table until its future ends");
        let Stage::Running { memory_bytes, changes } = &mut call.stage else {
            if broken::is(Step::AbandonKeepsCall) {
                return (None, None);
            }
            self.waiting.remove(&ticket);
            self.held.remove(&ticket);
            return (self.calls.remove(&ticket), None);
        };
        if let Some(bytes) = changes.take() {
            self.orphans.insert(ticket, bytes);
        }
        call.stage = Stage::Orphan { memory_bytes: *memory_bytes };
        (None, call.waker.take())
    }
}

/// Wakes a task. An executor that panics must not end the driver.
fn wake(waker: Waker) {
    unless_panics(|| waker.wake());
}

fn unless_panics(act: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(act)).is_err() {
        log::error!("a waker or the memory of a dropped call panicked; the driver goes on");
    }
}

#[cfg(test)]
mod tests;
