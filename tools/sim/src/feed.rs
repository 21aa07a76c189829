//! Feeds one reading of a trace to many models.
//!
//! Accesses are read in batches: the threads take models from a queue, each runs a whole batch
//! through the model that it took, and one of them meanwhile reads the next batch. The trace is
//! therefore never held as a whole, all models have seen the same accesses when the run is
//! interrupted, and results do not depend on the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::source::SourceError;

/// The least and the most accesses of a batch. Between them, a batch has as many as keep the
/// threads busy for [`BATCH_TIME`], so that neither starting threads nor waiting for an
/// interruption takes long.
const BATCH_MIN: usize = 64 << 10;
const BATCH_MAX: usize = 1 << 20;
const BATCH_TIME: Duration = Duration::from_millis(250);

/// How many accesses were fed to all models, and whether these were all.
pub(crate) struct Fed {
    pub requests: u64,
    /// Whether the source was read to its end.
    pub complete: bool,
}

/// A model that accesses can be fed to.
pub(crate) trait Feed<T>: Send {
    /// Takes the next accesses.
    fn feed(&mut self, accesses: &[T]);
}

/// Appends the next accesses, none at the end, and returns the share that was read so far.
type Next<'n, T> = dyn FnMut(&mut Vec<T>) -> Result<Option<f64>, SourceError> + Send + 'n;

/// Reads accesses to their end, or until `stop` is set, and feeds all of them to every model. After
/// every batch, calls `progress` with the number of accesses so far and the share that was read.
///
/// # Errors
/// The error of `next`.
pub(crate) fn feed<T: Sync + Send, M: Feed<T>>(
    next: &mut Next<'_, T>,
    models: &mut [M],
    jobs: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Fed, SourceError> {
    let mut batch_len = BATCH_MIN;
    let (mut batch, mut following) = (Vec::new(), Vec::new());
    let mut requests = 0;
    fill(next, &mut batch, batch_len)?;
    // Relaxed: the flag orders nothing else.
    while !batch.is_empty() && !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let read = run_batch(&batch, models, jobs, || fill(next, &mut following, batch_len));
        requests += batch.len() as u64;
        progress(requests, read?);
        std::mem::swap(&mut batch, &mut following);
        batch_len = match begin.elapsed() {
            time if time < BATCH_TIME / 2 => (batch_len * 2).min(BATCH_MAX),
            time if time > BATCH_TIME * 2 => (batch_len / 2).max(BATCH_MIN),
            _ => batch_len,
        };
    }
    Ok(Fed { requests, complete: batch.is_empty() })
}

/// Puts at least `len` accesses into a batch, unless there are no more.
fn fill<T>(next: &mut Next<'_, T>, batch: &mut Vec<T>, len: usize) -> Result<Option<f64>, SourceError> {
    batch.clear();
    loop {
        let before = batch.len();
        let share = next(batch)?;
        if batch.len() == before || batch.len() >= len {
            return Ok(share);
        }
    }
}

/// Runs a batch through all models while one thread runs `read`, and returns the result of `read`.
fn run_batch<T: Sync, M: Feed<T>, R: Send>(
    batch: &[T],
    models: &mut [M],
    jobs: usize,
    read: impl FnOnce() -> R + Send,
) -> R {
    let threads = jobs.clamp(1, models.len() + 1);
    let reading = Mutex::new((Some(read), None));
    let waiting = Mutex::new(models.iter_mut());
    let work = || {
        let read = reading.lock().expect("no thread panics here").0.take();
        if let Some(read) = read {
            let result = read();
            reading.lock().expect("no thread panics here").1 = Some(result);
        }
        loop {
            let Some(model) = waiting.lock().expect("no thread panics here").next() else { break };
            model.feed(batch);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    reading.into_inner().expect("no thread panics here").1.expect("the first thread has read")
}
