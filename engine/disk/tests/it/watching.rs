//! What others do to a store's file is noticed, and what the store does to it itself is not.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use octavo_disk::{Change, Noticed, Op, Store, Watch};

use crate::fixture::*;

/// A store of 1 MiB in `directory` and its watch, which has seen it at rest.
fn watched(directory: &Path) -> (std::path::PathBuf, Store, Watch) {
    let path = file(directory, &pattern(1, 1 << 20));
    let store = open(&path);
    let mut watch = Watch::new([store.clone()]);
    assert_eq!(watch.look(), []);
    (path, store, watch)
}

fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn length(found_bytes: u64) -> Change {
    Change::Length { expected_bytes: 1 << 20, found_bytes }
}

#[test]
fn a_file_that_another_overwrites_cuts_or_replaces_is_noticed_once_each_time() {
    for directory in directories() {
        let (path, store, mut watch) = watched(directory.path());
        overwrite(&path, b"another's");
        assert_eq!(watch.look(), [(0, Change::Written)]);
        // Who goes on writing is told of once.
        for _ in 0..5 {
            overwrite(&path, b"another's");
            assert_eq!(watch.look(), []);
        }
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        assert_eq!(watch.look(), [(0, length(5000))]);
        assert_eq!(watch.look(), []);
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(watch.look(), [(0, Change::LengthRestored)]);
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).unwrap();
        assert_eq!(watch.look(), [(0, Change::Missing)]);
        fs::copy(&aside, &path).unwrap();
        assert_eq!(watch.look(), [(0, Change::Replaced)]);
        assert_eq!(watch.look(), []);
        fs::rename(&aside, &path).unwrap();
        assert_eq!(watch.look(), [(0, Change::Restored)]);
        assert_eq!(store.noticed(), Noticed { count: 5, last: Some(Change::Restored) });
    }
}

/// Reads, permissions, links and a descriptor that was opened for writing and wrote nothing.
#[test]
fn a_file_that_others_leave_as_it_is_was_not_changed() {
    for directory in directories() {
        let (path, store, mut watch) = watched(directory.path());
        let ring = &rings(4)[0];
        for _ in 0..20 {
            fs::read(&path).unwrap();
            read(ring, &store, 0, 4096);
            let mut permissions = fs::metadata(&path).unwrap().permissions();
            permissions.set_readonly(!permissions.readonly());
            fs::set_permissions(&path, permissions).unwrap();
            fs::hard_link(&path, path.with_extension("link")).unwrap();
            fs::remove_file(path.with_extension("link")).unwrap();
            drop(File::options().write(true).open(&path).unwrap());
            assert_eq!(watch.look(), []);
        }
        assert_eq!(store.noticed(), Noticed::default());
    }
}

/// More looks than an hour has, five seconds apart, with everything that a store does to its file
/// between them.
#[test]
fn an_hour_of_a_stores_own_writing_is_no_change() {
    for directory in directories() {
        for ring in rings(8) {
            let (_, store, mut watch) = watched(directory.path());
            let mut random = Random::new(7);
            for look in 0..1200 {
                // Bursts and pauses.
                for _ in 0..random.below(4) * random.below(3) {
                    let offset = random.below(250) * 4096;
                    match random.below(6) {
                        0 => clear(&ring, &store, Op::Zero, offset, 8192).unwrap(),
                        1 => clear(&ring, &store, Op::Discard, offset, 8192).unwrap(),
                        2 if look % 10 == 0 => sync(&ring, &store).unwrap(),
                        3 if look % 50 == 0 => store.set_len_bytes((1 << 20) - random.below(9000)).unwrap(),
                        _ => write(&ring, &store, offset, &pattern(offset, 4096)),
                    }
                }
                assert_eq!(watch.look(), [], "look {look}");
            }
        }
    }
}

/// Looks while threads write and change the length: no moment between the counts and the calls is a
/// change by others.
#[test]
fn looks_in_the_middle_of_own_writes_and_changes_of_length_find_nothing() {
    let directory = directory();
    let (_, store, mut watch) = watched(directory.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ring = &rings(8)[0];
            for turn in 0..2000 {
                match turn % 10 {
                    0 => store.set_len_bytes((1 << 20) - turn % 7000).unwrap(),
                    _ => write(ring, &store, turn % 100 * 4096, &pattern(turn, 4096)),
                }
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(watch.look(), []);
        }
    });
}

/// The time of modification says nothing while the store writes too: the other's close does (W5).
#[test]
fn another_writer_is_noticed_while_the_store_is_being_written() {
    let directory = directory();
    let (path, store, mut watch) = watched(directory.path());
    let ring = &rings(4)[0];
    write(ring, &store, 0, &pattern(2, 4096));
    assert_eq!(watch.look(), []);
    overwrite(&path, b"another's");
    write(ring, &store, 4096, &pattern(2, 4096));
    assert_eq!(watch.look(), [(0, Change::Opened)]);
    assert_eq!(watch.look(), []);
}

/// W4: the first look after own writes compares nothing, the second does.
#[test]
fn another_writer_is_noticed_again_two_looks_after_the_stores_own_writes() {
    let directory = directory();
    let (path, store, mut watch) = watched(directory.path());
    let ring = &rings(4)[0];
    // It stays open: no close tells of it.
    let mut other = File::options().write(true).open(&path).unwrap();
    write(ring, &store, 0, &pattern(2, 4096));
    assert_eq!([watch.look(), watch.look()], [[], []]);
    other.write_all(b"another's").unwrap();
    assert_eq!(watch.look(), [(0, Change::Written)]);
}

#[test]
fn stores_in_memory_are_never_changed_by_others() {
    let mut watch = Watch::new([Store::memory("m", 4096)]);
    assert_eq!(watch.look(), []);
}
