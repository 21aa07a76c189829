//! Threads that copy pages side by side.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::ways::WAYS;

/// The most threads that copy pages: a few saturate the memory of a node.
const WORKERS_MAX: usize = 4;

/// What all chunks that are being filled take together. A set of large pages may take more.
const CHUNKS_BYTES: usize = 2 << 20;

/// The bytes of pages after which a chunk is written. It may have a set's pages more.
pub(super) const GOAL_BYTES: usize = CHUNKS_BYTES / WORKERS_MAX - WAYS * 4096;

/// Returns the number of threads that copy the pages of a partition, which has `parts` parts.
fn count(page_bytes: usize, parts: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let fitting = CHUNKS_BYTES / (GOAL_BYTES + WAYS * page_bytes);
    WORKERS_MAX.min(cores).min(fitting).min(parts).max(1)
}

/// Divides the parts of a partition among threads, of which the caller's is one. Each calls `work`
/// once, with an iterator that yields a part when it is asked for one. Returns their results.
pub(super) fn run<P: Sync, T: Send>(
    page_bytes: usize,
    parts: &[P],
    work: impl Fn(&mut dyn Iterator<Item = &P>) -> T + Sync,
) -> Vec<T> {
    // Relaxed: only who gets a part depends on it.
    let next = AtomicUsize::new(0);
    let work = || work(&mut std::iter::from_fn(|| parts.get(next.fetch_add(1, Relaxed))));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count(page_bytes, parts.len())).map(|_| scope.spawn(work)).collect();
        let mine = work();
        let joined = others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        [mine].into_iter().chain(joined).collect()
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_all_threads_fit_together_unless_a_set_of_pages_is_larger() {
        for page_bytes in [4096, 8192, 16384, 65536, 1 << 20] {
            let count = count(page_bytes, usize::MAX);
            let bytes = count * (GOAL_BYTES + WAYS * page_bytes);
            assert!(count == 1 || bytes <= CHUNKS_BYTES, "{count} threads with pages of {page_bytes}");
        }
        assert_eq!(count(4096, 1), 1);
        assert_eq!(count(4096, 0), 1);
    }

    #[test]
    fn every_part_is_given_to_one_thread_whose_result_is_returned() {
        let parts: Vec<usize> = (0..1000).collect();
        let mut found: Vec<usize> =
            run(4096, &parts, |mine| mine.copied().collect::<Vec<_>>()).into_iter().flatten().collect();
        found.sort_unstable();
        assert_eq!(found, parts);
        assert_eq!(run(4096, &[0; 0], |mine| mine.count()), [0]);
    }
}
