//! Read-ahead and advice: their effect on hits, on other pages, and on the bytes that reads return.

use crate::fixture::{PAGE, Scratch, bytes_at, complete_all, open, read_request, scene, small};
use octavo::disk::{SimDisk, SimOptions, Store};
use octavo::{Advice, Cache, CacheConfig, Object, Op, Partition, PartitionConfig, PolicyName, Queue};
use octavo_random::Random;

fn rig(policy: PolicyName, store: Store) -> (Cache, Partition, Object) {
    let config = CacheConfig {
        memory_max_bytes: 24 << 20,
        segment_bytes: 128 << 10,
        buffers_max_bytes: Some(2 << 20),
        ..small(21)
    };
    let partition = PartitionConfig { policy, read_ahead_max_bytes: 256 << 10, ..PartitionConfig::new("p") };
    scene(config, partition, store)
}

/// A store whose pages begin with their own number.
fn numbered(pages: u64) -> Store {
    let store = Store::memory("numbered", pages * PAGE);
    let (_cache, partition, object) = rig(PolicyName::Lru, store.clone());
    for page in 0..pages {
        object.write_at(page * PAGE, &page.to_le_bytes()).unwrap();
    }
    partition.sync().unwrap();
    object.close().unwrap();
    store
}

fn read(object: &Object, page: u64) {
    assert_eq!(bytes_at(object, page * PAGE, 8), page.to_le_bytes());
}

#[test]
fn a_stream_misses_once_per_window_and_uses_what_was_read_ahead() {
    let (_cache, partition, object) = rig(PolicyName::Octavo, numbered(20_000));
    (0..4000).for_each(|page| read(&object, page));
    let stat = partition.stat();
    assert!(stat.misses < 100, "{stat:?}");
    assert!(stat.ahead_used > 3800 && stat.ahead_wasted < 100, "{stat:?}");
    // A second stream, with a stride of five pages.
    (0..2000).for_each(|page| read(&object, 10_000 + page * 5));
    let strided = partition.stat();
    assert!(strided.misses - stat.misses < 400, "{strided:?}");
}

/// A stream waits for the store at its beginning. It used to wait once for each window; now what
/// comes next is there, or on its way.
#[test]
fn a_stream_of_requests_to_a_queue_misses_only_at_its_beginning() {
    let (cache, partition, object) = rig(PolicyName::Octavo, numbered(20_000));
    let mut queue = cache.queue().unwrap();
    // What is on its way arrives before the next read.
    let arrive = |queue: &mut Queue| {
        while !queue.at_rest() {
            queue.wait(0, |completion| completion.result.unwrap());
        }
    };
    for page in 0..4000 {
        queue.submit(&object, [read_request(page, page * PAGE, 8)]);
        arrive(&mut queue);
    }
    let by_requests = partition.stat();
    assert!(by_requests.misses < 8, "{by_requests:?}");
    assert!(by_requests.ahead_used > 3900, "{by_requests:?}");
    // Reads by pins. The reader notes those hits in which the engine wants to read ahead.
    let mut noted = 0;
    for page in 10_000..14_000u64 {
        match object.try_pin(page * PAGE).unwrap() {
            Some(pin) => assert_eq!(pin[..8], page.to_le_bytes()),
            None => {
                queue.submit(&object, [read_request(page, page * PAGE, 8)]);
            }
        }
        if object.reads_ahead_at(page * PAGE, PAGE) {
            queue.note_hit(&object, page * PAGE, PAGE);
            noted += 1;
        }
        arrive(&mut queue);
    }
    let stat = partition.stat();
    assert!(stat.misses - by_requests.misses < 8, "{stat:?}");
    assert!((10..1000).contains(&noted), "{noted} of 4000 hits were noted");
    assert!(stat.ahead_wasted < 200, "{stat:?}");
}

#[test]
fn interleaved_streams_are_all_read_ahead() {
    let (_cache, partition, object) = rig(PolicyName::Lru, numbered(20_000));
    for page in 0..500 {
        (0..4).for_each(|reader| read(&object, reader * 5000 + page));
    }
    let stat = partition.stat();
    assert!(stat.misses < 200, "{stat:?}");
}

#[test]
fn random_reads_and_objects_advised_random_get_no_read_ahead() {
    let (_cache, partition, object) = rig(PolicyName::Lru, numbered(20_000));
    let mut random = Random::new(3);
    (0..2000).for_each(|_| read(&object, random.below(20_000)));
    let stat = partition.stat();
    assert!(stat.ahead_used + stat.ahead_wasted < 200, "{stat:?}");
    object.advise(0, PAGE, Advice::Random).unwrap();
    let before = partition.stat();
    object.advise(0, 20_000 * PAGE, Advice::DontNeed).unwrap();
    (0..200).for_each(|page| read(&object, page));
    assert_eq!(partition.stat().misses - before.misses, 200);
}

#[test]
fn a_scan_does_not_evict_hot_pages() {
    for policy in PolicyName::ALL {
        let (_cache, partition, object) = rig(policy, numbered(20_000));
        // Hot pages fill most of the partition and are read again once in a while.
        let hot = 4000;
        (0..3).for_each(|_| (0..hot).for_each(|page| read(&object, page * 2)));
        let (mut missed, mut counted) = (0, partition.stat().misses);
        for page in 8001..20_000 {
            read(&object, page);
            if page % 3 == 0 {
                counted = partition.stat().misses;
                read(&object, page / 3 % hot * 2);
                missed += partition.stat().misses - counted;
            }
        }
        let share = missed as f64 / 4000.0;
        assert!(
            share < 0.25,
            "{}: {share} of the hot pages left for a scan of three times the cache; {counted}",
            policy.name()
        );
    }
}

#[test]
fn pages_advised_no_reuse_are_evicted_before_others() {
    let (_cache, partition, object) = rig(PolicyName::Lru, numbered(20_000));
    // Without this advice the reads would count as a scan, whose own pages leave first.
    object.advise(0, PAGE, Advice::Random).unwrap();
    (0..4000).for_each(|page| read(&object, page));
    let other = partition.open(numbered(20_000), "other").unwrap();
    other.advise(0, 20_000 * PAGE, Advice::NoReuse).unwrap();
    let mut random = Random::new(3);
    (0..10_000).for_each(|_| read(&other, random.below(20_000)));
    let there = (0..4000).filter(|page| object.is_resident(page * PAGE)).count();
    assert!(there > 3200, "{there} of 4000 pages are left");
}

#[test]
fn on_a_disk_that_reorders_all_bytes_are_right_and_a_dropped_queue_leaves_no_page_behind() {
    for seed in 0..6 {
        let disk =
            SimDisk::new(SimOptions { seed, latency_ticks: 1..=30, reorder: true, ..SimOptions::default() });
        let (cache, partition, object) = rig(PolicyName::Octavo, disk.store("disk", 3000 * PAGE));
        (0..3000).for_each(|page: u64| object.write_at(page * PAGE, &page.to_le_bytes()).unwrap());
        object.sync().unwrap();
        object.advise(0, 3000 * PAGE, Advice::DontNeed).unwrap();
        (0..700).for_each(|page| read(&object, page));
        // A queue is dropped while pages are being read ahead for it.
        let mut queue = cache.queue().unwrap();
        queue.submit(&object, (1000..1040).map(|page| read_request(page, page * PAGE, 8)));
        for completion in complete_all(&mut queue) {
            completion.result.unwrap();
            let Op::Read { buffer, .. } = completion.op else { panic!("reads were asked for") };
            assert_eq!(buffer[..8], completion.user_data.to_le_bytes());
        }
        drop(queue);
        // Writes hit pages whose read-ahead is in flight.
        for page in 1500..1900u64 {
            read(&object, page);
            let ahead = page + 3;
            object.write_at(ahead * PAGE, &(ahead + 7).to_le_bytes()).unwrap();
            object.write_at(ahead * PAGE, &ahead.to_le_bytes()).unwrap();
        }
        partition.resize(2 << 20).unwrap();
        (0..3000).step_by(7).for_each(|page| read(&object, page));
        object.close().unwrap();
        assert_eq!(partition.stat().resident_bytes, 0);
    }
}

#[test]
fn a_thread_that_ends_leaves_its_read_ahead_to_others() {
    let bytes: Vec<u8> = (0..4000u64).flat_map(|page| page.to_le_bytes().repeat(512)).collect();
    let file = Scratch::of("ahead", &bytes);
    let (_cache, partition, object) = rig(PolicyName::Lru, open(&file.0));
    for thread in 0..20u64 {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..40).for_each(|page| read(&object, thread * 200 + page)));
        });
        // This thread reads the pages whose read-ahead the other one had in flight.
        (0..150).for_each(|page| read(&object, thread * 200 + page));
    }
    object.close().unwrap();
    assert_eq!(partition.stat().resident_bytes, 0);
}
