//! What a hit does not do: it allocates nothing and makes no system call, be it a read or, in
//! write-back mode, a write. A blocking read of a page that misses allocates nothing either. A
//! program of its own, because its allocator counts.

#![cfg(not(shuttle))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

const PAGE: usize = 4096;
const PAGES: u64 = 32;

/// An object in write-back mode whose pages are all resident, and dirty.
fn resident() -> (Cache, Object) {
    let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
    let config = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("p") };
    let object = cache.partition(config).unwrap().open(Store::memory("m", 64 << 20), "o").unwrap();
    object.write_at(0, &vec![1; PAGES as usize * PAGE]).unwrap();
    hit(&object);
    (cache, object)
}

/// Reads and writes every page: a part of it, the whole page, and parts of two pages. Also reads
/// all pages at once, except the first and the last byte.
fn hit(object: &Object) {
    let mut all = [7; PAGES as usize * PAGE - 2];
    object.read_at(1, &mut all).unwrap();
    let mut bytes = [7; PAGE];
    for page in 0..PAGES - 1 {
        for (offset, len) in [(100, 128), (0, PAGE), (4000, 200)] {
            let offset = page * PAGE as u64 + offset;
            object.write_at(offset, &bytes[..len]).unwrap();
            object.read_at(offset, &mut bytes[..len.min(PAGE - offset as usize % PAGE)]).unwrap();
            assert!(object.try_read_at(offset, &mut bytes[..len]).unwrap());
        }
    }
}

#[test]
fn reads_and_writes_that_hit_allocate_nothing() {
    let (_cache, object) = resident();
    let before = ALLOCATIONS.get();
    hit(&object);
    assert_eq!(ALLOCATIONS.get(), before);
    object.write_at(40 << 20, &[1]).unwrap();
    assert!(ALLOCATIONS.get() > before, "a write that misses makes a task, which is counted");
}

/// A cache makes its first lane, which allocates, for the first call that takes one.
#[test]
fn reads_of_several_resident_pages_take_no_lane() {
    let cache = Cache::new(CacheConfig { background: false, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("p")).unwrap();
    let object = partition.open(Store::memory("m", 64 << 20), "o").unwrap();
    (0..PAGES).for_each(|page| object.read_at(page * PAGE as u64, &mut [0]).unwrap());
    let mut bytes = vec![7; PAGES as usize * PAGE];
    let before = ALLOCATIONS.get();
    for (offset, len) in [(0, PAGES as usize * PAGE), (1, (PAGES as usize - 1) * PAGE), (4095, 2)] {
        object.read_at(offset, &mut bytes[..len]).unwrap();
    }
    assert_eq!(ALLOCATIONS.get(), before);
    object.read_at(PAGE as u64, &mut bytes).unwrap();
    assert!(ALLOCATIONS.get() > before, "one page is missing, so the read takes a lane");
}

#[test]
fn blocking_reads_of_a_page_that_miss_allocate_nothing() {
    const FILE_PAGES: u64 = 1 << 16;
    let path = std::env::temp_dir().join(format!("octavo-misses-{}", std::process::id()));
    let len_bytes = FILE_PAGES * PAGE as u64;
    let options = OpenOptions { create_len_bytes: Some(len_bytes), direct: false, ..OpenOptions::default() };
    let store = Store::open(&path, &options).unwrap();
    std::fs::remove_file(&path).unwrap();
    let config = CacheConfig { memory_max_bytes: 20 << 20, background: false, ..CacheConfig::default() };
    let cache = Cache::new(config).unwrap();
    let partition = cache.partition(PartitionConfig::new("p")).unwrap();
    let object = partition.open(store, "o").unwrap();
    let mut bytes = [0; PAGE];
    // Pages far from the last misses, so that no stream is detected.
    let mut pages = (0..).map(|number: u64| number * 40_503 % FILE_PAGES);
    let mut read = |count: usize| {
        for (number, page) in pages.by_ref().take(count).enumerate() {
            let len = if number % 2 == 0 { PAGE } else { 128 };
            object.read_at(page * PAGE as u64, &mut bytes[..len]).unwrap();
        }
    };
    // Fill the cache, and create what is created when it is needed first.
    read(20_000);
    let (misses, before) = (partition.stat().misses, ALLOCATIONS.get());
    read(1000);
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(partition.stat().misses, misses + 1000);
}

/// In strict mode, the kernel kills a thread that makes any system call but `read`, `write` and
/// `exit`. The thread cannot even end, so it runs in a process of its own.
#[test]
fn reads_and_writes_that_hit_make_no_system_call() {
    const MARK: &str = "OCTAVO_TEST_HITS";
    let name = "reads_and_writes_that_hit_make_no_system_call";
    match std::env::var(MARK).as_deref() {
        Err(_) => {
            for (calls, is_killed) in [("none", false), ("one", true)] {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", name, "--nocapture"]).env(MARK, calls);
                let code = command.output().unwrap().status.code();
                if code == Some(3) {
                    return eprintln!("skipped: the system refuses seccomp");
                }
                assert_eq!(code, Some(if is_killed { 2 } else { 0 }), "with {calls} of its own");
            }
        }
        Ok(calls) => in_strict_mode(calls == "one"),
    }
}

/// Ends the process: with 0 if the hits are through, 2 if their thread was killed, and 3 if the
/// system refuses the mode.
fn in_strict_mode(calls: bool) {
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    static IS_THROUGH: AtomicBool = AtomicBool::new(false);
    let (_cache, object) = resident();
    let hits = std::thread::spawn(move || {
        // What a thread does once for each cache, it does before.
        hit(&object);
        // SAFETY: only takes system calls away from this thread.
        if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) } != 0 {
            return IS_REFUSED.store(true, Ordering::Release);
        }
        (0..100).for_each(|_| hit(&object));
        if calls {
            // SAFETY: has no arguments, and no effect.
            unsafe { libc::getppid() };
        }
        IS_THROUGH.store(true, Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    });
    let begin = Instant::now();
    while !IS_THROUGH.load(Ordering::Acquire) {
        if IS_REFUSED.load(Ordering::Acquire) {
            std::process::exit(3);
        }
        let is_killed = hits.is_finished() || !has_thread_left();
        if is_killed || begin.elapsed() > Duration::from_secs(60) {
            std::process::exit(if IS_THROUGH.load(Ordering::Acquire) { 0 } else { 2 });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(0);
}

/// Whether the process has another thread than the test's two: a killed one leaves no other trace.
fn has_thread_left() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) > 2
}
