//! Locks of stores: which openings are refused, and the errors that they get.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use octavo_disk::{Op, OpenError, OpenOptions, Store};

use crate::fixture::*;

const READ_ONLY: OpenOptions =
    OpenOptions { read_only: true, direct: true, lock: true, create_len_bytes: None };

#[test]
fn a_second_opening_in_this_process_is_refused_and_names_both_paths() {
    for directory in directories() {
        let path = file(directory.path(), &[0; 4096]);
        let other = directory.path().join("another-name");
        fs::hard_link(&path, &other).unwrap();
        let store = open(&path);
        let refused = Store::open(&other, &OpenOptions::default()).unwrap_err();
        assert!(matches!(refused, OpenError::Locked { .. }));
        let text = refused.to_string();
        assert!(text.contains(other.to_str().unwrap()) && text.contains(path.to_str().unwrap()), "{text}");
        assert!(Store::open(&path, &READ_ONLY).is_err(), "a reader beside a writer");
        drop(store);
        drop(open(&other));
        let readers = [Store::open(&path, &READ_ONLY).unwrap(), Store::open(&other, &READ_ONLY).unwrap()];
        assert!(Store::open(&path, &OpenOptions::default()).is_err(), "a writer beside readers");
        assert_eq!(readers[0].identity(), readers[1].identity());
        drop(readers);
        drop(open(&path));
    }
}

#[test]
fn a_clone_keeps_the_lock_and_an_opening_without_a_lock_ignores_locks() {
    let directory = directory();
    let path = file(directory.path(), &[0; 4096]);
    let store = open(&path);
    let clone = store.clone();
    drop(store);
    assert!(Store::open(&path, &OpenOptions::default()).is_err());
    drop(Store::open(&path, &OpenOptions { lock: false, ..OpenOptions::default() }).unwrap());
    let refused = Store::open(&path, &OpenOptions::default());
    assert!(refused.is_err(), "an opening without a lock releases no lock");
    drop(clone);
    drop(open(&path));
}

/// K1 to K3: the file is closed when the last handle that keeps it open has let go or is dropped,
/// though a ring has registered it and other handles exist.
#[test]
fn a_store_is_closed_once_no_handle_keeps_it_open() {
    for (directory, ring) in rigs(8) {
        let path = file(directory.path(), &pattern(1, 4096 + 100));
        let leads_there = || {
            let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
            let path = path.canonicalize().unwrap();
            all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == path)).count()
        };
        let store = open(&path);
        let (kept, weak) = (store.clone(), store.downgrade());
        assert_eq!(read(&ring, &store, 0, 4096), pattern(1, 4096 + 100)[..4096]);
        store.let_go();
        store.let_go();
        assert!(!store.is_closed(), "another handle keeps it open");
        // A handle that has let go can be used until then.
        assert_eq!(read(&ring, &store, 0, 4096), pattern(1, 4096 + 100)[..4096]);
        assert!(weak.upgrade().is_some() && Store::open(&path, &OpenOptions::default()).is_err());
        drop(kept);
        assert!(store.is_closed() && weak.upgrade().is_none());
        assert_eq!(leads_there(), 0);
        // Another process may change the file now.
        let again = open(&path);
        write(&ring, &again, 0, &pattern(2, 4096));
        let page = aligned(&[0; 4096]);
        let failed = transfer(&ring, &store, Op::Read, 0, &page).unwrap_err();
        assert_eq!(failed.errno(), libc::EBADF);
        assert!(transfer(&ring, &store, Op::Write, 0, &page).is_err() && sync(&ring, &store).is_err());
        assert!(store.set_len_bytes(0).is_err() && store.adopt_len_bytes().is_err());
        assert!(store.clone().is_closed());
        drop(store);
        assert_eq!(read(&ring, &again, 0, 4096), pattern(2, 4096));
        assert!(Store::open(&path, &OpenOptions::default()).is_err(), "it is locked");
    }
}

/// Runs this binary as a child that opens `path` and holds it while `test` runs.
fn with_holder(path: &Path, read_only: bool, test: impl FnOnce(u32)) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ownership::a_child_that_holds_a_store", "--ignored", "--nocapture"])
        .env("OCTAVO_DISK_HOLD", path)
        .env("OCTAVO_DISK_HOLD_READ_ONLY", if read_only { "1" } else { "0" })
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    assert!(lines.any(|line| line.contains("holding")), "the child could not open the store");
    test(child.id());
    drop(child.stdin.take());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "runs as a child of other tests"]
fn a_child_that_holds_a_store() {
    let path = std::env::var("OCTAVO_DISK_HOLD").unwrap();
    let read_only = std::env::var("OCTAVO_DISK_HOLD_READ_ONLY").unwrap() == "1";
    let _store = Store::open(path.as_ref(), &OpenOptions { read_only, ..OpenOptions::default() }).unwrap();
    println!("holding");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn an_opening_by_a_second_process_is_refused_and_names_the_first() {
    let directory = directory();
    let path = file(directory.path(), &[0; 4096]);
    with_holder(&path, false, |pid| {
        for options in [OpenOptions::default(), READ_ONLY] {
            let text = Store::open(&path, &options).unwrap_err().to_string();
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert!(text.contains(&format!("process {pid} ")), "{text}");
        }
    });
    drop(open(&path));
    with_holder(&path, true, |_| {
        drop(Store::open(&path, &READ_ONLY).unwrap());
        assert!(matches!(Store::open(&path, &OpenOptions::default()), Err(OpenError::Locked { .. })));
    });
}

#[test]
fn a_path_that_cannot_be_a_store_is_refused_with_its_name_and_the_reason() {
    let directory = directory();
    let refused = |path: &Path| {
        let error = Store::open(path, &OpenOptions::default()).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error
    };
    assert!(matches!(refused(&directory.path().join("missing")), OpenError::NotFound { .. }));
    assert!(matches!(refused(directory.path()), OpenError::IsDirectory { .. }));
    assert!(matches!(refused("/dev/null".as_ref()), OpenError::NotAFileOrDevice { .. }));
    let read_only = Path::new("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    if read_only.exists() {
        assert!(matches!(refused(read_only), OpenError::Permission { .. }));
    } else {
        eprintln!("skipped: no {}, which no process may write", read_only.display());
    }
}

#[test]
fn a_rehearsal_fails_as_opening_would_and_takes_no_lock() {
    let directory = directory();
    let path = file(directory.path(), &pattern(1, 5000));
    let owner = open(&path);
    let rehearsed = Store::rehearse(&path, &OpenOptions::default()).unwrap();
    assert_eq!((rehearsed.len_bytes(), rehearsed.read_only()), (5000, true));
    assert!(matches!(Store::open(&path, &OpenOptions::default()), Err(OpenError::Locked { .. })));
    drop(owner);
    assert!(Store::open(&path, &OpenOptions::default()).is_ok(), "the rehearsal holds no lock");
    for wrong in [directory.path().to_owned(), directory.path().join("absent"), "/dev/null".into()] {
        let [one, other] = [Store::open, Store::rehearse].map(|open| open(&wrong, &OpenOptions::default()));
        assert_eq!(one.unwrap_err().to_string(), other.unwrap_err().to_string());
    }
}

#[test]
fn a_file_has_one_identity_by_all_its_names_and_a_new_file_has_another() {
    for directory in directories() {
        let path = file(directory.path(), &[0; 4096]);
        let other = directory.path().join("another-name");
        fs::hard_link(&path, &other).unwrap();
        let unlocked = OpenOptions { lock: false, ..OpenOptions::default() };
        let identity = |path: &Path| Store::open(path, &unlocked).unwrap().identity().unwrap();
        let first = identity(&path);
        assert_eq!(first, identity(&other));
        fs::remove_file(&other).unwrap();
        fs::rename(&path, &other).unwrap();
        assert_eq!(first, identity(&other), "a file that moves keeps its identity");
        if first.as_bytes()[0] == b'i' {
            eprintln!("skipped: {} has neither handles nor generation numbers", directory.path().display());
            continue;
        }
        let mut identities = std::collections::HashSet::from([first]);
        for _ in 0..20 {
            fs::remove_file(&other).unwrap();
            // ext4 gives the new file the inode number of the removed one.
            fs::write(&other, [0; 4096]).unwrap();
            assert!(identities.insert(identity(&other)), "two files have the same identity");
        }
    }
}
