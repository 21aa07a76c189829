//! Memory: metadata per page, and the process's resident memory after much churn, compared with the
//! limit.
//!
//! The churn reads and writes random pages of a file four times as large as the cache, for the
//! case's seconds, on the case's threads. The resident memory before the cache is made (the
//! program, its buffers) is subtracted.

use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;
use octavo::{CacheConfig, Object};
use octavo_random::mix;

use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine;
use crate::report::Row;
use crate::scratch::Scratch;
use crate::stage::{Driver, Run, Subject, offset, partition_config};
use crate::stream;

pub const DRIVER: Driver = Driver {
    name: "memory",
    purpose: "the memory that a cache takes",
    contestants: &[],
    scenery: &["store", "file"],
    check: |_| Ok(()),
    memory: |needs| needs.file + needs.frames,
    set: |case, run| {
        let scratch = Scratch::new(case, "", run)?;
        Ok(Box::new(move |case, run| row(&scratch, case, run).map(|row| vec![row])))
    },
};

/// Reads and writes random pages until `until`. Returns the number of operations.
fn churn(object: &Object, pages: u64, case: &Case, thread: usize, until: Instant) -> Result<u64, Error> {
    let mut drawn = stream::pages(&case.workload, pages, thread as u64 + 1)?;
    let mut page = AlignedBytes::new(PAGE_BYTES);
    let mut operations = 0;
    while Instant::now() < until {
        for number in drawn.by_ref().take(64) {
            if case.reads.has(mix(number ^ operations)) {
                object.read_at(offset(number), &mut page)?;
                content::check(number, 0, &page, "while memory is measured")?;
            } else {
                content::fill(number, &mut page);
                object.write_at(offset(number), &page)?;
            }
            operations += 1;
        }
    }
    Ok(operations)
}

fn row(scratch: &Scratch, case: &Case, run: &mut Run<'_>) -> Result<Row, Error> {
    let before = machine::resident_bytes();
    let memory_max_bytes = case.memory.0;
    let config = CacheConfig { memory_max_bytes, ..CacheConfig::default() };
    let subject = Subject::new(config, partition_config(case), scratch.open()?)?;
    let time = if run.options.quick { Duration::from_millis(300) } else { run.time(case, 30.0) };
    let until = Instant::now() + time;
    let mut resident_max = 0;
    let operations = std::thread::scope(|scope| {
        let churn = |thread| {
            let object = &subject.object;
            move || churn(object, scratch.pages(), case, thread, until)
        };
        let threads: Vec<_> = (0..case.threads.0).map(|thread| scope.spawn(churn(thread))).collect();
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            run.news(case, &format!("churning for {} s more", left.as_secs()));
            std::thread::sleep(left.min(Duration::from_millis(250)));
            resident_max = resident_max.max(machine::resident_bytes());
        }
        let panicked = |_| Err(Error::new("a churning thread has panicked"));
        let answers = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        answers.sum::<Result<u64, Error>>()
    })?;
    let stat = subject.partition.stat();
    let pages = (stat.max_bytes / PAGE_BYTES as u64).max(1);
    let learned = subject.partition.learned_bytes();
    let metadata = stat.charged_bytes.saturating_sub(stat.max_bytes).saturating_sub(learned);
    let resident = resident_max.saturating_sub(before);
    let mut row = Row::new(run.suite, case);
    row.add("memory_max_bytes", memory_max_bytes);
    row.add("pages", pages);
    row.add("metadata_bytes_per_page", metadata as f64 / pages as f64);
    row.add("learned_bytes_per_page", learned as f64 / pages as f64);
    row.add("operations", operations);
    row.add("misses", stat.misses);
    row.add("turnovers", stat.fills as f64 / pages as f64);
    row.add("resident_bytes", resident);
    row.add("resident_through_memory_max", resident as f64 / memory_max_bytes as f64);
    row.add("resident_over_mib", (resident as f64 - memory_max_bytes as f64) / f64::from(1 << 20));
    // The goal is at most the limit plus 2 % plus 16 MiB. This figure is the number of bytes that
    // remain up to the goal; if it is negative, the goal was missed.
    let allowed = memory_max_bytes as f64 * 1.02 + f64::from(16 << 20);
    row.add("left_of_2_percent_and_16_mib", allowed - resident as f64);
    subject.object.sync()?;
    Ok(row)
}
