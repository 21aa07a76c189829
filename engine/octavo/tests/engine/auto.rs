//! NUMA mode `auto`: which strategy a partition chooses under which load. No thread runs in the
//! background and every cost is counted, so that each run makes the same choices.

use crate::fixture::{PAGE, read_request, succeed_all, write_request};
use crate::numa::{PAGES, config, scene_of};
use octavo::numa::{NumaMode, PartitionNumaStat, sit};
use octavo::{Cache, CacheConfig, CacheMode, Object, Partition, Queue, Request};
use octavo_random::Random;

const BYTES: u64 = 512;

/// Requests of each load: enough for about thirty decisions if half of the requests are remote.
const COUNT: u64 = 250_000;

struct Scene {
    queue: Queue,
    object: Object,
    partition: Partition,
    cache: Cache,
    random: Random,
}

impl Scene {
    fn new(nodes: u32) -> Scene {
        sit(0);
        let config = CacheConfig { background: false, ..config(NumaMode::Auto, nodes, 1) };
        let (cache, partition, object) = scene_of(config, CacheMode::Writeback);
        let queue = cache.queue().unwrap();
        Scene { queue, object, partition, cache, random: Random::new(7) }
    }

    fn stat(&self) -> PartitionNumaStat {
        self.partition.numa_counts().unwrap()
    }

    /// Draws the offset of a request within the first `pages` pages.
    fn draw(&mut self, pages: u64) -> u64 {
        self.random.below(pages) * PAGE + self.random.below(PAGE / BYTES) * BYTES
    }

    /// Issues single reads and writes of the first `pages` pages from randomly chosen `seats`.
    fn single(&mut self, seats: &[u32], pages: u64, reads_percent: u64) {
        let mut buffer = [0; BYTES as usize];
        for _ in 0..COUNT {
            sit(self.random.pick(seats));
            let offset = self.draw(pages);
            match self.random.below(100) < reads_percent {
                true => self.object.read_at(offset, &mut buffer).unwrap(),
                false => self.object.write_at(offset, &buffer).unwrap(),
            }
        }
    }

    /// Issues batches of reads and writes from randomly chosen `seats`.
    fn queued(&mut self, seats: &[u32], batch: u64, reads_percent: u64) {
        for _ in 0..COUNT / batch {
            sit(self.random.pick(seats));
            let request = |user_data| {
                let (offset, len) = (self.draw(PAGES), BYTES as usize);
                match self.random.below(100) < reads_percent {
                    true => read_request(user_data, offset, len),
                    false => write_request(user_data, offset, vec![0; len], false),
                }
            };
            let requests: Vec<Request> = (0..batch).map(request).collect();
            self.queue.submit(&self.object, requests);
            succeed_all(&mut self.queue);
        }
    }
}

fn is_now(scene: &Scene, what: &str, way: &str) {
    let stat = scene.stat();
    println!("{what}: {} after {} changes", stat.way, stat.way_changes);
    assert_eq!(stat.way, way, "{what}");
}

fn twins(scene: &Scene) -> u64 {
    scene.cache.numa_stat().partitions[0].nodes.iter().map(|node| node.twins).sum()
}

#[test]
fn single_requests_choose_between_copies_and_direct_accesses_and_unused_copies_are_dropped() {
    let mut scene = Scene::new(2);
    is_now(&scene, "nothing", "partition");
    scene.single(&[1], PAGES, 100);
    is_now(&scene, "remote reads", "replicate");
    assert!(twins(&scene) > PAGES / 3, "{}", twins(&scene));
    scene.single(&[0, 1], PAGES, 50);
    is_now(&scene, "reads and writes by both nodes", "partition");
    scene.cache.balance();
    assert_eq!(twins(&scene), 0, "the reaper drops copies that no reader uses");
    scene.single(&[0], PAGES, 0);
    is_now(&scene, "writes by one node", "replicate");
    let on_node_0 = (0..PAGES).filter(|page| scene.object.node_of(page * PAGE) == 0).count() as u64;
    assert!(on_node_0 > PAGES * 9 / 10, "{on_node_0}");
    scene.single(&[1], PAGES, 97);
    is_now(&scene, "reads by the other node", "replicate");
    assert!(scene.stat().way_changes <= 5, "{:?}", scene.stat());
}

#[test]
fn large_batches_are_sent_as_messages_unless_copies_cost_less() {
    let mut scene = Scene::new(2);
    scene.queued(&[0, 1], 128, 50);
    is_now(&scene, "large batches of reads and writes", "message");
    assert!(scene.stat().messages > COUNT / 5, "{:?}", scene.stat());
    scene.queued(&[0, 1], 2, 50);
    is_now(&scene, "small batches", "partition");
    scene.queued(&[0, 1], 128, 100);
    is_now(&scene, "large batches of reads", "replicate");
    scene.single(&[0, 1], PAGES, 50);
    is_now(&scene, "single requests", "partition");
    assert!(scene.stat().way_changes <= 5, "{:?}", scene.stat());
}

#[test]
fn the_same_accesses_make_the_same_choices() {
    let run = || {
        let mut scene = Scene::new(3);
        scene.single(&[0, 1, 2], PAGES, 97);
        scene.single(&[0, 1], PAGES, 60);
        scene.stat()
    };
    let (one, other) = (run(), run());
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

#[test]
fn a_few_hot_pages_are_copied_too() {
    let mut scene = Scene::new(2);
    // Most likely none of the six pages is a probe at first.
    scene.single(&[0, 1], 6, 100);
    scene.single(&[0, 1], 6, 100);
    let before = scene.stat();
    assert_eq!(before.way, "replicate");
    scene.single(&[0, 1], 6, 100);
    assert_eq!(scene.stat().remote_hits, before.remote_hits, "every hit is local");
}

#[test]
fn without_remote_accesses_nothing_is_chosen() {
    let mut scene = Scene::new(2);
    let own: Vec<u64> = (0..PAGES).filter(|page| scene.object.node_of(page * PAGE) == 1).collect();
    let before = scene.stat();
    sit(1);
    for _ in 0..50_000 {
        let page = scene.random.pick(&own);
        scene.object.read_at(page * PAGE, &mut [0]).unwrap();
        scene.object.write_at(page * PAGE, &[0]).unwrap();
    }
    let after = scene.stat();
    assert_eq!((after.way, after.way_changes), ("partition", 0));
    assert_eq!((after.remote_hits, after.twins_made), (before.remote_hits, before.twins_made));
}

#[test]
fn a_load_between_two_strategies_seldom_makes_the_partition_change() {
    let mut scene = Scene::new(2);
    // Two loads in turn, each for a few decisions.
    for _ in 0..12 {
        scene.single(&[1], PAGES, 100);
        scene.single(&[0, 1], PAGES, 50);
    }
    let changes = scene.stat().way_changes;
    println!("{changes} changes of 24 that the load made");
    assert!(changes < 18, "{changes}");
}
