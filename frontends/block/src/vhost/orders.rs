//! [`Orders`]: the changes that a device passes to the running worker of a ring, and the descriptor
//! by which the worker signals the guest.

use super::memory::Memory;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The changes that a device passes to a worker.
pub(super) struct Orders {
    pub stopping: AtomicBool,
    /// The guest's memory. Replaced when the VMM changes it.
    pub memory: Mutex<Arc<Memory>>,
    pub is_memory_new: AtomicBool,
    /// The descriptor that signals the guest. Replaced at any time.
    call: Mutex<Option<File>>,
    /// The guest has asked for writes that are durable when they complete.
    pub is_durable: Arc<AtomicBool>,
    pub wake: OwnedFd,
}

/// Signals an eventfd. Ignores failures: the counter is full only if no thread has read it for 2^64
/// signals, and a descriptor of the VMM that is no eventfd has no waiting guest.
pub(super) fn signal(event: impl AsFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orders {
    pub fn new(memory: Arc<Memory>, call: Option<File>, is_durable: Arc<AtomicBool>) -> io::Result<Orders> {
        Ok(Orders {
            stopping: AtomicBool::new(false),
            memory: Mutex::new(memory),
            is_memory_new: AtomicBool::new(false),
            call: Mutex::new(call),
            is_durable,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn set_memory(&self, memory: Arc<Memory>) {
        *lock(&self.memory) = memory;
        self.is_memory_new.store(true, SeqCst);
        self.wake();
    }

    /// Replaces the descriptor that signals the guest, and signals it once: the guest may have
    /// missed a signal to the old one.
    pub fn set_call(&self, call: Option<File>) {
        *lock(&self.call) = call;
        self.signal();
    }

    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        signal(&self.wake);
    }

    /// Signals the guest that requests have completed.
    pub fn signal(&self) {
        if let Some(call) = &*lock(&self.call) {
            signal(call);
        }
    }
}
