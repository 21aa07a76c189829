//! Lower file systems that are full, or refuse bytes that they had promised room for. They are
//! tmpfs, which only root can mount.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_fuse::{Mount, MountOptions};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::mapping::Mapping;
use crate::rig::patiently;

const MIB: usize = 1 << 20;

/// A directory with a small file system below, which is mounted elsewhere. Nothing is written back
/// unless a program or the mount asks for it.
struct Small {
    mount: Option<Mount>,
    source: PathBuf,
    target: PathBuf,
    /// File systems to unmount, the last one first.
    below: Vec<PathBuf>,
    _directory: tempfile::TempDir,
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            mount.stop();
        }
        while let Some(path) = self.below.pop() {
            let _ = unmount(&path, UnmountFlags::DETACH);
        }
    }
}

/// A tmpfs of this size in MiB. `overlay` puts an overlay on top, which promises nothing.
fn small(mib: usize, overlay: bool, options: &MountOptions) -> Option<Small> {
    let directory = tempfile::tempdir().unwrap();
    let [tmpfs, target] = ["tmpfs", "target"].map(|name| directory.path().join(name));
    [&tmpfs, &target].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let data = std::ffi::CString::new(format!("size={mib}m")).unwrap();
    if let Err(errno) = mount("octavo-test", &tmpfs, "tmpfs", MountFlags::empty(), Some(&*data)) {
        println!("skipped: cannot mount a tmpfs: {errno}");
        return None;
    }
    let mut small = Small {
        mount: None,
        source: tmpfs.clone(),
        target,
        below: vec![tmpfs.clone()],
        _directory: directory,
    };
    if overlay {
        let [lower, upper, work, merged] = ["l", "u", "w", "m"].map(|name| tmpfs.join(name));
        [&lower, &upper, &work, &merged].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let show = |path: &Path| path.display().to_string();
        let layers = format!("lowerdir={},upperdir={},workdir={}", show(&lower), show(&upper), show(&work));
        let data = std::ffi::CString::new(layers).unwrap();
        if let Err(errno) = mount("octavo-test", &merged, "overlay", MountFlags::empty(), Some(&*data)) {
            println!("skipped: cannot mount an overlay: {errno}");
            return None;
        }
        small.below.push(merged.clone());
        small.source = merged;
    }
    let config = CacheConfig { memory_max_bytes: 64 << 20, background: false, ..CacheConfig::default() };
    let cache = Cache::new(config).unwrap();
    let config = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("files") };
    let partition = cache.partition(config).unwrap();
    let choose = move |_: &octavo_fuse::Opened<'_>| Some(partition.clone());
    match Mount::start(cache, &small.source, &small.target, options, choose) {
        Ok(mount) => small.mount = Some(mount),
        Err(why) if std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none() => {
            println!("skipped: {why}");
            return None;
        }
        Err(why) => panic!("{why}"),
    }
    Some(small)
}

impl Small {
    /// Fills the file system beside the mount. The file that this takes.
    fn fill(&self) -> PathBuf {
        let path = self.below[0].join("ballast");
        let mut ballast = File::create(&path).unwrap();
        while ballast.write_all(&[0xBA; 4096]).is_ok() {}
        path
    }

    /// Takes the space of a file away beside the mount, and fills the file system.
    fn break_promise(&self, name: &str, len: usize) -> PathBuf {
        let lower = OpenOptions::new().write(true).open(self.source.join(name)).unwrap();
        fallocate(&lower, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len as u64).unwrap();
        self.fill()
    }

    fn open(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(self.target.join(name)).unwrap()
    }
}

/// Waits for what must come: the kernel tells a server later that a file was closed.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_full(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::StorageFull
}

/// Regression: the bytes were accepted, and lost when the mount ended, or when the file was closed
/// in favour of another.
#[test]
fn a_full_file_system_refuses_the_write_itself() {
    let Some(mut small) = small(4, false, &MountOptions::default()) else { return };
    let all = vec![0x5A; 6 * MIB];
    let mut file = small.open("grows");
    let mut written = 0;
    let error = loop {
        match file.write(&all[written..written + 65536]) {
            Ok(len) => written += len,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error), "{error}");
    assert!(written > 3 * MIB && written < 4 * MIB + 65536, "{written}");
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(small.source.join("grows")).unwrap() == all[..written]);
    fs::remove_file(small.target.join("grows")).unwrap();
    let free = || rustix::fs::statvfs(&small.source).unwrap();
    wait_until("the space of a removed file is not free", || free().f_bavail == free().f_blocks);

    // The holes of a file are no space.
    let file = small.open("sparse");
    file.set_len(6 * MIB as u64).unwrap();
    let accepted: Vec<usize> = (0..6 * MIB)
        .step_by(65536)
        .filter(|at| match file.write_all_at(&all[..65536], *at as u64) {
            Ok(()) => true,
            Err(error) => {
                assert!(is_full(&error), "{error}");
                false
            }
        })
        .collect();
    assert!(accepted.len() > 48 && accepted.len() <= 64, "{}", accepted.len());
    drop(file);
    assert_eq!(small.mount.take().unwrap().stop(), Vec::<String>::new());
    let below = fs::read(small.source.join("sparse")).unwrap();
    assert!(accepted.iter().all(|at| below[*at..at + 65536] == all[..65536]));
}

/// Regression: the kernel writes pages that were changed by `mmap`, and takes the answer that some
/// were written for success. The rest was lost, and every sync and close succeeded.
#[test]
fn a_full_file_system_refuses_pages_that_were_changed_by_mmap() {
    let Some(small) = small(8, false, &MountOptions::default()) else { return };
    let file = small.open("mapped");
    file.set_len(MIB as u64).unwrap();
    let ballast = small.fill();
    let room = fs::metadata(&ballast).unwrap().len() - 160 * 1024;
    OpenOptions::new().write(true).open(&ballast).unwrap().set_len(room).unwrap();
    let mut mapping = Mapping::new(file.as_fd(), 0, MIB, true).unwrap();
    let mut bytes = vec![0x5A; MIB];
    mapping.write(&bytes);
    assert_eq!(mapping.sync(), Err(Errno::NOSPC));
    // What is changed once there is room is written.
    fs::remove_file(&ballast).unwrap();
    bytes.fill(0xA5);
    mapping.write(&bytes);
    mapping.sync().unwrap();
    drop(mapping);
    file.sync_all().unwrap();
    assert!(fs::read(small.source.join("mapped")).unwrap() == bytes);
}

#[test]
fn a_closed_file_takes_no_more_space_than_it_needs() {
    let Some(small) = small(32, false, &MountOptions::default()) else { return };
    let mut file = small.open("file");
    file.write_all(&[1; 5000]).unwrap();
    file.write_all(&[2; 200_000]).unwrap();
    let blocks = || fs::metadata(small.source.join("file")).unwrap().blocks();
    assert!(blocks() >= MIB as u64 / 512, "a step is reserved: {} blocks", blocks());
    // Giving it back must not change times that were set.
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(then).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let metadata = fs::metadata(small.source.join("file")).unwrap();
    assert_eq!((metadata.len(), metadata.modified().unwrap()), (205_000, then));
    assert!(blocks() <= 205_000_u64.next_multiple_of(4096) / 512, "{} blocks", blocks());
    // A file that grew, and is closed without a look at its attributes.
    let file = small.open("file");
    file.write_at(&[3; 4096], 205_000).unwrap();
    drop(file);
    assert!(blocks() <= 209_096_u64.next_multiple_of(4096) / 512, "{} blocks", blocks());
    let mut expected = vec![1; 5000];
    expected.extend([2; 200_000]);
    expected.extend([3; 4096]);
    assert!(fs::read(small.target.join("file")).unwrap() == expected);
}

/// Regression: a file whose bytes were refused was closed when more files than `files_max` were
/// opened, and the bytes were given up; a sync of a later handle found nothing to complain about.
#[test]
fn refused_bytes_stay_until_the_file_system_takes_them() {
    // Other files need its place, or its descriptors.
    refused_bytes_stay(&MountOptions { files_max: 16, ..MountOptions::default() });
    refused_bytes_stay(&MountOptions { descriptors_max: Some(300), ..MountOptions::default() });
}

fn refused_bytes_stay(options: &MountOptions) {
    let Some(small) = small(8, false, options) else { return };
    for number in 0..160 {
        fs::write(small.source.join(format!("other{number}")), number.to_string()).unwrap();
    }
    let (mut first, second) = (small.open("db"), small.open("db"));
    first.write_all(&vec![7; MIB]).unwrap();
    let ballast = small.break_promise("db", MIB);
    assert!(is_full(&first.sync_all().unwrap_err()));
    // Each handle that was open gets the error once, even if a retry has succeeded.
    fs::remove_file(&ballast).unwrap();
    first.sync_all().unwrap();
    assert!(is_full(&second.sync_all().unwrap_err()));
    second.sync_all().unwrap();
    small.open("db").sync_all().unwrap();

    first.write_all_at(&vec![8; MIB], 0).unwrap();
    let ballast = small.break_promise("db", MIB);
    assert!(is_full(&first.sync_all().unwrap_err()) && is_full(&second.sync_all().unwrap_err()));
    drop((first, second));
    for _ in 0..2 {
        for number in 0..160 {
            let read = patiently(|| fs::read(small.target.join(format!("other{number}"))));
            assert_eq!(read, number.to_string().as_bytes());
        }
    }
    assert!(fs::read(small.target.join("db")).unwrap() == vec![8; MIB], "the cache has given bytes up");
    let stat = small.mount.as_ref().unwrap().stat();
    assert_eq!(stat.unwritten_files, 1);
    assert!(stat.unwritten_bytes > 0, "{stat:?}");
    // A later handle can be opened, and has the bytes written.
    let later = small.open("db");
    assert!(is_full(&later.sync_all().unwrap_err()));
    fs::remove_file(&ballast).unwrap();
    later.sync_all().unwrap();
    assert_eq!(small.mount.as_ref().unwrap().stat().unwritten_files, 0);
    assert!(fs::read(small.source.join("db")).unwrap() == vec![8; MIB]);
}

#[test]
fn when_too_many_files_are_unwritten_further_ones_are_refused() {
    let options = MountOptions { files_max: 1, unwritten_max: 2, ..MountOptions::default() };
    let Some(mut small) = small(8, false, &options) else { return };
    ["old", "other"].iter().for_each(|name| fs::write(small.source.join(name), [1; 4096]).unwrap());
    let (mut a, mut b) = (small.open("a"), small.open("b"));
    [&mut a, &mut b].into_iter().for_each(|file| file.write_all(&vec![7; MIB]).unwrap());
    small.break_promise("a", MIB);
    let ballast = small.break_promise("b", MIB);
    drop((a, b));
    let old = small.open("old");
    // The two are closed for others, which fails. A child that another test starts holds copies of
    // their descriptors for a moment, and files in use do not count.
    wait_until("a further file may be unwritten", || {
        for name in ["old", "other"] {
            assert!(!fs::read(small.target.join(name)).unwrap().is_empty());
        }
        match old.write_all_at(&[2; 100], 0) {
            Ok(()) => {
                old.sync_all().unwrap();
                false
            }
            Err(error) => {
                assert!(is_full(&error), "{error}");
                true
            }
        }
    });
    assert_eq!(small.mount.as_ref().unwrap().stat().unwritten_files, 2);
    fs::remove_file(ballast).unwrap();
    old.write_all_at(&[3; 100], 0).unwrap();
    drop(old);
    assert_eq!(small.mount.take().unwrap().stop(), Vec::<String>::new());
    for name in ["a", "b"] {
        assert!(fs::read(small.source.join(name)).unwrap() == vec![7; MIB]);
    }
    assert_eq!(fs::read(small.source.join("old")).unwrap()[..101], [&[3; 100][..], &[1]].concat());
}

/// What is lost when the mount ends is named.
#[test]
fn bytes_that_are_lost_at_the_end_are_counted() {
    let Some(mut small) = small(8, false, &MountOptions::default()) else { return };
    fs::write(small.target.join("file"), vec![7; MIB]).unwrap();
    small.break_promise("file", MIB);
    let lost = small.mount.take().unwrap().stop();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].contains("file: write of") && lost[0].contains("bytes lost"), "{lost:?}");
}

/// Regression: `cp` and `umount` succeeded, and half of the file was zeros.
#[test]
fn file_systems_that_promise_nothing_are_written_when_a_file_is_closed() {
    let Some(small) = small(4, true, &MountOptions::default()) else { return };
    let data = small.target.with_file_name("data");
    fs::write(&data, vec![7; 3 * MIB]).unwrap();
    let copy = |name: &str| {
        let mut cp = Command::new("cp");
        cp.arg(&data).arg(small.target.join(name)).stderr(Stdio::null());
        cp.status().unwrap().success()
    };
    assert!(copy("fits"));
    assert!(fs::read(small.source.join("fits")).unwrap() == vec![7; 3 * MIB]);
    // What is not written yet is not free.
    let mut open = small.open("open");
    open.write_all(&vec![8; MIB / 2]).unwrap();
    let free = |path: &Path| rustix::fs::statvfs(path).unwrap();
    let (above, below) = (free(&small.target), free(&small.source));
    let missing = (below.f_bavail - above.f_bavail) * below.f_frsize;
    assert!((MIB as u64 / 2..MIB as u64).contains(&missing), "{missing}");
    drop(open);
    assert!(!copy("does-not-fit"), "the error comes with the write or the close");
}

/// Regression: a start that failed left a dead mount behind.
#[test]
fn a_start_that_fails_leaves_nothing_mounted() {
    let directory = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    [&source, &target].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(target.join("below"), "here").unwrap();
    // The buffers of the threads do not fit.
    let cache = Cache::new(CacheConfig { memory_max_bytes: 16 << 20, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("files")).unwrap();
    let options = MountOptions { threads: 200, ..MountOptions::default() };
    let started = Mount::start(cache, &source, &target, &options, move |_| Some(partition.clone()));
    assert!(started.is_err());
    assert_eq!(fs::read_to_string(target.join("below")).unwrap(), "here");
}
