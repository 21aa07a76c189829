//! Measures reads of cached pages: awaited, blocking, and `pread` of a cached file in tokio's
//! `spawn_blocking`. The contestants take turns, so a machine that becomes slower slows all of
//! them. Prints medians of reads per second, and of the ratios to the blocking read of the same
//! round.
//!
//! Run it with `cargo run --release -p octavo-async --example hits`. `OCTAVO_ROUNDS` sets the
//! number of rounds (default: 15), `OCTAVO_READS` the reads of each contestant in a round (default:
//! 200,000; of `spawn_blocking` a twentieth).

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use octavo::disk::Store;
use octavo::{Cache, CacheConfig, Object, PartitionConfig};
use octavo_async::{AsyncObject, Driver};
use octavo_random::Random;

const OBJECT_BYTES: u64 = 64 << 20;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

/// Offsets of reads that lie in one page each.
fn offsets(reads: u64, len: usize) -> Vec<u64> {
    let mut random = Random::new(reads);
    let slots = 4096 / len as u64;
    let offset = |_| random.below(OBJECT_BYTES / 4096) * 4096 + random.below(slots) * len as u64;
    (0..reads).map(offset).collect()
}

struct Scene {
    runtime: tokio::runtime::Runtime,
    object: Object,
    awaited: AsyncObject,
    file: Arc<std::fs::File>,
}

/// A contestant: does the reads, and returns the sum of their first bytes.
type Contestant = fn(&Scene, &[u64], usize) -> u64;

fn blocking(scene: &Scene, offsets: &[u64], len: usize) -> u64 {
    let mut buffer = vec![0; len];
    let read = |offset: &u64| {
        scene.object.read_at(*offset, &mut buffer).expect("the store is memory");
        u64::from(buffer[0])
    };
    offsets.iter().map(read).sum()
}

fn awaited(scene: &Scene, offsets: &[u64], len: usize) -> u64 {
    scene.runtime.block_on(async {
        let (mut buffer, mut sum) = (vec![0; len], 0);
        for offset in offsets {
            scene.awaited.read_at(*offset, &mut buffer).await.expect("the store is memory");
            sum += u64::from(buffer[0]);
        }
        sum
    })
}

fn awaited_bytes(scene: &Scene, offsets: &[u64], len: usize) -> u64 {
    scene.runtime.block_on(async {
        let mut sum = 0;
        for offset in offsets {
            sum += u64::from(scene.awaited.read_bytes_at(*offset, len).await.expect("it is memory")[0]);
        }
        sum
    })
}

fn viewed(scene: &Scene, offsets: &[u64], len: usize) -> u64 {
    scene.runtime.block_on(async {
        let mut sum = 0;
        for offset in offsets {
            sum += u64::from(scene.awaited.view_at(*offset, len).await.expect("the store is memory")[0]);
        }
        sum
    })
}

fn spawned(scene: &Scene, offsets: &[u64], len: usize) -> u64 {
    scene.runtime.block_on(async {
        let mut sum = 0;
        for offset in offsets {
            let (file, offset) = (scene.file.clone(), *offset);
            let read = move || {
                let mut buffer = vec![0; len];
                file.read_exact_at(&mut buffer, offset).map(|()| u64::from(buffer[0]))
            };
            sum += tokio::task::spawn_blocking(read).await.expect("it ends").expect("the file is readable");
        }
        sum
    })
}

const CONTESTANTS: [(&str, Contestant, u64); 5] = [
    ("blocking read_at", blocking, 1),
    ("read_at.await", awaited, 1),
    ("read_bytes_at.await", awaited_bytes, 1),
    ("view_at.await", viewed, 1),
    ("spawn_blocking(pread)", spawned, 20),
];

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::new(CacheConfig { memory_max_bytes: 2 * OBJECT_BYTES, ..CacheConfig::default() })?;
    let partition = cache.partition(PartitionConfig::new("bench"))?;
    let object = partition.open(Store::memory("bench", OBJECT_BYTES), "bench")?;
    let mut bytes = vec![7; OBJECT_BYTES as usize];
    object.write_at(0, &bytes)?;
    object.read_at(0, &mut bytes)?;
    let path = std::env::temp_dir().join(format!("octavo-async-hits-{}", std::process::id()));
    std::fs::write(&path, &bytes)?;
    let file = Arc::new(std::fs::File::open(&path)?);
    std::fs::remove_file(&path)?;
    let driver = Driver::new(&cache)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let scene = Scene { runtime, awaited: driver.object(object.clone()), object, file };

    let (rounds, reads) = (number("OCTAVO_ROUNDS", 15), number("OCTAVO_READS", 200_000));
    for len in [128, 4096] {
        let offsets = offsets(reads, len);
        let mut rates = [const { Vec::new() }; CONTESTANTS.len()];
        // The first round warms up.
        for round in 0..=rounds {
            for ((name, contestant, share), rates) in CONTESTANTS.iter().zip(&mut rates) {
                let offsets = &offsets[..offsets.len() / *share as usize];
                let started = Instant::now();
                let sum = contestant(&scene, offsets, len);
                let rate = offsets.len() as f64 / started.elapsed().as_secs_f64();
                assert_eq!(sum, 7 * offsets.len() as u64, "{name}");
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        println!("{len} bytes                 million/s   ratio");
        for ((name, ..), own) in CONTESTANTS.iter().zip(&rates) {
            let ratios = own.iter().zip(&rates[0]).map(|(own, blocking)| own / blocking).collect();
            println!("{name:<24} {:>9.3} {:>7.3}", median(own.clone()) / 1e6, median(ratios));
        }
    }
    Ok(())
}
