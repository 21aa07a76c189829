//! Batches of reads at the edges: pages cut by the end, reads of several pages, of nothing, and
//! past the end.

use octavo::disk::Store;
use octavo::numa::{NumaMode, TopologySource};
use octavo::{Cache, CacheConfig, Error, Object, PartitionConfig, Read};

const PAGE: u64 = 4096;
/// Two pages, and a part of a third.
const LEN: u64 = 2 * PAGE + 1000;

fn byte(offset: u64) -> u8 {
    (offset * 7 % 251) as u8
}

/// An object, its pages all there: on one node, and on two that talk by messages.
fn objects() -> Vec<(Cache, Object)> {
    let open = |numa, topology| {
        let config = CacheConfig { memory_max_bytes: 32 << 20, numa, topology, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let object = partition.open(Store::memory("m", LEN), "m").unwrap();
        let bytes: Vec<u8> = (0..LEN).map(byte).collect();
        object.write_at(0, &bytes).unwrap();
        let mut all = vec![0; LEN as usize];
        object.read_at(0, &mut all).unwrap();
        assert!(all == bytes);
        (cache, object)
    };
    let two = TopologySource::Emulated { nodes: 2, cores: 1 };
    vec![open(NumaMode::Off, TopologySource::default()), open(NumaMode::Message, two)]
}

fn read(object: &Object, ranges: &[(u64, usize)]) -> (Result<(), Error>, Vec<Vec<u8>>) {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, len)| vec![0xEE; *len]).collect();
    let mut reads: Vec<Read<'_>> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|((offset, _), buffer)| Read { offset: *offset, buffer })
        .collect();
    let result = object.read_batch(&mut reads);
    (result, buffers)
}

#[test]
fn a_batch_reads_what_the_end_cuts_what_spans_pages_and_nothing() {
    // More of them than are looked up ahead, short ones and long ones.
    let edges = [(0, 0), (LEN, 0), (LEN - 100, 100), (LEN - 1, 1), (PAGE - 50, 100), (2 * PAGE, 128), (5, 1)];
    let long = [(0, LEN as usize), (PAGE, 4096), (PAGE - 1, 4098), (2 * PAGE, 1000)];
    // The first and the last read say how the others are looked up.
    let mixed = [&edges[..], &long, &edges].concat().repeat(2);
    let ended_by_long = [&edges[..], &long].concat().repeat(4);
    for (_cache, object) in objects() {
        for ranges in [edges.repeat(5), mixed.clone(), ended_by_long.clone(), edges[..1].to_vec(), vec![]] {
            let (result, buffers) = read(&object, &ranges);
            result.unwrap();
            for ((offset, _), buffer) in ranges.iter().zip(buffers) {
                assert!((*offset..).zip(&buffer).all(|(offset, found)| *found == byte(offset)), "{offset}");
            }
        }
    }
}

/// The ends of a batch's reads were checked before any was looked up; now a read is checked where
/// it is looked up.
#[test]
fn a_batch_with_a_read_past_the_end_is_refused_wherever_it_stands() {
    for (_cache, object) in objects() {
        for wrong in
            [(LEN - 10, 11), (LEN, 1), (LEN + 1, 0), (3 * PAGE, 8), (u64::MAX - 3, 8), (u64::MAX, 4096)]
        {
            for place in [0, 7, 19] {
                let mut ranges = vec![(8, 16); 20];
                ranges[place] = wrong;
                let (result, buffers) = read(&object, &ranges);
                let error = result.expect_err("a read past the end");
                assert!(matches!(error, Error::PastEnd { .. }), "{wrong:?}: {error}");
                assert!(
                    buffers[place].iter().all(|byte| *byte == 0xEE),
                    "{wrong:?}: bytes came from nowhere"
                );
            }
        }
    }
}
