//! The write that hits: changes a resident page in place, in write-back mode, without a task, a
//! lane or an allocation.
//!
//! It takes the steps of any write of one page (P6 and P7, [`PartitionInner::overwrite`]).
//! Whatever it cannot do at once, it leaves to the verb (`flight/write.rs`): a page that is not
//! resident, pinned or busy, a partition with too many dirty pages, write-through.
//!
//! Not here: hits of reads (`hit.rs`).
//!
//! [`PartitionInner::overwrite`]: crate::state::partition::PartitionInner::overwrite

use octavo_disk::Process;
use octavo_table::{Found, State, Tag};

use crate::memory::{Lent, copy};
use crate::position::ByteOffset;
use crate::state::counters::{Block, Count};
use crate::state::partition::{ObjectInner, PartitionInner};

impl ObjectInner {
    /// Writes a range inside one page, and counts the write, if the page is resident and may be
    /// changed at once. Otherwise returns `false`, with nothing changed or counted; always for a
    /// partial last page.
    ///
    /// # Safety
    /// `from` is valid for `len` bytes.
    #[inline(always)]
    pub unsafe fn write_resident(&self, offset: ByteOffset, from: *const u8, len: usize) -> bool {
        // SAFETY: the page is ours meanwhile, and `from` is the caller's promise.
        let Some(counts) =
            self.change_resident(offset, len, |page| unsafe { copy::copy_in(from, page, len) })
        else {
            return false;
        };
        counts.add(Count::Writes, 1);
        counts.add(Count::WrittenBytes, len as u64);
        true
    }

    /// Writes as many of the `len` bytes of `memory` as lie in pages that can be changed at once,
    /// up to the first page that cannot, and counts the hits but not the write. Returns the number
    /// of bytes written.
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes.
    pub unsafe fn write_resident_pages(&self, offset: ByteOffset, memory: Lent, len: usize) -> usize {
        let page_size = self.partition.page_size;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let in_page = (page_size.bytes() - page_size.offset_in_page(at)).min(len - done);
            let part = memory.part(done, in_page);
            // SAFETY: the page is ours meanwhile, and `memory` is the caller's promise.
            let write = |page: *mut u8| unsafe { part.copy_in(page, in_page) };
            if self.change_resident(at, in_page, write).is_none() {
                break;
            }
            done += in_page;
        }
        done
    }

    /// Changes `len` bytes of a resident page in place, if that is possible at once, and counts the
    /// hit: `write` gets the address of the byte at `offset`. Returns the thread's counters.
    #[inline(always)]
    fn change_resident(&self, offset: ByteOffset, len: usize, write: impl FnOnce(*mut u8)) -> Option<&Block> {
        let partition = &*self.partition;
        let skip = partition.page_size.offset_in_page(offset);
        let is_inside = offset < self.near_end() && skip + len <= partition.page_bytes();
        // In a child of `fork` no thread would write the page back.
        if !is_inside || len == 0 || !self.writes_back.is_some_and(Process::is_this) {
            return None;
        }
        // Without a counter at hand the write is recorded, or charged to a node. A recording that
        // begins from here on begins after this write.
        let counts = partition.counters.at_hand()?;
        let (table, (tag, candidate)) = (&partition.table, self.candidate_at(partition, offset));
        let found = candidate.and_then(|candidate| table.confirm(candidate, tag));
        let found = found.or_else(|| find_again(partition, tag))?;
        if found.word.state() == State::Clean && table.dirty_pages() >= partition.dirty_max_pages() {
            return None;
        }
        let before = partition.begin_overwrite(tag, &found)?;
        // The frame is ours until the write ends (P6).
        write(partition.frames.at(found.index).wrapping_add(skip));
        let waited = partition.end_overwrite(before, &found);
        partition.overwritten(before, tag, &found, waited);
        counts.add(Count::Hits, 1);
        Some(counts)
    }
}

/// Looks at all ways: the first fingerprint that matched may be another page's.
#[cold]
#[inline(never)]
fn find_again(partition: &PartitionInner, tag: Tag) -> Option<Found<'_>> {
    partition.table.find(tag)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use octavo_disk::{OpenOptions, Store};

    use super::*;
    use crate::{Cache, CacheConfig, CacheMode, Object, PartitionConfig};

    const PAGE: u64 = 4096;

    fn object(mode: CacheMode, dirty_max_bytes: Option<u64>, store: Store) -> Object {
        let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
        let config = PartitionConfig { cache_mode: mode, dirty_max_bytes, ..PartitionConfig::new("p") };
        cache.partition(config).unwrap().open(store, "o").unwrap()
    }

    /// Whether a write was served at once.
    fn hits(object: &Object, offset: u64, bytes: &[u8]) -> bool {
        // SAFETY: the slice is valid for its length.
        unsafe { object.inner.write_resident(ByteOffset(offset), bytes.as_ptr(), bytes.len()) }
    }

    #[test]
    fn a_write_to_a_resident_page_is_served_at_once_and_counted_as_any_other() {
        let object = object(CacheMode::Writeback, None, Store::memory("m", 8 * PAGE));
        object.read_at(0, &mut [0; 2 * PAGE as usize]).unwrap();
        let counts = || {
            let counters = &object.inner.partition.counters;
            [Count::Hits, Count::Misses, Count::Writes, Count::WrittenBytes].map(|count| counters.sum(count))
        };
        let before = counts();
        assert!(hits(&object, 4000, b"octavo") && hits(&object, PAGE, &[7; PAGE as usize]));
        assert!(hits(&object, 4003, b"pus"), "the page is dirty by now");
        let after = counts();
        assert_eq!([0, 1, 2, 3].map(|at| after[at] - before[at]), [3, 0, 3, 6 + PAGE + 3]);
        assert_eq!(object.stat().dirty_bytes, 2 * PAGE);
        let mut bytes = [0; 200];
        object.read_at(4000, &mut bytes).unwrap();
        assert_eq!((&bytes[..6], &bytes[96..]), (&b"octpus"[..], &[7; 104][..]));
    }

    #[test]
    fn what_is_not_a_page_at_hand_is_left_to_the_verb_and_nothing_is_counted() {
        let store = Store::memory("m", 8 * PAGE - 512);
        let object = object(CacheMode::Writeback, Some(2 * PAGE), store);
        (0..8).for_each(|page| object.read_at(page * PAGE, &mut [0]).unwrap());
        object.advise(5 * PAGE, PAGE, crate::Advice::DontNeed).unwrap();
        let writes = || object.inner.partition.counters.sum(Count::Writes);
        for (offset, bytes, why) in [
            (5 * PAGE, &b"x"[..], "not resident"),
            (PAGE - 1, b"xy", "two pages"),
            (7 * PAGE, b"x", "a partial last page"),
            (8 * PAGE, b"x", "past the end"),
            (u64::MAX - 1, b"xy", "past any end"),
            (0, b"", "no byte"),
        ] {
            assert!(!hits(&object, offset, bytes), "{why}");
        }
        let pin = object.pin(0).unwrap().unwrap();
        assert!(!hits(&object, 0, b"x"), "pinned: the pin keeps its snapshot");
        drop(pin);
        assert_eq!(writes(), 0);
        assert!(hits(&object, 0, b"x") && hits(&object, PAGE, b"x"));
        assert!(!hits(&object, 2 * PAGE, b"x"), "too many dirty pages for another one");
        assert!(hits(&object, 0, b"y"), "a dirty page may change");
        object.close().unwrap();
        assert!(!hits(&object, 0, b"x"), "closed");
    }

    #[test]
    fn stores_that_take_the_bytes_first_or_none_are_never_written_behind_their_back() {
        let through = object(CacheMode::Writethrough, None, Store::memory("m", 8 * PAGE));
        through.read_at(0, &mut [0]).unwrap();
        assert!(!hits(&through, 0, b"x"));
        let path = std::env::temp_dir().join(format!("octavo-overwrite-{}", std::process::id()));
        std::fs::write(&path, [0; 8 * PAGE as usize]).unwrap();
        let store = Store::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let read_only = object(CacheMode::Writeback, None, store);
        read_only.read_at(0, &mut [0]).unwrap();
        assert!(!hits(&read_only, 0, b"x"));
        std::fs::remove_file(&path).unwrap();
    }
}
