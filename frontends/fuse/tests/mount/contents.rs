//! The bytes of files.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use octavo::CacheMode;
use octavo_fuse::MountOptions;

use crate::mapping::Mapping;
use crate::rig::{rig, rig_with};
use crate::server::{Server, server};

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

#[test]
fn what_is_written_is_read_again_and_is_below_after_a_sync() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let Some(mut rig) = rig(mode) else { return };
        let expected = bytes(3_000_001, 1);
        let path = rig.target.join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(&expected).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(rig.source.join("file")).unwrap() == expected, "{mode:?}: below, after the sync");
        assert!(fs::read(&path).unwrap() == expected, "{mode:?}: through the mount");
        file.write_all_at(&[0xA5; 5000], 100_000).unwrap();
        let mut changed = expected.clone();
        changed[100_000..105_000].fill(0xA5);
        assert!(fs::read(&path).unwrap() == changed, "{mode:?}: after a change inside");
        drop(file);
        rig.stop();
        assert!(fs::read(rig.source.join("file")).unwrap() == changed, "{mode:?}: below, after the mount");
    }
}

#[test]
fn a_second_read_is_served_from_memory() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let expected = bytes(1 << 20, 2);
    fs::write(rig.source.join("file"), &expected).unwrap();
    let path = rig.target.join("file");
    assert!(fs::read(&path).unwrap() == expected);
    let first = rig.partition.stat();
    assert!(first.fills >= 256, "{first:?}");
    assert!(fs::read(&path).unwrap() == expected);
    let second = rig.partition.stat();
    assert_eq!((second.fills, second.misses), (first.fills, first.misses));
    assert!(second.hits >= first.hits + 256);
}

#[test]
fn files_are_cut_lengthened_and_appended_to() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let Some(mut rig) = rig(mode) else { return };
        let path = rig.target.join("file");
        fs::write(&path, bytes(10_000, 3)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.set_len(5_000).unwrap();
        file.set_len(9_000).unwrap();
        let mut expected = bytes(10_000, 3);
        expected.truncate(5_000);
        expected.resize(9_000, 0);
        assert!(fs::read(&path).unwrap() == expected, "{mode:?}: cut and lengthened");
        let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
        for number in 0..50_u8 {
            appending.write_all(&[number; 333]).unwrap();
            expected.extend([number; 333]);
        }
        assert!(fs::read(&path).unwrap() == expected, "{mode:?}: appended");
        assert_eq!(fs::metadata(&path).unwrap().len(), expected.len() as u64);
        // A hole, and bytes behind it.
        file.write_all_at(b"end", 1 << 20).unwrap();
        expected.resize(1 << 20, 0);
        expected.extend(b"end");
        assert!(fs::read(&path).unwrap() == expected, "{mode:?}: a hole");
        drop((file, appending));
        rig.stop();
        assert!(fs::read(rig.source.join("file")).unwrap() == expected, "{mode:?}: below");
    }
}

#[test]
fn a_removed_file_lives_until_its_last_close() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let path = rig.target.join("file");
    fs::write(&path, b"first").unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b" and last").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first and last");
}

#[test]
fn a_file_that_another_program_changes_while_nobody_has_it_open_is_read_anew() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, bytes(100_000, 4)).unwrap();
    assert!(fs::read(&above).unwrap() == bytes(100_000, 4));
    fs::write(&below, bytes(70_000, 5)).unwrap();
    assert!(fs::read(&above).unwrap() == bytes(70_000, 5));
}

/// The cache's own write-backs change the file's times, too. They must not be taken for another
/// program's changes.
#[test]
fn write_backs_between_opens_drop_no_pages() {
    let Some(rig) = rig(CacheMode::Writeback) else { return };
    let path = rig.target.join("file");
    let mut expected = bytes(200_000, 6);
    fs::write(&path, &expected).unwrap();
    for round in 0..5_u8 {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&[round; 10_000], 15_000 * u64::from(round)).unwrap();
        expected[15_000 * usize::from(round)..][..10_000].fill(round);
        drop(file);
        rig.partition.sync().unwrap();
        let fills = rig.partition.stat().fills;
        assert!(fs::read(&path).unwrap() == expected, "round {round}");
        assert_eq!(rig.partition.stat().fills, fills, "round {round}: pages were read again");
    }
}

#[test]
fn an_open_sees_what_another_program_has_changed_while_the_file_was_open() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, bytes(100_000, 7)).unwrap();
    let _open = File::open(&above).unwrap();
    assert!(fs::read(&above).unwrap() == bytes(100_000, 7));
    fs::write(&below, bytes(120_000, 8)).unwrap();
    assert!(fs::read(&above).unwrap() == bytes(120_000, 8));
}

/// `tail -f` asks for the length again and again, and reads what is new.
#[test]
fn what_another_program_appends_is_read_once_the_length_was_asked_for() {
    let options = MountOptions { valid: Some(Duration::ZERO), ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writethrough, &options) else { return };
    let (above, below) = (rig.target.join("log"), rig.source.join("log"));
    fs::write(&below, b"first\n").unwrap();
    let mut file = File::open(&above).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let mut writer = OpenOptions::new().append(true).open(&below).unwrap();
    for number in 0..20 {
        writer.write_all(format!("line {number}\n").as_bytes()).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        file.read_to_string(&mut text).unwrap();
        assert!(text.len() == len && text.ends_with(&format!("line {number}\n")), "{text:?}");
    }
}

/// Writes and stores to the same pages at the same time. Returns whether one of them was lost.
fn loses_a_write(server: &Server) -> bool {
    const PAGES: usize = 256;
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    let file = options.open(server.target.join("file")).unwrap();
    file.set_len(PAGES as u64 * 4096).unwrap();
    let mapping = Mapping::new(file.as_fd(), 0, PAGES * 4096, true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..PAGES).for_each(|page| mapping.store(page * 4096 + 3072, 2)));
        for page in 0..PAGES {
            file.write_all_at(&[1; 8], page as u64 * 4096 + 1024).unwrap();
        }
    });
    mapping.sync().unwrap();
    let bytes = mapping.read(PAGES * 4096);
    assert!(bytes.chunks(4096).all(|page| page[3072] == 2), "a store is lost");
    bytes.chunks(4096).any(|page| page[1024] != 1)
}

/// The kernel read a page while a write of it was under way, and kept the bytes from before: what
/// was written was not in the mapping, and the page's write-back put the old bytes over it. A
/// moment is left in the kernel, between its look at its own pages and its request, which few
/// rounds hit. xfstests generic/346.
#[test]
fn a_mapping_gets_the_bytes_of_a_write_that_is_under_way() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let Some(server) = server(mode) else { return };
        let lost = (0..20).filter(|_| loses_a_write(&server)).count();
        println!("{mode:?}: {lost} of 20 rounds have lost a write");
        assert!(lost < 10, "{mode:?}: {lost} of 20 rounds have lost a write");
    }
}
