//! [`Twin`]: what every object was at every time, as the writers know it. Naive: no object is kept,
//! only the numbers from which its bytes follow.

use std::ops::Range;
use std::sync::Mutex as Lock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::Mutex;

/// Time: a number that increases with every step of a writer or reader.
pub type Tick = u64;

/// One version of an object, or a time without one.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its bytes follow from this number.
    pub seed: u64,
    /// `None` if there is no object.
    pub len: Option<u64>,
    /// `None` as long as the server has not told it.
    pub tag: Option<String>,
    /// Before it, this was not the present version.
    begins: Tick,
    /// After it, this was not the present version.
    ends: Tick,
}

/// All versions of some objects.
#[derive(Debug)]
pub struct Twin {
    objects: Vec<Object>,
    clock: AtomicU64,
    seeds: AtomicU64,
}

#[derive(Debug)]
struct Object {
    lives: Lock<Vec<Life>>,
    /// Held by the one that writes.
    writing: Mutex<()>,
    /// When the server was last told to send an old version.
    aged: AtomicU64,
}

impl Twin {
    pub fn new(objects: usize, seed: u64) -> Twin {
        let absent = Life { seed: 0, len: None, tag: None, begins: 0, ends: Tick::MAX };
        let object = || Object {
            lives: Lock::new(vec![absent.clone()]),
            writing: Mutex::default(),
            aged: AtomicU64::new(0),
        };
        Twin {
            objects: (0..objects).map(|_| object()).collect(),
            clock: AtomicU64::new(0),
            seeds: AtomicU64::new(seed << 32),
        }
    }

    pub fn now(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Writes an object, or removes it if `len` is `None`. `write` does it, and returns the tag.
    pub async fn write(
        &self,
        object: usize,
        len: Option<u64>,
        write: impl AsyncFnOnce(Bytes) -> Option<String>,
    ) {
        let object = &self.objects[object];
        let _alone = object.writing.lock().await;
        let seed = self.seeds.fetch_add(1, Ordering::Relaxed);
        object.lives.lock().unwrap().push(Life { seed, len, tag: None, begins: self.now(), ends: Tick::MAX });
        let tag = write(bytes_of(seed, 0..len.unwrap_or_default())).await;
        let done = self.now();
        let mut lives = object.lives.lock().unwrap();
        let count = lives.len();
        lives[count - 1].tag = tag;
        lives[count - 2].ends = done;
    }

    /// The server is about to send an old version of an object.
    pub fn note_old(&self, object: usize) {
        self.objects[object].aged.store(self.now(), Ordering::SeqCst);
    }

    /// The versions that were present at some time since `since`.
    pub fn lives(&self, object: usize, since: Tick) -> Vec<Life> {
        let object = &self.objects[object];
        let aged = object.aged.load(Ordering::SeqCst) >= since;
        let lives = object.lives.lock().unwrap();
        lives.iter().filter(|life| life.ends >= since || aged).cloned().collect()
    }

    /// The version with this tag. Waits for its writer, if it is still writing.
    pub async fn life_of(&self, object: usize, tag: &str) -> Option<Life> {
        let object = &self.objects[object];
        let find = || {
            object.lives.lock().unwrap().iter().rev().find(|life| life.tag.as_deref() == Some(tag)).cloned()
        };
        if let Some(life) = find() {
            return Some(life);
        }
        let _alone = object.writing.lock().await;
        find()
    }

    /// Whether a version was present at some time between two ticks, or may have been taken for it.
    pub fn was_present(&self, object: usize, life: &Life, since: Tick, until: Tick) -> bool {
        let aged = self.objects[object].aged.load(Ordering::SeqCst) >= since;
        life.begins <= until && (life.ends >= since || aged)
    }

    /// The present version, while nobody writes.
    pub fn present(&self, object: usize) -> Life {
        self.objects[object].lives.lock().unwrap().last().cloned().expect("there is always one")
    }
}

impl Life {
    /// Whether these are the bytes of a range of the version.
    pub fn has(&self, range: Range<u64>, bytes: &[u8]) -> bool {
        self.len.is_some_and(|len| range.end <= len) && bytes_of(self.seed, range) == bytes
    }
}

/// Returns bytes that follow from their version and their place.
fn bytes_of(seed: u64, range: Range<u64>) -> Bytes {
    let words = range.start / 8..range.end.div_ceil(8);
    let bytes: Vec<u8> = words.flat_map(|word| mix(seed ^ word << 20).to_le_bytes()).collect();
    let before = (range.start % 8) as usize;
    Bytes::from(bytes).slice(before..before + (range.end - range.start) as usize)
}

/// splitmix64.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}
