//! Names, types and attributes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use octavo::CacheMode;
use octavo_fuse::MountOptions;

use crate::rig::{PATIENCE, rig, rig_with};

#[test]
fn links_renames_and_directories_are_those_of_the_lower_file_system() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let above = |name: &str| rig.target.join(name);
    fs::create_dir(above("directory")).unwrap();
    fs::write(above("directory/one"), b"1").unwrap();
    fs::hard_link(above("directory/one"), above("two")).unwrap();
    symlink("directory/one", above("three")).unwrap();
    assert_eq!(fs::metadata(above("two")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(above("two")).unwrap().ino(),
        fs::metadata(rig.source.join("two")).unwrap().ino()
    );
    assert_eq!(fs::read(above("three")).unwrap(), b"1");
    fs::rename(above("two"), above("directory/two")).unwrap();
    assert!(fs::metadata(above("two")).is_err());
    assert!(fs::remove_dir(above("directory")).is_err(), "it is not empty");
    fs::set_permissions(above("directory/two"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(rig.source.join("directory/one")).unwrap().mode() & 0o7777, 0o640);
    for name in ["directory/one", "directory/two", "three"] {
        fs::remove_file(above(name)).unwrap();
    }
    fs::remove_dir(above("directory")).unwrap();
    assert_eq!(fs::read_dir(&rig.source).unwrap().count(), 0);
}

#[test]
fn a_large_directory_lists_each_entry_once() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let names: BTreeSet<String> = (0..5_000).map(|number| format!("{number:0100}")).collect();
    names.iter().for_each(|name| fs::write(rig.source.join(name), b"").unwrap());
    let listed: Vec<String> = fs::read_dir(&rig.target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
}

/// Root opens files by handle, so the kernel may know more files than the process may open.
#[test]
fn more_files_are_known_than_have_descriptors() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can open files by handle");
        return;
    }
    let options = MountOptions { places_max: 8, files_max: 16, ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writeback, &options) else { return };
    let path = |directory: u32, file: u32| format!("{directory}/{file}");
    for directory in 0..10 {
        fs::create_dir(rig.target.join(directory.to_string())).unwrap();
        for file in 0..40 {
            fs::write(rig.target.join(path(directory, file)), path(directory, file)).unwrap();
        }
    }
    // Other tests of this process have descriptors too.
    let is_ours =
        |link: &fs::DirEntry| fs::read_link(link.path()).is_ok_and(|at| at.starts_with(&rig.source));
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let descriptors = links.filter(|link| is_ours(link.as_ref().unwrap())).count();
    // The kernel forgets files when another process drops its caches, and knows them when asked.
    let knows_all = || {
        let files = (0..10).flat_map(|directory| (0..40).map(move |file| path(directory, file)));
        files.for_each(|file| assert!(fs::metadata(rig.target.join(file)).is_ok()));
        rig.mount.as_ref().unwrap().stat().nodes > 400
    };
    assert!((0..20).any(|_| knows_all()));
    assert!(descriptors < 200, "{descriptors} descriptors for 400 files");
    for directory in 0..10 {
        for file in 0..40 {
            let (above, expected) = (rig.target.join(path(directory, file)), path(directory, file));
            assert_eq!(fs::read_to_string(&above).unwrap(), expected);
            fs::rename(&above, above.with_extension("new")).unwrap();
        }
    }
    // Another file may get the number of a file that was removed below.
    fs::remove_dir_all(rig.source.join("9")).unwrap();
    (0..40).for_each(|file| fs::write(rig.source.join(format!("again{file}")), format!("{file}")).unwrap());
    for file in 0..40 {
        let text = fs::read_to_string(rig.target.join(format!("again{file}"))).unwrap();
        assert_eq!(text, file.to_string());
    }
}

/// Linux 6.18 forgets files when it is asked to. Older kernels are not asked twice.
#[test]
fn the_kernel_forgets_files_when_the_mount_knows_too_many() {
    let options = MountOptions { nodes_max: 200, ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writethrough, &options) else { return };
    let name = |number: u32| format!("{number}");
    (0..2_000).for_each(|number| fs::write(rig.source.join(name(number)), name(number)).unwrap());
    let open = fs::File::open(rig.target.join(name(7))).unwrap();
    for number in 0..2_000 {
        fs::metadata(rig.target.join(name(number))).unwrap();
    }
    let nodes = || rig.mount.as_ref().unwrap().stat().nodes;
    let start = Instant::now();
    while nodes() > 300 && start.elapsed() < PATIENCE {
        // Any request makes the mount look at its table.
        fs::read_dir(&rig.target).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    if nodes() == 2_001 {
        println!("skipped: this kernel cannot be asked to forget files");
        return;
    }
    assert!(nodes() <= 300, "{} nodes", nodes());
    assert_eq!(open.metadata().unwrap().len(), 1, "a file that is open is not forgotten");
    assert_eq!(fs::read_to_string(rig.target.join(name(1234))).unwrap(), "1234");
}

/// Regression: lookups failed with ENOMEM as soon as `memory_max` had no room for the table of
/// known files, long before there were as many as allowed: `ls -R` of a kernel's source ended so.
#[test]
fn more_files_are_found_than_memory_has_room_for() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let count = 30_000;
    for number in 0..count {
        if number % 1000 == 0 {
            fs::create_dir(rig.source.join(format!("{}", number / 1000))).unwrap();
        }
        fs::File::create(rig.source.join(format!("{}/{number}", number / 1000))).unwrap();
    }
    for number in 0..count {
        fs::metadata(rig.target.join(format!("{}/{number}", number / 1000))).unwrap();
    }
    let nodes = rig.mount.as_ref().unwrap().stat().nodes;
    println!("{nodes} of {count} files are known");
}

/// The mount asked the kernel for the path below, which may be too long although that above is not.
#[test]
fn files_whose_path_is_too_long_to_be_told_are_cached_too() {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let name = "d".repeat(250);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(&rig.target, flags, Mode::empty()).unwrap();
    for _ in 0..20 {
        mkdirat(&directory, &name, Mode::RWXU).unwrap();
        directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
    }
    let created = openat(&directory, "file", OFlags::CREATE | OFlags::RDWR, Mode::RUSR).unwrap();
    rustix::io::pwrite(&created, b"deep", 0).unwrap();
    let again = openat(&directory, "file", OFlags::RDONLY, Mode::empty()).unwrap();
    let mut text = [0; 9];
    assert_eq!(rustix::io::pread(&again, &mut text, 0), Ok(4));
    assert_eq!(&text[..4], b"deep");
}
