//! Names, types and attributes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use octavo::CacheMode;

use crate::rig::rig;

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
