//! The miss: one fill brings a page in for all tasks that want it. If the page's set is full, the
//! read goes past the cache. Not here: hits (`pages/hit.rs`).

use octavo_disk::{IoBuffer, IoError};
use octavo_table::{SetGuard, Tag};

use super::lane::{Lane, Work};
use super::task::{Job, Kind, Pages, Role, Task, Transfer, TransferPage};
use crate::memory::copy;
use crate::pages::hit::OPTIMISTIC_TRIES;
use crate::pages::steps::{Claimed, Claiming};
use crate::position::PageIndex;
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::Arc;
use crate::wait::TaskId;
use crate::ways::WAYS;

/// Tries one page of a `Read`, or of a `Populate`, which copies no bytes.
pub(crate) fn page(
    lane: &Arc<Lane>,
    work: &mut Work,
    id: TaskId,
    object: Arc<ObjectInner>,
    page: PageIndex,
    first: bool,
) {
    let partition = &*object.partition;
    let tag = object.tag(page);
    let wanted = matches!(work.tasks[id].job, Job::Read);
    let span = work.tasks[id].span(page);
    // 1. A hit.
    let hit = match wanted {
        // SAFETY: the span lies in the task's memory and in one page.
        true => unsafe { partition.read_counted(tag, span.skip, span.memory, span.len, first) },
        false => partition.table.find(tag).is_some(),
    };
    if hit {
        return;
    }
    // 2. Under the set's lock no other thread can bring the page in or evict it. The loop repeats
    //    if a writer changes the page's state in between. After a few tries the task gives way and
    //    tries the page again later.
    for _ in 0..OPTIMISTIC_TRIES {
        let guard = partition.table.lock(tag);
        if let Some(found) = guard.find(tag) {
            if found.word.readable() {
                if !partition.pin(&found) {
                    continue;
                }
                drop(guard);
                if wanted {
                    let frame = partition.frames.at(found.index).wrapping_add(span.skip);
                    // SAFETY: pinned bytes do not change (P6), and the span is the task's.
                    unsafe { copy::copy_out(frame, span.memory, span.len) };
                    partition.touch(tag, &found);
                }
                return partition.unpin(found.index);
            }
            if !wanted {
                return;
            }
            if partition.wait_for_slot(found.index, found.word, || lane.waiter(id, page)) {
                return work.registered(id);
            }
            continue;
        }
        // 3. The page is not resident. Another task may be serving it without a slot, or clearing
        //    its range.
        let busy = partition.strays.wait(tag, || lane.waiter(id, page))
            || object.ranges.wait(page, || lane.waiter(id, page));
        if busy {
            return work.registered(id);
        }
        // 4. Claim a slot for a fill. If the set is full, read the page past the cache.
        let claiming = if object.streams.is_once() { Claiming::FillOnce } else { Claiming::Fill };
        let slot = match partition.claim(guard, tag, claiming) {
            Claimed::Resident => continue,
            Claimed::Slot(slot) => slot,
            Claimed::Full(_) if !wanted => return,
            Claimed::Full(guard) => return read_around(lane, work, id, &object, page, guard),
        };
        let role = if wanted { Role::Deliver } else { Role::Bring };
        return work.gather(object, page, slot, id, role);
    }
    work.tasks[id].outstanding += 1;
    lane.retry(id, page);
}

/// Reads a page whose set is full as a stray: into a bounce page.
fn read_around(
    lane: &Lane,
    work: &mut Work,
    id: TaskId,
    object: &Arc<ObjectInner>,
    page: PageIndex,
    guard: SetGuard<'_, WAYS>,
) {
    let partition = &*object.partition;
    let tag = object.tag(page);
    let Some(bounce) = lane.shared.bounce.take(&object.bounced, 1, || lane.waiter(id, page)) else {
        return work.registered(id);
    };
    partition.begin_stray(guard, tag, false);
    work.tasks[id].outstanding += 1;
    let buffer = [IoBuffer { ptr: bounce.at(0), len: partition.page_bytes() }];
    let pages = Pages::one(TransferPage { slot: None, task: id, role: Role::Deliver, version: 0 });
    let object = object.clone();
    let transfer = Transfer { kind: Kind::StrayRead, object, page, pages, bounce: Some(bounce), tag };
    lane.push(work, transfer, octavo_disk::Op::Read, &buffer);
}

/// Copies the bytes of a successful fill to the callers of its tasks. `filled` does the rest.
pub(crate) fn deliver(work: &Work, transfer: &Transfer) {
    if transfer.kind != Kind::Fill {
        return;
    }
    for (number, filled) in transfer.pages.iter().enumerate() {
        if let (Role::Deliver, Some(slot)) = (filled.role, filled.slot) {
            let span = work.tasks[filled.task].span(transfer.page + number as u64);
            let frame = transfer.object.partition.frames.at(slot);
            // SAFETY: the frame is ours until `publish` (P1, P2), and the span is the task's own
            // memory.
            unsafe { copy::copy_out(frame.wrapping_add(span.skip), span.memory, span.len) }
        }
    }
}

/// Ends a fill whose bytes were delivered: publishes its pages and wakes their waiters. If the I/O
/// failed, removes the pages.
pub(crate) fn filled(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let partition = &*transfer.object.partition;
    if result.is_err() && transfer.pages.count() > 1 {
        return split(lane, work, transfer);
    }
    for (number, filled) in transfer.pages.iter().enumerate() {
        let page = transfer.page + number as u64;
        let slot = filled.slot.expect("a fill holds slots");
        let task = &mut work.tasks[filled.task];
        if let Err(source) = &result {
            partition.counters.add(Count::ReadErrors, 1);
            partition.release(transfer.object.tag(page), slot);
            if !matches!(task.job, Job::Populate | Job::Ahead) {
                task.fail(transfer.object.io_error(source));
            }
            lane.step(work, filled.task);
            continue;
        }
        partition.counters.add(Count::Fills, 1);
        match filled.role {
            Role::Patch => {
                let span = task.span(page);
                partition.publish_written(transfer.object.tag(page), slot, true, |frame| {
                    // SAFETY: the frame is ours until it is published (P1, P2), and the span is the
                    // task's own memory.
                    unsafe { copy::copy_in(span.memory, frame.wrapping_add(span.skip), span.len) }
                });
            }
            _ => partition.publish(slot, false),
        }
        match (filled.role, &task.job) {
            // A write of a part of the page, or a clearing, which goes to the store first: the rest
            // of the page is resident now, so the task tries again.
            (Role::Bring, Job::Write { .. } | Job::Clear(_)) => lane.retry(filled.task, page),
            _ => lane.step(work, filled.task),
        }
    }
}

/// Reads each page of a failed I/O of several pages separately, so that a bad block fails only its
/// own page.
fn split(lane: &Lane, work: &mut Work, transfer: Transfer) {
    let partition = &transfer.object.partition;
    for (number, filled) in transfer.pages.iter().enumerate() {
        let slot = filled.slot.expect("a fill holds slots");
        let buffer = [IoBuffer { ptr: partition.frames.at(slot), len: partition.page_bytes() }];
        let alone = Transfer {
            kind: Kind::Fill,
            object: transfer.object.clone(),
            page: transfer.page + number as u64,
            pages: Pages::one(filled),
            bounce: None,
            tag: Tag::default(),
        };
        lane.push(work, alone, octavo_disk::Op::Read, &buffer);
    }
    lane.ring.submit();
}

/// Continues a stray whose read has ended: copies the bytes to the caller, or changes and writes
/// them.
pub(crate) fn stray_came(lane: &Lane, work: &mut Work, transfer: Transfer, result: Result<(), IoError>) {
    let Transfer { kind, object, page, pages, bounce, tag } = transfer;
    let partition = object.partition.clone();
    let bounce = bounce.expect("a stray has a bounce page");
    let id = pages.iter().next().expect("a stray is one page").task;
    let task: &mut Task = &mut work.tasks[id];
    let span = task.span(page);
    let bytes = bounce.at(0).wrapping_add(span.skip);
    match (result, kind) {
        (Err(source), _) => {
            partition.counters.add(Count::ReadErrors, 1);
            task.fail(object.io_error(&source));
        }
        (Ok(()), Kind::StrayRead) => {
            // SAFETY: the bounce page is ours, the span is the task's.
            unsafe { copy::copy_out(bytes, span.memory, span.len) };
        }
        (Ok(()), _) => {
            // SAFETY: as above.
            unsafe { copy::copy_in(span.memory, bytes, span.len) };
            let buffer = [IoBuffer { ptr: bounce.at(0), len: partition.page_bytes() }];
            let transfer =
                Transfer { kind: Kind::StrayWrite, object, page, pages, bounce: Some(bounce), tag };
            lane.push(work, transfer, octavo_disk::Op::Write, &buffer);
            lane.ring.submit();
            return;
        }
    }
    drop(bounce);
    partition.strays.remove(tag);
    lane.step(work, id);
}
