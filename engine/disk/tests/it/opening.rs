//! Stores that are created, and stores of files that are open already.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use octavo_disk::{Op, OpenError, OpenOptions, Store, Watch};

use crate::fixture::*;

fn creating(len_bytes: u64) -> OpenOptions {
    OpenOptions { create_len_bytes: Some(len_bytes), ..OpenOptions::default() }
}

#[test]
fn a_file_that_does_not_exist_is_created_and_one_that_exists_keeps_everything() {
    for (directory, ring) in rigs_everywhere(8) {
        let path = directory.path().join("created");
        let store = Store::open(&path, &creating(100_000)).unwrap();
        assert_eq!(store.len_bytes(), 100_000);
        assert!(read(&ring, &store, 0, 102_400) == [0; 102_400]);
        assert!(fs::metadata(&path).unwrap().blocks() <= 8, "the file takes space");
        let content = pattern(1, 102_400);
        write(&ring, &store, 0, &content);
        drop(store);
        for len in [0, 5000, 1 << 20] {
            let store = Store::open(&path, &creating(len)).unwrap();
            assert!(read(&ring, &store, 0, 102_400) == padded(&content[..100_000], 102_400));
            assert_eq!(store.len_bytes(), 100_000);
        }
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 1, "creating leaves other files");
    }
}

#[test]
fn threads_that_create_one_file_all_find_it_with_its_length() {
    for directory in directories() {
        let unlocked = OpenOptions { lock: false, ..creating(1 << 20) };
        for round in 0..50 {
            let path = directory.path().join(format!("file-{round}"));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(Store::open(&path, &unlocked).unwrap().len_bytes(), 1 << 20));
                }
            });
        }
    }
}

#[test]
fn a_creation_that_fails_names_the_reason_and_leaves_no_file() {
    for directory in directories() {
        let missing = directory.path().join("missing/file");
        let too_long = directory.path().join("too-long");
        let reading = OpenOptions { read_only: true, ..creating(0) };
        for (path, options, why) in [
            (missing, creating(0), "cannot create it"),
            (too_long, creating(u64::MAX), "cannot give the new file its length"),
            (directory.path().join("read-only"), reading, "cannot be read-only"),
            (directory.path().to_owned(), creating(0), "is a directory"),
        ] {
            let text = Store::open(&path, &options).unwrap_err().to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains(why), "{text}");
        }
        let rehearsed = Store::rehearse(&directory.path().join("rehearsed"), &creating(4096));
        assert!(matches!(rehearsed, Err(OpenError::NotFound { .. })));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

fn opened(path: &Path, read: bool, write: bool, flags: i32) -> File {
    fs::OpenOptions::new().read(read).write(write).custom_flags(flags).open(path).unwrap()
}

#[test]
fn an_open_file_is_a_store_whether_it_has_a_name_or_not() {
    for (directory, ring) in rigs_everywhere(8) {
        for has_name in [true, false] {
            for flags in [0, libc::O_DIRECT] {
                let content = pattern(1, 10_000);
                let path = file(directory.path(), &content);
                let handle = opened(&path, true, true, flags);
                let seen = opened(&path, true, false, 0);
                if !has_name {
                    fs::remove_file(&path).unwrap();
                }
                let store = Store::from_file("given", handle, &OpenOptions::default()).unwrap();
                assert_eq!((store.name(), store.len_bytes(), store.read_only()), ("given", 10_000, false));
                assert!(read(&ring, &store, 0, 12_288) == padded(&content, 12_288));
                let newer = pattern(2, 12_288);
                write(&ring, &store, 0, &newer);
                store.set_len_bytes(9000).unwrap();
                let mut found = vec![0; 9000];
                std::os::unix::fs::FileExt::read_exact_at(&seen, &mut found, 0).unwrap();
                assert!(found == newer[..9000] && seen.metadata().unwrap().len() == 9000);
                let mut watch = Watch::new();
                watch.add(&store);
                assert_eq!([watch.look(), watch.look()], [[], []], "the watch follows no path");
            }
        }
    }
}

#[test]
fn an_open_file_that_was_direct_serves_its_tail_and_a_buffered_store() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &pattern(1, 5000));
        for direct in [true, false] {
            let options = OpenOptions { direct, ..OpenOptions::default() };
            let handle = opened(&path, true, true, libc::O_DIRECT);
            let store = Store::from_file("given", handle, &options).unwrap();
            assert_eq!(store.is_direct(), direct);
            assert!(read(&ring, &store, 0, 8192) == padded(&pattern(1, 5000), 8192));
            write(&ring, &store, 4096, &pattern(1, 5000)[4096..].repeat(5)[..4096]);
            assert_eq!(fs::metadata(&path).unwrap().len(), 5000);
        }
    }
}

#[test]
fn the_access_mode_of_an_open_file_decides_whether_its_store_is_read_only() {
    let directory = directory();
    let path = file(directory.path(), &[1; 4096]);
    let ring = &rings(4)[0];
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    let fd: OwnedFd = opened(&path, true, false, 0).into();
    let stores = [
        Store::from_file("given", fd, &OpenOptions::default()).unwrap(),
        Store::from_file("given", opened(&path, true, true, 0), &reading).unwrap(),
        Store::from_file("given", opened(&path, true, false, libc::O_APPEND), &reading).unwrap(),
    ];
    for store in &stores {
        assert!(store.read_only());
        assert!(read(ring, store, 0, 4096) == [1; 4096]);
        assert!(transfer(ring, store, Op::Write, 0, &aligned(&[2; 4096])).is_err());
    }
    let writing = Store::from_file("another", opened(&path, true, true, 0), &OpenOptions::default());
    let text = writing.unwrap_err().to_string();
    assert!(text.contains("another: ") && text.contains("given"), "{text}");
}

#[test]
fn an_open_file_that_cannot_be_a_store_is_refused_with_its_name_and_the_reason() {
    let directory = directory();
    let path = file(directory.path(), &[1; 4096]);
    let null: File = opened("/dev/null".as_ref(), true, true, 0);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let options = OpenOptions::default();
    for (given, options, why) in [
        (opened(&path, false, true, 0), &options, "for writing only"),
        (opened(&path, true, true, libc::O_APPEND), &options, "for appending"),
        (opened(&path, true, false, libc::O_PATH), &options, "O_PATH"),
        (opened(&path, true, true, 0), &creating(4096), "cannot be created"),
        (opened(directory.path(), true, false, 0), &options, "is a directory"),
        (null, &options, "neither a regular file"),
        (OwnedFd::from(pipe).into(), &options, "neither a regular file"),
    ] {
        let text = Store::from_file("given", given, options).unwrap_err().to_string();
        assert!(text.starts_with("given: ") && text.contains(why), "{text}");
    }
}
