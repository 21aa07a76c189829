//! NUMA modes through the public interface, on emulated nodes and on those of this machine.

use crate::fixture::{
    self, PAGE, batch_at, bytes_at, is_alone, read_request, request, sized, sleeps, succeed_all, until,
    write_request,
};
use crate::watchdog::Watchdog;
use octavo::disk::Store;
use octavo::numa::{NumaMode, PartitionNumaStat, Replication, TopologySource, sit};
use octavo::{Cache, CacheConfig, CacheMode, Object, Op, Partition, PartitionConfig};
use std::path::PathBuf;
use std::time::Duration;

pub const PAGES: u64 = 1024;

pub fn config(mode: NumaMode, nodes: u32, cores: u32) -> CacheConfig {
    CacheConfig {
        memory_max_bytes: 32 << 20,
        topology: TopologySource::Emulated { nodes, cores },
        numa: mode,
        seed: Some(5),
        ..CacheConfig::default()
    }
}

/// A cache of eight segments, and an object whose pages begin with their own number.
pub fn scene(config: CacheConfig) -> (Cache, Partition, Object) {
    scene_of(config, CacheMode::default())
}

pub fn scene_of(config: CacheConfig, cache_mode: CacheMode) -> (Cache, Partition, Object) {
    let partition = PartitionConfig { cache_mode, ..sized(8 * ((2 << 20) + (16 << 10)) + (128 << 10)) };
    let store = Store::memory("disk", PAGES * PAGE);
    let (cache, partition, object) = fixture::scene(config, partition, store);
    for page in 0..PAGES {
        object.write_at(page * PAGE, &page.to_le_bytes()).unwrap();
        object.read_at(page * PAGE, &mut [0]).unwrap();
    }
    (cache, partition, object)
}

/// Runs `act` on a thread that sits on core `seat`.
fn on(seat: u32, act: impl FnOnce() + Send) {
    let act = || {
        sit(seat);
        act();
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap());
}

pub fn read_all(object: &Object) {
    for page in 0..PAGES {
        assert_eq!(bytes_at(object, page * PAGE, 8), page.to_le_bytes());
    }
}

fn read_all_on(seat: u32, object: &Object) {
    on(seat, || read_all(object));
}

pub fn stat(cache: &Cache) -> PartitionNumaStat {
    cache.numa_stat().partitions.remove(0)
}

#[test]
fn pages_are_divided_among_nodes_and_local_and_remote_hits_are_counted() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Partition, 2, 2));
    let before = stat(&cache);
    assert_eq!(before.nodes.iter().map(|node| node.segments).collect::<Vec<_>>(), [4, 4]);
    assert_eq!(before.nodes.iter().map(|node| node.pages).sum::<u64>(), PAGES);
    // Cores 2 and 3 belong to node 1; core 4 is core 0 again.
    for (seat, node) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        let before = stat(&cache);
        read_all_on(seat, &object);
        let after = stat(&cache);
        assert_eq!(after.local_hits - before.local_hits, after.nodes[node].pages, "core {seat}");
        assert_eq!(after.remote_hits - before.remote_hits, after.nodes[1 - node].pages, "core {seat}");
    }
    let writes = cache.numa_stat().partitions[0].remote_writes;
    object.write_at(0, &vec![0; (PAGES * PAGE) as usize]).unwrap();
    let after = stat(&cache);
    assert_eq!(after.remote_writes - writes, after.nodes[1].pages);
    assert_eq!(partition.stat().hits, after.local_hits + after.remote_hits);
}

#[test]
fn a_partition_keeps_its_nodes_even_while_it_grows_and_shrinks() {
    let (cache, partition, object) = scene(config(NumaMode::Partition, 3, 1));
    for segments in [3, 7, 2, 8, 1, 6] {
        partition.resize(segments * ((2 << 20) + (16 << 10)) + (128 << 10)).unwrap();
        let nodes = &cache.numa_stat().partitions[0].nodes;
        let counts: Vec<u64> = nodes.iter().map(|node| node.segments).collect();
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        read_all_on(0, &object);
    }
}

#[test]
fn a_partition_of_one_node_has_all_its_pages_there() {
    let cache = Cache::new(config(NumaMode::Partition, 4, 1)).unwrap();
    let on = |node| PartitionConfig { node: Some(node), ..PartitionConfig::new("p") };
    let error = cache.partition(on(4)).err().unwrap().to_string();
    assert!(error.contains("no node 4"), "{error}");
    let partition = cache.partition(on(3)).unwrap();
    let object = partition.open(Store::memory("disk", 64 * PAGE), "disk").unwrap();
    object.read_at(0, &mut vec![0; 64 * PAGE as usize]).unwrap();
    let stat = stat(&cache);
    assert_eq!(stat.nodes.iter().map(|node| node.pages).collect::<Vec<_>>(), [0, 0, 0, 64]);
    let off = Cache::new(config(NumaMode::Off, 4, 1)).unwrap();
    assert!(off.partition(on(3)).is_err(), "a node without nodes");
}

#[test]
fn one_node_counts_nothing_and_divides_nothing() {
    for config in [config(NumaMode::Off, 2, 2), config(NumaMode::Partition, 1, 4)] {
        let (cache, partition, object) = scene(config);
        read_all_on(3, &object);
        let stat = stat(&cache);
        assert_eq!((stat.local_hits, stat.remote_hits, stat.nodes.len()), (0, 0, 1));
        assert!(partition.stat().hits >= PAGES);
    }
}

#[test]
fn on_this_machine_frames_and_metadata_lie_on_the_nodes_that_own_them() {
    let (cache, _partition, object) =
        scene(CacheConfig { topology: TopologySource::Machine, ..config(NumaMode::Partition, 1, 1) });
    let stat = cache.numa_stat();
    let nodes = &stat.partitions[0].nodes;
    assert_eq!(nodes.len(), stat.topology.nodes.len());
    assert!(nodes.iter().map(|node| node.pages).sum::<u64>() == PAGES);
    for node in nodes.iter().filter(|_| !stat.refused) {
        // A node short of memory may have some of it on another node, but not most of it.
        assert!(node.frames.elsewhere <= node.frames.here, "{node:?}");
        assert!(node.metadata.elsewhere <= node.metadata.here, "{node:?}");
    }
    read_all_on(0, &object);
}

/// Writes every page `times` times with the bytes that it already has.
pub fn write_all(object: &Object, times: u32) {
    for page in (0..PAGES).flat_map(|page| (0..times).map(move |_| page)) {
        object.write_at(page * PAGE, &page.to_le_bytes()).unwrap();
    }
}

fn write_all_on(seat: u32, object: &Object, times: u32) {
    on(seat, || write_all(object, times));
}

#[test]
fn pages_move_to_the_node_that_writes_them_and_go_home_before_a_recording() {
    let replication = Replication { switch_writes: 4, ..Replication::default() };
    let config = CacheConfig { replication, background: false, ..config(NumaMode::Replicate, 2, 1) };
    let (cache, partition, object) = scene_of(config, CacheMode::Writeback);
    let on_node = |node: u32| (0..PAGES).filter(|page| object.node_of(page * PAGE) == node).count() as u64;
    let at_first = [on_node(0), on_node(1)];
    let (mut before, mut switches) = (stat(&cache), 0);
    for writer in [1, 0, 1] {
        write_all_on(writer, &object, 5);
        let after = stat(&cache);
        // A page is written remotely four times, then it moves, and all writes are local.
        let remote = after.remote_writes - before.remote_writes;
        switches = after.switches - before.switches;
        println!("node {writer}: {remote} writes from afar, {switches} pages came");
        assert!(switches > 0 && remote == 4 * switches, "{after:?}");
        assert_eq!(on_node(writer), PAGES);
        let hits = after.remote_hits;
        write_all_on(writer, &object, 5);
        read_all_on(writer, &object);
        assert_eq!(stat(&cache).remote_hits, hits, "every access is local");
        before = stat(&cache);
    }
    assert_eq!(switches, PAGES, "every page had moved to the other node");
    // The other node copies each page at its first read and then reads its copy, also of pages
    // whose home it is.
    read_all_on(0, &object);
    read_all_on(0, &object);
    let after = stat(&cache);
    assert_eq!((after.twins_made - before.twins_made, after.twin_hits - before.twin_hits), (PAGES, PAGES));
    assert_eq!(partition.stat().dirty_bytes, PAGES * PAGE, "no dirty page is lost");
    // A recording begins with every page at its home.
    let recording = partition.record(octavo::recording::WHOLE).unwrap();
    assert_eq!([on_node(0), on_node(1)], at_first);
    assert!(stat(&cache).nodes.iter().all(|node| node.twins == 0));
    write_all_on(0, &object, 8);
    assert_eq!([on_node(0), on_node(1)], at_first);
    drop(recording);
    object.sync().unwrap();
    read_all_on(1, &object);
}

#[test]
fn a_page_that_two_nodes_write_in_turn_stays_where_it_is() {
    let config = CacheConfig { background: false, ..config(NumaMode::Replicate, 2, 1) };
    let (cache, _partition, object) = scene_of(config, CacheMode::Writeback);
    for turn in 0..40 {
        write_all_on(turn % 2, &object, 1);
    }
    assert_eq!(stat(&cache).switches, 0);
}

pub fn read_all_in_batches(object: &Object, batch: usize) {
    let reads: Vec<(u64, usize)> = (0..PAGES).map(|page| (page * PAGE, 8)).collect();
    for reads in reads.chunks(batch) {
        let (result, bytes) = batch_at(object, reads);
        result.unwrap();
        assert!(reads.iter().zip(&bytes).all(|((offset, _), bytes)| *bytes == (offset / PAGE).to_le_bytes()));
    }
}

#[test]
fn a_batch_is_read_by_the_nodes_of_its_pages_and_every_hit_is_local() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Message, 2, 2));
    let before = (stat(&cache), partition.stat());
    for batch in [1, 7, 128, PAGES as usize] {
        read_all_in_batches(&object, batch);
    }
    let after = (stat(&cache), partition.stat());
    let (hits, misses) = (after.1.hits - before.1.hits, after.1.misses - before.1.misses);
    assert_eq!((hits, misses), (4 * PAGES, 0));
    let sent = after.0.messages + after.0.messages_refused;
    assert_eq!(sent, 4 * after.0.nodes[1].pages, "every page of the other node was asked for by message");
    assert!(after.0.bundles < after.0.messages / 2, "{after:?}");
    // Exactly the refused messages became remote reads.
    assert_eq!(after.0.remote_hits - before.0.remote_hits, after.0.messages_refused);
}

#[test]
fn pages_that_miss_at_another_node_are_filled_there() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Message, 4, 1));
    for _ in 0..5 {
        partition.evict().unwrap();
        read_all_in_batches(&object, 100);
    }
    assert!(partition.stat().misses >= 5 * PAGES);
    assert_eq!(cache.numa_stat().partitions[0].nodes.iter().map(|node| node.pages).sum::<u64>(), PAGES);
}

#[test]
fn requests_of_a_queue_run_on_other_nodes_and_complete_on_its_own_thread() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Message, 3, 1));
    partition.evict().unwrap();
    let mut queue = cache.queue().unwrap();
    let thread = std::thread::current().id();
    for write in [true, false, true, false] {
        let request = |page: u64| match write {
            true => write_request(page, page * PAGE, vec![page as u8; 16], page.is_multiple_of(100)),
            false => read_request(page, page * PAGE, 16),
        };
        queue.submit(&object, (0..PAGES).map(request));
        let mut ended = 0;
        while queue.pending() > 0 {
            ended += queue.wait(1, |completion| {
                assert_eq!(std::thread::current().id(), thread);
                completion.result.unwrap();
                if let Op::Read { buffer, .. } = completion.op {
                    assert_eq!(&buffer[..16], [completion.user_data as u8; 16]);
                }
            });
        }
        assert_eq!(ended as u64, PAGES);
    }
    assert!(cache.numa_stat().partitions[0].messages > PAGES);
    // A request past the end still fails.
    queue.submit(&object, [read_request(0, PAGES * PAGE, 1)]);
    queue.wait(1, |completion| assert!(completion.result.is_err()));
}

#[test]
fn threads_of_all_nodes_that_send_to_each_other_all_get_replies() {
    let (_cache, partition, object) = scene(config(NumaMode::Message, 2, 1));
    std::thread::scope(|scope| {
        for seat in 0..4 {
            let (object, partition) = (&object, &partition);
            scope.spawn(move || {
                sit(seat);
                for turn in 0..10 {
                    read_all_in_batches(object, PAGES as usize);
                    if seat == 3 && turn % 3 == 0 {
                        partition.evict().unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn a_queue_outlives_the_workers_of_its_cache() {
    sit(0);
    let (cache, partition, object) = scene(config(NumaMode::Message, 2, 1));
    let mut queue = cache.queue().unwrap();
    let submit = |queue: &mut octavo::Queue| {
        queue.submit(&object, (0..100).map(|page| read_request(page, page * PAGE, 8)));
    };
    submit(&mut queue);
    drop((cache, partition));
    submit(&mut queue);
    assert_eq!(queue.pending(), 200);
    succeed_all(&mut queue);
}

/// A prefetch has no buffer. In a bundle for another node it used to be taken for a read into its
/// buffer, and the process crashed.
#[test]
fn a_prefetch_of_another_nodes_pages_is_not_sent_as_a_message() {
    let (cache, _partition, object) = scene(config(NumaMode::Message, 2, 2));
    let mut queue = cache.queue().unwrap();
    for round in 0..2 {
        let advise = |page| Op::Advise { offset: page * PAGE, len: 1, advice: octavo::Advice::WillNeed };
        queue.submit(&object, (0..100).map(|page| request(advise(page))));
        succeed_all(&mut queue);
        assert!((0..100).all(|page| object.is_resident(page * PAGE)), "round {round}");
    }
}

/// The workers' threads, by their folders in `/proc`, and how often each has gone to sleep. None
/// while one of them runs.
fn sleeping_workers() -> Option<Vec<(PathBuf, u64)>> {
    let mut workers = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let Ok(stat) = std::fs::read_to_string(task.join("stat")) else { continue };
        if stat.contains("(octavo-node-") {
            let state = stat.rsplit(") ").next().unwrap();
            let sleeps = sleeps(&task).filter(|_| state.starts_with('S'))?;
            workers.push((task, sleeps));
        }
    }
    workers.sort();
    Some(workers)
}

/// A worker without requests sleeps until one arrives: it neither spins nor wakes up to look. Each
/// wake-up ends in another sleep, and sleeps are counted. The workers of other tests have the same
/// names, so this one runs alone.
#[test]
fn workers_without_requests_sleep_and_do_not_wake_up() {
    if !is_alone("numa::workers_without_requests_sleep_and_do_not_wake_up") {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60), "idle workers");
    let (_cache, _partition, object) = scene(config(NumaMode::Message, 2, 4));
    read_all_in_batches(&object, 64);
    // The workers fall asleep once the last batch is answered. Two equal counts say that all of
    // them have.
    until(|| {
        let sleeping = sleeping_workers();
        read_all_on(0, &object);
        sleeping.is_some() && sleeping == sleeping_workers()
    });
    let before = sleeping_workers();
    for _ in 0..200 {
        read_all_on(0, &object);
    }
    let after = sleeping_workers().expect("a worker runs without a request");
    assert!(!after.is_empty(), "there are no workers");
    assert_eq!(before, Some(after), "workers woke up without a request");
}
