//! Extended attributes, and what takes privileges of files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use octavo::CacheMode;
use octavo_fuse::MountOptions;
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{Gid, Uid};

use crate::rig::{rig, rig_with};

/// The length was always 0, so `getfattr` and `cp` found no attributes.
#[test]
fn the_length_of_an_attribute_and_of_their_list_can_be_asked_for() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&above, b"").unwrap();
    match rustix::fs::setxattr(&above, "user.name", b"value", XattrFlags::empty()) {
        Err(Errno::NOTSUP) => return println!("skipped: the lower file system has no attributes"),
        set => set.unwrap(),
    }
    assert_eq!(rustix::fs::getxattr_query(&above, "user.name"), Ok(5));
    assert_eq!(rustix::fs::getxattr_query(&above, "user.other"), Err(Errno::NODATA));
    let length = rustix::fs::listxattr_query(&above).unwrap();
    assert!(length >= "user.name\0".len());
    assert_eq!(rustix::fs::listxattr_query(&below), Ok(length));
}

/// A write-back changed the times of a file seconds after its last write. git took files that it
/// had just written for changed, because its index has their times.
#[test]
fn a_write_back_does_not_change_the_times_that_were_shown() {
    let Some(rig) = rig(CacheMode::Writeback) else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    let times = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
    };
    fs::write(&above, b"bytes").unwrap();
    for bytes in [b"1", b"2"] {
        let shown = times(&above);
        // The clock of files has ticks.
        std::thread::sleep(Duration::from_millis(30));
        rig.partition.sync().unwrap();
        assert_eq!(times(&below), shown, "before a write of {bytes:?}");
        OpenOptions::new().write(true).open(&above).unwrap().write_all_at(bytes, 2).unwrap();
    }
}

const OTHER: u32 = 65_534;

/// Runs `act` by a thread of [`OTHER`], who is in the group of the same number.
fn as_another_user(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread only. The thread's capabilities go with its user.
            let (uid, gid) = (Uid::from_raw(OTHER), Gid::from_raw(OTHER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            act();
        });
    });
}

/// Runs `change` on a file with both bits, by a thread of the file's owner. Returns the mode then.
fn mode_after(path: &Path, change: impl FnOnce(&File) + Send) -> u32 {
    fs::write(path, [1; 10_000]).unwrap();
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o6755)).unwrap();
    as_another_user(|| change(&OpenOptions::new().read(true).write(true).open(path).unwrap()));
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// For these calls the kernel does not say that the bits must go.
#[test]
fn an_owner_who_allocates_or_copies_takes_the_set_user_id_bit() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let directory = rig.source.parent().unwrap();
    // Others may pass.
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    let plain = directory.join("plain");
    fs::create_dir(&plain).unwrap();
    for root in [&plain, &rig.target] {
        let path = root.join("file");
        let allocated = mode_after(&path, |file| {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 50_000).unwrap();
        });
        assert_eq!(allocated, 0o755, "{}: allocated", root.display());
        let copied = mode_after(&path, |file| {
            let (mut from, mut to) = (0, 5_000);
            assert!(rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), 1_000).is_ok());
        });
        assert_eq!(copied, 0o755, "{}: copied", root.display());
        let cut = mode_after(&path, |file| file.set_len(1).unwrap());
        assert_eq!(cut, 0o755, "{}: cut", root.display());
    }
    // Root may keep them.
    let path = rig.target.join("file");
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 50_000).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6755);
}

/// Returns the mode that the kernel has of a file. Asks for no more than the mode: the kernel looks
/// at other attributes again after a write.
fn mode_that_the_kernel_has(path: &Path) -> u32 {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(stat.stx_mode) & 0o7777
}

/// The mode that the kernel had was old until `attr_timeout` was over, so it would have run the
/// file with the bit. xfstests generic/355, 683, 684 and 685.
#[test]
fn the_kernel_knows_at_once_that_a_write_took_the_set_user_id_bit() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let options = MountOptions { valid: Some(Duration::from_secs(600)), ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writethrough, &options) else { return };
    fs::set_permissions(rig.source.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let path = rig.target.join("file");
    let change_and_look = |change: &(dyn Fn(&File) + Sync)| {
        mode_after(&path, |file| {
            assert_eq!(mode_that_the_kernel_has(&path), 0o6755);
            change(file);
            assert_eq!(mode_that_the_kernel_has(&path), 0o755);
        });
    };
    change_and_look(&|file| file.write_all_at(b"bytes", 2).unwrap());
    change_and_look(&|file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 50_000).unwrap());
    change_and_look(&|file| file.set_len(1).unwrap());
}

/// The bit of a file that the group cannot execute stayed. Linux keeps it for members of the group.
#[test]
fn a_stranger_who_allocates_takes_the_set_group_id_bit() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    fs::set_permissions(rig.source.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let path = rig.target.join("file");
    let left = mode_after(&path, |file| {
        let change = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 50_000).unwrap();
        let ask = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        ask(0o2766);
        change();
        assert_eq!(mode_that_the_kernel_has(&path), 0o2766, "a member keeps it");
    });
    assert_eq!(left, 0o2766);
    // Root who changes the owner keeps it, too. xfstests generic/193.
    chown(&path, Some(0), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o2766);
    // Root's group now.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    chown(&path, None, Some(0)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6766)).unwrap();
    as_another_user(|| {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 60_000).unwrap();
    });
    assert_eq!(mode_that_the_kernel_has(&path), 0o766);
}

/// The mount lists as root, who sees them.
#[test]
fn trusted_attributes_are_hidden_from_other_users() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can set trusted attributes");
        return;
    }
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    fs::set_permissions(rig.source.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let path = rig.target.join("file");
    let mut listed = 0;
    let _ = mode_after(&path, |_| {});
    if rustix::fs::setxattr(&path, "trusted.name", b"value", XattrFlags::empty()).is_err() {
        println!("skipped: the lower file system has no trusted attributes");
        return;
    }
    let root = rustix::fs::listxattr_query(&path).unwrap();
    mode_after(&path, |_| listed = rustix::fs::listxattr_query(&path).unwrap());
    assert_eq!(listed + "trusted.name\0".len(), root);
}
