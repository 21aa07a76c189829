//! A watch notices what other programs do to a store's file, and ignores the store's own I/O.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use octavo_disk::{Change, Noticed, Op, OpenOptions, Store, Watch};

use crate::fixture::*;

/// Creates a store of 1 MiB in `directory` and its watch, which has taken one look without a
/// change.
fn watched(directory: &Path) -> (std::path::PathBuf, Store, Watch) {
    let path = file(directory, &pattern(1, 1 << 20));
    let store = open(&path);
    let mut watch = Watch::new();
    watch.add(&store);
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
fn a_watch_reports_once_that_a_file_was_overwritten_cut_or_replaced() {
    for directory in directories() {
        let (path, store, mut watch) = watched(directory.path());
        overwrite(&path, b"another's");
        assert_eq!(watch.look(), [(0, Change::Written)]);
        // A program that continues to write is reported once.
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

/// The other program reads, changes permissions and links, and opens the file for writing without
/// writing.
#[test]
fn a_watch_reports_nothing_while_others_leave_the_content_alone() {
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

/// 1,200 looks, more than an hour has at five seconds each, with every kind of I/O between them.
#[test]
fn a_watch_reports_nothing_in_an_hour_of_the_stores_own_writes() {
    for (directory, ring) in rigs_everywhere(8) {
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

/// Looks while another thread writes and changes the length. At no moment between the counts and
/// the system calls do its own I/Os look like a change by others.
#[test]
fn a_watch_reports_nothing_during_own_writes_and_changes_of_length() {
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

/// W5: while the store writes too, the modification time decides nothing, and the other program's
/// close does.
#[test]
fn a_watch_reports_another_writer_while_the_store_is_being_written() {
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

/// W6: a server that took over reported the files of its predecessor, whose descriptors an I/O ring
/// had closed after the new server had opened them.
#[test]
fn a_watch_does_not_report_a_late_close_of_the_store_before() {
    let directory = directory();
    let path = file(directory.path(), &pattern(1, 1 << 20));
    let descriptor = File::options().read(true).write(true).open(&path).unwrap();
    // As a ring has it.
    let late = descriptor.try_clone().unwrap();
    drop(Store::from_file("before", descriptor, &OpenOptions::default()).unwrap());
    let store = open(&path);
    let mut watch = Watch::new();
    watch.add(&store);
    let ring = &rings(4)[0];
    for at in 0..2 {
        write(ring, &store, at * 4096, &pattern(2, 4096));
        assert_eq!(watch.look(), []);
    }
    write(ring, &store, 0, &pattern(3, 4096));
    drop(late);
    assert_eq!(watch.look(), []);
    // Another program's close counts again.
    overwrite(&path, b"another's");
    write(ring, &store, 4096, &pattern(3, 4096));
    assert_eq!(watch.look(), [(0, Change::Opened)]);
}

/// W4: the first look after own writes compares no modification time, the second does.
#[test]
fn a_watch_reports_another_writer_again_two_looks_after_own_writes() {
    let directory = directory();
    let (path, store, mut watch) = watched(directory.path());
    let ring = &rings(4)[0];
    // The file stays open, so inotify reports no close.
    let mut other = File::options().write(true).open(&path).unwrap();
    write(ring, &store, 0, &pattern(2, 4096));
    assert_eq!([watch.look(), watch.look()], [[], []]);
    other.write_all(b"another's").unwrap();
    assert_eq!(watch.look(), [(0, Change::Written)]);
}

#[test]
fn a_watch_does_not_report_an_adopted_length_as_restored() {
    let directory = directory();
    let (path, store, mut watch) = watched(directory.path());
    let other = File::options().write(true).open(&path).unwrap();
    for len in [5000, 2 << 20] {
        let expected_bytes = store.len_bytes();
        other.set_len(len).unwrap();
        assert_eq!(watch.look(), [(0, Change::Length { expected_bytes, found_bytes: len })]);
        assert_eq!(store.adopt_len_bytes().unwrap(), len);
        assert_eq!([watch.look(), watch.look()], [[], []]);
    }
}

#[test]
fn a_watch_reports_nothing_of_stores_in_memory() {
    let store = Store::memory("m", 4096);
    let mut watch = Watch::new();
    watch.add(&store);
    assert_eq!(watch.look(), []);
}

/// Two exports may read the same file, which then has one inotify watch.
#[test]
fn a_watch_forgets_a_closed_store_and_still_watches_the_other_store_of_its_file() {
    for directory in directories() {
        let path = file(directory.path(), &pattern(1, 1 << 20));
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let [first, second] = [(); 2].map(|()| Store::open(&path, &options).unwrap());
        let mut watch = Watch::new();
        assert!(watch.is_empty());
        assert_eq!([watch.add(&first), watch.add(&second)], [0, 1]);
        assert_eq!(watch.look(), []);
        drop(first);
        overwrite(&path, b"another's");
        assert_eq!(watch.look(), [(1, Change::Written)]);
        drop(second);
        assert!(watch.is_empty());
        assert_eq!(watch.look(), []);
        // The watch has not kept the file locked.
        let writable = open(&path);
        assert_eq!(watch.add(&writable), 2);
        assert!(!watch.is_empty());
    }
}
