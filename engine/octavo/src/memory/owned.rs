//! [`Memory`]: memory of a queue's request, with an owner that keeps it valid until the request has
//! completed.
//!
//! The owner lives in a box of its own, behind a raw pointer, and nothing touches it between
//! `Memory::new` and `Memory::into_owner`. The pieces therefore act like one exclusive borrow of
//! the owner that lasts as long as the `Memory`, wherever the `Memory` itself is moved.
//!
//! Not here: what a task does with the pieces (`pieces.rs`), buffers of the cache (`buffer.rs`).

use std::any::{Any, TypeId};
use std::ops::DerefMut;
use std::ptr::NonNull;

use super::pieces::{Lent, Piece, PieceList};
use crate::sync::Arc;

/// Memory for a request of a [`Queue`](crate::Queue), in one piece or several, together with the
/// owner that keeps it valid. The completion gives it back.
///
/// A `Memory` that is dropped drops its owner. While a request is in flight, the queue has the
/// `Memory`: if the queue is leaked, or its process forks, the memory leaks with it and is never
/// freed while in use.
///
/// # Examples
/// ```
/// use octavo::{Cache, CacheConfig, Memory, Op, PartitionConfig, Request, disk::Store};
/// let cache = Cache::new(CacheConfig::default())?;
/// let partition = cache.partition(PartitionConfig::new("app"))?;
/// let object = partition.open(Store::memory("disk", 1 << 20), "disk")?;
/// let mut queue = cache.queue()?;
/// let memory = Memory::new(vec![7_u8; 6000]);
/// let write = Op::WriteFrom { offset: 100, memory, durable: false };
/// queue.submit(&object, [Request { op: write, user_data: 1 }]);
/// let completion = queue.wait_next().expect("one request is pending");
/// completion.result?;
/// let Op::WriteFrom { memory, .. } = completion.op else { unreachable!() };
/// let bytes: Vec<u8> = memory.into_owner().expect("a vector was put in");
/// assert_eq!(bytes.len(), 6000);
/// # Ok::<(), octavo::Error>(())
/// ```
pub struct Memory {
    held: Arc<Held>,
    /// A box of its own, as a raw pointer.
    owner: NonNull<dyn Any + Send>,
}

struct Held {
    pieces: PieceList,
    /// The owner's type. Asking the owner would borrow it, and so end the borrow of its bytes.
    owner: TypeId,
}

// SAFETY: the owner is `Send`. The pieces are its memory, or were handed over by the caller of
// `from_pieces`, who promised that any thread may use them.
unsafe impl Send for Memory {}
// SAFETY: a shared reference shows only lengths.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes the bytes of `owner` the memory of a request: a `Vec<u8>` (its length, not its
    /// capacity), a `Box<[u8]>`, [`AlignedBytes`](crate::disk::AlignedBytes), a memory map, or any
    /// other type that dereferences to its bytes.
    pub fn new<O: DerefMut<Target = [u8]> + Send + 'static>(owner: O) -> Memory {
        // A raw pointer, which unlike a box may be moved while the pieces are in use.
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        // SAFETY: the box is ours. The borrow of the owner, and so that of its bytes, lasts until
        // the owner is taken out or dropped, because nothing else uses it before.
        let bytes: &mut [u8] = unsafe { &mut *owner.as_ptr() };
        let piece = Piece { start: bytes.as_mut_ptr(), len: bytes.len() };
        Memory { held: Held::new::<O>([piece]), owner }
    }

    /// Makes pieces of memory that `owner` keeps valid the memory of a request: a guest's RAM, a
    /// buffer of Python, an allocation of C. `owner` is whatever releases the memory when it is
    /// dropped: a handle, an `Arc`, a guard. Empty pieces are ignored, and there may be thousands.
    ///
    /// # Safety
    /// Until the `Memory` is dropped or taken apart by [`into_owner`](Memory::into_owner), which
    /// may happen on another thread:
    /// - `owner` keeps the pieces valid for reads and, if a request reads into them, for writes.
    /// - While a request that reads into them is in flight, no Rust code accesses the pieces by
    ///   plain reads and writes, and no reference to them is used.
    /// - While a request that writes their bytes is in flight, no Rust code writes them, except by
    ///   atomic accesses of bytes. It may read them.
    ///
    /// The pieces may be uninitialised if requests only read into them. Other parties, such as a
    /// guest, the kernel, another process, or atomic accesses of bytes, may access the pieces at
    /// any time. Then it is undefined which bytes a request writes or leaves in the pieces, but
    /// nothing else: a page and its store still agree.
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Memory, Piece};
    /// let owner = vec![0_u8; 300].leak();
    /// let start = owner.as_mut_ptr();
    /// let pieces = [Piece { start, len: 100 }, Piece { start: start.wrapping_add(200), len: 50 }];
    /// // SAFETY: the memory was leaked, and nothing else uses it.
    /// let memory = unsafe { Memory::from_pieces(pieces, "nothing to release") };
    /// assert_eq!(memory.len(), 150);
    /// ```
    pub unsafe fn from_pieces<O: Any + Send>(pieces: impl IntoIterator<Item = Piece>, owner: O) -> Memory {
        Memory { held: Held::new::<O>(pieces), owner: NonNull::from(Box::leak(Box::new(owner))) }
    }

    /// Returns the length in bytes: that of the requests that use the memory.
    pub fn len(&self) -> usize {
        self.held.pieces.len_bytes()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the owner.
    ///
    /// # Errors
    /// The memory itself, if the owner's type is not `O`.
    ///
    /// # Examples
    /// ```
    /// # use octavo::Memory;
    /// let memory = Memory::new(vec![7_u8; 6000]);
    /// let memory = memory.into_owner::<Box<[u8]>>().expect_err("the owner is a vector");
    /// assert_eq!(memory.into_owner::<Vec<u8>>().expect("it is a vector").len(), 6000);
    /// ```
    pub fn into_owner<O: Any>(self) -> Result<O, Memory> {
        if self.held.owner != TypeId::of::<O>() {
            return Err(self);
        }
        let mut memory = std::mem::ManuallyDrop::new(self);
        // SAFETY: dropped once, because `memory` is not dropped.
        unsafe { std::ptr::drop_in_place(&mut memory.held) };
        // SAFETY: a leaked box of this type, which nothing uses any more: a request has its
        // `Memory` until it has ended.
        Ok(*unsafe { Box::from_raw(memory.owner.as_ptr().cast::<O>()) })
    }

    /// Lends the memory to a task.
    ///
    /// # Safety
    /// The `Memory` lives until the task has ended. It may be moved.
    pub(crate) unsafe fn lend(&self) -> Lent {
        // SAFETY: the list is in its own allocation, which lives as long as this, and so is the
        // memory.
        unsafe { self.held.pieces.lend() }
    }
}

impl Held {
    fn new<O: Any>(pieces: impl IntoIterator<Item = Piece>) -> Arc<Held> {
        Arc::new(Held { pieces: PieceList::new(pieces), owner: TypeId::of::<O>() })
    }
}

impl std::fmt::Debug for Memory {
    /// Shows the length, not the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: a leaked box, which is dropped once. A request has its `Memory` until it has
        // ended.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

/// Memory that is freed as soon as its request has completed: miri sees any later access, and any
/// access by a pointer that a move of the owner has made invalid.
#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_disk::{AlignedBytes, Engine, Store};

    use super::*;
    use crate::{Cache, CacheConfig, CacheMode, Object, Op, PartitionConfig, Queue, Request};

    const PAGE: u64 = 4096;

    /// A request's length. All of them begin 100 bytes before the end of a page.
    const LEN: usize = 300;

    fn scene(cache_mode: CacheMode) -> (Cache, Object, Queue) {
        let config = CacheConfig {
            memory_max_bytes: 1 << 20,
            segment_bytes: 16 * PAGE,
            buffers_max_bytes: Some(256 << 10),
            background: false,
            engine: Engine::Blocking,
            seed: Some(1),
            ..CacheConfig::default()
        };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig { cache_mode, ..PartitionConfig::new("p") }).unwrap();
        let object = partition.open(Store::memory("m", 24 * PAGE), "o").unwrap();
        let queue = cache.queue().unwrap();
        (cache, object, queue)
    }

    /// Bytes inside the owner itself, which moves with it.
    struct Inline([u8; LEN]);

    impl std::ops::Deref for Inline {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            &self.0
        }
    }

    impl DerefMut for Inline {
        fn deref_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    /// Two pieces of one allocation, in the wrong order.
    fn crossed(bytes: &[u8]) -> Memory {
        let half = bytes.len() / 2;
        let mut owner: Vec<u8> = [&bytes[half..], &bytes[..half]].concat();
        let start = owner.as_mut_ptr();
        let tail = bytes.len() - half;
        let pieces = [Piece { start: start.wrapping_add(tail), len: half }, Piece { start, len: tail }];
        // SAFETY: the vector keeps the pieces, and nothing else uses them.
        unsafe { Memory::from_pieces(pieces, owner) }
    }

    fn complete(queue: &mut Queue, object: &Object, op: Op) -> Op {
        queue.submit(object, [Request { op, user_data: 0 }]);
        let completion = queue.wait_next().unwrap();
        completion.result.unwrap();
        completion.op
    }

    fn check(mode: CacheMode) {
        let (_cache, object, mut queue) = scene(mode);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        let mut aligned = AlignedBytes::new(LEN);
        aligned.copy_from_slice(&bytes);
        let memories = [
            Memory::new(Inline(bytes[..].try_into().unwrap())),
            crossed(&bytes),
            Memory::new(bytes.clone()),
            Memory::new(bytes.clone().into_boxed_slice()),
            Memory::new(aligned),
        ];
        // Miri takes a minute for each.
        let count = if cfg!(miri) { 2 } else { memories.len() };
        let offset = |number: usize| (number as u64 * 2 + 1) * PAGE - 100;
        for (number, memory) in memories.into_iter().take(count).enumerate() {
            let write = Op::WriteFrom { offset: offset(number), memory, durable: number == 0 };
            drop(complete(&mut queue, &object, write));
            let mut read = [0; LEN];
            object.read_at(offset(number), &mut read).unwrap();
            assert_eq!(read[..], bytes);
        }
        object.sync().unwrap();
        object.advise(0, 24 * PAGE, crate::Advice::DontNeed).unwrap();
        let mut read = |number, memory| {
            let op = complete(&mut queue, &object, Op::ReadInto { offset: offset(number), memory });
            let Op::ReadInto { memory, .. } = op else { unreachable!() };
            memory
        };
        let memory = read(0, Memory::new(Inline([0; LEN])));
        let memory = memory.into_owner::<Vec<u8>>().expect_err("another type");
        assert!(memory.into_owner::<Inline>().is_ok_and(|inline| inline[..] == bytes));
        let halves = read(1, crossed(&[0; LEN])).into_owner::<Vec<u8>>().unwrap();
        assert_eq!([&halves[LEN / 2..], &halves[..LEN / 2]].concat(), bytes);
        drop(read(1, Memory::new(vec![0; LEN])));
    }

    #[test]
    fn memory_of_a_write_back_may_be_freed_right_after_its_completion() {
        check(CacheMode::Writeback);
    }

    #[test]
    fn memory_of_a_write_through_may_be_freed_right_after_its_completion() {
        check(CacheMode::Writethrough);
    }

    #[test]
    fn a_memory_that_no_request_used_drops_its_owner_once() {
        let owner = std::sync::Arc::new(());
        // SAFETY: there are no pieces.
        let memory = || unsafe { Memory::from_pieces([], owner.clone()) };
        drop(memory());
        let back = memory().into_owner::<std::sync::Arc<()>>().unwrap();
        assert_eq!(std::sync::Arc::strong_count(&owner), 2);
        drop(back);
        assert!(memory().into_owner::<u8>().is_err_and(|memory| memory.is_empty()));
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    fn vectored_reads_and_writes_touch_their_slices_only() {
        use std::io::{IoSlice, IoSliceMut};
        let (_cache, object, _queue) = scene(CacheMode::Writeback);
        for resident in [false, true] {
            let (head, tail) = ([1; 200], [2; 4000]);
            object.write_vectored_at(4000, &[IoSlice::new(&head), IoSlice::new(&tail)]).unwrap();
            let (mut first, mut second) = ([0; 4100], [0; 100]);
            let slices = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            object.read_vectored_at(4000, slices).unwrap();
            let read = [&first[..], &second].concat();
            assert!(read == [&head[..], &tail].concat(), "resident: {resident}");
        }
    }
}
