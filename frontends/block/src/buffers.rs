//! [`Buffers`]: the buffers of one connection. One is its reserve, the others are borrowed from the
//! cache while the cache has memory.
//!
//! - All connections of a server borrow from one account, its [`Loans`]. The account leaves enough
//!   memory for every client that may still connect, so a client that borrows buffers and reads no
//!   replies keeps no other client out.
//! - A connection takes its reserve when it is accepted and never shares it. The connection can
//!   therefore always make progress, however much memory other connections hold.
//! - All other buffers are borrowed for one piece each. A piece that is written or sent returns its
//!   buffer. While memory is ample, the connection keeps up to `kept_max_bytes` of returned buffers
//!   for its next requests, because the cache zeroes every buffer that it hands out. The rest goes
//!   back to the cache at once.
//! - An idle connection holds only its reserve.

use crate::request::RequestId;
use octavo::{Buffer, Cache};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The alignment and the granule of borrowed buffers, in bytes: the smallest page of a cache.
const GRANULE_BYTES: usize = 4096;

/// The account of a server: the bytes that all its connections together may borrow, and the bytes
/// that they have borrowed.
pub struct Loans {
    max_bytes: usize,
    // Relaxed: only the sum matters; it publishes no other data.
    lent_bytes: AtomicUsize,
}

impl Loans {
    pub fn new(max_bytes: usize) -> Arc<Loans> {
        Arc::new(Loans { max_bytes, lent_bytes: AtomicUsize::new(0) })
    }

    /// Lends `bytes` to a connection that has borrowed `own_bytes`. Returns false if the connection
    /// would then have borrowed more than three times the bytes that are left. A single connection
    /// thus gets up to three quarters of the account, a second one up to three quarters of the
    /// rest, and so on.
    fn lend(&self, own_bytes: usize, bytes: usize) -> bool {
        let lent = self.lent_bytes.fetch_update(Relaxed, Relaxed, |lent| {
            let left_bytes = self.max_bytes.checked_sub(lent + bytes)?;
            (own_bytes + bytes <= 3 * left_bytes).then_some(lent + bytes)
        });
        lent.is_ok()
    }

    /// Returns whether less than half of the account is lent.
    fn is_ample(&self) -> bool {
        2 * self.lent_bytes.load(Relaxed) < self.max_bytes
    }

    fn take_back(&self, bytes: usize) {
        self.lent_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// The buffers of one connection; see the module.
pub struct Buffers {
    cache: Cache,
    loans: Arc<Loans>,
    reserve: Option<Buffer>,
    /// Identifies the reserve when it is returned: the bytes of a buffer never move.
    reserve_address: usize,
    reserve_holder: Option<RequestId>,
    /// Borrowed buffers that no piece uses. The most recently used one is last, and is used first:
    /// its bytes are most likely still in the processor's cache.
    kept: VecDeque<Buffer>,
    kept_bytes: usize,
    /// The bytes of all borrowed buffers, in use or kept.
    borrowed_bytes: usize,
    borrowed_max_bytes: usize,
    piece_max_bytes: usize,
    kept_max_bytes: usize,
}

impl Buffers {
    /// Creates the buffers of a connection. They borrow pieces of at most `piece_max_bytes`, and at
    /// most `borrowed_max_bytes` in all, and keep at most `kept_max_bytes` of unused ones.
    ///
    /// # Panics
    /// If `reserve` is empty.
    pub fn new(
        cache: Cache,
        loans: Arc<Loans>,
        reserve: Buffer,
        piece_max_bytes: usize,
        borrowed_max_bytes: usize,
        kept_max_bytes: usize,
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
            kept_max_bytes,
        }
    }

    /// Returns a buffer for a piece of `want_bytes`, or for the first part of them. None while the
    /// cache has no memory left and the reserve is in use; a completion or a send of this
    /// connection returns the reserve.
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

    /// Returns a buffer that `take` gave out.
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.as_ptr().addr() == self.reserve_address {
            self.reserve_holder = None;
            self.reserve = Some(buffer);
            return;
        }
        self.kept_bytes += buffer.len();
        self.kept.push_back(buffer);
        let keep_bytes = if self.loans.is_ample() { self.kept_max_bytes } else { 0 };
        while self.kept_bytes > keep_bytes {
            self.release_oldest();
        }
    }

    /// Gives all kept buffers back to the cache.
    pub fn release(&mut self) {
        while self.kept_bytes > 0 {
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        let buffer = self.kept.pop_front().expect("`kept_bytes` counts the kept buffers");
        self.kept_bytes -= buffer.len();
        self.borrowed_bytes -= buffer.len();
        self.loans.take_back(buffer.len());
    }

    /// Returns the request that uses the reserve.
    pub fn reserve_holder(&self) -> Option<RequestId> {
        self.reserve_holder
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // Buffers that were not returned are freed with the connection.
        self.loans.take_back(self.borrowed_bytes);
    }
}
