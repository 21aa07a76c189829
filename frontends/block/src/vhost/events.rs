//! [`Events`]: what wakes a worker: the guest's kicks, and the eventfd of its orders, by which a
//! stop or a change of memory wakes it.
//!
//! Both are in one epoll descriptor. The kicks are edge triggered, so that the worker never reads a
//! descriptor that the guest's side could make block.

use super::orders::Orders;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What an event says.
const WAKE: u64 = 0;
const KICK: u64 = 1;

/// A wait that does not wait.
pub(super) const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The events of one worker.
pub(super) struct Events {
    epoll: OwnedFd,
    /// Kept open while its kicks are waited for.
    _kick: File,
}

impl Events {
    pub fn new(kick: File, orders: &Orders) -> io::Result<Events> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &orders.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &kick, EventData::new_u64(KICK), EventFlags::IN | EventFlags::ET)?;
        Ok(Events { epoll, _kick: kick })
    }

    /// Takes the events that have come. Waits for the first of them for at most `timeout`, or
    /// without a limit.
    pub fn take(&self, orders: &Orders, timeout: Option<&Timespec>) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(KICK) }; 2];
        // Whatever came, the next turn looks at everything.
        let count = epoll::wait(&self.epoll, &mut events[..], timeout).unwrap_or(0);
        if events[..count].iter().any(|event| event.data.u64() == WAKE) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&orders.wake, &mut count);
        }
    }
}

/// Readable when there are events.
impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
