//! The memory of a table: given by the caller (mapped, huge pages, bound to a node) or allocated on
//! the heap.
//!
//! Zeroed memory is a valid empty table, so no part is touched before its first use. The atomics of
//! the model checkers are not plain integers: under a checker every object is built at the start
//! and dropped at the end.

use std::alloc;
use std::ptr::NonNull;

use crate::memory::layout::{DIRECTORY_AT, Front, Layout, front_bytes};
#[cfg(any(loom, shuttle))]
use crate::memory::layout::{Head, Header, SegmentRecord, ghosts_at, set_bytes, words_at};
use crate::sync::atomic::{AtomicU32, AtomicU64};

const ALIGN: usize = 64;

pub(crate) struct Memory<const W: usize> {
    base: NonNull<u8>,
    // Addresses that every lookup uses, computed once.
    fronts: NonNull<u8>,
    tags: *const AtomicU64,
    sets: *const u8,
    layout: Layout,
    owned: bool,
}

// SAFETY: the memory holds only atomics and locks, and all accesses go through shared references to
// them.
unsafe impl<const W: usize> Send for Memory<W> {}
// SAFETY: as above.
unsafe impl<const W: usize> Sync for Memory<W> {}

impl<const W: usize> Memory<W> {
    /// Allocates zeroed memory on the heap.
    pub fn heap(layout: Layout) -> Self {
        let size = Self::heap_layout(&layout);
        // SAFETY: the size is not zero (a header alone has 64 bytes).
        let base = unsafe { alloc::alloc_zeroed(size) };
        let Some(base) = NonNull::new(base) else { alloc::handle_alloc_error(size) };
        let memory = Self::new(base, layout, true);
        #[cfg(any(loom, shuttle))]
        memory.for_each_object(Act::Build);
        memory
    }

    /// Uses memory that the caller owns.
    ///
    /// # Safety
    /// `base` is aligned to 64, zeroed, valid for `layout.bytes` bytes, and not used for anything
    /// else while the returned value lives.
    pub unsafe fn given(base: NonNull<u8>, layout: Layout) -> Self {
        if cfg!(any(loom, shuttle)) {
            panic!("under a model checker a table must allocate its own memory");
        }
        assert!((base.as_ptr() as usize).is_multiple_of(ALIGN), "table memory is aligned to a cache line");
        Self::new(base, layout, false)
    }

    fn new(base: NonNull<u8>, layout: Layout, owned: bool) -> Self {
        let at = |offset: usize| base.as_ptr().wrapping_add(offset).cast_const();
        Memory {
            base,
            // SAFETY: inside the memory, by the layout.
            fronts: unsafe { base.add(layout.fronts_at) },
            tags: at(layout.tags_at).cast(),
            sets: at(layout.segments_at),
            layout,
            owned,
        }
    }

    fn heap_layout(layout: &Layout) -> alloc::Layout {
        alloc::Layout::from_size_align(layout.bytes, ALIGN).expect("a table fits the address space")
    }

    #[inline(always)]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns a shared reference to the object of type `T` at `offset`.
    ///
    /// # Safety
    /// By the layout, an object of type `T` lies at `offset`, inside the memory.
    #[inline(always)]
    pub unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.layout.bytes);
        // SAFETY: inside the memory, by the caller's promise.
        let object = unsafe { self.base.as_ptr().add(offset) };
        debug_assert!(object.cast::<T>().is_aligned());
        // SAFETY: an object of that type lies there (zeroed memory is a valid one), and only shared
        // references to it exist.
        unsafe { &*object.cast::<T>() }
    }

    /// Returns an entry of the directory.
    ///
    /// # Safety
    /// The directory has more than `place` entries, all levels together.
    #[inline(always)]
    pub unsafe fn at_directory(&self, place: usize) -> &AtomicU32 {
        // SAFETY: the caller's promise.
        unsafe { &*self.directory().wrapping_add(place) }
    }

    /// Returns the address of the directory's first entry.
    #[inline(always)]
    pub fn directory(&self) -> *const AtomicU32 {
        self.base.as_ptr().wrapping_add(DIRECTORY_AT).cast()
    }

    /// Returns a set's front.
    ///
    /// # Safety
    /// There are more than `set` sets.
    #[inline(always)]
    pub unsafe fn at_fronts(&self, set: usize) -> &Front<W> {
        // SAFETY: inside the memory, by the caller's promise.
        let front = unsafe { self.fronts.add(set * front_bytes::<W>()) };
        // SAFETY: as above.
        unsafe { front.cast().as_ref() }
    }

    /// Returns the front of the set whose first slot is `slot`. The address takes one instruction
    /// less than that of a set's front, for callers that need the slot's number, too.
    ///
    /// # Safety
    /// There are more than `slot` slots.
    #[inline(always)]
    pub unsafe fn at_fronts_by_slot(&self, slot: usize) -> &Front<W> {
        let bytes = const { front_bytes::<W>() };
        if !bytes.is_multiple_of(W) {
            // SAFETY: passed on.
            return unsafe { self.at_fronts(slot / W) };
        }
        // SAFETY: inside the memory, by the caller's promise.
        let front = unsafe { self.fronts.add(slot * (bytes / W)) };
        // SAFETY: as above.
        unsafe { front.cast().as_ref() }
    }

    /// Returns a slot's tag.
    ///
    /// # Safety
    /// There are more than `slot` slots.
    #[inline(always)]
    pub unsafe fn at_tags(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.tags.wrapping_add(slot) }
    }

    /// Returns the address of the first slot's tag.
    #[inline(always)]
    pub fn tags(&self) -> *const AtomicU64 {
        self.tags
    }

    /// Returns a shared reference to the object of type `T` at `offset` from the first set's start.
    ///
    /// # Safety
    /// As `at`.
    #[inline(always)]
    pub unsafe fn at_sets<T>(&self, offset: usize) -> &T {
        debug_assert!(self.layout.segments_at + offset + size_of::<T>() <= self.layout.bytes);
        // SAFETY: inside the memory, by the caller's promise.
        let object = unsafe { self.sets.add(offset) };
        debug_assert!(object.cast::<T>().is_aligned());
        // SAFETY: as `at`.
        unsafe { &*object.cast::<T>() }
    }

    /// Returns a shared reference to `count` objects of type `T`, the first at `offset`. The slice
    /// cannot be made from a reference to the first object, which gives no access to its
    /// neighbours.
    ///
    /// # Safety
    /// By the layout, `count` objects of type `T` lie there, inside the memory.
    pub unsafe fn slice_at<T>(&self, offset: usize, count: usize) -> &[T] {
        debug_assert!(offset + count * size_of::<T>() <= self.layout.bytes);
        // SAFETY: inside the memory, by the caller's promise.
        let first = unsafe { self.base.as_ptr().add(offset) };
        debug_assert!(first.cast::<T>().is_aligned());
        // SAFETY: objects of that type lie there (zeroed memory is a valid one), and only shared
        // references to them exist.
        unsafe { std::slice::from_raw_parts(first.cast::<T>(), count) }
    }

    /// Builds every object, or drops what was built.
    #[cfg(any(loom, shuttle))]
    fn for_each_object(&self, act: Act) {
        let layout = &self.layout;
        self.act_on::<Header>(act, 0);
        for entry in 0..1usize << layout.level_max {
            self.act_on::<AtomicU32>(act, DIRECTORY_AT + entry * size_of::<AtomicU32>());
        }
        for segment in 0..layout.shape.segments_max as usize {
            self.act_on::<SegmentRecord>(act, layout.records_at + segment * size_of::<SegmentRecord>());
        }
        let long = size_of::<AtomicU64>();
        for set in 0..layout.shape.segments_max as usize * layout.shape.sets_per_segment as usize {
            self.act_on::<Front<W>>(act, layout.fronts_at + set * front_bytes::<W>());
            let at = layout.segments_at + set * set_bytes::<W>();
            self.act_on::<Head<W>>(act, at);
            for way in 0..W {
                self.act_on::<AtomicU64>(act, layout.tags_at + (set * W + way) * long);
                self.act_on::<AtomicU64>(act, at + words_at::<W>() + way * long);
            }
            for ghost in 0..crate::word::ghost::ghosts_of(W) {
                self.act_on::<AtomicU32>(act, at + ghosts_at::<W>() + ghost * size_of::<AtomicU32>());
            }
        }
    }

    #[cfg(any(loom, shuttle))]
    fn act_on<T: Default>(&self, act: Act, offset: usize) {
        let at = self.base.as_ptr().wrapping_add(offset).cast::<T>();
        match act {
            // SAFETY: the layout places an object of the type at the offset, in memory that is ours
            // alone.
            Act::Build => unsafe { at.write(T::default()) },
            // SAFETY: built above, dropped once, by the owner's drop.
            Act::Drop => unsafe { at.drop_in_place() },
        }
    }
}

#[cfg(any(loom, shuttle))]
#[derive(Clone, Copy)]
enum Act {
    Build,
    Drop,
}

impl<const W: usize> Drop for Memory<W> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        #[cfg(any(loom, shuttle))]
        self.for_each_object(Act::Drop);
        // SAFETY: allocated by `heap` with this very layout, and freed once.
        unsafe { alloc::dealloc(self.base.as_ptr(), Self::heap_layout(&self.layout)) };
    }
}
