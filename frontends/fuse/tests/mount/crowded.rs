//! Many files: who may have them open, and what the mount keeps of them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use octavo::CacheMode;
use octavo_fuse::{Coherence, MountOptions, MountStat};
use rustix::thread::Uid;

use crate::rig::{ENFILE, PATIENCE, Rig, patiently, rig_with};

/// Two users other than root.
const GREEDY: u32 = 61_001;
const VICTIM: u32 = 61_002;

/// Runs `act` on a thread of a user.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn stat(rig: &Rig) -> MountStat {
    rig.mount.as_ref().unwrap().stat()
}

/// Makes files that everyone may use.
fn fill(rig: &Rig, count: usize) {
    let open_to_all =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open_to_all(rig.source.parent().unwrap(), 0o755);
    open_to_all(&rig.source, 0o777);
    for number in 0..count {
        let path = rig.source.join(number.to_string());
        fs::write(&path, number.to_string()).unwrap();
        open_to_all(&path, 0o666);
    }
}

fn open(rig: &Rig, number: usize) -> io::Result<File> {
    File::options().read(true).write(true).open(rig.target.join(number.to_string()))
}

/// Opens files until one is refused.
fn open_all(rig: &Rig, numbers: std::ops::Range<usize>) -> Vec<File> {
    let mut files = Vec::new();
    for number in numbers {
        match open(rig, number) {
            Ok(file) => files.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), ENFILE, "{error}");
                return files;
            }
        }
    }
    panic!("{} files are open", files.len());
}

/// Regression: one program that opened many files used up the server's descriptors, and requests of
/// other programs about their own open files failed with EMFILE.
#[test]
fn a_user_with_too_many_files_is_refused_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be several users");
        return;
    }
    for (coherence, mode) in [
        (Coherence::CloseToOpen, CacheMode::Writethrough),
        (Coherence::CloseToOpen, CacheMode::Writeback),
        (Coherence::Lease, CacheMode::Writethrough),
    ] {
        let most = 1200;
        let options = MountOptions { descriptors_max: Some(most), coherence, ..MountOptions::default() };
        let Some(mut rig) = rig_with(mode, &options) else { return };
        fill(&rig, 700);
        // Idle files and known ones take all descriptors, and give them back.
        for number in 0..700 {
            let path = rig.target.join(number.to_string());
            patiently(|| fs::write(&path, format!("{number} again")));
        }
        assert!(stat(&rig).files > 10 && stat(&rig).descriptors > most / 2, "{:?}", stat(&rig));

        let own: Vec<File> = as_user(VICTIM, || (0..4).map(|number| open(&rig, number).unwrap()).collect());
        let many = as_user(GREEDY, || open_all(&rig, 50..690));
        assert!((100..=300).contains(&many.len()), "{}", many.len());
        assert!(stat(&rig).refused > 0 && stat(&rig).descriptors <= most, "{:?}", stat(&rig));
        as_user(VICTIM, || {
            for (number, file) in own.iter().enumerate() {
                let mut bytes = [0; 2];
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(bytes, *format!("{number} ").as_bytes());
                file.write_all_at(b"?", 0).unwrap();
                file.sync_all().unwrap();
                file.set_len(5).unwrap();
                assert_eq!(file.metadata().unwrap().len(), 5);
            }
            assert_eq!(fs::read_dir(&rig.target).unwrap().count(), 700);
            let more = [open(&rig, 690).unwrap(), File::create(rig.target.join("new")).unwrap()];
            more.iter().for_each(|file| file.sync_all().unwrap());
            assert_eq!(fs::read(rig.target.join("691")).unwrap(), b"691 again");
            fs::remove_file(rig.target.join("new")).unwrap();
        });
        // Listing is possible for the other one, too, and so is what it has open.
        as_user(GREEDY, || {
            assert_eq!(fs::read_dir(&rig.target).unwrap().count(), 700);
            many.iter().for_each(|file| file.sync_all().unwrap());
            assert_eq!(open(&rig, 699).unwrap_err().raw_os_error(), ENFILE);
        });
        let count = many.len();
        drop(many);
        // The kernel tells of closes a little later.
        let started = Instant::now();
        while as_user(GREEDY, || open_all(&rig, 50..690)).len() < count {
            assert!(started.elapsed() < PATIENCE, "closed files are still counted");
        }
        drop(own);
        rig.stop();
        // Nothing that was written is lost.
        for number in 4..700 {
            let text = fs::read_to_string(rig.source.join(number.to_string())).unwrap();
            assert_eq!(text, format!("{number} again"));
        }
    }
}

/// Regression: the memory of kept files was bounded by the limit on descriptors alone, and not
/// charged to `memory_max`.
#[test]
fn kept_files_are_charged_and_bounded_by_memory() {
    let options = MountOptions { descriptors_max: Some(10_000), threads: 2, ..MountOptions::default() };
    let Some(rig) = rig_with(CacheMode::Writethrough, &options) else { return };
    let (used, most) = (rig.cache.stat().buffers_used_bytes, rig.cache.stat().buffers_max_bytes);
    let count = most / 2 / 2048 + 500;
    for number in 0..count {
        patiently(|| fs::write(rig.target.join(number.to_string()), b"small"));
    }
    let files = stat(&rig).files as u64;
    assert!(files > count / 8 && files <= most / 2 / 2048, "{files} of {count} are kept");
    let charged = rig.cache.stat().buffers_used_bytes - used;
    // Other buffers may have been freed.
    assert!(charged + (256 << 10) >= files * 2048, "{charged} for {files} files");
}

#[test]
fn files_that_nobody_uses_are_given_back() {
    let options = MountOptions { idle_max: Duration::from_millis(100), ..MountOptions::default() };
    let Some(mut rig) = rig_with(CacheMode::Writeback, &options) else { return };
    let used = stat(&rig).descriptors;
    let open = File::create(rig.target.join("open")).unwrap();
    for number in 0..100 {
        fs::write(rig.target.join(number.to_string()), number.to_string()).unwrap();
    }
    let started = Instant::now();
    while stat(&rig).files > 1 {
        assert!(started.elapsed() < PATIENCE, "{:?}", stat(&rig));
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{used} descriptors before, {} after", stat(&rig).descriptors);
    open.write_all_at(b"still", 0).unwrap();
    assert_eq!(fs::read_to_string(rig.target.join("7")).unwrap(), "7");
    drop(open);
    rig.stop();
    assert_eq!(fs::read_to_string(rig.source.join("open")).unwrap(), "still");
    assert_eq!(fs::read_to_string(rig.source.join("99")).unwrap(), "99");
}
