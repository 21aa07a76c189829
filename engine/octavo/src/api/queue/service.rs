//! How a queue serves a request: checks it, counts it and makes its task.

use crate::error::Error;
use crate::flight::{EVERY, Job, NONE, Object, SyncState, Task};
use crate::memory::{Buffer, Lent};
use crate::position::ByteOffset;
use crate::request::{Advice, Op, Request};
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;

/// How a request is served.
#[expect(clippy::large_enum_variant, reason = "taken apart at once; a box would be an allocation each")]
pub(super) enum Service {
    /// By a task, in the background.
    Task(Task),
    /// Immediately, without a task.
    Now,
}

/// Checks and counts a request, and decides how to serve it.
#[inline(always)]
pub(super) fn service(object: &Object, request: &mut Request) -> Result<Service, Error> {
    let inner = &object.inner;
    let counters = &inner.partition.counters;
    let sync = || SyncState::new(!object.read_only(), u64::MAX);
    let (job, offset, len, memory) = match &mut request.op {
        Op::Read { offset, len, buffer } => {
            check_buffer(*len, buffer)?;
            inner.count_read(1, *len as u64);
            (Job::Read, *offset, *len, Lent::one_piece(buffer.as_mut_ptr()))
        }
        Op::ReadInto { offset, memory } => {
            inner.count_read(1, memory.len() as u64);
            // SAFETY: the task has the request, and so the memory.
            (Job::Read, *offset, memory.len(), unsafe { memory.lend() })
        }
        Op::Write { offset, len, buffer, durable } => {
            check_buffer(*len, buffer)?;
            check_write(inner, *len, *durable)?;
            (Job::Write { durable: *durable }, *offset, *len, Lent::one_piece(buffer.as_mut_ptr()))
        }
        Op::WriteFrom { offset, memory, durable } => {
            check_write(inner, memory.len(), *durable)?;
            // SAFETY: the task has the request, and so the memory.
            (Job::Write { durable: *durable }, *offset, memory.len(), unsafe { memory.lend() })
        }
        Op::Sync => {
            counters.add(Count::Syncs, 1);
            inner.check_open()?;
            inner.check_not_failed()?;
            let pages = if object.read_only() { NONE } else { EVERY };
            return Ok(Service::Task(Task::of_pages(Job::Sync(sync()), inner, pages)));
        }
        Op::SyncRange { offset, len } => {
            counters.add(Count::Syncs, 1);
            inner.check_open()?;
            inner.check_not_failed()?;
            (Job::Sync(sync()), *offset, *len, Lent::NONE)
        }
        Op::Discard { offset, len, durable } => {
            let op = octavo_disk::Op::Discard;
            return Ok(Service::Task(Task::clearing(inner, op, ByteOffset(*offset), *len, *durable)?));
        }
        Op::Zero { offset, len, durable } => {
            let op = octavo_disk::Op::Zero;
            return Ok(Service::Task(Task::clearing(inner, op, ByteOffset(*offset), *len, *durable)?));
        }
        Op::ZeroFast { offset, len, free, durable } => {
            let op = if *free { octavo_disk::Op::Discard } else { octavo_disk::Op::Zero };
            let task = Task::clearing(inner, op, ByteOffset(*offset), *len, *durable)?;
            return Ok(Service::Task(task.only_fast()));
        }
        Op::Holes { offset, len, extents_max, .. } => {
            return Ok(Service::Task(Task::finding_holes(inner, *offset, *len, *extents_max)?));
        }
        Op::Advise { offset, len, advice: Advice::WillNeed } => {
            (Job::Populate, *offset, object.populate_len(*len), Lent::NONE)
        }
        Op::Advise { .. } => return Ok(Service::Now),
    };
    let offset = ByteOffset(offset);
    inner.check(offset, len as u64)?;
    Ok(Service::Task(Task::new(job, inner.clone(), offset, memory, len)))
}

/// Checks and counts a write.
#[inline(always)]
fn check_write(object: &ObjectInner, len: usize, durable: bool) -> Result<(), Error> {
    object.check_writable()?;
    if durable {
        object.check_not_failed()?;
    }
    object.partition.counters.add(Count::Writes, 1);
    object.partition.counters.add(Count::WrittenBytes, len as u64);
    Ok(())
}

fn check_buffer(len: usize, buffer: &Buffer) -> Result<(), Error> {
    match len > buffer.len() {
        true => Err(Error::Config(format!(
            "a request for {len} bytes has a buffer of only {} bytes",
            buffer.len()
        ))),
        false => Ok(()),
    }
}

/// Follows advice during the submission.
pub(super) fn advise(object: &Object, op: &Op) -> Result<(), Error> {
    match op {
        Op::Advise { offset, len, advice } => object.advise(*offset, *len, *advice),
        _ => unreachable!("all others are tasks"),
    }
}
