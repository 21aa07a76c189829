//! File systems below the source. Mounting them takes root; without, the tests say so and return.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_fuse::{Mount, MountOptions};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::rig::PATIENCE;

/// A directory with a source, and file systems below it that are unmounted at the end.
struct Place {
    source: PathBuf,
    target: PathBuf,
    mount: Option<Mount>,
    mounted: Vec<PathBuf>,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("source"), directory.path().join("target"));
        [&source, &target].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        Place { source, target, mount: None, mounted: Vec::new(), _directory: directory }
    }

    /// Mounts an empty file system below the source. Its first files have the inode numbers that
    /// those of another one have.
    fn add(&mut self, name: &str) -> bool {
        let path = self.source.join(name);
        fs::create_dir(&path).unwrap();
        let mounted = rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), Some(c"size=4m"));
        if let Err(errno) = &mounted {
            println!("skipped: cannot mount a tmpfs: {errno}");
            return false;
        }
        self.mounted.push(path.clone());
        fs::write(path.join("f"), name).unwrap();
        fs::hard_link(path.join("f"), path.join("g")).unwrap();
        true
    }

    fn bind(&mut self, from: &str, to: &str) {
        let to = self.source.join(to);
        fs::create_dir(&to).unwrap();
        rustix::mount::mount_bind(self.source.join(from), &to).unwrap();
        self.mounted.push(to);
    }

    /// Mounts the source. False where FUSE is missing.
    fn start(&mut self, target: &Path) -> bool {
        let cache = CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() };
        let cache = Cache::new(cache).unwrap();
        let mode = CacheMode::Writeback;
        let partition = PartitionConfig { cache_mode: mode, ..PartitionConfig::new("files") };
        let partition = cache.partition(partition).unwrap();
        let options = MountOptions { threads: 2, ..MountOptions::default() };
        let choose = move |_: &octavo_fuse::Opened<'_>| Some(partition.clone());
        match Mount::start(cache, &self.source, target, &options, choose) {
            Ok(mount) => self.mount = Some(mount),
            Err(why) => {
                assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none(), "{why}");
                println!("skipped: {why}");
            }
        }
        self.mount.is_some()
    }

    fn stop(&mut self) {
        let mount = self.mount.take().expect("it was started");
        assert_eq!(mount.stop(), Vec::<String>::new());
    }

    fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("it was started")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test has failed.
        self.mount.take().into_iter().for_each(|mount| drop(mount.stop()));
        for path in self.mounted.iter().rev() {
            let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        }
    }
}

fn device_and_inode(path: &Path) -> (u64, u64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.dev(), metadata.ino())
}

/// Two file systems below one source had one device and equal inode numbers: `cmp` called different
/// files equal, `cp -a` and `tar` linked them.
#[test]
fn each_file_system_below_the_source_is_a_device_of_its_own() {
    let mut place = Place::new();
    if !["a", "b", "a/nested"].into_iter().all(|name| place.add(name)) {
        return;
    }
    fs::write(place.source.join("f"), "first").unwrap();
    fs::create_dir(place.source.join("dir")).unwrap();
    fs::write(place.source.join("dir/f"), "bound").unwrap();
    place.bind("dir", "bound");
    let lower = ["f", "a/f", "b/f", "a/nested/f"].map(|name| device_and_inode(&place.source.join(name)));
    let target = place.target.clone();
    if !place.start(&target) {
        return;
    }
    let at = |name: &str| target.join(name);
    let below: HashSet<_> = place.mount().paths_below().map(Path::to_owned).collect();
    assert_eq!(below, HashSet::from(["a", "b", "a/nested"].map(at)));
    let shown = ["f", "a/f", "b/f", "a/nested/f"].map(|name| device_and_inode(&at(name)));
    assert_eq!(HashSet::from(shown.map(|(device, _)| device)).len(), 4, "{shown:?}");
    assert_eq!(shown.map(|(_, inode)| inode), lower.map(|(_, inode)| inode));
    assert_eq!(device_and_inode(&at("a/f")), device_and_inode(&at("a/g")));
    // The same files at two places: one file system.
    assert_eq!(device_and_inode(&at("dir/f")), device_and_inode(&at("bound/f")));
    for name in ["a", "b", "a/nested"] {
        assert_eq!(fs::read_to_string(at(name).join("g")).unwrap(), name);
    }
    fs::write(at("b/f"), "longer than it was").unwrap();
    let mut names: Vec<String> =
        place.mount().objects().iter().map(|(_, object)| object.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["a/f", "a/nested/f", "b/f"]);
    assert_eq!(place.mount().stat().files, 3);

    // A file in use does not keep them mounted.
    let open = fs::File::open(at("a/nested/f")).unwrap();
    place.stop();
    assert!(fs::read_dir(&place.target).unwrap().next().is_none());
    assert_eq!(fs::read_to_string(place.source.join("b/g")).unwrap(), "longer than it was");
    drop(open);
}

#[test]
fn a_source_with_file_systems_below_it_can_be_mounted_over_itself() {
    let mut place = Place::new();
    if !place.add("a") {
        return;
    }
    let target = place.source.clone();
    if !place.start(&target) {
        return;
    }
    let path = place.source.join("a/f");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a");
    fs::write(&path, "changed").unwrap();
    assert!(device_and_inode(&path).0 != device_and_inode(&place.source).0);
    place.stop();
    assert_eq!(fs::read_to_string(&path).unwrap(), "changed");
}

/// Without root every file system is like these.
#[test]
fn inode_numbers_of_file_systems_that_are_mounted_later_carry_their_device() {
    let mut place = Place::new();
    fs::write(place.source.join("f"), "first").unwrap();
    let target = place.target.clone();
    if !place.start(&target) || !["late", "later"].into_iter().all(|name| place.add(name)) {
        return;
    }
    let at = |name: &str| target.join(name);
    let [first, one, linked, other] =
        ["f", "late/f", "late/g", "later/f"].map(|name| device_and_inode(&at(name)));
    assert_eq!(first.1, device_and_inode(&place.source.join("f")).1);
    assert_eq!(one, linked);
    assert!(one.0 == other.0 && one.1 != other.1, "{one:?} {other:?}");
    for name in ["late", "later"] {
        for entry in fs::read_dir(at(name)).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.ino(), device_and_inode(&entry.path()).1);
        }
        fs::write(at(name).join("f"), "new").unwrap();
    }
    place.stop();
    assert_eq!(fs::read_to_string(place.source.join("later/g")).unwrap(), "new");
}

/// Someone unmounts one of them alone: its files are then reached through the mount above it, which
/// must have all bytes.
#[test]
fn what_was_written_to_a_file_system_that_is_unmounted_alone_is_in_the_lower_one() {
    let mut place = Place::new();
    let target = place.target.clone();
    if !place.add("a") || !place.start(&target) {
        return;
    }
    let path = target.join("a/f");
    let device = device_and_inode(&path).0;
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    rustix::mount::unmount(target.join("a"), UnmountFlags::DETACH).unwrap();
    let begun = Instant::now();
    while fs::read(place.source.join("a/f")).unwrap() != vec![7; 1 << 20] {
        assert!(begun.elapsed() < PATIENCE, "its dirty pages are not written");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read(&path).unwrap(), vec![7; 1 << 20]);
    assert!(device_and_inode(&path).0 != device && !place.mount().has_ended());
    place.stop();
}
