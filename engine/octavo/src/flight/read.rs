//! The miss: one fill brings a page in for all tasks that want it. If the page's set is full, the
//! read goes past the cache. Not here: hits (`pages/hit.rs`), and blocking reads that need no task
//! (`alone.rs`).

use std::time::Instant;

use octavo_disk::IoError;
use octavo_table::SetGuard;

use super::lane::{Lane, Work};
use super::owner::Owner;
use super::task::{Job, Kind, Pages, Role, Task, Transfer};
use crate::pages::hit::OPTIMISTIC_TRIES;
use crate::pages::steps::{Claimed, Claiming};
use crate::position::{PageIndex, pages_in};
use crate::state::counters::Count;
use crate::ways::WAYS;

/// Serves the hits at the beginning of a read of several pages in one pass (`pages/run.rs`).
pub(crate) fn begin(task: &mut Task) {
    let several = task.next + 1 < task.end;
    if let (true, Some(to)) = (several, task.memory.one()) {
        // SAFETY: the memory is the task's, and the range was checked when the task was made.
        task.next = unsafe { task.object.read_run(task.offset, to, task.len) };
    }
}

/// Tries one page of a `Read`, or of a `Populate`, which copies no bytes.
pub(crate) fn page(owner: &mut Owner<'_>, page: PageIndex, first: bool) {
    let object = owner.object;
    let partition = &*object.partition;
    let tag = object.tag(page);
    let wanted = matches!(owner.task().job, Job::Read);
    let span = owner.task().span(page);
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
                    unsafe { span.memory.copy_out(frame, span.len) };
                    partition.touch(tag, &found);
                }
                return partition.unpin(found.index);
            }
            if !wanted {
                return;
            }
            if owner.waits(page, |waiter| partition.wait_for_slot(found.index, found.word, waiter)) {
                return;
            }
            continue;
        }
        // 3. The page is not resident. Another task may be serving it without a slot, or clearing
        //    its range, or have closed the object.
        if owner.waits_elsewhere(page, tag) || owner.fails_closed() {
            return;
        }
        // 4. Claim a slot for a fill. If the set is full, read the page past the cache.
        let claiming = if object.streams.is_once() { Claiming::FillOnce } else { Claiming::Fill };
        let slot = match partition.claim(guard, tag, claiming) {
            Claimed::Resident => continue,
            Claimed::Slot(slot) => slot,
            Claimed::Full(_) if !wanted => return,
            Claimed::Full(guard) => return read_around(owner, page, guard),
        };
        let role = if wanted { Role::Deliver } else { Role::Bring };
        return owner.gather(page, slot, role);
    }
    owner.retry(page);
}

/// Reads a page whose set is full as a stray: into a bounce page.
fn read_around(owner: &mut Owner<'_>, page: PageIndex, guard: SetGuard<'_, WAYS>) {
    let Some(bounce) = owner.take_bounce(page, 1) else { return };
    owner.object.partition.begin_stray(guard, owner.object.tag(page), false);
    owner.push(Kind::StrayRead, page, Pages::none(owner.id), Some(bounce));
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
            unsafe { span.memory.copy_out(frame.wrapping_add(span.skip), span.len) }
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
            partition.release(transfer.object.tag(page), slot);
            match task.job {
                Job::Populate | Job::Ahead => partition.counters.add(Count::ReadErrors, 1),
                _ => task.fail_io(Count::ReadErrors, source),
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
                    unsafe { span.memory.copy_in(frame.wrapping_add(span.skip), span.len) }
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
    let Transfer { kind, object, page: first, pages, .. } = transfer;
    for (page, filled) in pages_in(&(first..first + pages.count() as u64)).zip(pages.iter()) {
        let (object, pages) = (object.clone(), Pages::one(filled));
        lane.push(work, Transfer { kind, object, page, pages, bounce: None, made_at: Instant::now() });
    }
    lane.ring.submit();
}

/// Continues a stray whose I/O has ended. After a read, copies the bytes to the caller, or changes
/// and writes them.
pub(crate) fn stray_came(lane: &Lane, work: &mut Work, mut transfer: Transfer, result: Result<(), IoError>) {
    let (id, page) = (transfer.pages.first().task, transfer.page);
    let task = &mut work.tasks[id];
    let span = task.span(page);
    let bounce = transfer.bounce.as_ref().expect("a stray has a bounce page");
    let bytes = bounce.at(0).wrapping_add(span.skip);
    match (result, transfer.kind) {
        (Err(source), Kind::StrayWrite) => task.fail_io(Count::WriteErrors, &source),
        (Err(source), _) => task.fail_io(Count::ReadErrors, &source),
        (Ok(()), Kind::StrayWrite) => {}
        (Ok(()), Kind::StrayRead) => {
            // SAFETY: the bounce page is ours, the span is the task's.
            unsafe { span.memory.copy_out(bytes, span.len) };
        }
        (Ok(()), _) => {
            // SAFETY: as above.
            unsafe { span.memory.copy_in(bytes, span.len) };
            transfer.kind = Kind::StrayWrite;
            lane.push(work, transfer);
            return lane.ring.submit();
        }
    }
    let Transfer { object, bounce, .. } = transfer;
    drop(bounce);
    object.partition.strays.remove(object.tag(page));
    lane.step(work, id);
}
