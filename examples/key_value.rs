//! A key-value file on owned pins. A value that is read is not copied: it is a view of the page in
//! the cache, which any thread may keep for as long as it needs, even when the file is closed.
//!
//! Run it with `cargo run -p octavo-examples --bin key_value`.

use std::collections::HashMap;
use std::error::Error;
use std::ops::{Deref, Range};
use std::path::Path;
use std::thread;

use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, CacheMode, Object, OwnedPin, Partition, PartitionConfig};

const PAGE_BYTES: u64 = 4096;

/// The lengths of a record's key and value come first, in two bytes each.
const HEAD_BYTES: u64 = 4;

/// A log of records. None crosses a page, so that each can be seen in one. Zeros end a page's
/// records, and a page without any ends the log.
struct KeyValueFile {
    object: Object,
    /// Where each key's latest value lies.
    places: HashMap<Vec<u8>, Range<u64>>,
    end: u64,
}

/// The value of a key.
enum Value {
    /// A part of a page in the cache.
    Page(OwnedPin, Range<usize>),
    /// A copy, because the cache could not pin the page: too much beside it is pinned.
    Copy(Vec<u8>),
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Value::Page(page, range) => &page[range.clone()],
            Value::Copy(bytes) => bytes,
        }
    }
}

impl KeyValueFile {
    /// Opens a file, which is created if it does not exist, and finds the records in it.
    fn open(partition: &Partition, path: &Path) -> Result<KeyValueFile, Box<dyn Error>> {
        let options = OpenOptions { create_len_bytes: Some(64 * PAGE_BYTES), ..OpenOptions::default() };
        let object = partition.open(Store::open(path, &options)?, "records")?;
        let mut file = KeyValueFile { object, places: HashMap::new(), end: 0 };
        for start in (0..file.object.len_bytes()).step_by(PAGE_BYTES as usize) {
            let page = file.object.pin_or_copy(start)?;
            let mut at = 0;
            while let Some((key, value)) = record_at(&page, at) {
                let (key, place) = (page[key].to_vec(), start + value.start as u64..start + value.end as u64);
                at = value.end;
                file.end = place.end;
                file.places.insert(key, place);
            }
            if at == 0 {
                break;
            }
        }
        Ok(file)
    }

    /// Adds a record. It is durable after `sync`.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Box<dyn Error>> {
        let len = HEAD_BYTES + (key.len() + value.len()) as u64;
        if key.is_empty() || len > PAGE_BYTES {
            return Err(format!("a record has a key and at most {PAGE_BYTES} bytes, not {len}").into());
        }
        if self.end % PAGE_BYTES + len > PAGE_BYTES {
            self.end = self.end.next_multiple_of(PAGE_BYTES);
        }
        if self.end + len > self.object.len_bytes() {
            self.object.set_len_bytes(2 * self.object.len_bytes())?;
        }
        let lens = [(key.len() as u16).to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
        self.object.write_at(self.end, &[&lens, key, value].concat())?;
        let start = self.end + HEAD_BYTES + key.len() as u64;
        self.end += len;
        self.places.insert(key.to_vec(), start..self.end);
        Ok(())
    }

    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Box<dyn Error>> {
        let Some(place) = self.places.get(key) else { return Ok(None) };
        let (start, len) = ((place.start % PAGE_BYTES) as usize, (place.end - place.start) as usize);
        Ok(Some(match self.object.pin_owned(place.start)? {
            Some(page) => Value::Page(page, start..start + len),
            None => {
                let mut bytes = vec![0; len];
                self.object.read_at(place.start, &mut bytes)?;
                Value::Copy(bytes)
            }
        }))
    }
}

/// Returns where the key and the value of the record at `at` lie in a page; none at the last one's
/// end.
fn record_at(page: &[u8], at: usize) -> Option<(Range<usize>, Range<usize>)> {
    let len_at = |at: usize| Some(u16::from_le_bytes(page.get(at..at + 2)?.try_into().ok()?) as usize);
    let (key_len, value_len) = (len_at(at)?, len_at(at + 2)?);
    let key = at + HEAD_BYTES as usize;
    let value = key + key_len;
    (key_len > 0 && value + value_len <= page.len()).then_some((key..value, value..value + value_len))
}

fn value_of(number: u32, version: u32) -> Vec<u8> {
    let text = format!("value {number}, version {version}. ");
    text.bytes().cycle().take(20 + number as usize % 700).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("records");
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig {
        cache_mode: CacheMode::Writeback,
        ..PartitionConfig::new("key-value")
    })?;

    // 1. Values that were read stay as they were, whatever happens to their keys.
    let mut file = KeyValueFile::open(&partition, &path)?;
    for number in 0..3_000 {
        file.put(format!("key {number}").as_bytes(), &value_of(number, 1))?;
    }
    file.object.sync()?;
    let get = |file: &KeyValueFile, number: u32| {
        file.get(format!("key {number}").as_bytes()).transpose().expect("the key exists")
    };
    let held: Vec<Value> =
        (0..3_000).step_by(10).map(|number| get(&file, number)).collect::<Result<_, _>>()?;
    for number in 0..3_000 {
        file.put(format!("key {number}").as_bytes(), &value_of(number, 2))?;
    }
    println!("{} values are held, in {} bytes of pages", held.len(), partition.pinned_bytes());

    // 2. The file closes, the partition shrinks and the cache ends, and the values are still there.
    file.object.close()?;
    partition.resize(4 << 20)?;
    drop((file, partition, cache));
    let readers: Vec<_> = held
        .into_iter()
        .enumerate()
        .map(|(at, value)| thread::spawn(move || *value == *value_of(10 * at as u32, 1)))
        .collect();
    assert!(readers.into_iter().all(|reader| reader.join().is_ok_and(|is_same| is_same)));

    // 3. A new cache finds the latest value of every key in the file.
    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig::new("key-value"))?;
    let file = KeyValueFile::open(&partition, &path)?;
    for number in 0..3_000 {
        assert!(*get(&file, number)? == *value_of(number, 2), "key {number}");
    }
    println!("{} keys were found again", file.places.len());
    Ok(())
}
