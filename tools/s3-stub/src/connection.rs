//! [`Connection`]: what requests decide about their connection.

use std::sync::atomic::{AtomicBool, Ordering};

/// How a connection ends, which its requests decide.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub resets: AtomicBool,
}

impl Connection {
    /// The connection is about to end. Relaxed: the same task reads it.
    pub fn end(&self, reset: bool) {
        self.resets.store(reset, Ordering::Relaxed);
    }
}
