//! [`Call`]: the future of one piece of work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use octavo::{Error, Object, Op};

use crate::driver::{Job, Outcome, Shared, Task};
use crate::fair;
use crate::handover::Ticket;

/// A call of the driver. Handed over by its first poll, abandoned when it is dropped (A6).
pub(crate) struct Call {
    shared: Arc<Shared>,
    stage: Stage,
}

enum Stage {
    New(Task),
    Added(Ticket),
    Over,
}

impl Call {
    pub fn new(shared: &Arc<Shared>, object: &Object, job: Job) -> Call {
        Call { shared: shared.clone(), stage: Stage::New(Task { object: object.clone(), job }) }
    }
}

impl Future for Call {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Err(error) = self.shared.check_process() {
            // What was handed over belongs to the parent.
            let op = match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::New(Task { job: Job::Op(op), .. }) => Some(op),
                _ => None,
            };
            return Poll::Ready(Outcome { op, result: Err(error) });
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::New(task) => match self.shared.handover.add(task, context.waker()) {
                Ok(ticket) => self.stage = Stage::Added(ticket),
                Err(refused) => return Poll::Ready(refused),
            },
            Stage::Added(ticket) => match self.shared.handover.poll(ticket, context) {
                Poll::Ready(outcome) => return Poll::Ready(outcome),
                Poll::Pending => self.stage = Stage::Added(ticket),
            },
            Stage::Over => panic!("a call was polled after it was ready"),
        }
        fair::waits();
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Stage::Added(ticket) = self.stage
            && self.shared.check_process().is_ok()
        {
            self.shared.handover.abandon(ticket);
        }
    }
}

impl Outcome {
    /// The bytes of a read.
    pub fn into_bytes(self) -> Result<Vec<u8>, Error> {
        self.result?;
        let Some(Op::ReadInto { memory, .. }) = self.op else { unreachable!("it was a read") };
        Ok(memory.into_owner().expect("the driver put a vector in"))
    }
}
