//! [`Uring`]: the io_uring engine of a ring. It turns I/O of files into submission entries, and any
//! thread may take the completions. Protects the slab of pending I/O and the two queues shared with
//! the kernel. Not here: the inbox and sleeping (`inbox.rs`), how an I/O is cut and continued
//! (`io.rs`).
//!
//! * U1. The submission queue is written only under the lock `submission`. Handing it to the kernel
//!   (`io_uring_enter`) needs no lock: the kernel serialises its side, and takes only published
//!   entries.
//! * U2. The completion queue is read only under the ring's lock `state`, by `harvest`.
//! * U3. An I/O is in the slab from `push` until its last part's completion is harvested. The key
//!   of a part (slab index, part) is in at most one of: backlog, submission queue, kernel,
//!   completion queue.
//! * U4. At most `in_ring_max` entries are between submission and harvest. That is one less than
//!   the completion queue holds, and the last one is the NOP's, so the completion queue never
//!   overflows. Further keys wait in the backlog, in order.
//! * U5. Registered files: slot `i` holds the file of the store with id `files.ids[i]`. A store
//!   leaves when its last handle is dropped, and a pending I/O holds a handle; or when it is
//!   closed, with no I/O in the gate (`keep.rs`, K2). Ids are never reused, so a slot never serves
//!   another store.
//! * U6. The kernel posts a completion in the context of the thread that submitted the I/O: when
//!   that thread enters the kernel, is interrupted, or sleeps in a system call that signals end
//!   (`COOP_TASKRUN`; the default interrupts it for every completion, which cost a third of the
//!   throughput where the kernel's workers read). `collect` enters the kernel for the calling
//!   thread. A submitter that is computing is interrupted by its next timer tick or, on a processor
//!   without ticks, by `nudge` from a waiting thread.
//! * U7. Before an I/O is queued, the queue is submitted if it holds at least as many I/Os as the
//!   kernel has. A device is therefore busy while its caller still pushes I/O (or processes the
//!   last reads), at the cost of log2 n more system calls for n I/Os. A single I/O waits for
//!   `submit`, or for the system call that also waits.
//! * U8. I/O on a file whose file system waits for another process or machine begins on a thread of
//!   the kernel (`ASYNC`): its submission could wait as long as the I/O, and with it the thread
//!   that submits, which has other I/O.
//!
//! Not used: `DEFER_TASKRUN` and `SINGLE_ISSUER`, because any thread may take completions; a
//! polling thread (`SQPOLL`), because an idle cache must use no CPU.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::engine::job::{FileIo, Harvest, NUDGE_INTERVAL, file_of};
use crate::io::buffer::IoBuffer;
use crate::io::{Channel, PARTS};
use crate::op::Op;
use crate::process::Process;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// The most stores whose files one ring registers. Further stores use plain descriptors.
const FILES_MAX: usize = 64;

/// The key of the NOP that wakes the leader (`inbox.rs`, R4). No slab is that large.
const NOP_KEY: u64 = u64::MAX;

/// The most system calls of one submit. The backlog may fill the ring several times, and the kernel
/// may take only a part of a ring.
const SUBMIT_CALLS_MAX: usize = 1024;

pub(crate) struct Uring {
    ring: ManuallyDrop<IoUring>,
    process: Process,
    submission: Mutex<Submission>,
    /// U4: the number of entries between submission and harvest, without the NOP. Changes only
    /// under `submission`.
    in_ring: AtomicUsize,
    in_ring_max: usize,
    backlog_count: AtomicUsize,
}

struct Submission {
    backlog: VecDeque<u64>,
    files: RegisteredFiles,
    slab: Slab,
}

/// The table of registered files (U5). A free slot has id 0, which no store has.
struct RegisteredFiles {
    ids: Vec<u64>,
    latest: usize,
    /// The kernel has refused a file. Then no more files are registered, and the registered ones
    /// stay until their stores close.
    refused: bool,
}

#[derive(Default)]
struct Slab {
    entries: Vec<SlabEntry>,
    free: Vec<u32>,
}

/// An entry is reused, and its vectors keep their capacity.
#[derive(Default)]
struct SlabEntry {
    job: Option<FileIo>,
    pieces: [Vec<IoBuffer>; PARTS],
}

fn key(index: u32, part: usize) -> u64 {
    u64::from(index) * PARTS as u64 + part as u64
}

fn index_and_part(key: u64) -> (usize, usize) {
    ((key / PARTS as u64) as usize, (key % PARTS as u64) as usize)
}

impl Uring {
    pub(crate) fn new(entries: u32) -> io::Result<Uring> {
        if cfg!(shuttle) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no io_uring under shuttle"));
        }
        let cooperative =
            IoUring::builder().dontfork().setup_coop_taskrun().setup_taskrun_flag().build(entries);
        let ring = match cooperative {
            // Kernels before Linux 5.19 do not know COOP_TASKRUN.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                IoUring::builder().dontfork().build(entries)?
            }
            made => made?,
        };
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            let message = "this kernel's io_uring is too old: EXT_ARG (Linux 5.11) is missing";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let in_ring_max = params.cq_entries() as usize - 1;
        let registered = ring.submitter().register_files_sparse(FILES_MAX as u32);
        if let Err(error) = &registered {
            log::debug!("io_uring cannot register files ({error}): plain descriptors are used");
        }
        let files_max = if registered.is_ok() { FILES_MAX } else { 0 };
        let files = RegisteredFiles { ids: vec![0; files_max], latest: 0, refused: false };
        Ok(Uring {
            ring: ManuallyDrop::new(ring),
            process: Process::this(),
            submission: Mutex::new(Submission { backlog: VecDeque::new(), files, slab: Slab::default() }),
            in_ring: AtomicUsize::new(0),
            in_ring_max,
            backlog_count: AtomicUsize::new(0),
        })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `ring` keeps the descriptor open, and outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Queues every part of an I/O.
    pub(crate) fn push(&self, job: FileIo) {
        let parts = job.io.parts_left as usize;
        let mut submission = lock(&self.submission);
        if self.is_kernel_short_of_work(&submission) {
            drop(submission);
            self.submit();
            submission = lock(&self.submission);
        }
        let index = submission.slab.insert(job);
        for part in 0..parts {
            let key = key(index, part);
            if !submission.backlog.is_empty() || !self.queue(&mut submission, key) {
                submission.backlog.push_back(key);
            }
        }
        self.publish_backlog(&submission);
    }

    /// Submits everything that is queued, as far as U4 allows. Returns false if the kernel is short
    /// of memory; entries that it did not take stay queued.
    pub(crate) fn submit(&self) -> bool {
        for _ in 0..SUBMIT_CALLS_MAX {
            self.refill();
            if !self.has_unsubmitted() {
                return true;
            }
            match self.ring.submitter().submit() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => {
                    log::debug!("io_uring_enter: {error}");
                    return false;
                }
            }
        }
        false
    }

    /// U6: makes the kernel post the completions that it holds back for the calling thread. Costs
    /// one atomic load if nothing is in flight.
    pub(crate) fn collect(&self) {
        // Enters the kernel even with nothing to submit. An error is only logged: the next wait
        // meets it again.
        if self.must_enter()
            && let Err(error) = self.ring.submitter().submit()
        {
            log::debug!("io_uring_enter: {error}");
        }
    }

    /// U6: makes the kernel soon post the completions that it holds back for threads that are
    /// computing.
    pub(crate) fn nudge(&self) {
        self.collect();
        if self.must_enter() {
            interrupt_threads();
        }
    }

    /// U6: returns whether the kernel has completions that it has not posted.
    fn must_enter(&self) -> bool {
        if self.in_ring.load(Ordering::Acquire) == 0 {
            return false;
        }
        let _submission = lock(&self.submission);
        // SAFETY: `submission` is locked (U1).
        unsafe { self.ring.submission_shared() }.taskrun()
    }

    /// Submits, and sleeps until the kernel posts a further entry, a signal arrives, or the timeout
    /// expires. With I/O in flight, it sleeps for at most `NUDGE_INTERVAL` (U6). Only the leader
    /// calls this. An error means a kernel short of memory: the caller pauses and tries again.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // Acquire, as everywhere: pairs with `count_in_ring`. An I/O that is pushed later wakes
        // this thread by its completion.
        let timeout = match self.in_ring.load(Ordering::Acquire) {
            0 => timeout,
            _ => Some(timeout.map_or(NUDGE_INTERVAL, |timeout| timeout.min(NUDGE_INTERVAL))),
        };
        let result = match timeout {
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let timespec = types::Timespec::from(timeout);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&timespec))
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Err((Some(libc::ETIME), _)) => {
                self.nudge();
                Ok(())
            }
            Ok(_) | Err((Some(libc::EINTR), _)) => Ok(()),
            Err((_, error)) => {
                log::debug!("io_uring_enter: {error}");
                Err(error)
            }
        }
    }

    /// Returns whether the kernel has not taken some of the published entries.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        self.unsubmitted(&lock(&self.submission)) > 0
    }

    fn unsubmitted(&self, _locked: &Submission) -> usize {
        // SAFETY: `submission` is locked (U1).
        unsafe { self.ring.submission_shared() }.len()
    }

    /// U7: returns whether the queue must be submitted before another I/O is queued.
    fn is_kernel_short_of_work(&self, submission: &Submission) -> bool {
        let queued = self.unsubmitted(submission);
        // Relaxed: the count changes under the lock that the caller holds. A queued NOP is not
        // counted.
        queued > 0 && queued >= self.in_ring.load(Ordering::Relaxed).saturating_sub(queued)
    }

    /// Returns whether the backlog has a key that U4 admits.
    pub(crate) fn has_backlog_room(&self) -> bool {
        self.backlog_count.load(Ordering::Acquire) > 0
            && self.in_ring.load(Ordering::Acquire) < self.in_ring_max
    }

    /// Makes the kernel post an entry at once (`inbox.rs`, R4).
    pub(crate) fn post_nop(&self) {
        let nop = opcode::Nop::new().build().user_data(NOP_KEY);
        for _ in 0..SUBMIT_CALLS_MAX {
            let submission = lock(&self.submission);
            // SAFETY: `submission` is locked (U1).
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: a NOP refers to no memory.
            let pushed = unsafe { queue.push(&nop) }.is_ok();
            drop(queue);
            drop(submission);
            // A full queue is submitted first. The next `sleep` submits what the kernel does not
            // take now.
            let handed_over = self.submit();
            if pushed {
                return;
            }
            if !handed_over {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Takes all completions that the kernel has posted. Called under the ring's lock `state` (U2).
    /// `finished` must not drop stores (`inbox.rs`, R2).
    pub(crate) fn harvest(&self, finished: &mut dyn FnMut(FileIo)) -> Harvest {
        let mut harvest = Harvest::default();
        // SAFETY: the ring's `state` is locked (U2).
        let mut queue = unsafe { self.ring.completion_shared() };
        if queue.is_empty() {
            return harvest;
        }
        let mut continued: Vec<u64> = Vec::new();
        let mut taken = 0;
        let mut submission = lock(&self.submission);
        for entry in &mut queue {
            if entry.user_data() == NOP_KEY {
                harvest.nop = true;
                continue;
            }
            taken += 1;
            let (index, part) = index_and_part(entry.user_data());
            let job = submission.slab.entries[index].job.as_mut();
            let FileIo { io, .. } = job.expect("U3: a completion's I/O is in the slab");
            let outcome = usize::try_from(entry.result()).map_err(|_| -entry.result());
            if io.advance(part, outcome) {
                continued.push(entry.user_data());
            } else if io.parts_left == 0 {
                finished(submission.slab.remove(index));
            }
        }
        drop(queue);
        self.count_in_ring(|count| count - taken);
        for key in continued.into_iter().rev() {
            submission.backlog.push_front(key);
        }
        harvest.queued = self.refill_from(&mut submission);
        harvest
    }

    /// U5: frees the slot of a store that has no I/O in flight.
    pub(crate) fn forget_store(&self, id: u64) {
        let mut submission = lock(&self.submission);
        let Some(slot) = submission.files.ids.iter().position(|&known| known == id) else { return };
        submission.files.ids[slot] = 0;
        if let Err(error) = self.ring.submitter().register_files_update(slot as u32, &[-1]) {
            log::warn!("io_uring cannot unregister a closed file ({error}): it stays open and locked");
        }
    }

    /// Moves keys from the backlog to the submission queue, as many as fit. Returns whether any
    /// moved.
    fn refill(&self) -> bool {
        // Acquire: pairs with `publish_backlog`. A thread that adds to the backlog after this load
        // submits after that, and so refills the queue itself.
        self.backlog_count.load(Ordering::Acquire) > 0 && self.refill_from(&mut lock(&self.submission))
    }

    fn refill_from(&self, submission: &mut Submission) -> bool {
        let mut moved = false;
        while let Some(&key) = submission.backlog.front() {
            if !self.queue(submission, key) {
                break;
            }
            submission.backlog.pop_front();
            moved = true;
        }
        self.publish_backlog(submission);
        moved
    }

    /// Publishes the length of the backlog to threads that do not lock it.
    fn publish_backlog(&self, submission: &Submission) {
        // Release: pairs with the loads. A plain store suffices, because only the lock's holder
        // stores.
        self.backlog_count.store(submission.backlog.len(), Ordering::Release);
    }

    /// Changes the count of U4. Called under `submission`, so that no other thread changes it
    /// meanwhile.
    fn count_in_ring(&self, change: impl FnOnce(usize) -> usize) {
        // Release: pairs with the loads of threads that do not hold the lock.
        self.in_ring.store(change(self.in_ring.load(Ordering::Relaxed)), Ordering::Release);
    }

    /// Puts the entry of a key in the submission queue. False if there is no room (U4).
    fn queue(&self, submission: &mut Submission, key: u64) -> bool {
        // Relaxed: the count changes only under the lock that the caller holds.
        if self.in_ring.load(Ordering::Relaxed) >= self.in_ring_max {
            return false;
        }
        // SAFETY: the caller holds the lock `submission` (U1).
        let mut queue = unsafe { self.ring.submission_shared() };
        if queue.is_full() {
            return false;
        }
        let entry = self.entry(submission, key);
        // SAFETY: the entry refers to buffers of an I/O in the slab, which stay valid until the I/O
        // is delivered (`Ring::push`); to pieces in the slab, which do not change until the I/O is
        // harvested (U3); and to a file that its store keeps open.
        let pushed = unsafe { queue.push(&entry) };
        debug_assert!(pushed.is_ok(), "the queue was not full");
        // Before the kernel can see the entry: `queue` publishes on drop.
        self.count_in_ring(|count| count + 1);
        true
    }

    /// Returns the submission entry of a part that starts or continues.
    fn entry(&self, submission: &mut Submission, key: u64) -> squeue::Entry {
        let (index, part_index) = index_and_part(key);
        let Submission { files, slab, .. } = submission;
        let SlabEntry { job, pieces } = &mut slab.entries[index];
        let FileIo { io, store, .. } = job.as_ref().expect("U3: a queued key's I/O is in the slab");
        let part = &io.parts[part_index];
        let (skip, len) = io.span(part_index);
        let pieces = &mut pieces[part_index];
        io.buffers.pieces(skip, len, pieces);

        let fd = file_of(store).descriptor(part.channel).as_raw_fd();
        let slot = match part.channel {
            Channel::Main => files.slot(&self.ring, store.id(), fd),
            Channel::Tail => None,
        };
        let target = types::Fd(slot.unwrap_or(fd));
        let entry = match (io.op, pieces.as_slice()) {
            (Op::Sync, _) => opcode::Fsync::new(target).flags(types::FsyncFlags::DATASYNC).build(),
            (Op::Read, [one]) => opcode::Read::new(target, one.ptr, one.len as u32).offset(part.next).build(),
            (Op::Read, many) => {
                opcode::Readv::new(target, many.as_ptr().cast(), many.len() as u32).offset(part.next).build()
            }
            (Op::Write | Op::Zero | Op::Discard, pieces) => match (part.method.flags(), pieces) {
                (Some(flags), _) => {
                    opcode::Fallocate::new(target, len).offset(part.next).mode(flags.bits() as i32).build()
                }
                (None, [one]) => {
                    opcode::Write::new(target, one.ptr, one.len as u32).offset(part.next).build()
                }
                (None, many) => opcode::Writev::new(target, many.as_ptr().cast(), many.len() as u32)
                    .offset(part.next)
                    .build(),
            },
        };
        let mut flags = squeue::Flags::empty();
        flags.set(squeue::Flags::FIXED_FILE, slot.is_some());
        // U8.
        flags.set(squeue::Flags::ASYNC, file_of(store).is_remote);
        entry.flags(flags).user_data(key)
    }
}

/// Makes every other running thread of this process enter and leave the kernel once (an expedited
/// `membarrier`), as its next tick would. Does nothing if the kernel refuses the call.
fn interrupt_threads() {
    use rustix::thread::{MembarrierCommand, membarrier};
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    REGISTERED.call_once(|| _ = membarrier(MembarrierCommand::RegisterPrivateExpedited));
    _ = membarrier(MembarrierCommand::PrivateExpedited);
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
            return;
        }
        // A child of `fork` has not inherited the queues (`dontfork`), and other memory may lie at
        // their addresses now. The child owns only its copy of the descriptor. SAFETY: the ring,
        // which is not dropped, does not close the descriptor.
        drop(unsafe { OwnedFd::from_raw_fd(self.ring.as_raw_fd()) });
    }
}

impl RegisteredFiles {
    /// Returns the slot of a store's main descriptor, and registers it at the store's first I/O.
    /// None if no slot is free or the kernel refuses.
    fn slot(&mut self, ring: &IoUring, id: u64, fd: RawFd) -> Option<RawFd> {
        if self.ids.get(self.latest) == Some(&id) {
            return Some(self.latest as RawFd);
        }
        if let Some(slot) = self.ids.iter().position(|&known| known == id) {
            self.latest = slot;
            return Some(slot as RawFd);
        }
        let slot = self.ids.iter().position(|&known| known == 0).filter(|_| !self.refused)?;
        if let Err(error) = ring.submitter().register_files_update(slot as u32, &[fd]) {
            log::debug!("io_uring cannot register a file ({error}): plain descriptors are used");
            self.refused = true;
            return None;
        }
        self.ids[slot] = id;
        self.latest = slot;
        Some(slot as RawFd)
    }
}

impl Slab {
    fn insert(&mut self, job: FileIo) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(SlabEntry::default());
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize].job = Some(job);
        index
    }

    fn remove(&mut self, index: usize) -> FileIo {
        self.free.push(index as u32);
        self.entries[index].job.take().expect("U3: an I/O leaves the slab once")
    }
}

#[cfg(all(test, not(any(miri, shuttle))))]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::io::Io;
    use crate::io::buffer::AlignedBytes;
    use crate::store::Store;
    use crate::store::open::OpenOptions;

    /// U7. Before that rule a device was idle while its caller pushed a batch, and with 32 I/Os in
    /// flight the throughput was a fifth lower.
    #[test]
    fn the_queue_is_submitted_when_it_holds_as_many_ios_as_the_kernel() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let buffered = OpenOptions { direct: false, ..OpenOptions::default() };
        let store = Store::open(file.path(), &buffered).unwrap();
        let page = AlignedBytes::new(4096);
        // Declared after the page that it reads into, so that it is dropped first.
        let uring = match Uring::new(64) {
            Ok(uring) => uring,
            Err(error) => return eprintln!("skipped: no io_uring: {error}"),
        };
        let mut queued = Vec::new();
        for token in 0..20 {
            let io = Io::new(Op::Read, 0, &[page.io_buffer()], token);
            uring.push(FileIo::begin(io, &store, 0));
            queued.push(uring.unsubmitted(&lock(&uring.submission)));
        }
        assert_eq!(queued, [1, 1, 1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]);
    }

    /// Once, the first file that the kernel refused made the ring drop its table: files registered
    /// before were never unregistered, and stayed open.
    #[test]
    fn files_stay_registered_when_the_kernel_refuses_another() {
        let uring = match Uring::new(8) {
            Ok(uring) => uring,
            Err(error) => return eprintln!("skipped: no io_uring: {error}"),
        };
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut submission = lock(&uring.submission);
        let files = &mut submission.files;
        let Some(slot) = files.slot(&uring.ring, 1, writer.as_raw_fd()) else {
            return eprintln!("skipped: io_uring cannot register files");
        };
        // No process has this descriptor.
        assert_eq!(files.slot(&uring.ring, 2, RawFd::MAX), None);
        assert_eq!(files.slot(&uring.ring, 1, writer.as_raw_fd()), Some(slot));
        drop((submission, writer));
        uring.forget_store(1);
        // Blocks until the other end is closed.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
