//! RocksDB's own benchmark, db_bench, with a small block cache: most blocks come from the cache
//! below. <https://github.com/facebook/rocksdb/wiki/Benchmarking-tools>

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, files_bytes, hindrance, succeed};
use super::side::Side;
use crate::case::Case;
use crate::error::Error;
use crate::machine;
use crate::stage::Driver;

pub const DRIVER: Driver = Driver {
    name: "app-rocksdb",
    purpose: "RocksDB's db_bench on a mounted directory, beside the kernel's page cache",
    contestants: CONTESTANTS,
    scenery: &["memory", "files_percent"],
    check: |case| check(case, &JOBS.map(|(job, ..)| job)),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let files = match hindrance(&[("db_bench", "rocksdb-tools")]) {
            None => Ok(Files::new(case, run, |directory| fill(case, directory))?),
            Some(why) => Err(why),
        };
        Ok(Box::new(move |case, run| {
            contest(case, run, files.as_ref().map_err(String::clone), &Queries { case })
        }))
    },
};

/// Jobs, with the benchmark of db_bench and its options.
const JOBS: [(&str, &str, &[&str]); 4] = [
    ("readrandom", "readrandom", &[]),
    ("readrandom-skewed", "readrandom", &["--read_random_exp_range=8"]),
    ("seekrandom", "seekrandom", &["--seek_nexts=10"]),
    ("readwhilewriting", "readwhilewriting", &["--benchmark_write_rate_limit=2097152"]),
];

/// Bytes of a value, and of a record with its key and its share of indexes and filters.
const VALUE_BYTES: u64 = 400;
const RECORD_BYTES: u64 = 427;

/// The name of the database's directory.
const DATABASE: &str = "db";

fn options(case: &Case, directory: &Path) -> Vec<String> {
    vec![
        format!("--db={}", directory.join(DATABASE).display()),
        format!("--num={}", files_bytes(case) / RECORD_BYTES),
        format!("--value_size={VALUE_BYTES}"),
        "--compression_type=none".into(),
        "--bloom_bits=10".into(),
        "--cache_size=8388608".into(),
        "--write_buffer_size=8388608".into(),
        "--target_file_size_base=16777216".into(),
        "--max_bytes_for_level_base=67108864".into(),
    ]
}

fn fill(case: &Case, directory: &Path) -> Result<(), Error> {
    let mut command = Command::new("db_bench");
    command.args(["--benchmarks=filluniquerandom,compact", "--disable_wal=1"]);
    succeed(command.args(options(case, directory))).map(drop)
}

struct Queries<'c> {
    case: &'c Case,
}

impl Job for Queries<'_> {
    fn run(&self, side: &Side, time: Duration) -> Result<Vec<Done>, Error> {
        let job = JOBS.iter().find(|(job, ..)| *job == self.case.job.0);
        let (_, benchmark, more) = job.ok_or_else(|| Error::new("no such job"))?;
        let program = machine::program("db_bench").ok_or_else(|| Error::new("db_bench is not installed"))?;
        let mut command = side.command(&program);
        command.args(options(self.case, &side.path)).args(*more);
        command.args([format!("--benchmarks={benchmark}"), format!("--threads={}", self.case.threads.0)]);
        command.args(["--use_existing_db=1".to_owned(), format!("--duration={}", time.as_secs().max(1))]);
        let text = succeed(&mut command)?;
        let done = operations(&text, benchmark);
        done.map(|done| vec![done])
            .ok_or_else(|| Error::new(format!("db_bench's report has no rate: {text}")))
    }
}

/// Returns what a benchmark did, from the line in db_bench's report: `readrandom : 5.0 micros/op
/// 190000 ops/sec 3.0 seconds 570000 operations; ...`.
fn operations(text: &str, benchmark: &str) -> Option<Done> {
    let line = text.lines().find(|line| line.starts_with(benchmark))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| {
        let at = words.iter().position(|word| word.trim_end_matches(';') == unit)?;
        words.get(at.checked_sub(1)?)?.parse::<f64>().ok()
    };
    let done = Done { operations: before("operations")?, seconds: before("seconds")? };
    (done.operations > 0.0).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_benchmark_did_is_read_from_its_line() {
        let text = "DB path: [/d]\nreadrandom   :       5.162 micros/op 193616 ops/sec 4.648 seconds \
                    900000 operations;   76.8 MB/s (899 of 900 found)\n";
        let done = operations(text, "readrandom").unwrap();
        assert_eq!((done.operations, done.seconds), (900_000.0, 4.648));
        assert!(operations(text, "seekrandom").is_none());
    }
}
