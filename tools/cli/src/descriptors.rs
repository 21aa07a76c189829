//! The descriptors that this process was started with, and those that the next program gets.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Takes ownership of a descriptor by its number. `None` if it is not open.
///
/// Call it once for each number, before the process opens anything itself: the numbers come from
/// the environment, which says what the process was started with.
#[allow(unsafe_code)]
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number <= 2 {
        return None;
    }
    // SAFETY: the call only asks the kernel about the number, and fails if it is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(descriptor, FdFlags::CLOEXEC).ok()?;
    // SAFETY: the descriptor is open, and nothing else in this process knows it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Has the kernel close all descriptors but the standard ones when the program is replaced. Those
/// that other processes have sent are not marked for that. Linux before 5.11 refuses, and keeps
/// them.
#[allow(unsafe_code)]
pub fn close_on_exec() {
    // SAFETY: the call changes a flag of descriptors, and no memory.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}
