//! Queues: many requests in flight from one thread.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use octavo::{Completion, Memory, Op, Piece, Queue, Request};

use crate::cache::octavo_cache;
use crate::call::{call, given, quietly};
use crate::error::{Failure, OCTAVO_OK, remember};
use crate::object::{advice_of, octavo_object};
use crate::versioned::{self, Versioned};

/// Requests in flight. One thread at a time may use it.
#[derive(Debug)]
pub struct octavo_queue(Queue);

/// Reads `len` bytes into `memory`.
pub const OCTAVO_OP_READ: u32 = 0;
/// Writes `len` bytes of `memory`.
pub const OCTAVO_OP_WRITE: u32 = 1;
/// Makes all acknowledged writes to the object durable.
pub const OCTAVO_OP_SYNC: u32 = 2;
/// As `OCTAVO_OP_SYNC`, for a range.
pub const OCTAVO_OP_SYNC_RANGE: u32 = 3;
/// Makes the range zeros; the store may free its space.
pub const OCTAVO_OP_DISCARD: u32 = 4;
/// Makes the range zeros.
pub const OCTAVO_OP_ZERO: u32 = 5;
/// Announces how the range will be used.
pub const OCTAVO_OP_ADVISE: u32 = 6;

/// The request completes when its bytes are durable: of writes, discards and zeros.
pub const OCTAVO_REQUEST_DURABLE: u32 = 1;

/// The request waited neither for a store nor for another thread. A read that has succeeded so is a
/// hit.
pub const OCTAVO_COMPLETION_AT_ONCE: u32 = 1;

/// A request. Set `size`, and zero what is not used.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_request {
    /// `sizeof(octavo_request)`.
    pub size: usize,
    /// The caller's number, returned with the completion.
    pub user_data: u64,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The memory of a read or a write. It belongs to the library until the request has completed.
    pub memory: *mut c_void,
    /// `OCTAVO_OP_*`.
    pub op: u32,
    /// `OCTAVO_REQUEST_*`.
    pub flags: u32,
    /// `OCTAVO_ADVICE_*`, of `OCTAVO_OP_ADVISE`.
    pub advice: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: `repr(C)`; integers and an address; members of 32 bits come in pairs.
unsafe impl Versioned for octavo_request {
    const NAME: &'static str = "octavo_request";
    const SIZE_MIN: usize = 56;
}

const _: () = assert!(size_of::<octavo_request>() == 56);

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct octavo_completion {
    /// `sizeof(octavo_completion)`: set in the first of an array.
    pub size: usize,
    /// The request's number.
    pub user_data: u64,
    /// `OCTAVO_OK`, or why the request failed. `octavo_error_message` has the message of the last
    /// one that failed.
    pub code: i32,
    /// The number of the system's error, as `octavo_error_errno`.
    pub error: i32,
    /// `OCTAVO_COMPLETION_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: as above.
unsafe impl Versioned for octavo_completion {
    const NAME: &'static str = "octavo_completion";
    const SIZE_MIN: usize = 32;
}

const _: () = assert!(size_of::<octavo_completion>() == 32);

/// Creates a queue. On success, `*queue` is the caller's to free.
///
/// Errors: `OCTAVO_ENOMEMORY` if the buffer share has no room for its ring, `OCTAVO_EINVALID`,
/// `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_queue_new(
    cache: Option<&octavo_cache>,
    queue: Option<&mut *mut octavo_queue>,
) -> c_int {
    call(|| {
        let queue = given(queue, "queue")?;
        *queue = std::ptr::null_mut();
        let made = given(cache, "cache")?.0.queue()?;
        *queue = Box::into_raw(Box::new(octavo_queue(made)));
        Ok(())
    })
}

/// Waits for all requests in flight, and frees the queue. Their completions are lost.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_queue_free(queue: Option<Box<octavo_queue>>) {
    quietly(|| drop(queue));
}

/// # Safety
/// The request's memory has `len` bytes until the request has completed.
unsafe fn request_of(asked: &octavo_request) -> Result<Request, Failure> {
    let &octavo_request { user_data, offset, len, memory, op, flags, advice, reserved, .. } = asked;
    if flags & !OCTAVO_REQUEST_DURABLE != 0 || reserved != 0 {
        return Err(Failure::invalid(format!("request {user_data}: flags that are not known")));
    }
    let durable = flags & OCTAVO_REQUEST_DURABLE != 0;
    let len_here = || usize::try_from(len).map_err(|_| Failure::invalid(format!("request {user_data}: len")));
    let memory = || {
        let piece = Piece { start: memory.cast(), len: len_here()? };
        if memory.is_null() && piece.len > 0 {
            return Err(Failure::invalid(format!("request {user_data}: memory is a null pointer")));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { Memory::from_pieces([piece], ()) })
    };
    let op = match op {
        OCTAVO_OP_READ => Op::ReadInto { offset, memory: memory()? },
        OCTAVO_OP_WRITE => Op::WriteFrom { offset, memory: memory()?, durable },
        OCTAVO_OP_SYNC => Op::Sync,
        OCTAVO_OP_SYNC_RANGE => Op::SyncRange { offset, len: len_here()? },
        OCTAVO_OP_DISCARD => Op::Discard { offset, len, durable },
        OCTAVO_OP_ZERO => Op::Zero { offset, len, durable },
        OCTAVO_OP_ADVISE => Op::Advise { offset, len, advice: advice_of(advice)? },
        _ => return Err(Failure::invalid(format!("request {user_data}: {op} is no operation"))),
    };
    Ok(Request { op, user_data })
}

/// Submits requests to an object: all, or none if one is invalid. Never waits for a store, except
/// for advice. Each request completes, perhaps with an error.
///
/// Errors: `OCTAVO_EINVALID`.
///
/// # Safety
/// `requests` has `count` entries of the size of the first. The memory of each is valid, and nobody
/// else uses it, until the request has completed or the queue is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_queue_submit(
    queue: Option<&mut octavo_queue>,
    object: Option<&octavo_object>,
    requests: *const octavo_request,
    count: usize,
) -> c_int {
    call(|| {
        let queue = given(queue, "queue")?;
        let object = given(object, "object")?;
        if count == 0 {
            return Ok(());
        }
        let first = given((!requests.is_null()).then_some(requests), "requests")?;
        // SAFETY: the caller's promise.
        let stride = unsafe { first.cast::<usize>().read() };
        let mut asked = Vec::with_capacity(count);
        for number in 0..count {
            // SAFETY: the caller's promise.
            let at = unsafe { first.byte_add(number * stride) };
            // SAFETY: as above.
            let request = unsafe { versioned::read(at) }?;
            // SAFETY: as above.
            asked.push(unsafe { request_of(&request) }?);
        }
        queue.0.submit(&object.0, asked);
        Ok(())
    })
}

fn completion_of(completion: Completion) -> octavo_completion {
    let Completion { user_data, result, at_once, .. } = completion;
    let flags = if at_once { OCTAVO_COMPLETION_AT_ONCE } else { 0 };
    let (code, error) = match result {
        Ok(()) => (OCTAVO_OK, 0),
        Err(error) => {
            let failure = Failure::from(error);
            let errno = failure.errno;
            (remember(failure), errno)
        }
    };
    octavo_completion { size: 0, user_data, code, error, flags, reserved: 0 }
}

/// Waits until `min` requests have completed, or all that are in flight, and takes at most `most`
/// completions. With `min` 0 it never waits. `*count` becomes how many were taken.
///
/// Errors: `OCTAVO_EINVALID`, and nothing was taken.
///
/// # Safety
/// `completions` has room for `most` entries of the size that is set in the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octavo_queue_wait(
    queue: Option<&mut octavo_queue>,
    min: usize,
    completions: *mut octavo_completion,
    most: usize,
    count: Option<&mut usize>,
) -> c_int {
    call(|| {
        let queue = given(queue, "queue")?;
        let count = given(count, "count")?;
        *count = 0;
        if most == 0 {
            return Ok(());
        }
        let first = given((!completions.is_null()).then_some(completions), "completions")?;
        // SAFETY: the caller's promise.
        let stride = unsafe { first.cast::<usize>().read() };
        // SAFETY: as above. Checks the size before anything is taken.
        unsafe { versioned::read(first.cast_const()).map(drop)? };
        while *count < most {
            let taken = match queue.0.take_next() {
                None if *count < min => queue.0.wait_next(),
                taken => taken,
            };
            let Some(taken) = taken else { break };
            // SAFETY: inside the room for `most` entries.
            let at = unsafe { first.byte_add(*count * stride) };
            // SAFETY: as above.
            unsafe { at.cast::<usize>().write(stride) };
            // SAFETY: as above.
            unsafe { versioned::write(at, &completion_of(taken)) }?;
            *count += 1;
        }
        Ok(())
    })
}

/// Returns the number of requests whose completions were not taken.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_queue_pending(queue: Option<&octavo_queue>) -> usize {
    queue.map_or(0, |queue| queue.0.pending())
}

/// Sets `*fd` to a descriptor for `poll` or `epoll`, which belongs to the queue. It is readable
/// while the queue has completions to take or work to do: then call `octavo_queue_wait` with `min`
/// 0 until it takes none, and sleep again. It may also be readable for no reason.
///
/// Errors: `OCTAVO_EINVALID` if the system has no descriptor left, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_queue_fd(queue: Option<&octavo_queue>, fd: Option<&mut c_int>) -> c_int {
    call(|| {
        *given(fd, "fd")? = given(queue, "queue")?.0.poll_fd()?.as_raw_fd();
        Ok(())
    })
}
