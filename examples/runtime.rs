//! Reads on a tokio runtime that never block it. A task owns a queue, whose descriptor tells the
//! runtime when completions have come; others send it reads, and await their bytes. There is no
//! `unsafe` here: a buffer belongs to the queue until its completion brings it back.
//!
//! Run it with `cargo run -p octavo-examples --bin runtime`.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octavo::disk::{Backend, IoRequest, Op as StoreOp, Store};
use octavo::{Cache, CacheConfig, Completion, Memory, Object, Op, PartitionConfig, Queue, Request};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

const STORE_BYTES: u64 = 8 << 20;

/// A file to read from any task. Cheap to clone.
#[derive(Clone)]
struct AsyncObject {
    object: Object,
    reads: mpsc::Sender<Read>,
}

/// A read on its way to the queue, and where its bytes go.
struct Read {
    object: Object,
    offset: u64,
    len: usize,
    answer: oneshot::Sender<Result<Vec<u8>, octavo::Error>>,
}

impl AsyncObject {
    /// Reads `len` bytes at `offset`. A hit never leaves the calling task.
    async fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let mut bytes = vec![0; len];
        if self.object.try_read_at(offset, &mut bytes)? {
            return Ok(bytes);
        }
        let (answer, answered) = oneshot::channel();
        let object = self.object.clone();
        self.reads.send(Read { object, offset, len, answer }).await?;
        Ok(answered.await??)
    }
}

/// Runs a queue until no task can send reads any more.
async fn run(queue: Queue, mut reads: mpsc::Receiver<Read>) -> io::Result<()> {
    #[expect(deprecated, reason = "the other constructor is unsafe; a queue keeps its descriptor open")]
    let mut queue = AsyncFd::with_interest(queue, Interest::READABLE)?;
    let (mut answers, mut number, mut is_open) = (HashMap::new(), 0, true);
    while is_open || !answers.is_empty() {
        tokio::select! {
            read = reads.recv(), if is_open => match read {
                Some(Read { object, offset, len, answer }) => {
                    number += 1;
                    answers.insert(number, answer);
                    let op = Op::ReadInto { offset, memory: Memory::new(vec![0; len]) };
                    queue.get_mut().submit(&object, [Request { op, user_data: number }]);
                }
                None => is_open = false,
            },
            // The queue has completions, or I/O to continue.
            ready = queue.readable_mut() => ready?.clear_ready(),
        }
        while let Some(Completion { user_data, op, result, .. }) = queue.get_mut().take_next() {
            let answer = answers.remove(&user_data).expect("each read completes once");
            let Op::ReadInto { memory, .. } = op else { unreachable!("only reads are submitted") };
            let bytes = memory.into_owner().expect("a vector was put in");
            // A task that gave up waiting has dropped its end.
            let _ = answer.send(result.map(|()| bytes));
        }
    }
    Ok(())
}

/// A store that takes 10 ms for each I/O. Every 8 bytes are their own offset.
struct Slow(std::sync::mpsc::Sender<IoRequest>);

impl Backend for Slow {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(STORE_BYTES)
    }

    fn read_only(&self) -> bool {
        true
    }

    fn submit(&self, request: IoRequest) {
        // If the thread is gone, the request is dropped, and fails.
        let _ = self.0.send(request);
    }
}

/// Answers each request 10 ms after it came, in order.
fn serve(requests: &std::sync::mpsc::Receiver<IoRequest>) {
    for mut request in requests {
        std::thread::sleep(Duration::from_millis(10));
        let len = request.len_bytes();
        if request.op() == StoreOp::Read {
            let words = (request.offset()..).step_by(8).take(len / 8);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            request.copy_in(0, &bytes);
        }
        request.complete(Ok(len));
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (requests, receiver) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || serve(&receiver));
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig::new("async"))?;
    let object = partition.open(Store::from_backend("slow", Slow(requests))?, "slow")?;

    // One thread: if any task blocked it, nothing else could run meanwhile.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (sender, reads) = mpsc::channel(64);
        let queue = tokio::spawn(run(cache.queue()?, reads));
        let file = AsyncObject { object: object.clone(), reads: sender };

        // Counts how often the runtime gets to run something else.
        let ticks = Arc::new(AtomicU64::new(0));
        let ticking = tokio::spawn({
            let ticks = ticks.clone();
            async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    ticks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16_u64 {
            let file = file.clone();
            tasks.spawn(async move {
                for step in 0..20_u64 {
                    let offset = (task * 7_919 + step * 104_729) % (STORE_BYTES / 8 - 600) * 8;
                    let bytes = file.read_at(offset, 4_800).await?;
                    let right: Vec<u8> = (offset..).step_by(8).take(600).flat_map(u64::to_le_bytes).collect();
                    assert!(bytes == right, "at {offset}");
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        ticking.abort();
        drop(file);
        queue.await??;
        let (stat, ticks) = (partition.stat(), ticks.load(Ordering::Relaxed));
        println!("{} misses took 10 ms each, and the runtime ticked {ticks} times", stat.misses);
        // A runtime that every miss blocks gets to its timer only between two tasks.
        assert!(ticks > 100, "the runtime was blocked: {ticks} ticks beside {} misses", stat.misses);
        object.close()?;
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    drop((object, partition, cache, runtime));
    server.join().expect("the server does not panic");
    Ok(())
}
