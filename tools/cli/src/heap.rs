//! Limits the server's heap, which is not part of `memory_max`.
//!
//! The cache's memory lies in mappings of its own. The heap holds only small things: connections,
//! commands, recordings, scrapes. But a hundred threads allocate and free them, and glibc gives
//! threads up to eight arenas per processor, each with its own fragments: after ten minutes of
//! hostile clients and recordings, a server held 4 MiB more than its limit.
//!
//! The allocator keeps what is freed in the middle of the heap: the tables of a mount that has
//! known many files, for example. A thread gives such memory back to the kernel ([`keep_trimmed`]).
//!
//! Only the program does this. The library never changes its process's heap.

use std::time::Duration;

/// Arenas of the heap. Two suffice: hits do not allocate, so threads rarely compete for an arena.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 2;

/// A block of this many bytes or more is a mapping of its own, which returns to the kernel when it
/// is freed. A recording's buffers are a little longer. (glibc's default threshold rises with the
/// blocks that are freed; setting it keeps it fixed.)
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 64 << 10;

/// Limits the heap of this process. Call it before threads start.
#[cfg(target_env = "gnu")]
pub fn bound() {
    let options = [(libc::M_ARENA_MAX, ARENAS_MAX), (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)];
    for (option, value) in options {
        // SAFETY: mallopt takes two integers, and refuses options that it does not know.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Other allocators have no such arenas.
#[cfg(not(target_env = "gnu"))]
pub fn bound() {}

/// The room of the stack of the thread that trims the heap.
const STACK_BYTES: usize = 256 << 10;

/// How often the heap is looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// The heap is trimmed when this many bytes more are free than after the last time.
const FREED_BYTES: usize = 1 << 20;

/// Returns the number of free bytes in the heap, of 4 GiB at most: the call's numbers wrap.
#[cfg(target_env = "gnu")]
fn free_bytes() -> usize {
    // SAFETY: the call takes nothing, and locks what it reads.
    let info = unsafe { libc::mallinfo() };
    info.fordblks as u32 as usize
}

#[cfg(not(target_env = "gnu"))]
fn free_bytes() -> usize {
    0
}

/// Gives the pages of free memory back to the kernel.
#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: the call takes a number, and locks what it changes.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

/// Starts a thread that gives free memory back to the kernel, after much was freed. Call it when
/// signals are blocked.
pub fn keep_trimmed() {
    let keep = || {
        // Free memory that the kernel has already.
        let mut trimmed = free_bytes();
        loop {
            std::thread::sleep(PERIOD);
            let free = free_bytes();
            if free >= trimmed + FREED_BYTES {
                trim();
                trimmed = free_bytes();
            }
            trimmed = trimmed.min(free);
        }
    };
    let thread = std::thread::Builder::new().name("octavo-heap".into()).stack_size(STACK_BYTES);
    if let Err(error) = thread.spawn(keep) {
        log::debug!("free memory is not given back: {error}");
    }
}
