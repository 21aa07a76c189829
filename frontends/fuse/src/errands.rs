//! [`Errand`]: a request that calls the lower file system, in a copy of its own, and what performs
//! it: a worker on a seat, from its own buffer, or a thread of the file system (`stores.rs`).

use std::sync::Arc;

use octavo::Buffer;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::calls::Calls;
use crate::device::Device;
use crate::errors::errno_of;
use crate::fs::Fs;
use crate::handles::Open;
use crate::in_flight::Waiting;
use crate::operations::{Request, WritePlan};
use crate::running::Serves;
use crate::wire::{InHeader, Opcode, Reader, WriteOut};

/// A request that was handed over.
pub struct Errand {
    pub fs: Arc<Fs>,
    pub device: Arc<Device>,
    pub unique: u64,
    pub task: Task,
    /// Last, so that the file system is dropped before the mount counts as ended.
    pub serves: Serves,
}

/// What is to be done.
pub enum Task {
    /// The bytes of any request but a read or a write.
    Request(Vec<u8>),
    /// A read that the worker cannot serve.
    Read { open: Arc<Open>, read: Waiting },
    /// A write with its bytes, which begin the buffer. `uncounted` is the part of the buffer's
    /// memory that `memory_max` does not count.
    Write { plan: WritePlan, bytes: Buffer, uncounted: usize },
    /// Files are closed by this drop.
    Drop(Box<dyn Send>),
}

impl Errand {
    /// The memory of its bytes that `memory_max` does not count.
    pub fn bytes(&self) -> usize {
        match &self.task {
            Task::Request(bytes) => bytes.len(),
            Task::Write { uncounted, .. } => *uncounted,
            Task::Read { .. } | Task::Drop(_) => 0,
        }
    }

    /// Gives the request up. What it would close stays open until the process ends, because a close
    /// may wait.
    pub fn give_up(self) {
        let Errand { fs, device, unique: _, task, serves } = self;
        std::mem::forget(task);
        drop(device);
        drop(fs);
        drop(serves);
    }

    /// Performs the request on this thread, unless its program was killed. `out` is a buffer.
    pub fn perform(self, out: &mut Vec<u8>) {
        let Errand { fs, device, unique, task, serves } = self;
        let answers = Answers { fs: &fs, device: &device, unique };
        // C2.
        let is_over = fs.calls.is_answered(unique);
        match task {
            Task::Request(bytes) => {
                if is_over {
                    fs.calls.end(unique);
                } else {
                    request(&fs, &device, &bytes, out);
                }
            }
            Task::Read { open, read } => {
                if is_over {
                    fs.calls.end(unique);
                } else {
                    read_into(&fs.calls, &open, &read, out);
                }
            }
            Task::Write { plan, bytes, uncounted: _ } => {
                let open = plan.open.clone();
                let freed = if is_over {
                    fs.calls.end(unique);
                    plan.end()
                } else {
                    let len = plan.len;
                    write(&fs, &device, unique, plan, &bytes[..len])
                };
                for read in freed {
                    fs.calls.begin(read.unique, read.caller, &read.device);
                    read_into(&fs.calls, &open, &read, out);
                }
            }
            Task::Drop(dropped) => drop(dropped),
        }
        drop(answers);
        drop(device);
        drop(fs);
        drop(serves);
    }
}

/// Fails a request that has no answer when the value is dropped: its thread has panicked.
struct Answers<'e> {
    fs: &'e Fs,
    device: &'e Device,
    unique: u64,
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        if self.fs.calls.end(self.unique) {
            self.device.reply(self.unique, Err(Errno::IO), &[]);
        }
    }
}

/// Performs any request but a read or a write, and answers it.
pub fn request(fs: &Fs, device: &Device, bytes: &[u8], out: &mut Vec<u8>) {
    let mut body = Reader::new(bytes);
    let Ok(head) = body.take::<InHeader>() else { return };
    out.clear();
    let operation = Opcode::of(head.opcode);
    let done = match operation {
        Some(operation) => fs.perform(operation, Request { device, head, body }, out),
        None => Err(Errno::NOSYS),
    };
    if fs.calls.end(head.unique) {
        let reply = if done.is_ok() { &out[..] } else { &[] };
        return device.reply(head.unique, done, reply);
    }
    // C3.
    if let (Some(operation), Ok(())) = (operation, done) {
        fs.undo(operation, out);
    }
}

/// Performs a read with a buffer of any size, and answers it.
fn read_into(calls: &Calls, open: &Open, waiting: &Waiting, out: &mut Vec<u8>) {
    if out.len() < waiting.size {
        out.resize(waiting.size, 0);
    }
    read(calls, open, waiting, out);
}

/// Performs a read, and answers it. `out` has at least its size.
pub fn read(calls: &Calls, open: &Open, read: &Waiting, out: &mut [u8]) {
    let &Waiting { ref device, unique, offset, size, .. } = read;
    let done = if open.is_uncached() {
        open.read_uncached(offset, &mut out[..size])
    } else {
        read_now(open, offset, &mut out[..size])
    };
    if calls.end(unique) {
        let bytes = done.map_or(&[][..], |len| &out[..len]);
        device.reply(unique, done.map(drop), bytes);
    }
}

/// Reads what there is of a range: the file may have been cut meanwhile, or have another object
/// (F4).
fn read_now(open: &Open, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let left = open.file.len_bytes().saturating_sub(offset).min(bytes.len() as u64) as usize;
    match open.file.object().read_at(offset, &mut bytes[..left]) {
        // Cut again.
        Err(octavo::Error::PastEnd { .. }) => Ok(0),
        read => read.map(|()| left).map_err(|error| errno_of(&error)),
    }
}

/// Performs a write, and answers it. Returns the reads that have waited for it alone.
pub fn write(fs: &Fs, device: &Device, unique: u64, mut plan: WritePlan, bytes: &[u8]) -> Vec<Waiting> {
    if let Some(flight) = plan.flight {
        fs.calls.is_write(unique, &plan.open, flight);
    }
    let done = plan.prepare(fs, device).and_then(|()| plan.write(bytes));
    let freed = plan.end();
    if fs.calls.end(unique) {
        reply_to_write(device, unique, done);
    }
    freed
}

/// Answers a write of this many bytes.
pub fn reply_to_write(device: &Device, unique: u64, done: Result<usize, Errno>) {
    let written = WriteOut { size: *done.as_ref().unwrap_or(&0) as u32, padding: 0 };
    let body = if done.is_ok() { written.as_bytes() } else { &[] };
    device.reply(unique, done.map(drop), body);
}
