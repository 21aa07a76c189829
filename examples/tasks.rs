//! Ten thousand tasks on two threads of tokio, which read and write one file through a small cache.
//! Some of their calls are given up while they run.
//!
//! Run it with `cargo run --release -p octavo-examples --bin tasks`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_async::{AsyncObject, Driver};
use octavo_random::Random;
use tokio::task::JoinSet;

const TASKS: u64 = 10_000;
const TURNS: u64 = 10;

/// Each task has records of its own, which hold its number.
const RECORD_BYTES: u64 = 512;
const RECORDS: u64 = 12;

/// What happened, over all tasks.
#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    given_up: AtomicU64,
}

/// The calls of one task.
async fn work(object: AsyncObject, task: u64, counts: Arc<Counts>) -> Result<(), octavo::Error> {
    let mut random = Random::new(task);
    let mut record = [0; RECORD_BYTES as usize];
    let mine = (task + 1).to_le_bytes().repeat(record.len() / 8);
    for _ in 0..TURNS {
        let offset = (task * RECORDS + random.below(RECORDS)) * RECORD_BYTES;
        if random.one_in(4) {
            object.write_at(offset, &mine).await?;
            counts.writes.fetch_add(1, Ordering::Relaxed);
        }
        // Gives up if the other future is ready first: sometimes at once, sometimes never.
        let patience = Duration::from_micros(random.below(4) * 200);
        tokio::select! {
            read = object.read_at(offset, &mut record) => {
                read?;
                assert!(record == *mine || record == [0; RECORD_BYTES as usize], "at {offset}");
                counts.reads.fetch_add(1, Ordering::Relaxed);
            }
            () = tokio::time::sleep(patience), if patience.is_zero() || random.one_in(8) => {
                counts.given_up.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// The threads of this process. Those that the kernel adds for rings work on files.
fn threads() -> std::io::Result<usize> {
    let mut count = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end between the two calls.
        let name = std::fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        count += usize::from(!name.is_empty() && !name.starts_with("iou-"));
    }
    Ok(count)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(TASKS * RECORDS * RECORD_BYTES)?;
    let cache = Cache::new(CacheConfig { memory_max_bytes: 24 << 20, ..CacheConfig::default() })?;
    let config = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("tasks") };
    let partition = cache.partition(config)?;
    let store = Store::open(file.path(), &OpenOptions::default())?;

    let driver = Driver::new(&cache)?;
    let object = driver.object(partition.open(store, "records")?);
    let counts = Arc::new(Counts::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let started = Instant::now();
    let threads_most = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        (0..TASKS).for_each(|task| _ = tasks.spawn(work(object.clone(), task, counts.clone())));
        let mut most = 0;
        while let Some(task) = tasks.join_next().await {
            task??;
            most = most.max(threads()?);
        }
        object.sync().await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(most)
    })?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (reads, writes, given_up) = (count(&counts.reads), count(&counts.writes), count(&counts.given_up));
    println!(
        "{TASKS} tasks: {reads} reads, {writes} writes, {given_up} given up, {} misses in {:.2?}; {threads_most} threads",
        partition.stat().misses,
        started.elapsed(),
    );
    assert_eq!(reads + given_up, TASKS * TURNS, "a call was lost");
    // This one, two workers, the driver, and the threads of the cache.
    assert!(threads_most <= 8, "{threads_most} threads");
    // What was given up ends by itself.
    while driver.stat().orphans > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let left = driver.stat();
    assert_eq!((left.waiting, left.running, left.ended), (0, 0, 0), "calls are left");
    let object = object.object().clone();
    drop(driver);
    object.close()?;
    Ok(())
}
