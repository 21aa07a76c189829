//! The kernel's calls about nodes: `mbind`, `move_pages`, a thread's processors. A kernel or
//! container that refuses one returns an error.
//!
//! Not here: what to do about a refusal; that is up to the caller.

use std::io;

/// Bits of the kernel's masks of nodes: more than it supports nodes.
const MASK_BITS: usize = 1024;

/// `MPOL_MF_MOVE`.
const MOVE: libc::c_ulong = 2;

fn mask_of(number: u32) -> [libc::c_ulong; MASK_BITS / 64] {
    let mut mask = [0; MASK_BITS / 64];
    mask[number as usize / 64] |= 1 << (number % 64);
    mask
}

/// Asks the kernel to place a range of ours on a node: pages touched later, and pages already
/// touched, which move. If the node has no memory left, the kernel uses another node's: a remote
/// page is better than none.
///
/// `at` is aligned to a page.
pub(crate) fn prefer(at: *mut u8, len: usize, number: u32) -> io::Result<()> {
    if cfg!(any(miri, shuttle)) || len == 0 {
        return Ok(());
    }
    if number as usize >= MASK_BITS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mask = mask_of(number);
    // SAFETY: the mask is alive and has that many bits; a policy changes no byte of the memory.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, at, len, libc::MPOL_PREFERRED, mask.as_ptr(), MASK_BITS + 1, MOVE)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the node of each address's page; `None` if the page was not touched yet.
pub(crate) fn nodes_of(pages: &[*mut u8]) -> io::Result<Vec<Option<u32>>> {
    if cfg!(any(miri, shuttle)) {
        return Ok(vec![None; pages.len()]);
    }
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: both arrays have that many members; without target nodes the call only reports.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.into_iter().map(|node| u32::try_from(node).ok()).collect())
}

/// The processor on which the calling thread runs.
pub(crate) fn cpu() -> Option<u32> {
    if cfg!(any(miri, shuttle)) {
        return None;
    }
    // SAFETY: asks the kernel, and touches no memory.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Restricts the calling thread to these processors.
pub(crate) fn pin(cpus: &[u32]) -> io::Result<()> {
    if cfg!(any(miri, shuttle)) {
        return Ok(());
    }
    // SAFETY: a set of processors is plain bits; zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < 8 * size_of::<libc::cpu_set_t>()) {
        // SAFETY: inside the set.
        unsafe { libc::CPU_SET(*cpu as usize, &mut set) };
    }
    // SAFETY: the set is alive and has that size.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
