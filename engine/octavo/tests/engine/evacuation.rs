//! Pages leave a cache for a file and come back into another cache (`evacuation/`, E1 to E8).

mod cycles;
mod damage;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::SystemTime;

use octavo::disk::{OpenOptions, Store};
use octavo::{
    Cache, CacheConfig, CacheMode, Error, Evacuated, Object, Partition, PartitionConfig, PolicyName,
    Restored, WarmPages,
};
use octavo_random::Random;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::fixture::{PAGE, Scratch, bytes_at, open, sized, small, written_back};

/// A file in memory.
fn memfd() -> File {
    memfd_create("pages", MemfdFlags::CLOEXEC).unwrap().into()
}

/// A file of random bytes.
fn image(name: &str, pages: u64) -> (Scratch, Vec<u8>) {
    let bytes = Random::new(pages).bytes((pages * PAGE) as usize);
    (Scratch::of(name, &bytes), bytes)
}

/// The name of a file's object.
fn name_of(file: &Scratch) -> String {
    file.0.file_name().unwrap().to_str().unwrap().to_owned()
}

/// A cache with one partition, in which files are open.
struct Served {
    cache: Cache,
    partition: Partition,
    objects: Vec<Object>,
}

impl Served {
    fn new(cache: CacheConfig, partition: PartitionConfig, files: &[&Scratch]) -> Served {
        let cache = Cache::new(cache).unwrap();
        Served::within(cache, partition, files)
    }

    fn within(cache: Cache, partition: PartitionConfig, files: &[&Scratch]) -> Served {
        let partition = cache.partition(partition).unwrap();
        let objects =
            files.iter().map(|file| partition.open(open(&file.0), &name_of(file)).unwrap()).collect();
        Served { cache, partition, objects }
    }

    /// Another cache, with the pages of the file.
    fn warm(
        cache: CacheConfig,
        partition: PartitionConfig,
        files: &[&Scratch],
        pages: File,
    ) -> (Served, Restored) {
        let (cache, warm) = (Cache::new(cache).unwrap(), WarmPages::open(pages).unwrap());
        cache.expect(&warm);
        let served = Served::within(cache, partition, files);
        let restored = served.cache.restore(warm).unwrap();
        (served, restored)
    }

    /// Ends the cache; its pages leave for a file.
    fn leave(self) -> (File, Evacuated) {
        let file = memfd();
        let evacuated = self.cache.evacuate(&file).unwrap();
        (file, evacuated)
    }

    fn read(&self, object: usize, page: u64) -> Vec<u8> {
        bytes_at(&self.objects[object], page * PAGE, PAGE)
    }

    fn misses(&self) -> u64 {
        self.partition.stat().misses
    }
}

fn page_of(bytes: &[u8], page: u64) -> &[u8] {
    &bytes[(page * PAGE) as usize..][..PAGE as usize]
}

#[test]
fn pages_that_come_back_are_hits_with_the_bytes_of_their_store() {
    let (file, bytes) = image("back", 64);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    (0..64).step_by(2).for_each(|page| _ = old.read(0, page));
    let (pages, evacuated) = old.leave();
    assert_eq!((evacuated.pages, evacuated.bytes, evacuated.refused.len()), (32, 32 * PAGE, 0));
    let (new, restored) = Served::warm(small(2), sized(2 << 20), &[&file], pages);
    assert_eq!((restored.pages, restored.cold), (32, vec![]));
    assert_eq!(new.partition.stat().resident_bytes, 32 * PAGE);
    for page in (0..64).step_by(2) {
        assert!(new.objects[0].is_resident(page * PAGE), "page {page}");
        assert_eq!(new.read(0, page), page_of(&bytes, page));
    }
    assert_eq!(new.misses(), 0);
}

#[test]
fn a_partition_without_room_to_spare_takes_all_its_pages_back() {
    let (file, _) = image("full", 1024);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    let mut random = Random::new(5);
    (0..20_000).for_each(|_| _ = old.read(0, random.below(1024)));
    let resident = old.partition.stat().resident_bytes;
    assert!(resident > (2 << 20) * 9 / 10, "{resident} bytes");
    let (pages, evacuated) = old.leave();
    assert_eq!(evacuated.bytes, resident);
    // Another seed in the configuration: the pages fall into their old sets all the same.
    let (new, restored) = Served::warm(small(2), sized(2 << 20), &[&file], pages);
    assert_eq!((restored.bytes, new.partition.stat().evictions.capacity), (resident, 0));
}

#[test]
fn the_first_reads_after_a_restart_hit_as_often_as_those_before_it() {
    for policy in [PolicyName::Octavo, PolicyName::Lru] {
        let (file, _) = image(&format!("ratio-{policy:?}"), 2048);
        let partition = || PartitionConfig { policy, ..sized(2 << 20) };
        let mut random = Random::new(3);
        // Most reads fall on few pages.
        let mut next = || random.below(2048).min(random.below(2048)).min(random.below(2048));
        let mut misses = |served: &Served, reads: u64| {
            let before = served.misses();
            (0..reads).for_each(|_| _ = served.read(0, next()));
            served.misses() - before
        };
        let old = Served::new(small(1), partition(), &[&file]);
        misses(&old, 30_000);
        let hits_before = 2000 - misses(&old, 2000);
        let (pages, _) = old.leave();
        let (new, _) = Served::warm(small(2), partition(), &[&file], pages);
        let hits_after = 2000 - misses(&new, 2000);
        assert!(hits_after * 100 >= hits_before * 95, "{policy:?}: {hits_before}, then {hits_after} hits");
    }
}

#[test]
fn a_smaller_cache_keeps_as_many_pages_as_fit() {
    let (file, bytes) = image("smaller", 400);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    (0..400).for_each(|page| _ = old.read(0, page));
    let (pages, evacuated) = old.leave();
    assert!(evacuated.pages > 350);
    let (new, restored) = Served::warm(small(1), sized(1 << 20), &[&file], pages);
    assert_eq!(restored.pages, evacuated.pages);
    let stat = new.partition.stat();
    assert!(
        stat.resident_bytes <= stat.max_bytes && stat.resident_bytes * 10 > stat.max_bytes * 8,
        "{stat:?}"
    );
    (0..400).for_each(|page| assert_eq!(new.read(0, page), page_of(&bytes, page)));
}

#[test]
fn dirty_pages_are_in_the_store_before_their_cache_ends() {
    let (file, _) = image("dirty", 64);
    let old = Served::new(small(1), written_back(2 << 20), &[&file]);
    (0..64).for_each(|page| old.objects[0].write_at(page * PAGE, &[page as u8; PAGE as usize]).unwrap());
    assert!(old.partition.stat().dirty_bytes > 0);
    let (pages, evacuated) = old.leave();
    assert_eq!(evacuated.pages, 64);
    let stored = std::fs::read(&file.0).unwrap();
    (0..64).for_each(|page| assert_eq!(page_of(&stored, page), [page as u8; PAGE as usize]));
    let (new, _) = Served::warm(small(1), written_back(2 << 20), &[&file], pages);
    (0..64).for_each(|page| assert_eq!(new.read(0, page), [page as u8; PAGE as usize]));
    assert_eq!((new.misses(), new.partition.stat().dirty_bytes), (0, 0));
}

#[test]
fn a_pin_keeps_its_bytes_when_its_page_leaves() {
    let (file, bytes) = image("pinned", 64);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    let pins: Vec<_> = (0..64).map(|page| old.objects[0].pin_owned(page * PAGE).unwrap().unwrap()).collect();
    let (pages, evacuated) = old.leave();
    assert_eq!(evacuated.pages, 64);
    for (page, pin) in (0..).zip(&pins) {
        assert_eq!(&pin[..], page_of(&bytes, page), "page {page}");
    }
    drop(pins);
    let (_new, restored) = Served::warm(small(1), sized(2 << 20), &[&file], pages);
    assert_eq!(restored.pages, 64);
}

/// A successor keeps the numbers of expected pages for their files, and no others.
#[test]
fn other_files_get_other_numbers_until_the_pages_have_come_in() {
    let files = ["a", "b", "c", "d", "e"].map(|name| image(&format!("numbers-{name}"), 8));
    let old = Served::new(small(1), sized(2 << 20), &[&files[0].0, &files[1].0, &files[2].0]);
    (0..3).for_each(|object| (0..8).for_each(|page| _ = old.read(object, page)));
    // A number that has returned is not expected.
    old.objects[1].close().unwrap();
    let (pages, evacuated) = old.leave();
    assert_eq!(evacuated.pages, 16);
    let (cache, warm) = (Cache::new(small(2)).unwrap(), WarmPages::open(pages).unwrap());
    cache.expect(&warm);
    let partition = cache.partition(sized(2 << 20)).unwrap();
    partition.limit_numbers(3);
    let open = |file: usize| partition.open(open(&files[file].0.0), &name_of(&files[file].0));
    // The number of the first file is kept for it. Of the three, one is left, and then none.
    let other = open(3).unwrap();
    let last = open(2).unwrap();
    assert!(open(4).is_err(), "its number is expected");
    let restored = cache.restore(warm).unwrap();
    assert_eq!((restored.pages, restored.cold.len()), (8, 1), "{restored:?}");
    let more = open(4).unwrap();
    assert!(open(1).is_err(), "all three are in use");
    let all = [(&other, 3), (&last, 2), (&more, 4)];
    all.into_iter().for_each(|(object, file)| assert!(bytes_at(object, 0, 8 * PAGE) == files[file].1));
}

#[test]
fn objects_are_closed_after_an_evacuation() {
    let (file, _) = image("closed", 8);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    old.read(0, 1);
    old.cache.evacuate(&memfd()).unwrap();
    assert!(matches!(old.objects[0].read_at(0, &mut [0]), Err(Error::Closed { .. })));
    assert!(matches!(old.objects[0].write_at(0, &[0]), Err(Error::Closed { .. })));
    assert!(old.partition.objects().is_empty());
}

#[test]
fn a_write_beside_an_evacuation_is_in_the_store_or_fails() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let (file, bytes) = image(&format!("beside-{mode:?}"), 256);
        let partition = || PartitionConfig { cache_mode: mode, ..sized(2 << 20) };
        let old = Served::new(small(1), partition(), &[&file]);
        (0..256).for_each(|page| _ = old.read(0, page));
        // The writer has written each page at least once before the evacuation begins, and goes on
        // until its object is closed.
        let (object, is_warm) = (old.objects[0].clone(), AtomicBool::new(false));
        let (acknowledged, pages) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut last = bytes.clone();
                for round in 0u64.. {
                    let page = round * 7 % 256;
                    let new = [(round % 251) as u8; PAGE as usize];
                    match object.write_at(page * PAGE, &new) {
                        Ok(()) => last[(page * PAGE) as usize..][..PAGE as usize].copy_from_slice(&new),
                        Err(Error::Closed { .. }) => return last,
                        Err(error) => panic!("{error}"),
                    }
                    is_warm.fetch_or(round > 256, SeqCst);
                }
                unreachable!("the object is closed before")
            });
            while !is_warm.load(SeqCst) {
                std::thread::yield_now();
            }
            let (pages, evacuated) = old.leave();
            assert!(evacuated.refused.is_empty());
            (writer.join().unwrap(), pages)
        });
        drop(object);
        assert!(std::fs::read(&file.0).unwrap() == acknowledged, "{mode:?}: the store lacks a write");
        let (new, restored) = Served::warm(small(1), partition(), &[&file], pages);
        assert_eq!(restored.cold, []);
        assert!(bytes_at(&new.objects[0], 0, 256 * PAGE) == acknowledged, "{mode:?}");
    }
}

/// Why the only object of a file stays cold.
fn reason_of(restored: &Restored) -> &str {
    assert_eq!((restored.pages, restored.cold.len()), (0, 1), "{restored:?}");
    assert!(restored.cold[0].object.is_some());
    &restored.cold[0].reason
}

#[test]
fn a_file_that_was_changed_in_between_starts_cold() {
    let (file, mut bytes) = image("changed", 64);
    let evacuate = || {
        // The clock of files is coarse: the change below must not fall into the same tick.
        File::options().write(true).open(&file.0).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let old = Served::new(small(1), sized(2 << 20), &[&file]);
        (0..60).for_each(|page| _ = old.read(0, page));
        old.leave().0
    };
    // Its bytes.
    let pages = evacuate();
    File::options().write(true).open(&file.0).unwrap().write_all_at(&[1; 100], 5 * PAGE).unwrap();
    bytes[5 * PAGE as usize..][..100].fill(1);
    let (new, restored) = Served::warm(small(1), sized(2 << 20), &[&file], pages);
    assert!(reason_of(&restored).contains("changed"), "{restored:?}");
    assert_eq!(new.read(0, 5), page_of(&bytes, 5));
    drop(new);
    // Its length.
    let pages = evacuate();
    File::options().write(true).open(&file.0).unwrap().set_len(63 * PAGE).unwrap();
    let (new, restored) = Served::warm(small(1), sized(2 << 20), &[&file], pages);
    assert!(reason_of(&restored).contains("had 262144 bytes"), "{restored:?}");
    drop(new);
    // The file itself: another one has its name and its bytes.
    let pages = evacuate();
    std::fs::copy(&file.0, file.0.with_extension("copy")).unwrap();
    std::fs::rename(file.0.with_extension("copy"), &file.0).unwrap();
    let (new, restored) = Served::warm(small(1), sized(2 << 20), &[&file], pages);
    assert!(reason_of(&restored).contains("not open"), "{restored:?}");
    assert_eq!(new.read(0, 5), page_of(&bytes, 5));
}

#[test]
fn partitions_that_differ_start_cold() {
    let (file, _) = image("differs", 64);
    let reason = |partition: PartitionConfig| {
        let old = Served::new(small(1), sized(2 << 20), &[&file]);
        (0..64).for_each(|page| _ = old.read(0, page));
        let (_new, restored) = Served::warm(small(1), partition, &[&file], old.leave().0);
        assert_eq!((restored.pages, restored.cold.len()), (0, 1));
        restored.cold[0].reason.clone()
    };
    let large = PartitionConfig { page_bytes: Some(8192), ..sized(2 << 20) };
    assert_eq!(reason(large), "its pages had 4096 bytes, and have 8192 now");
    let other = PartitionConfig { name: "other".into(), ..sized(2 << 20) };
    assert_eq!(reason(other), "there is no such partition now");
}

#[test]
fn a_partition_that_was_accessed_stays_as_it_is() {
    let (file, _) = image("accessed", 64);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    (0..64).for_each(|page| _ = old.read(0, page));
    let warm = WarmPages::open(old.leave().0).unwrap();
    let new = Served::new(small(1), sized(2 << 20), &[&file]);
    new.objects[0].write_at(0, &[7; PAGE as usize]).unwrap();
    let restored = new.cache.restore(warm).unwrap();
    assert_eq!(restored.pages, 0);
    assert_eq!(new.read(0, 0), [7; PAGE as usize]);
}

#[test]
fn pages_are_used_once() {
    let (file, _) = image("once", 64);
    let old = Served::new(small(1), sized(2 << 20), &[&file]);
    (0..64).for_each(|page| _ = old.read(0, page));
    let (pages, _) = old.leave();
    let (again, kept) = (pages.try_clone().unwrap(), pages.try_clone().unwrap());
    let (_new, restored) = Served::warm(small(1), sized(2 << 20), &[&file], pages);
    assert_eq!(restored.pages, 64);
    let refused = WarmPages::open(again).unwrap_err().to_string();
    assert!(refused.contains("used already"), "{refused}");
    // The memory of the pages went back: only the header and the catalog are left.
    use std::os::unix::fs::MetadataExt;
    assert!(kept.metadata().unwrap().blocks() * 512 <= 4 * PAGE, "{:?}", kept.metadata());
}

#[test]
fn stores_without_an_identity_and_files_that_refuse_bytes_leave_nothing() {
    let cache = Cache::new(small(1)).unwrap();
    let partition = cache.partition(sized(2 << 20)).unwrap();
    let object = partition.open(Store::memory("m", 64 * PAGE), "m").unwrap();
    object.read_at(0, &mut [0; 8192]).unwrap();
    assert_eq!(cache.evacuate(&memfd()).unwrap().pages, 0);
    // A file that cannot be written: every byte is in its store all the same.
    let (file, _) = image("refuses", 64);
    let old = Served::new(small(1), written_back(2 << 20), &[&file]);
    old.objects[0].write_at(0, &[9; PAGE as usize]).unwrap();
    let read_only = File::open(&file.0).unwrap();
    assert!(old.cache.evacuate(&read_only).is_err());
    assert_eq!(std::fs::read(&file.0).unwrap()[..PAGE as usize], [9; PAGE as usize]);
}

#[test]
fn files_that_end_inside_a_page_come_back_whole_also_read_only() {
    let bytes = Random::new(8).bytes(10 * PAGE as usize + 77);
    let file = Scratch::of("odd", &bytes);
    let store = || Store::open(&file.0, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let cache = Cache::new(small(1)).unwrap();
    let partition = cache.partition(sized(2 << 20)).unwrap();
    // Two objects of one store: each has pages of its own.
    let objects = [partition.open(store(), "a").unwrap(), partition.open(store(), "b").unwrap()];
    objects.iter().for_each(|object| assert!(bytes_at(object, 0, bytes.len() as u64) == bytes));
    let pages = memfd();
    assert_eq!(cache.evacuate(&pages).unwrap().pages, 22);
    let (cache, warm) = (Cache::new(small(2)).unwrap(), WarmPages::open(pages).unwrap());
    cache.expect(&warm);
    let partition = cache.partition(sized(2 << 20)).unwrap();
    let objects = [partition.open(store(), "a").unwrap(), partition.open(store(), "b").unwrap()];
    let restored = cache.restore(warm).unwrap();
    assert_eq!((restored.pages, restored.cold), (22, vec![]));
    objects.iter().for_each(|object| assert!(bytes_at(object, 0, bytes.len() as u64) == bytes));
    assert_eq!(partition.stat().misses, 0);
}
