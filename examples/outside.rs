//! A file whose bytes other programs change. The cache does not look at the file again by itself.
//! The program tells the cache of each change, by the call that drops the fewest pages.
//!
//! Run it with `cargo run -p octavo-examples --bin outside`.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use octavo::disk::{OpenOptions, Store};
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("table.csv");
    fs::write(&path, "name,folios\nSum,120\n")?;

    let cache = Cache::new(CacheConfig::default())?;
    let partition = cache.partition(PartitionConfig::new("app"))?;
    let mut table = Table::open(&partition, &path)?;
    assert_eq!(table.text()?, "name,folios\nSum,120\n");

    // 1. Another program changes bytes in place.
    let other = File::options().write(true).open(&path)?;
    other.write_all_at(b"360", 16)?;
    assert_eq!(table.text()?, "name,folios\nSum,120\n", "the cache cannot know");
    table.object.invalidate(16, 3)?;
    assert_eq!(table.text()?, "name,folios\nSum,360\n");

    // 2. It appends, and later cuts the file.
    other.write_all_at(b"Codex,88\n", 20)?;
    assert_eq!(table.object.adopt_len_bytes()?, 29);
    assert_eq!(table.text()?, "name,folios\nSum,360\nCodex,88\n");
    other.set_len(12)?;
    assert_eq!(table.object.adopt_len_bytes()?, 12);
    assert_eq!(table.text()?, "name,folios\n");

    // 3. It writes the same file anew.
    fs::write(&path, "name,quires\nSum,45\n")?;
    let lost_bytes = table.object.start_generation()?;
    assert_eq!((table.text()?.as_str(), lost_bytes), ("name,quires\nSum,45\n", 0));

    // 4. It renames another file to this path, as editors do. The object keeps showing the file
    // that it was opened with, until the program looks at the path again.
    let fresh = directory.path().join("fresh");
    fs::write(&fresh, "name,leaves\n")?;
    fs::rename(&fresh, &path)?;
    assert_eq!(table.text()?, "name,quires\nSum,45\n");
    assert!(table.reopen_if_replaced(&partition, &path)?);
    assert_eq!(table.text()?, "name,leaves\n");
    assert!(!table.reopen_if_replaced(&partition, &path)?, "it is the same file now");

    println!("every change from outside was seen, once the cache was told of it");
    Ok(())
}

/// A small file, read through the cache.
struct Table {
    object: Object,
}

impl Table {
    fn open(partition: &Partition, path: &Path) -> Result<Table, Box<dyn Error>> {
        let store = Store::open(path, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
        Ok(Table { object: partition.open(store, "table")? })
    }

    fn text(&self) -> Result<String, Box<dyn Error>> {
        let mut bytes = vec![0; self.object.len_bytes() as usize];
        self.object.read_at(0, &mut bytes)?;
        Ok(String::from_utf8(bytes)?)
    }

    /// Opens the path again if it leads to another file than before.
    fn reopen_if_replaced(&mut self, partition: &Partition, path: &Path) -> Result<bool, Box<dyn Error>> {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let is_replaced = Store::open(path, &options)?.identity() != self.object.store().identity();
        if is_replaced {
            self.object.close()?;
            *self = Table::open(partition, path)?;
        }
        Ok(is_replaced)
    }
}
