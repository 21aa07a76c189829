//! Aligned buffers for direct I/O, a bounded number.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What direct I/O asks of an address.
const ALIGNMENT: usize = 4096;

/// Memory of all buffers, unless that makes too few.
const ALL_BYTES: usize = 8 << 20;
const COUNT_MIN: usize = 4;
const COUNT_MAX: usize = 16;

/// Buffers of one length. They are made when they are first needed.
pub(super) struct Buffers {
    len: usize,
    count: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Aligned>,
    made: usize,
}

/// Memory that direct I/O accepts.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

/// A buffer in use. Its bytes are arbitrary at first.
pub(super) struct Lent<'b> {
    buffers: &'b Buffers,
    /// `None` only in `drop`.
    buffer: Option<Aligned>,
}

impl Buffers {
    pub fn new(len: usize) -> Buffers {
        let count = (ALL_BYTES / len).clamp(COUNT_MIN, COUNT_MAX);
        Buffers { len, count, state: Mutex::default(), returned: Condvar::new() }
    }

    /// Returns the memory of all buffers.
    pub fn memory_bytes(&self) -> u64 {
        (self.count * (self.len + ALIGNMENT)) as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a buffer. `None` if none has become free within `patience`.
    pub fn take(&self, patience: Duration) -> Option<Lent<'_>> {
        let none = |state: &mut State| state.free.is_empty() && state.made == self.count;
        let waited = self.returned.wait_timeout_while(self.state(), patience, none);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let free = state.free.pop();
        if free.is_none() {
            if state.made == self.count {
                return None;
            }
            state.made += 1;
        }
        drop(state);
        Some(Lent { buffers: self, buffer: Some(free.unwrap_or_else(|| Aligned::new(self.len))) })
    }
}

impl Aligned {
    /// Returns `len` zeros.
    pub fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Aligned { bytes, start, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

impl Deref for Lent<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("only `drop` takes it")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("only `drop` takes it")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.buffers.state().free.extend(self.buffer.take());
        self.buffers.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_no_more_than_said() {
        let buffers = Buffers::new(4 << 20);
        let lent: Vec<_> = (0..COUNT_MIN).map(|_| buffers.take(Duration::ZERO).unwrap()).collect();
        assert!(lent.iter().all(|lent| lent.as_ptr().addr() % ALIGNMENT == 0 && lent.len() == 4 << 20));
        assert!(buffers.take(Duration::from_millis(1)).is_none());
        drop(lent);
        assert!(buffers.take(Duration::ZERO).is_some());
    }
}
