//! Limits the server's heap, which is not part of `memory_max`.
//!
//! The cache's memory lies in mappings of its own. The heap holds only small things: connections,
//! commands, recordings, scrapes. But a hundred threads allocate and free them, and glibc gives
//! threads up to eight arenas per processor, each with its own fragments: after ten minutes of
//! hostile clients and recordings, a server held 4 MiB more than its limit.
//!
//! Only the program does this. The library never changes its process's heap.

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
