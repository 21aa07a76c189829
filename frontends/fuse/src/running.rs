//! [`Running`]: how many threads and handed-over requests of a mount are left, and a way to wait
//! for none.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of threads that still serve, and of requests that wait for a thread.
#[derive(Default)]
pub struct Running {
    count: Mutex<usize>,
    none: Condvar,
}

impl Running {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more, until the value is dropped.
    pub fn begin(self: &Arc<Self>) -> Serves {
        *self.count() += 1;
        Serves(self.clone())
    }

    /// Whether none is left.
    pub fn is_over(&self) -> bool {
        *self.count() == 0
    }

    /// Waits until none is left, at most for this long. Returns whether none is.
    pub fn wait(&self, most: Duration) -> bool {
        let waited = self.none.wait_timeout_while(self.count(), most, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// One that serves. Its drop tells that it has ended, even by a panic.
pub struct Serves(Arc<Running>);

impl Drop for Serves {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}
