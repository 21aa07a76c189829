//! The numbers of objects return (N1 to N5 of `state/numbers.rs`): objects are opened and closed
//! without end, and none finds a page of another that had its number before.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use octavo::disk::Store;
use octavo::{Advice, Cache, CacheMode, Error, Object, OwnedPin, Partition, PartitionConfig, Read};
use octavo_random::Random;

use crate::fixture::{PAGE, SET_BYTES, bytes_at, sized, small};
use crate::watchdog::Watchdog;

const PAGES: u64 = 6;

/// An open object, and what its pages contain: the byte that was written last.
struct Known {
    object: Object,
    pages: [u8; PAGES as usize],
}

impl Known {
    fn check(&self, page: u64) {
        let byte = self.pages[page as usize];
        let bytes = bytes_at(&self.object, page * PAGE, PAGE);
        assert!(bytes == [byte; PAGE as usize], "page {page} of {:?} is another's", self.object);
    }

    fn step(&mut self, random: &mut Random, partition: &Partition, views: &mut Vec<(OwnedPin, u8)>) {
        let page = random.below(PAGES);
        let offset = page * PAGE;
        match random.below(16) {
            0..6 => self.check(page),
            6..11 => {
                let byte = 1 + random.below(255) as u8;
                self.object.write_at(offset, &[byte; PAGE as usize]).unwrap();
                self.pages[page as usize] = byte;
            }
            11 => {
                self.object.discard(offset, PAGE).unwrap();
                self.pages[page as usize] = 0;
            }
            12 => {
                let view = self.object.pin_owned(offset).unwrap();
                views.extend(view.map(|view| (view, self.pages[page as usize])));
            }
            13 => {
                let (mut one, mut other) = ([0xEE; 100], [0xEE; 100]);
                let next = (page + 1) % PAGES;
                let mut reads =
                    [Read { offset, buffer: &mut one }, Read { offset: next * PAGE, buffer: &mut other }];
                self.object.read_batch(&mut reads).unwrap();
                assert_eq!([one[99], other[99]], [page, next].map(|page| self.pages[page as usize]));
            }
            14 => _ = partition.resize((1 + random.below(3)) * (SET_BYTES + (24 << 10))).unwrap(),
            _ => self.object.advise(0, PAGES * PAGE, Advice::WillNeed).unwrap(),
        }
    }
}

/// Objects come and go in a partition of one to three sets, in which their pages evict each other.
/// `OCTAVO_OPENS=100000000` is the long form: there, all numbers are used.
#[test]
fn objects_are_opened_without_end_and_find_no_page_of_another() {
    let opens = std::env::var("OCTAVO_OPENS").ok().map(|opens| opens.parse::<u64>().expect("a number"));
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let cache = Cache::new(small(17)).unwrap();
        let config = PartitionConfig { cache_mode: mode, ..sized(1 << 20) };
        let partition = cache.partition(config).unwrap();
        if opens.is_none() {
            partition.limit_numbers(5);
        }
        let mut random = Random::new(37);
        let (mut open, mut views): (Vec<Known>, Vec<(OwnedPin, u8)>) = (Vec::new(), Vec::new());
        for opened in 0..opens.map_or(8000, |opens| opens / 2) {
            let object = partition.open(Store::memory("m", PAGES * PAGE), "object").unwrap();
            open.push(Known { object, pages: [0; PAGES as usize] });
            // In the long form most objects are only opened and closed.
            let steps = if opens.is_none() || random.one_in(64) { random.below(12) } else { 0 };
            for _ in 0..steps {
                let at = random.below(open.len() as u64) as usize;
                open[at].step(&mut random, &partition, &mut views);
            }
            if opens.is_none() || opened % 64 == 0 {
                views.iter().for_each(|(view, byte)| assert!(view[..] == [*byte; PAGE as usize]));
                views.truncate(random.below(8) as usize);
            }
            while open.len() > 4 || !open.is_empty() && random.coin() {
                let known = open.swap_remove(random.below(open.len() as u64) as usize);
                if random.one_in(8) {
                    known.object.abandon();
                } else {
                    known.object.close().unwrap();
                }
            }
        }
        assert_eq!(partition.objects().len(), open.len());
    }
}

/// What threads share: objects of which each page contains the object's own life.
struct Shared {
    partition: Partition,
    objects: Mutex<Vec<(Object, u64)>>,
    lives: AtomicU64,
}

fn page_of(life: u64) -> Vec<u8> {
    life.to_le_bytes().repeat(PAGE as usize / 8)
}

impl Shared {
    /// Opens an object whose pages have just left the cache. Waits for a number while others still
    /// have handles of closed objects.
    fn open(&self) {
        let life = self.lives.fetch_add(1, Relaxed) + 1;
        let object = loop {
            match self.partition.open(Store::memory("m", PAGES * PAGE), &format!("life {life}")) {
                Ok(object) => break object,
                Err(error) => assert!(error.to_string().contains("16 million"), "{error}"),
            }
            std::thread::yield_now();
        };
        for page in 0..PAGES {
            assert!(bytes_at(&object, page * PAGE, PAGE) == [0; PAGE as usize], "life {life}");
        }
        object.write_at(0, &page_of(life).repeat(PAGES as usize)).unwrap();
        object.sync().unwrap();
        object.advise(0, PAGES * PAGE, Advice::DontNeed).unwrap();
        self.objects.lock().unwrap().push((object, life));
    }

    fn close(&self, random: &mut Random) {
        let mut objects = self.objects.lock().unwrap();
        if objects.is_empty() {
            return;
        }
        let at = random.below(objects.len() as u64) as usize;
        let (object, _) = objects.swap_remove(at);
        drop(objects);
        if random.one_in(4) {
            object.abandon();
        } else {
            object.close().unwrap();
        }
    }

    /// Reads or writes an object that another thread may close meanwhile.
    fn access(&self, random: &mut Random) {
        let objects = self.objects.lock().unwrap();
        let Some((object, life)) = objects.get(random.below(4) as usize).cloned() else { return };
        drop(objects);
        for _ in 0..4 {
            let offset = random.below(PAGES) * PAGE;
            let mut bytes = vec![0xEE; PAGE as usize];
            let result = match random.below(4) {
                0 => object.write_at(offset, &page_of(life)),
                1 => object.pin(offset).map(|pin| assert!(pin.is_none_or(|pin| pin[..] == page_of(life)))),
                _ => object
                    .read_at(offset, &mut bytes)
                    .map(|()| assert!(bytes == page_of(life), "life {life} has a page of another")),
            };
            match result {
                Ok(()) | Err(Error::Closed { .. } | Error::PastEnd { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn objects_that_threads_close_beside_accesses_leave_no_page_for_the_next_with_their_number() {
    let _watchdog = Watchdog::new(Duration::from_secs(120), "numbers that return");
    for mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        let cache = Cache::new(small(3)).unwrap();
        let config = PartitionConfig { cache_mode: mode, ..sized(2 * (SET_BYTES + (24 << 10))) };
        let partition = cache.partition(config).unwrap();
        partition.limit_numbers(6);
        let shared = Shared { partition, objects: Mutex::default(), lives: AtomicU64::new(0) };
        std::thread::scope(|scope| {
            let shared = &shared;
            for seed in 0..2 {
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..1500 {
                        if shared.objects.lock().unwrap().len() < 3 {
                            shared.open();
                        }
                        shared.close(&mut random);
                    }
                });
                scope.spawn(move || {
                    let mut random = Random::new(10 + seed);
                    (0..6000).for_each(|_| shared.access(&mut random));
                });
            }
        });
    }
}
