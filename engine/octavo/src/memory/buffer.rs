//! Buffers that callers borrow for their requests, from the cache's own memory.
//!
//! The heap cannot serve them: its allocator keeps freed blocks of this size in many arenas,
//! where they fragment, and resident memory grows without limit while the charge stays the same.
//! Here every buffer lies in a *slot* of the pool's own mapping:
//!
//! - Lengths are rounded up to a *class*, four classes per doubling. A class is one range of
//!   addresses with as many slots as the reserve could hold buffers of that class, so a free
//!   slot always exists and nothing fragments. Only the requested length of a buffer is ever
//!   touched.
//! - A returned buffer leaves its slot *warm*: its memory stays resident for the next buffer.
//!   Memory in use and warm memory together fit into the reserve. Before a new buffer would
//!   break that, the oldest warm slots give their memory back to the kernel and become *cold*.
//! - [`BufferPool::give_back_idle`] makes those slots cold that no buffer needed since its last
//!   call.
//!
//! Not here: bounce pages, which carry the engine's own writes (`bounce.rs`).

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::OnceLock;

use octavo_disk::Process;

use super::frames::Mapping;
use super::reserve::Reserve;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// Alignment and granule of buffers, in bytes: the kernel's page.
const PAGE: usize = 4096;

/// The bytes of a request, lent by [`Cache::buffer`](crate::Cache::buffer) or the caller's own (a
/// `Vec<u8>`, by `From`).
/// The engine owns the buffer while its request is in flight, and returns it with the
/// completion.
pub struct Buffer(Memory);

enum Memory {
    Own(Vec<u8>),
    Borrowed(Loan),
}

/// A slot of the pool, in use. Its length and address identify the slot.
struct Loan {
    pool: Arc<BufferPool>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a loan is the only user of its slot's memory, as a vector is of its own.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl From<Vec<u8>> for Buffer {
    /// Wraps the caller's own memory, which is not charged.
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer(Memory::Own(bytes))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(bytes) => bytes,
            // SAFETY: the loan's own `len` bytes of its slot, mapped and initialised.
            Memory::Borrowed(loan) => unsafe { std::slice::from_raw_parts(loan.at.as_ptr(), loan.len) },
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(bytes) => bytes,
            // SAFETY: as in `deref`, and the borrow is unique.
            Memory::Borrowed(loan) => unsafe { std::slice::from_raw_parts_mut(loan.at.as_ptr(), loan.len) },
        }
    }
}

impl std::fmt::Debug for Buffer {
    /// Shows the length, not the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.put_back(self.at, self.len);
    }
}

/// The memory from which a cache lends buffers.
pub(crate) struct BufferPool {
    /// In a child of `fork` the pool is left alone: threads that do not exist there may hold its
    /// locks.
    process: Process,
    /// Buffers in use are charged to the reserve. Warm memory is not charged, and stays within
    /// what is left.
    reserve: Arc<Reserve>,
    classes: Vec<Class>,
    /// Resident bytes of warm slots.
    warm_bytes: AtomicU64,
}

/// All slots for buffers of about one length.
struct Class {
    slot_bytes: usize,
    slots: u32,
    /// Reserved with the first buffer of the class.
    mapping: OnceLock<Mapping>,
    free: Mutex<Free>,
}

/// The slots of a class that no buffer uses.
#[derive(Default)]
struct Free {
    /// The most recent at the back.
    warm: VecDeque<Warm>,
    cold: Vec<u32>,
    /// Slots from this one on were never used.
    fresh: u32,
    /// The fewest warm slots since the last `give_back_idle`.
    warm_min: usize,
}

/// A free slot with resident memory.
struct Warm {
    slot: u32,
    bytes: usize,
}

/// The class of a buffer of `pages` pages. The most pages of the classes are 1, 2, 3, 4, 5, 6,
/// 7, 8, 10, 12, 14, 16, 20, ...
fn class_of(pages: usize) -> usize {
    debug_assert!(pages > 0);
    if pages <= 4 {
        return pages - 1;
    }
    // The three highest bits of `pages - 1`, rounded up: 4 to 7, and one more is the next class.
    let shift = (pages - 1).ilog2() - 2;
    4 * shift as usize + ((pages - 1) >> shift)
}

/// The most pages of a class; the inverse of `class_of`.
fn pages_of(class: usize) -> usize {
    match class {
        0..4 => class + 1,
        _ => {
            let shift = class / 4 - 1;
            (class % 4 + 5) << shift
        }
    }
}

impl BufferPool {
    /// Creates a pool whose buffers are charged to `reserve`. Takes no memory yet.
    pub fn new(reserve: Arc<Reserve>) -> Arc<BufferPool> {
        let pages_max = reserve.max_bytes() as usize / PAGE;
        let count = if pages_max == 0 { 0 } else { class_of(pages_max) + 1 };
        let class = |class| {
            let pages_min = if class == 0 { 1 } else { pages_of(class - 1) + 1 };
            Class {
                slot_bytes: pages_of(class) * PAGE,
                slots: u32::try_from(pages_max / pages_min).unwrap_or(u32::MAX),
                mapping: OnceLock::new(),
                free: Mutex::default(),
            }
        };
        let classes = (0..count).map(class).collect();
        Arc::new(BufferPool { process: Process::this(), reserve, classes, warm_bytes: AtomicU64::new(0) })
    }

    /// Lends zeroed memory of at least `len` bytes, a whole number of pages. `None` while the
    /// reserve is used up.
    pub fn borrow(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        if !self.process.is_this() {
            return None;
        }
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let charge = self.reserve.charge(len as u64, "a buffer").ok()?;
        let class = &self.classes[class_of(len / PAGE)];
        let mapping = class.mapping()?;
        let (slot, warm) = class.take();
        let at = |offset| mapping.at(slot as usize * class.slot_bytes + offset);
        if let Some(bytes) = warm {
            let kept = bytes.min(len);
            if bytes > len {
                mapping.give_back(slot as usize * class.slot_bytes + len, bytes - len);
            }
            // Relaxed: see `fit`.
            self.warm_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            // SAFETY: the slot belongs to this call since `take`, and has that many bytes.
            unsafe { std::ptr::write_bytes(at(0), 0, kept) };
        }
        self.fit();
        let at = NonNull::new(at(0)).expect("a mapping does not begin at zero");
        charge.keep();
        Some(Buffer(Memory::Borrowed(Loan { pool: self.clone(), at, len })))
    }

    fn put_back(&self, at: NonNull<u8>, len: usize) {
        if !self.process.is_this() {
            return;
        }
        let class = &self.classes[class_of(len / PAGE)];
        let base = class.mapping().expect("a buffer of it exists").base();
        let slot = (at.addr().get() - base.addr().get()) / class.slot_bytes;
        // Relaxed: see `fit`.
        self.warm_bytes.fetch_add(len as u64, Ordering::Relaxed);
        lock(&class.free).warm.push_back(Warm { slot: slot as u32, bytes: len });
        // After the slot is free: a thread that is charged for this length finds a slot.
        self.reserve.uncharge(len as u64);
    }

    /// Resident bytes that no buffer uses.
    pub fn warm_bytes(&self) -> u64 {
        // Relaxed: a statistic.
        self.warm_bytes.load(Ordering::Relaxed)
    }

    /// Makes warm slots cold until the rest fits beside everything charged to the reserve, and
    /// everything that it lends to pages.
    pub fn fit(&self) {
        // Relaxed: the calling buffer is charged and its memory is not touched yet. A buffer
        // that is taken at the same time calls this too, after its own charge.
        let beyond =
            || (self.warm_bytes() + self.reserve.taken_bytes()).saturating_sub(self.reserve.max_bytes());
        for class in self.classes.iter().rev() {
            while beyond() > 0 && self.chill_oldest(class) {}
        }
    }

    /// Gives memory back to the kernel that no buffer has needed since the last call.
    pub fn give_back_idle(&self) {
        for class in &self.classes {
            let idle = lock(&class.free).warm_min;
            for _ in 0..idle {
                self.chill_oldest(class);
            }
            let mut free = lock(&class.free);
            free.warm_min = free.warm.len();
        }
    }

    /// Makes the slot cold that has been warm for longest. Returns `false` if no slot is warm.
    fn chill_oldest(&self, class: &Class) -> bool {
        // Locked until the slot is cold: `take` could miss a slot that is in neither list.
        let mut free = lock(&class.free);
        let Some(Warm { slot, bytes }) = free.warm.pop_front() else { return false };
        free.warm_min = free.warm_min.min(free.warm.len());
        let mapping = class.mapping().expect("a slot of it was used");
        let at = slot as usize * class.slot_bytes;
        // No thread uses the slot while the list is locked.
        mapping.give_back(at, bytes);
        free.cold.push(slot);
        self.warm_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        true
    }
}

impl Class {
    fn mapping(&self) -> Option<&Mapping> {
        if let Some(mapping) = self.mapping.get() {
            return Some(mapping);
        }
        let mapping = Mapping::reserve(self.slot_bytes.checked_mul(self.slots as usize)?).ok()?;
        // A huge page would make two megabytes resident for one buffer.
        mapping.want_small_pages();
        Some(self.mapping.get_or_init(|| mapping))
    }

    /// Takes a free slot; returns its resident bytes, if it is warm. There is one, because the
    /// caller has been charged.
    fn take(&self) -> (u32, Option<usize>) {
        let mut free = lock(&self.free);
        if let Some(warm) = free.warm.pop_back() {
            free.warm_min = free.warm_min.min(free.warm.len());
            return (warm.slot, Some(warm.bytes));
        }
        free.warm_min = 0;
        if let Some(slot) = free.cold.pop() {
            return (slot, None);
        }
        assert!(free.fresh < self.slots, "more buffers of {} bytes than were charged", self.slot_bytes);
        free.fresh += 1;
        (free.fresh - 1, None)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_random::Random;

    use super::*;

    #[test]
    fn a_length_lies_in_the_smallest_class_that_holds_it() {
        for pages in 1..5000 {
            let class = class_of(pages);
            assert!(pages <= pages_of(class), "{pages} pages in class {class}");
            assert!(class == 0 || pages > pages_of(class - 1), "{pages} pages in class {class}");
            assert!(pages_of(class) * 4 <= pages * 5, "more than a quarter is lost on {pages} pages");
        }
    }

    /// Freed buffers of the heap once fragmented: resident memory grew while the charge stayed.
    /// For any order of lengths and lifetimes, used and warm memory stay within the reserve,
    /// every buffer for which the reserve has room is lent, and it is all zeros.
    #[test]
    fn memory_in_use_and_warm_memory_fit_into_the_reserve_at_every_moment() {
        let max = 1 << 20;
        let reserve = Reserve::whole(max);
        let pool = BufferPool::new(reserve.clone());
        let mut held: VecDeque<Buffer> = VecDeque::new();
        let mut source = Random::new(88172645463325252);
        for step in 0..3_000 {
            let random = source.next_u64();
            let len = 1 + (random >> 8) as usize % [4096, 30_000, 300_000][(random % 3) as usize];
            let left = reserve.max_bytes() - reserve.used_bytes();
            match pool.borrow(len) {
                Some(mut buffer) => {
                    assert!(buffer.len() >= len && buffer.len() < len + PAGE);
                    assert!(buffer.iter().all(|byte| *byte == 0), "step {step}: old bytes");
                    buffer.fill(0xa5);
                    held.push_back(buffer);
                }
                None => {
                    assert!(
                        len.next_multiple_of(PAGE) as u64 > left,
                        "step {step}: refused with {left} left"
                    );
                    held.drain(..held.len() / 2);
                }
            }
            if random & 0xf0 == 0 && !held.is_empty() {
                held.swap_remove_back((random >> 32) as usize % held.len());
            }
            assert!(reserve.used_bytes() + pool.warm_bytes() <= max, "step {step}");
        }
        held.clear();
        assert_eq!(reserve.used_bytes(), 0);
        pool.give_back_idle();
        pool.give_back_idle();
        assert_eq!(pool.warm_bytes(), 0, "idle memory went back");
    }
}
