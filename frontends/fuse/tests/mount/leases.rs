//! Pages that are kept under leases: a mount and programs beside it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use octavo::CacheMode;
use octavo_fuse::{Coherence, MountOptions, MountStat};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use crate::mapping::Mapping;
use crate::programs::{program, run};
use crate::rig::{PATIENCE, Rig, rig_with};
use crate::server::lease_server;

const LEN: usize = 20_000;

fn lease_rig() -> Option<Rig> {
    // Names are as old as this at most.
    let valid = Some(Duration::ZERO);
    let options = MountOptions { coherence: Coherence::Lease, valid, ..MountOptions::default() };
    rig_with(CacheMode::Writethrough, &options)
}

fn stat(rig: &Rig) -> MountStat {
    rig.mount.as_ref().unwrap().stat()
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 2 * LEN];
    let len = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

fn writer(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// Waits for a lease: the kernel tells the mount of a program's last close later.
fn read_until_leased(rig: &Rig, path: &Path) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        let bytes = fs::read(path).unwrap();
        if stat(rig).leases > 0 {
            return bytes;
        }
        assert!(begin.elapsed() < PATIENCE, "{:?}", stat(rig));
    }
}

#[test]
fn each_read_sees_what_another_program_wrote_before() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    let kept = File::open(&above).unwrap();
    for round in 1..=200_u8 {
        writer(&below).write_all_at(&[round; LEN], 0).unwrap();
        assert!(read(&kept) == [round; LEN], "round {round}");
        // The first read takes the lease, the second one finds the pages.
        assert!(fs::read(&above).unwrap() == [round; LEN], "round {round}");
        assert!(fs::read(&above).unwrap() == [round; LEN], "round {round}");
    }
    let (stat, cache) = (stat(&rig), rig.partition.stat());
    assert!(stat.lease_breaks >= 150 && cache.hits >= 150, "{stat:?}, {cache:?}");
}

#[test]
fn a_file_that_nobody_has_open_keeps_its_lease_and_its_pages() {
    let Some(rig) = lease_rig() else { return };
    let above = rig.target.join("file");
    fs::write(rig.source.join("file"), vec![1; LEN]).unwrap();
    assert!(read_until_leased(&rig, &above) == [1; LEN]);
    assert!(fs::read(&above).unwrap() == [1; LEN]);
    let fills = rig.partition.stat().fills;
    assert!(fills > 0);
    for _ in 0..10 {
        assert!(fs::read(&above).unwrap() == [1; LEN]);
    }
    assert_eq!((rig.partition.stat().fills, stat(&rig).leases), (fills, 1));
}

#[test]
fn a_file_that_another_program_has_open_for_writing_is_not_cached() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    let (mut writer, reader) = (writer(&below), File::open(&above).unwrap());
    for round in 1..=100_u8 {
        writer.write_all_at(&[round; LEN], 0).unwrap();
        assert!(read(&reader) == [round; LEN]);
        assert!(fs::read(&above).unwrap() == [round; LEN]);
    }
    assert_eq!((stat(&rig).leases, rig.partition.stat().fills), (0, 0));
    // Shorter, longer, appended to.
    writer.set_len(5).unwrap();
    assert_eq!((read(&reader), fs::metadata(&above).unwrap().len()), (vec![100; 5], 5));
    writer.set_len(7).unwrap();
    assert_eq!((read(&reader), reader.metadata().unwrap().len()), (vec![100, 100, 100, 100, 100, 0, 0], 7));
    std::io::Seek::seek(&mut writer, std::io::SeekFrom::End(0)).unwrap();
    writer.write_all(b"end").unwrap();
    assert_eq!((read(&reader).len(), fs::metadata(&above).unwrap().len()), (10, 10));
    drop(writer);
    assert_eq!(read_until_leased(&rig, &above).len(), 10);
}

#[test]
fn a_cut_an_extension_and_a_write_of_a_cached_file_are_seen_at_once() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![1; LEN]).unwrap();
    for len in [LEN / 2, LEN, 0, 4096, 1, LEN] {
        assert_eq!(stat(&rig).lease_breaks > 0, len != LEN / 2);
        let before = read_until_leased(&rig, &above).len();
        assert_eq!(fs::metadata(&above).unwrap().len(), before as u64);
        let kept = File::open(&above).unwrap();
        writer(&below).set_len(len as u64).unwrap();
        assert_eq!((read(&kept).len(), kept.metadata().unwrap().len()), (len, len as u64));
        assert_eq!(fs::metadata(&above).unwrap().len(), len as u64);
    }
}

/// The kernel breaks no lease for `open` with O_RDONLY and O_TRUNC. The next open sees the length.
#[test]
fn a_cut_by_an_open_for_reading_is_seen_at_the_next_open() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![1; LEN]).unwrap();
    read_until_leased(&rig, &above);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
    rustix::fs::open(&below, flags, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(fs::read(&above).unwrap(), b"");
}

#[test]
fn renamed_and_removed_files_stay_what_they_were() {
    let Some(rig) = lease_rig() else { return };
    let (above, below, other) = (rig.target.join("file"), rig.source.join("file"), rig.source.join("other"));
    fs::write(&below, vec![1; LEN]).unwrap();
    fs::write(&other, vec![2; LEN]).unwrap();
    read_until_leased(&rig, &above);
    let kept = File::open(&above).unwrap();
    fs::rename(&other, &below).unwrap();
    assert!(read(&kept) == [1; LEN]);
    assert!(fs::read(&above).unwrap() == [2; LEN]);
    fs::remove_file(&below).unwrap();
    assert!(read(&kept) == [1; LEN]);
    assert!(fs::read(&above).is_err());
}

/// The mount gives its own lease back before it opens the file.
#[test]
fn a_program_on_the_mount_writes_without_a_break() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    for round in 1..=50_u8 {
        assert!(read_until_leased(&rig, &above) == [round - 1; LEN]);
        let file = OpenOptions::new().read(true).write(true).open(&above).unwrap();
        file.write_all_at(&[round; LEN], 0).unwrap();
        assert!(fs::read(&below).unwrap() == [round; LEN] && read(&file) == [round; LEN]);
        file.sync_all().unwrap();
        assert_eq!(stat(&rig).leases, 0);
    }
    let mut appending = OpenOptions::new().append(true).open(&above).unwrap();
    OpenOptions::new().append(true).open(&below).unwrap().write_all(b"beside").unwrap();
    appending.write_all(b"above").unwrap();
    assert!(fs::read(&below).unwrap().ends_with(b"besideabove"));
    assert_eq!(stat(&rig).lease_breaks, 0);
}

#[test]
fn writers_come_through_while_programs_read() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    let is_over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let bytes = fs::read(&above).unwrap();
                    assert_eq!(bytes.len(), LEN);
                }
            });
        }
        let mut refused = 0_u64;
        for round in 1..=50_u8 {
            read_until_leased(&rig, &above);
            // Refused at once if there is a lease. Then it is being given back.
            let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let mut options = OpenOptions::new();
            let hasty = options.write(true).custom_flags(flags).open(&below);
            refused += u64::from(hasty.is_err());
            writer(&below).write_all_at(&[round; LEN], 0).unwrap();
        }
        is_over.store(true, Relaxed);
        refused
    });
    assert!(fs::read(&above).unwrap() == [50; LEN]);
    // A writer that finds no lease, because it was just given back, breaks none.
    assert!(refused > 0 && stat(&rig).lease_breaks >= refused);
}

#[test]
fn a_program_on_the_mount_runs_above_and_below() {
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("program"), rig.source.join("program"));
    fs::copy(program(), &above).unwrap();
    fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).unwrap();
    for round in 0..3 {
        assert!(run(&above).unwrap() && run(&below).unwrap(), "round {round}");
        assert!(read_until_leased(&rig, &above) == fs::read(program()).unwrap());
        assert!(run(&below).unwrap());
        // The same program, written again.
        writer(&below).write_all(&fs::read(program()).unwrap()).unwrap();
    }
}

#[test]
fn a_mount_that_ends_gives_its_leases_back() {
    let Some(mut rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![1; LEN]).unwrap();
    read_until_leased(&rig, &above);
    let _kept = File::open(&above).unwrap();
    rig.stop();
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().write(true).custom_flags(flags).open(&below).unwrap();
}

/// The kernel then sends a signal that does not name the file.
#[test]
fn a_lease_is_given_back_when_no_more_signals_can_wait() {
    let Some(mut server) = lease_server(CacheMode::Writethrough) else { return };
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::prlimit(Some(server.process()), Resource::Sigpending, none).unwrap();
    let (above, below) = (server.target.join("file"), server.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    for round in 1..=20_u8 {
        assert!(fs::read(&above).unwrap() == [round - 1; LEN]);
        assert!(fs::read(&above).unwrap() == [round - 1; LEN]);
        let begin = Instant::now();
        writer(&below).write_all_at(&[round; LEN], 0).unwrap();
        // The kernel would take the lease away after 45 s.
        assert!(begin.elapsed() < PATIENCE);
    }
    server.stop();
}

/// Without CAP_LEASE, a server has no leases for other users' files.
#[test]
fn a_file_for_which_there_is_no_lease_is_read_without_the_cache() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root gives files away");
    }
    // The threads of the mount get the capabilities of this one.
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective -= CapabilitySet::LEASE;
    sets.permitted -= CapabilitySet::LEASE;
    rustix::thread::set_capabilities(None, sets).unwrap();
    let Some(rig) = lease_rig() else { return };
    let (above, below) = (rig.target.join("file"), rig.source.join("file"));
    fs::write(&below, vec![0; LEN]).unwrap();
    std::os::unix::fs::chown(&below, Some(65534), None).unwrap();
    let kept = File::open(&above).unwrap();
    for round in 1..=50_u8 {
        writer(&below).write_all_at(&[round; LEN], 0).unwrap();
        assert!(read(&kept) == [round; LEN] && fs::read(&above).unwrap() == [round; LEN]);
    }
    assert_eq!((stat(&rig).leases, rig.partition.stat().fills), (0, 0));
}

/// The kernel takes a lease away that is not given back in time. Takes 45 s.
#[test]
#[ignore = "waits for /proc/sys/fs/lease-break-time"]
fn a_server_that_was_stopped_too_long_serves_nothing_old() {
    let Some(mut server) = lease_server(CacheMode::Writethrough) else { return };
    let (above, below) = (server.target.join("file"), server.source.join("file"));
    fs::write(&below, vec![1; LEN]).unwrap();
    assert!(fs::read(&above).unwrap() == [1; LEN]);
    let kept: Vec<File> = (0..8).map(|_| File::open(&above).unwrap()).collect();
    assert!(kept.iter().all(|file| read(file) == [1; LEN]));
    let signal = |signal| rustix::process::kill_process(server.process(), signal).unwrap();
    signal(rustix::process::Signal::STOP);
    writer(&below).write_all_at(&[2; LEN], 0).unwrap();
    std::thread::scope(|scope| {
        for file in &kept {
            scope.spawn(|| assert!(read(file) == [2; LEN]));
        }
        // The stopped server will find the reads waiting as soon as it continues.
        std::thread::sleep(Duration::from_millis(300));
        signal(rustix::process::Signal::CONT);
    });
    drop(kept);
    server.stop();
}

#[test]
fn files_that_are_closed_for_others_give_their_leases_back() {
    let coherence = Coherence::Lease;
    let options = MountOptions { coherence, files_max: 16, ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writethrough, &options) else { return };
    for number in 0..40 {
        let name = format!("file{number}");
        fs::write(rig.source.join(&name), vec![number; LEN]).unwrap();
        assert!(fs::read(rig.target.join(&name)).unwrap() == [number; LEN]);
    }
    let stat = stat(&rig);
    assert!(stat.leases <= 17 && stat.leases >= 10, "{stat:?}");
    for number in 0..40 {
        writer(&rig.source.join(format!("file{number}"))).write_all_at(b"new", 0).unwrap();
        assert!(fs::read(rig.target.join(format!("file{number}"))).unwrap().starts_with(b"new"));
    }
}

#[test]
fn a_mapping_shows_what_another_program_has_written_once_the_lease_is_back() {
    let Some(mut server) = lease_server(CacheMode::Writethrough) else { return };
    let (above, below) = (server.target.join("file"), server.source.join("file"));
    fs::write(&below, vec![0; 4096]).unwrap();
    let file = File::open(&above).unwrap();
    let Ok(mapping) = Mapping::new(file.as_fd(), 0, 4096, false) else { return };
    for round in 1..=20_u8 {
        assert!(mapping.read(4096) == [round - 1; 4096], "round {round}");
        writer(&below).write_all_at(&[round; 4096], 0).unwrap();
        let begin = Instant::now();
        while mapping.read(4096) != [round; 4096] {
            assert!(begin.elapsed() < PATIENCE, "round {round}");
            File::open(&above).unwrap();
        }
    }
    drop(mapping);
    drop(file);
    server.stop();
}
