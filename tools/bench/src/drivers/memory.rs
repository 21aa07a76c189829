//! What a cache takes of memory: bytes of metadata for each page, and what is in memory after a lot
//! of churn beside what was allowed.
//!
//! The churn reads and writes random pages of a file four times as large as the cache, for the
//! case's seconds, by the case's threads. What the process holds beside the cache (this program,
//! its buffers) is measured before the cache is made and taken off.

use std::time::{Duration, Instant};

use octavo::disk::AlignedBytes;
use octavo::{Cache, CacheConfig, PartitionConfig};

use crate::case::Case;
use crate::content::{self, PAGE_BYTES};
use crate::drivers::{Run, Stage};
use crate::report::Row;
use crate::scratch::Scratch;
use crate::{Error, machine, stream};

/// What the stage depends on.
pub const SCENERY: &[&str] = &["store", "file"];

/// A file.
pub struct Field {
    scratch: Scratch,
}

impl Field {
    /// Makes it.
    pub fn new(case: &Case, run: &mut Run<'_>) -> Result<Field, Error> {
        Ok(Field { scratch: Scratch::new(case, "", run)? })
    }

    /// Reads and writes until the time is over; how many operations that were.
    fn churn(
        &self,
        object: &octavo::Object,
        case: &Case,
        thread: usize,
        until: Instant,
    ) -> Result<u64, Error> {
        let mut pages = stream::pages(&case.workload, self.scratch.pages(), thread as u64 + 1)?;
        let mut page = AlignedBytes::new(PAGE_BYTES);
        let mut operations = 0;
        while Instant::now() < until {
            for number in pages.by_ref().take(64) {
                let offset = number * PAGE_BYTES as u64;
                if content::below(content::mix(number ^ operations), 100) < case.reads.0.into() {
                    object.read_at(offset, &mut page)?;
                    if !content::is_right(number, 0, &page) {
                        return Err(Error::new(format!("wrong bytes in page {number}")));
                    }
                } else {
                    content::fill(number, &mut page);
                    object.write_at(offset, &page)?;
                }
                operations += 1;
            }
        }
        Ok(operations)
    }
}

impl Stage for Field {
    fn run(&mut self, case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
        let before = machine::resident_bytes();
        let memory_max_bytes = case.memory.0;
        let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() })?;
        let partition = cache.partition(PartitionConfig {
            policy: case.policy.0,
            cache_mode: case.mode.0,
            ..PartitionConfig::new("bench")
        })?;
        let object = partition.open(self.scratch.open()?, "file")?;
        let seconds = run.options.time.map_or(case.seconds.unwrap_or(30.0), |time| time.as_secs_f64());
        let time = Duration::from_secs_f64(if run.options.quick { 0.3 } else { seconds });
        let until = Instant::now() + time;
        let mut resident_max = 0;
        let operations = std::thread::scope(|scope| {
            let churn = |thread| {
                let (this, object) = (&*self, &object);
                move || this.churn(object, case, thread, until)
            };
            let threads: Vec<_> = (0..case.threads.0).map(|thread| scope.spawn(churn(thread))).collect();
            while Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                run.news(case, &format!("churning for {} s more", left.as_secs()));
                std::thread::sleep(left.min(Duration::from_millis(250)));
                resident_max = resident_max.max(machine::resident_bytes());
            }
            let answers = threads.into_iter().map(|thread| thread.join());
            answers
                .map(|answer| answer.unwrap_or_else(|_| Err(Error::new("a churning thread has panicked"))))
                .sum::<Result<u64, Error>>()
        })?;
        let stat = partition.stat();
        let pages = (stat.max_bytes / PAGE_BYTES as u64).max(1);
        let mut row = Row::new(run.suite, case);
        row.count("memory_max_bytes", memory_max_bytes);
        row.count("pages", pages);
        let learned = partition.learned_bytes();
        let metadata = stat.charged_bytes.saturating_sub(stat.max_bytes).saturating_sub(learned);
        row.number("metadata_bytes_per_page", metadata as f64 / pages as f64);
        row.number("learned_bytes_per_page", learned as f64 / pages as f64);
        row.count("operations", operations);
        row.count("misses", stat.misses);
        row.number("turnovers", stat.fills as f64 / pages as f64);
        let resident = resident_max.saturating_sub(before);
        row.count("resident_bytes", resident);
        row.number("resident_through_memory_max", resident as f64 / memory_max_bytes as f64);
        row.number("resident_over_mib", (resident as f64 - memory_max_bytes as f64) / f64::from(1 << 20));
        // Bytes that the bound plus 2 % plus 16 MiB leaves; below zero it was broken.
        let allowed = memory_max_bytes as f64 * 1.02 + f64::from(16 << 20);
        row.number("left_of_2_percent_and_16_mib", allowed - resident as f64);
        object.sync()?;
        Ok(vec![row])
    }
}
