//! A server that is killed: what was synced is below.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use octavo::CacheMode;
use octavo_random::mix;

use crate::server::{server, unmount};

const RECORD_BYTES: usize = 10_000;
const SLOTS: usize = 8;
const SYNCED_MIN: usize = 60;

fn record(writer: usize, version: usize) -> Vec<u8> {
    (0..RECORD_BYTES as u64).map(|at| mix(at ^ ((writer << 48 | version << 24) as u64)) as u8).collect()
}

/// Writes and syncs until the server is gone. Returns how many records were synced: another one may
/// have been written.
fn write(path: &Path, writer: usize, appends: bool, synced: &AtomicUsize) -> usize {
    let Ok(mut file) = OpenOptions::new().create(true).append(appends).write(true).open(path) else {
        return 0;
    };
    for version in 0.. {
        let bytes = record(writer, version);
        let written = match appends {
            true => file.write_all(&bytes),
            false => file.write_all_at(&bytes, (version % SLOTS * RECORD_BYTES) as u64),
        };
        if written.and_then(|()| file.sync_data()).is_err() {
            return version;
        }
        synced.fetch_add(1, Relaxed);
    }
    unreachable!()
}

fn check(path: &Path, writer: usize, appends: bool, synced: usize) {
    let found = fs::read(path).unwrap();
    for slot in 0..if appends { synced } else { synced.min(SLOTS) } {
        // The last synced version of the slot, and the one that was being written.
        let last = if appends { slot } else { slot + (synced - 1 - slot) / SLOTS * SLOTS };
        let next = if !appends && synced % SLOTS == slot { synced } else { last };
        let (last, next) = (record(writer, last), record(writer, next));
        let bytes = &found[slot * RECORD_BYTES..][..RECORD_BYTES];
        let wrong = (0..RECORD_BYTES).find(|at| bytes[*at] != last[*at] && bytes[*at] != next[*at]);
        assert_eq!(wrong, None, "{} of {synced} records: {slot} is lost", path.display());
    }
}

#[test]
fn a_killed_server_has_written_every_synced_byte_and_another_one_starts_at_once() {
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let Some(mut server) = server(mode) else { return };
        let target = server.target.clone();
        let path = |root: &Path, writer: usize| root.join(format!("file{writer}"));
        let synced = AtomicUsize::new(0);
        // Written and never synced: nothing is promised.
        let noise = File::create(target.join("noise")).unwrap();
        noise.write_all_at(&vec![1; 5 << 20], 0).unwrap();
        let counts: Vec<usize> = std::thread::scope(|scope| {
            let (synced, target) = (&synced, &target);
            let begin =
                |writer| scope.spawn(move || write(&path(target, writer), writer, writer % 2 == 1, synced));
            let writers: Vec<_> = (0..4).map(begin).collect();
            while synced.load(Relaxed) < SYNCED_MIN && writers.iter().any(|writer| !writer.is_finished()) {
                std::thread::yield_now();
            }
            server.kill();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert!(counts.iter().sum::<usize>() >= SYNCED_MIN, "{mode:?}: {counts:?}");
        let below = server.source.clone();
        (0..4).for_each(|writer| check(&path(&below, writer), writer, writer % 2 == 1, counts[writer]));
        // Elsewhere while the dead mount is still there, and in its place.
        assert!(fs::read(path(&target, 0)).is_err());
        let elsewhere = server.target.with_file_name("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        for next in [&elsewhere, &target] {
            if next == &target {
                assert!(unmount(&target), "the dead mount goes");
            }
            server.start_again(mode, next);
            for writer in 0..4 {
                assert!(fs::read(path(next, writer)).unwrap() == fs::read(path(&below, writer)).unwrap());
            }
            fs::write(next.join("new"), b"new").unwrap();
            server.stop();
            assert_eq!(fs::read(below.join("new")).unwrap(), b"new");
        }
    }
}
