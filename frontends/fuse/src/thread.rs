//! What each thread that performs requests has of its own: memory, a mask, counts, a descriptor to
//! sleep on. Not here: what it performs (`worker.rs`, `stores.rs`).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use octavo::{Buffer, Cache, Queue};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::device::Device;
use crate::options::MountOptions;

/// What a request takes beside the bytes of a write: its head and its arguments.
pub const REQUEST_HEAD_BYTES_MAX: usize = 4096;

/// What a thread has done. Only the thread writes it.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: AtomicU64,
    /// Reads of the device that returned no request.
    pub empty_reads: AtomicU64,
    /// Sleeps, for a request or a completion.
    pub waits: AtomicU64,
}

/// Adds 1 to a count of this thread.
pub fn add_one(count: &AtomicU64) {
    // Relaxed: a figure alone.
    count.store(count.load(Relaxed) + 1, Relaxed);
}

/// What a thread takes of the cache's memory.
pub struct Memory {
    pub queue: Queue,
    /// For a request, or the bytes of a read.
    pub received: Buffer,
}

impl Memory {
    /// Takes the memory of one thread.
    ///
    /// # Errors
    /// A sentence: there is none left.
    pub fn take(cache: &Cache, options: &MountOptions) -> Result<Memory, String> {
        let queue = cache.queue().map_err(|error| error.to_string())?;
        let received = cache.buffer(options.transfer_bytes_max + REQUEST_HEAD_BYTES_MAX);
        let received = received.ok_or_else(|| {
            let kib = options.transfer_bytes_max >> 10;
            format!(
                "memory_max leaves no room for a thread's buffer of {kib} KiB: raise it, or use fewer threads"
            )
        })?;
        Ok(Memory { queue, received })
    }
}

/// Gives this thread a mask of its own for new files (`operations/names.rs`). Returns whether it
/// has one.
pub fn take_mask() -> bool {
    // SAFETY: the thread uses no path that depends on the working directory of the process.
    let taken = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) };
    if let Err(errno) = taken {
        log::error!("a thread cannot have a mask of its own for new files: {errno}");
    }
    taken.is_ok()
}

/// Makes a descriptor that is readable when a request waits or the mount ends.
///
/// # Errors
/// EMFILE and the like.
pub fn events(device: &Device, stop: &OwnedFd) -> Result<OwnedFd, Errno> {
    let events = epoll::create(CreateFlags::CLOEXEC)?;
    // Exclusive: a request wakes one thread.
    epoll::add(&events, device, EventData::new_u64(0), EventFlags::IN | EventFlags::EXCLUSIVE)?;
    epoll::add(&events, stop, EventData::new_u64(1), EventFlags::IN)?;
    Ok(events)
}
