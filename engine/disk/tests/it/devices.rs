//! Block devices and file systems that the tests create first. This needs root.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_disk::{Change, Op, OpenError, OpenOptions, Store, Watch};

use crate::fixture::*;

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {arguments:?}: {}", said.trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Prints a line and returns None if there is no loop device.
    fn new(backing: &Path, block_bytes: u32) -> Option<LoopDevice> {
        let block = block_bytes.to_string();
        let made = run("losetup", &["--show", "-f", "-b", &block, backing.to_str().unwrap()]);
        made.map_err(|error| eprintln!("skipped: no loop device: {error}"))
            .ok()
            .map(|path| LoopDevice(path.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run("losetup", &["-d", self.0.to_str().unwrap()]) {
            eprintln!("{error}");
        }
    }
}

#[test]
fn a_block_device_is_read_and_written_in_its_own_blocks() {
    let directory = directory();
    for block_bytes in [512u32, 4096] {
        let backing = file(directory.path(), &vec![0; 1 << 20]);
        let Some(device) = LoopDevice::new(&backing, block_bytes) else { return };
        for ring in rings(8) {
            let store = open(&device.0);
            assert_eq!((store.len_bytes(), store.block_bytes()), (1 << 20, block_bytes));
            assert!(store.is_direct());
            let mut content = pattern(u64::from(block_bytes), 1 << 20);
            write(&ring, &store, 0, &content);
            sync(&ring, &store).unwrap();
            assert!(read(&ring, &store, 0, 1 << 20) == content);
            let ranges = [(0, 4096), (8192, 8192), (65_536, 131_072), ((1 << 20) - 4096, 100_000)];
            for (op, (offset, len)) in [Op::Zero, Op::Discard].into_iter().cycle().zip(ranges) {
                let end = (offset + len).min(1 << 20);
                content[offset..end].fill(0);
                clear(&ring, &store, op, offset as u64, len as u64).unwrap();
                assert!(read(&ring, &store, 0, 1 << 20) == content, "{len} bytes at {offset}");
            }
            assert!(store.set_len_bytes(4096).is_err());
            assert!(store.set_len_bytes(1 << 20).is_ok());
            assert!(Store::open(&device.0, &OpenOptions::default()).is_err());
        }
    }
}

/// Creates a loop device of 1 MiB of zeros. Returns it with the directory of its file. Prints a
/// line and returns None if there is no loop device.
fn device_of_zeros() -> Option<(tempfile::TempDir, LoopDevice)> {
    let directory = directory();
    let backing = file(directory.path(), &vec![0; 1 << 20]);
    LoopDevice::new(&backing, 512).map(|device| (directory, device))
}

/// Once, `blockdev --setro` was not noticed: the device was opened for writing, and then refused
/// each write.
#[test]
fn a_device_that_is_set_read_only_is_not_opened_for_writing() {
    let Some((_directory, device)) = device_of_zeros() else { return };
    let path = device.0.to_str().unwrap();
    run("blockdev", &["--setro", path]).unwrap();
    let writable = OpenOptions::default();
    for opened in [Store::open(&device.0, &writable), Store::rehearse(&device.0, &writable)] {
        let error = opened.unwrap_err();
        assert!(matches!(error, OpenError::ReadOnlyDevice { .. }), "{error:?}");
        let advice = format!("`blockdev --setrw {path}` makes it writable");
        assert!(error.to_string().contains(&advice), "{error}");
    }
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = Store::open(&device.0, &reading).unwrap();
    assert_eq!((store.len_bytes(), store.read_only()), (1 << 20, true));
    drop(store);
    run("blockdev", &["--setrw", path]).unwrap();
    assert!(Store::open(&device.0, &writable).is_ok());
}

/// What a restarted server relies on: pages of a device that was written meanwhile are not used.
#[test]
fn every_write_and_discard_changes_the_stamp_of_a_device() {
    let Some((_directory, device)) = device_of_zeros() else { return };
    let store = open(&device.0);
    let ring = &rings(4)[0];
    let first = store.stamp().unwrap();
    read(ring, &store, 0, 1 << 20);
    assert_eq!(store.stamp().unwrap(), first, "a read changes nothing");
    drop(store);
    let other = fs::File::options().write(true).open(&device.0).unwrap();
    other.write_all_at(&pattern(1, 4096), 8192).unwrap();
    other.sync_all().unwrap();
    drop(other);
    let store = open(&device.0);
    let second = store.stamp().unwrap();
    assert_ne!(second, first, "another program has written");
    clear(ring, &store, Op::Discard, 65_536, 65_536).unwrap();
    assert_ne!(store.stamp().unwrap(), second, "a discard");
    let name = device.0.file_name().unwrap().to_str().unwrap();
    let counting = format!("/sys/block/{name}/queue/iostats");
    fs::write(&counting, "0").unwrap();
    let uncounted = store.stamp();
    fs::write(&counting, "1").unwrap();
    assert_eq!(uncounted, None, "the kernel does not count");
}

#[test]
fn a_watch_notices_a_device_that_others_write_or_set_read_only() {
    let Some((_directory, device)) = device_of_zeros() else { return };
    let path = device.0.to_str().unwrap();
    let store = open(&device.0);
    let ring = &rings(4)[0];
    let mut watch = Watch::new();
    watch.add(&store);
    write(ring, &store, 0, &pattern(1, 4096));
    assert_eq!(watch.look(), []);
    run("dd", &["if=/dev/zero", &format!("of={path}"), "bs=4096", "count=1", "conv=notrunc"]).unwrap();
    assert!(matches!(watch.look()[..], [(0, Change::Written | Change::Opened)]));
    run("blockdev", &["--setro", path]).unwrap();
    assert_eq!(watch.look(), [(0, Change::ReadOnly)]);
    assert!(transfer(ring, &store, Op::Write, 0, &aligned(&pattern(2, 4096))).is_err());
    run("blockdev", &["--setrw", path]).unwrap();
    assert_eq!(watch.look(), [(0, Change::Writable)]);
    write(ring, &store, 0, &pattern(2, 4096));
    assert_eq!(watch.look(), []);
}

#[test]
fn a_device_has_the_identity_of_its_number_and_not_of_its_file() {
    let Some((_directory, device)) = device_of_zeros() else { return };
    let Some((_other_directory, other)) = device_of_zeros() else { return };
    let identity = |device: &LoopDevice| open(&device.0).identity().unwrap();
    assert_eq!(identity(&device), identity(&device));
    assert_ne!(identity(&device), identity(&other));
}

#[test]
fn the_length_of_a_device_that_was_lengthened_or_cut_is_adopted() {
    let directory = directory();
    let backing = file(directory.path(), &[9; 1 << 20]);
    let Some(device) = LoopDevice::new(&backing, 512) else { return };
    for ring in rings(8) {
        let store = open(&device.0);
        let mut content = fs::read(&backing).unwrap();
        for len in [(1 << 20) + 5 * 512, (2 << 20) - 512, 3 << 19, 1 << 20] {
            let other = fs::OpenOptions::new().write(true).open(&backing).unwrap();
            other.set_len(len as u64).unwrap();
            let kept = content.len().min(len);
            content.truncate(kept);
            content.extend(pattern(len as u64, len - kept));
            other.write_all_at(&content[kept..], kept as u64).unwrap();
            run("losetup", &["-c", device.0.to_str().unwrap()]).unwrap();
            assert_eq!(store.adopt_len_bytes().unwrap(), len as u64);
            assert!(read(&ring, &store, 0, 2 << 20) == padded(&content, 2 << 20), "{len} bytes");
            let start = len / 4096 * 4096 - 4096;
            let newer = pattern(1, 8192);
            write(&ring, &store, start as u64, &newer);
            // Below the device, the test changes the file past the kernel's cache of the device.
            sync(&ring, &store).unwrap();
            content.splice(start.., newer[..len - start].iter().copied());
            assert!(read(&ring, &store, 0, 2 << 20) == padded(&content, 2 << 20), "{len} bytes");
        }
    }
}

#[test]
fn a_device_that_ends_inside_a_page_has_an_exact_tail() {
    let directory = directory();
    let backing = file(directory.path(), &vec![0; 65_536 + 1536]);
    let Some(device) = LoopDevice::new(&backing, 512) else { return };
    for ring in rings(8) {
        let store = open(&device.0);
        let content = pattern(1, 65_536 + 4096);
        write(&ring, &store, 0, &content);
        let expected = padded(&content[..65_536 + 1536], 65_536 + 8192);
        assert!(read(&ring, &store, 0, 65_536 + 8192) == expected);
    }
}

#[test]
fn a_store_takes_the_block_of_4096_bytes_of_its_file_system() {
    let directory = directory();
    let backing = file(directory.path(), &vec![0; 16 << 20]);
    // Declared before the mount, so it is dropped later.
    let Some(device) = LoopDevice::new(&backing, 4096) else { return };
    let path = device.0.to_str().unwrap();
    if let Err(error) = run("mkfs.ext4", &["-q", path]) {
        return eprintln!("skipped: {error}");
    }
    let Some(mount) = Mount::new(directory.path().join("mounted"), &["-t", "ext4", path]) else { return };
    for ring in rings(8) {
        let path = file(&mount.0, &pattern(1, 10_000));
        let store = open(&path);
        assert_eq!((store.block_bytes(), store.is_direct()), (4096, true));
        let content = pattern(2, 12_288);
        write(&ring, &store, 0, &content);
        assert!(fs::read(&path).unwrap() == content[..10_000]);
        store.set_len_bytes(20_000).unwrap();
        assert!(read(&ring, &store, 0, 20_480) == padded(&content[..10_000], 20_480));
    }
}

struct Mount(PathBuf);

impl Mount {
    /// Prints a line and returns None if the kernel or the user may not mount it.
    fn new(path: PathBuf, arguments: &[&str]) -> Option<Mount> {
        fs::create_dir(&path).unwrap();
        let mounted = run("mount", &[arguments, &[path.to_str().unwrap()]].concat());
        mounted.map_err(|error| eprintln!("skipped: {error}")).ok().map(|_| Mount(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[self.0.to_str().unwrap()]) {
            eprintln!("{error}");
        }
    }
}

#[test]
fn a_store_without_direct_io_is_buffered_and_a_warning_says_so() {
    let directory = directory();
    // The kernel's ramfs has no O_DIRECT.
    let at = directory.path().join("mounted");
    let Some(mount) = Mount::new(at, &["-t", "ramfs", "none"]) else { return };
    for ring in rings(8) {
        let path = file(&mount.0, &pattern(1, 5000));
        let store = open(&path);
        if store.is_direct() {
            return eprintln!("skipped: this kernel's ramfs has O_DIRECT");
        }
        let is_told =
            |warning: &String| warning.contains(path.to_str().unwrap()) && warning.contains("buffered");
        assert!(warnings().iter().any(is_told));
        let content = pattern(2, 8192);
        transfer(&ring, &store, Op::Write, 0, &aligned(&content)).unwrap();
        assert!(fs::read(&path).unwrap() == content[..5000]);
        assert!(read(&ring, &store, 0, 8192) == padded(&content[..5000], 8192));
        store.set_len_bytes(6000).unwrap();
        // ramfs cannot clear ranges either, so zeros are written, in more than one system call.
        let mut expected = padded(&content[..5000], 6000);
        clear(&ring, &store, Op::Discard, 512, 1024).unwrap();
        expected[512..1536].fill(0);
        clear(&ring, &store, Op::Zero, 4096, 4096).unwrap();
        expected[4096..].fill(0);
        assert!(read(&ring, &store, 0, 8192) == padded(&expected, 8192));
    }
}

#[test]
fn a_store_opened_without_direct_io_is_buffered() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &pattern(1, 5000));
        let store = Store::open(&path, &OpenOptions { direct: false, ..OpenOptions::default() }).unwrap();
        assert!(!store.is_direct());
        let content = pattern(2, 8192);
        write(&ring, &store, 0, &content);
        assert!(fs::read(&path).unwrap() == content[..5000]);
        assert!(read(&ring, &store, 4096, 4096) == padded(&content[4096..5000], 4096));
    }
}
