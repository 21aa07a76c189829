//! Edge cases of `read_batch`: a page that the end of the object cuts, reads of several pages,
//! empty reads, and reads past the end.

use crate::fixture::{PAGE, batch_at, bytes_at, scene};
use octavo::disk::Store;
use octavo::numa::{NumaMode, TopologySource};
use octavo::{Cache, CacheConfig, Error, Object, PartitionConfig};

/// The length of the object: two pages and a part of a third.
const LEN: u64 = 2 * PAGE + 1000;

fn byte(offset: u64) -> u8 {
    (offset * 7 % 251) as u8
}

/// The same object with all pages resident: on one node, and on two nodes that exchange messages.
fn objects() -> Vec<(Cache, Object)> {
    let open = |numa, topology| {
        let config = CacheConfig { memory_max_bytes: 32 << 20, numa, topology, ..CacheConfig::default() };
        let (cache, _, object) = scene(config, PartitionConfig::new("p"), Store::memory("m", LEN));
        let bytes: Vec<u8> = (0..LEN).map(byte).collect();
        object.write_at(0, &bytes).unwrap();
        assert!(bytes_at(&object, 0, LEN) == bytes);
        (cache, object)
    };
    let two = TopologySource::Emulated { nodes: 2, cores: 1 };
    vec![open(NumaMode::Off, TopologySource::default()), open(NumaMode::Message, two)]
}

#[test]
fn a_batch_serves_cut_pages_reads_of_several_pages_and_empty_reads() {
    // More reads than a batch looks up ahead, short and long.
    let edges = [(0, 0), (LEN, 0), (LEN - 100, 100), (LEN - 1, 1), (PAGE - 50, 100), (2 * PAGE, 128), (5, 1)];
    let long = [(0, LEN as usize), (PAGE, 4096), (PAGE - 1, 4098), (2 * PAGE, 1000)];
    // The first and the last read decide how the batch looks up the others.
    let mixed = [&edges[..], &long, &edges].concat().repeat(2);
    let ended_by_long = [&edges[..], &long].concat().repeat(4);
    for (_cache, object) in objects() {
        for ranges in [edges.repeat(5), mixed.clone(), ended_by_long.clone(), edges[..1].to_vec(), vec![]] {
            let (result, buffers) = batch_at(&object, &ranges);
            result.unwrap();
            for ((offset, _), buffer) in ranges.iter().zip(buffers) {
                assert!((*offset..).zip(&buffer).all(|(offset, found)| *found == byte(offset)), "{offset}");
            }
        }
    }
}

/// A batch used to check the ends of all reads first; now it checks each read when it looks it up.
#[test]
fn a_batch_with_a_read_past_the_end_is_refused_at_any_place_of_that_read() {
    for (_cache, object) in objects() {
        for wrong in
            [(LEN - 10, 11), (LEN, 1), (LEN + 1, 0), (3 * PAGE, 8), (u64::MAX - 3, 8), (u64::MAX, 4096)]
        {
            for place in [0, 7, 19] {
                let mut ranges = vec![(8, 16); 20];
                ranges[place] = wrong;
                let (result, buffers) = batch_at(&object, &ranges);
                let error = result.expect_err("a read past the end");
                assert!(matches!(error, Error::PastEnd { .. }), "{wrong:?}: {error}");
                let is_untouched = buffers[place].iter().all(|byte| *byte == 0xEE);
                assert!(is_untouched, "{wrong:?}: bytes came from nowhere");
            }
        }
    }
}
