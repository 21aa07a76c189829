//! A directory that is mounted elsewhere. Tests return without a mount where FUSE is missing, and
//! say so; `OCTAVO_REQUIRE_CLIENTS` makes that an error.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use octavo::{Cache, CacheConfig, CacheMode, Partition, PartitionConfig};
use octavo_fuse::{Mount, MountOptions};

/// How long a test waits for what must come, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What an open gets when its user has too many files open.
pub const ENFILE: Option<i32> = Some(rustix::io::Errno::NFILE.raw_os_error());

/// Repeats an operation while it is refused: the kernel tells of closes a little later.
pub fn patiently<T>(mut act: impl FnMut() -> io::Result<T>) -> T {
    let started = Instant::now();
    loop {
        match act() {
            Err(error) if error.raw_os_error() == ENFILE && started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done.unwrap(),
        }
    }
}

pub struct Rig {
    pub mount: Option<Mount>,
    pub cache: Cache,
    pub partition: Partition,
    /// The lower directory.
    pub source: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    _directory: tempfile::TempDir,
}

/// A cache of this mode with 64 MiB, and the default options.
pub fn rig(mode: CacheMode) -> Option<Rig> {
    rig_with(mode, &MountOptions::default())
}

pub fn rig_with(cache_mode: CacheMode, options: &MountOptions) -> Option<Rig> {
    rig_at(cache_mode, options, "target")
}

/// A directory that is mounted over itself.
pub fn rig_over_itself(cache_mode: CacheMode, options: &MountOptions) -> Option<Rig> {
    rig_at(cache_mode, options, "source")
}

fn rig_at(cache_mode: CacheMode, options: &MountOptions, target: &str) -> Option<Rig> {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join(target));
    [&source, &target].into_iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
    let cache = Cache::new(CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() }).unwrap();
    let config = PartitionConfig { cache_mode, ..PartitionConfig::new("files") };
    let partition = cache.partition(config).unwrap();
    let chosen = partition.clone();
    match Mount::start(cache.clone(), &source, &target, options, move |_| Some(chosen.clone())) {
        Ok(mount) => {
            Some(Rig { mount: Some(mount), cache, partition, source, target, _directory: directory })
        }
        Err(why) if std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none() => {
            println!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

impl Rig {
    /// Unmounts. Everything is in the lower directory afterwards.
    pub fn stop(&mut self) {
        if let Some(mount) = self.mount.take() {
            assert_eq!(mount.stop(), Vec::<String>::new());
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            mount.stop();
        }
    }
}
