//! How the server's heap keeps to its place beside `memory_max`.
//!
//! The cache's memory lies in mappings of its own. What is left to the heap (connections, commands,
//! recordings, scrapes) is small, but a server has a hundred threads that take and give it back,
//! and glibc gives them up to eight arenas a processor, each with its own fragments: after ten
//! minutes of hostile clients and recordings the server had 4 MiB more than it may.
//!
//! This is the program's business. The library changes nothing about its process's heap.

/// The arenas of the heap. Hits do not allocate, so threads rarely meet there.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 2;

/// From this length on a block is a mapping, and goes back to the kernel when it is freed. A
/// recording's buffers are a little longer. (Without this bound freed blocks raise it.)
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 64 << 10;

/// Bounds the heap of this process. Called before threads are started.
#[cfg(target_env = "gnu")]
pub fn bound() {
    let options = [(libc::M_ARENA_MAX, ARENAS_MAX), (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)];
    for (option, value) in options {
        // SAFETY: mallopt takes two integers, and refuses what it does not know.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Other allocators have no such arenas.
#[cfg(not(target_env = "gnu"))]
pub fn bound() {}
