//! [`Worker`]: the thread of one ring.

use super::orders::Orders;
use super::ring::{Ring, Start};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The stack of a worker's thread, in bytes. Untouched pages of it cost no memory.
const STACK_BYTES: usize = 256 << 10;

/// A running worker.
pub(super) struct Worker {
    orders: Arc<Orders>,
    thread: JoinHandle<u16>,
}

impl Worker {
    /// Starts the thread of a ring.
    pub fn start(start: Start) -> io::Result<Worker> {
        let (orders, name) = (start.orders.clone(), start.name.clone());
        let ring = Ring::new(start)?;
        let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || ring.run())?;
        Ok(Worker { orders, thread })
    }

    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Stops the thread when everything in flight has ended. Returns the index of the next request
    /// that it would have taken.
    pub fn stop(self) -> Option<u16> {
        self.orders.stop();
        self.thread.join().ok()
    }
}
