//! Reads of 128 bytes that hit, as in hit.c. Prints nanoseconds for each read.

use std::time::Instant;

use octavo::disk::Store;
use octavo::{Advice, Cache, CacheConfig, PartitionConfig};

const LEN: u64 = 8 << 20;
const PIECE: u64 = 128;
const READS: i32 = 5_000_000;

fn main() -> Result<(), octavo::Error> {
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig::new("hits"))?;
    let object = partition.open(Store::memory("memory", LEN), "memory")?;
    object.advise(0, LEN, Advice::WillNeed)?;
    let mut buffer = [0; PIECE as usize];
    let (mut state, mut sum) = (88_172_645_463_325_252_u64, 0);
    let mut start = Instant::now();
    for number in -READS / 10..READS {
        if number == 0 {
            start = Instant::now();
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        object.read_at(state % (LEN / PIECE) * PIECE, &mut buffer)?;
        sum += u64::from(buffer[0]);
    }
    println!("{:.2}", start.elapsed().as_nanos() as f64 / f64::from(READS));
    assert_eq!(sum, 0);
    Ok(())
}
