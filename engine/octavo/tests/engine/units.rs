//! A store that is read best in large units: a miss brings the whole unit, with one I/O.

use std::io;
use std::sync::{Arc, Mutex};

use octavo::disk::{Backend, IoRequest, Store};
use octavo::{Advice, Cache, CacheConfig, Object, PartitionConfig};

const UNIT: u32 = 64 << 10;

/// A store of one repeated byte for each page, which notes its reads.
struct Remote {
    len_bytes: u64,
    reads: Arc<Mutex<Vec<(u64, usize)>>>,
}

impl Backend for Remote {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn submit(&self, mut request: IoRequest) {
        let (offset, len) = (request.offset(), request.len_bytes());
        self.reads.lock().unwrap().push((offset, len));
        let bytes: Vec<u8> = (offset..offset + len as u64).map(|at| (at / 4096) as u8).collect();
        request.copy_in(0, &bytes);
        request.complete(Ok(len));
    }

    fn fill_bytes(&self) -> u32 {
        UNIT
    }

    fn read_only(&self) -> bool {
        true
    }
}

type Reads = Arc<Mutex<Vec<(u64, usize)>>>;

fn open(memory_max_bytes: u64, len_bytes: u64) -> (Object, Reads) {
    let config = CacheConfig { memory_max_bytes, background: false, seed: Some(1), ..CacheConfig::default() };
    let cache = Cache::new(config).unwrap();
    let partition = cache.partition(PartitionConfig::new("remote")).unwrap();
    let reads = Reads::default();
    let store = Store::from_backend("remote", Remote { len_bytes, reads: reads.clone() }).unwrap();
    (partition.open(store, "remote").unwrap(), reads)
}

fn read(object: &Object, offset: u64, len: usize) {
    let mut bytes = vec![0; len];
    object.read_at(offset, &mut bytes).unwrap();
    for (at, byte) in (offset..).zip(bytes) {
        assert_eq!(byte, (at / 4096) as u8, "the byte at {at}");
    }
}

#[test]
fn a_miss_brings_its_whole_unit_with_one_io() {
    let (object, reads) = open(16 << 20, (1 << 20) + 5000);
    read(&object, 3 * 65_536 + 9000, 10);
    assert_eq!(*reads.lock().unwrap(), [(3 * 65_536, 65_536)]);
    assert_eq!(object.resident_bytes(3 * 65_536, 65_536).unwrap(), 65_536);
    // The rest of the unit hits; a read across two units brings what is missing.
    read(&object, 3 * 65_536, 65_536);
    read(&object, 4 * 65_536 - 100, 200);
    assert_eq!(reads.lock().unwrap()[1..], [(4 * 65_536, 65_536)]);
    // The last unit ends with the store.
    read(&object, 1 << 20, 5000);
    assert_eq!(reads.lock().unwrap()[2..], [(1 << 20, 5000)]);
}

#[test]
fn a_unit_that_is_partly_there_is_completed_only() {
    let (object, reads) = open(16 << 20, 1 << 20);
    object.advise(8192, 4096, Advice::WillNeed).unwrap();
    read(&object, 0, 1);
    assert_eq!(*reads.lock().unwrap(), [(8192, 4096), (0, 8192), (12_288, 53_248)]);
}

#[test]
fn random_advice_reads_pages_only() {
    let (object, reads) = open(16 << 20, 1 << 20);
    object.advise(0, 0, Advice::Random).unwrap();
    read(&object, 100_000, 1);
    assert_eq!(*reads.lock().unwrap(), [(98_304, 4096)]);
}
