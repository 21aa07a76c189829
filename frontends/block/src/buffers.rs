//! The buffers of one connection: one that it always has, and others while the cache can spare
//! them.
//!
//! All connections of a server borrow from one account, its [`Loans`], which leaves every client
//! that may still come what he needs for himself: whoever borrows and does not read his replies
//! keeps nobody out.
//!
//! The reserve is taken when the connection is accepted and is its alone, so that it can always go
//! on, however much memory others hold. Everything else is borrowed from the cache per piece. Of
//! what comes back the connection keeps a batch's worth for its next requests while memory is
//! ample, because the cache hands out zeroed memory only; the rest goes back to the cache as soon
//! as the piece is written or sent. An idle connection holds nothing but its reserve.

use crate::executor::BATCH_READ_BYTES;
use crate::request::RequestId;
use octavo::{Buffer, Cache};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The alignment and the granule of borrowed buffers: the smallest page of a cache.
const GRANULE_BYTES: usize = 4096;

/// What the connections of a server may borrow together, and what they have borrowed.
pub struct Loans {
    max_bytes: usize,
    // Relaxed: only the sum matters.
    lent_bytes: AtomicUsize,
}

impl Loans {
    pub fn new(max_bytes: usize) -> Arc<Loans> {
        Arc::new(Loans { max_bytes, lent_bytes: AtomicUsize::new(0) })
    }

    /// Lends to somebody who has borrowed `own_bytes`. Nobody gets more than three times what is
    /// left then: one gets three quarters of all if he is alone, a second one three quarters of
    /// the rest, and so on.
    fn lend(&self, own_bytes: usize, bytes: usize) -> bool {
        let lent = self.lent_bytes.fetch_update(Relaxed, Relaxed, |lent| {
            let left_bytes = self.max_bytes.checked_sub(lent + bytes)?;
            (own_bytes + bytes <= 3 * left_bytes).then_some(lent + bytes)
        });
        lent.is_ok()
    }

    /// Whether less than half is lent.
    fn is_ample(&self) -> bool {
        2 * self.lent_bytes.load(Relaxed) < self.max_bytes
    }

    fn take_back(&self, bytes: usize) {
        self.lent_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// See the module.
pub struct Buffers {
    cache: Cache,
    loans: Arc<Loans>,
    reserve: Option<Buffer>,
    /// Tells the reserve from the others when it comes back: a buffer's bytes do not move.
    reserve_address: usize,
    reserve_holder: Option<RequestId>,
    /// Borrowed buffers that no piece uses, the last used last: its bytes are most likely still in
    /// the processor's cache.
    kept: VecDeque<Buffer>,
    kept_bytes: usize,
    /// What pieces use and what is kept.
    borrowed_bytes: usize,
    borrowed_max_bytes: usize,
    piece_max_bytes: usize,
}

impl Buffers {
    /// `reserve` is not empty. Borrows pieces of at most `piece_max_bytes`, at most
    /// `borrowed_max_bytes` in all.
    pub fn new(
        cache: Cache,
        loans: Arc<Loans>,
        reserve: Buffer,
        piece_max_bytes: usize,
        borrowed_max_bytes: usize,
    ) -> Buffers {
        assert!(!reserve.is_empty(), "without a reserve a connection can get stuck");
        let reserve_address = reserve.as_ptr().addr();
        Buffers {
            cache,
            loans,
            reserve: Some(reserve),
            reserve_address,
            reserve_holder: None,
            kept: VecDeque::new(),
            kept_bytes: 0,
            borrowed_bytes: 0,
            borrowed_max_bytes,
            piece_max_bytes,
        }
    }

    /// A buffer for a piece of `want_bytes` or the first part of them. None while the cache has
    /// nothing to spare and the reserve is in use; it comes back with one of this connection's
    /// own completions or sends.
    pub fn take(&mut self, want_bytes: usize, holder: RequestId) -> Option<Buffer> {
        let bytes = want_bytes.min(self.piece_max_bytes).next_multiple_of(GRANULE_BYTES);
        if let Some(index) = self.kept.iter().rposition(|buffer| buffer.len() == bytes) {
            self.kept_bytes -= bytes;
            return self.kept.remove(index);
        }
        let borrowed = self.borrow(bytes);
        if borrowed.is_some() || self.kept.is_empty() {
            return borrowed.or_else(|| self.take_reserve(holder));
        }
        self.release();
        self.borrow(bytes).or_else(|| self.take_reserve(holder))
    }

    fn borrow(&mut self, bytes: usize) -> Option<Buffer> {
        if self.borrowed_bytes + bytes <= self.borrowed_max_bytes
            && self.loans.lend(self.borrowed_bytes, bytes)
        {
            if let Some(buffer) = self.cache.buffer(bytes) {
                self.borrowed_bytes += bytes;
                return Some(buffer);
            }
            self.loans.take_back(bytes);
        }
        None
    }

    fn take_reserve(&mut self, holder: RequestId) -> Option<Buffer> {
        let reserve = self.reserve.take()?;
        self.reserve_holder = Some(holder);
        Some(reserve)
    }

    /// Takes back what `take` gave.
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.as_ptr().addr() == self.reserve_address {
            self.reserve_holder = None;
            self.reserve = Some(buffer);
            return;
        }
        self.kept_bytes += buffer.len();
        self.kept.push_back(buffer);
        let keep_bytes = if self.loans.is_ample() { BATCH_READ_BYTES } else { 0 };
        while self.kept_bytes > keep_bytes {
            self.release_oldest();
        }
    }

    /// Gives everything that is kept back to the cache.
    pub fn release(&mut self) {
        while self.kept_bytes > 0 {
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        let buffer = self.kept.pop_front().expect("`kept_bytes` are theirs");
        self.kept_bytes -= buffer.len();
        self.borrowed_bytes -= buffer.len();
        self.loans.take_back(buffer.len());
    }

    /// The request that has the reserve.
    pub fn reserve_holder(&self) -> Option<RequestId> {
        self.reserve_holder
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // What was never given back goes with the connection that has it.
        self.loans.take_back(self.borrowed_bytes);
    }
}
