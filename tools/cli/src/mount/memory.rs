//! The cache of a mount, and the least memory with which it works.

use octavo::{Cache, CacheConfig, Partition, PartitionConfig};
use octavo_fuse::Mount;

use super::options::{MEMORY_MAX_LEAST, Options, threads_of};
use crate::error::Error;
use crate::{limits, units};

/// The name of the partition.
const PARTITION: &str = "files";

/// The most memory that a message proposes.
const PROPOSED_MOST: u64 = 1 << 40;

/// Makes the cache, and the partition that has all of its memory.
///
/// # Errors
/// A sentence.
pub fn make(options: &Options) -> Result<(Cache, Partition), String> {
    let config = CacheConfig {
        memory_max_bytes: options.memory_max_bytes,
        buffers_max_bytes: Some(buffers_max(options.memory_max_bytes)),
        pressure: Some(octavo::pressure::PressureSource::linux()),
        ..CacheConfig::default()
    };
    divide(config, options)
}

fn divide(config: CacheConfig, options: &Options) -> Result<(Cache, Partition), String> {
    let cache = Cache::new(config).map_err(|error| error.to_string())?;
    let stat = cache.stat();
    let partition = PartitionConfig {
        cache_mode: options.cache_mode,
        policy: options.policy,
        start_bytes: Some(stat.memory_max_bytes.saturating_sub(stat.memory_charged_bytes)),
        read_ahead_max_bytes: limits::READ_AHEAD_DEFAULT_BYTES,
        ..PartitionConfig::new(PARTITION)
    };
    let partition = cache.partition(partition).map_err(|error| error.to_string())?;
    Ok((cache, partition))
}

/// Checks that `memory_max` has room for the threads.
///
/// # Errors
/// A usage error that names the least `memory_max`.
pub fn check(options: &Options) -> Result<(), Error> {
    if threads_of(options.memory_max_bytes) >= options.mount.threads {
        return Ok(());
    }
    let Err(why) = fits(options, options.memory_max_bytes) else { return Ok(()) };
    let (given, threads) = (units::human_bytes(options.memory_max_bytes), options.mount.threads);
    let least = match least(options) {
        Some(least) => format!("; {threads} threads need memory_max={}", units::human_bytes(least)),
        None => String::new(),
    };
    Err(Error::Usage(format!("memory_max={given} is too little for a mount: {why}{least}")))
}

/// The least memory with which the mount works, in whole MiB, if it is one that people have.
fn least(options: &Options) -> Option<u64> {
    let mut too_little = options.memory_max_bytes.max(MEMORY_MAX_LEAST) >> 20;
    let mut enough = too_little;
    while fits(options, enough << 20).is_err() {
        too_little = enough;
        enough *= 2;
        if enough > PROPOSED_MOST >> 20 {
            return None;
        }
    }
    while enough - too_little > 1 {
        let middle = too_little.midpoint(enough);
        if fits(options, middle << 20).is_ok() {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    Some(enough << 20)
}

/// Tries a cache of this size, which is not used.
fn fits(options: &Options, memory_max_bytes: u64) -> Result<(), String> {
    let config = CacheConfig {
        memory_max_bytes,
        buffers_max_bytes: Some(buffers_max(memory_max_bytes)),
        background: false,
        ..CacheConfig::default()
    };
    let (cache, _partition) = divide(config, options)?;
    Mount::check_memory(&cache, &options.mount)
}

/// The part of `memory_max` that buffers and the tables of files may take: a quarter, because the
/// files of a mount are many and small. Pages have what they do not need.
fn buffers_max(memory_max_bytes: u64) -> u64 {
    const LEAST: u64 = 7 << 18;
    const MOST: u64 = 1 << 30;
    (memory_max_bytes / 4).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_is_enough_and_a_mib_less_is_not() {
        for threads in [1, 3, 64] {
            let options = Options::read([&*format!("memory_max=4m,threads={threads}")]).unwrap();
            let least = least(&options).unwrap();
            assert!(fits(&options, least).is_ok());
            assert!(least == MEMORY_MAX_LEAST || fits(&options, least - (1 << 20)).is_err());
        }
    }

    #[test]
    fn the_message_names_the_least_memory() {
        let options = Options::read(["memory_max=4m,threads=64"]).unwrap();
        let Err(Error::Usage(why)) = check(&options) else { panic!("it does not fit") };
        assert!(why.contains("64 threads need memory_max="), "{why}");
        assert!(check(&Options::read(["memory_max=4m"]).unwrap()).is_ok());
    }
}
