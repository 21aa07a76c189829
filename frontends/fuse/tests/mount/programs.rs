//! Programs that run from the mount.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use octavo::CacheMode;

use crate::rig::rig;

/// A program that waits for its standard input.
pub fn program() -> PathBuf {
    ["/usr/bin/cat", "/bin/cat"].iter().map(PathBuf::from).find(|path| path.exists()).unwrap()
}

/// Runs a program, and waits for its end. Another test's child may have inherited the descriptor
/// that wrote it, until it begins its own program.
pub fn run(path: &Path) -> io::Result<bool> {
    for _ in 0..200 {
        match Command::new(path).stdin(Stdio::null()).status() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended => return ended.map(|status| status.success()),
        }
    }
    Err(ErrorKind::ExecutableFileBusy.into())
}

fn refusal<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// The kernel refused to cut the program only after the file system had cut it (ATOMIC_O_TRUNC),
/// and the program died.
#[test]
fn a_running_program_can_be_neither_written_nor_cut() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let path = rig.target.join("program");
    fs::copy(program(), &path).unwrap();
    assert!(run(&path).unwrap());
    let mut child = Command::new(&path).stdin(Stdio::piped()).spawn().unwrap();
    let busy = Some(ErrorKind::ExecutableFileBusy);
    assert_eq!(refusal(OpenOptions::new().write(true).open(&path)), busy);
    let cut = rustix::fs::open(
        &path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC,
        rustix::fs::Mode::empty(),
    );
    assert_eq!(cut.unwrap_err(), rustix::io::Errno::TXTBSY);
    assert!(fs::read(&path).unwrap() == fs::read(program()).unwrap(), "it is whole");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_runs_once_nobody_has_it_open_for_writing() {
    let Some(rig) = rig(CacheMode::Writeback) else { return };
    let path = rig.target.join("program");
    fs::copy(program(), &path).unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let started = Command::new(&path).stdin(Stdio::null()).status();
    assert_eq!(refusal(started), Some(ErrorKind::ExecutableFileBusy));
    drop(file);
    assert!(run(&path).unwrap());
}

/// The mount kept each file that it had read open for writing.
#[test]
fn a_program_that_was_read_through_the_mount_runs_below() {
    let Some(rig) = rig(CacheMode::Writethrough) else { return };
    let (above, below) = (rig.target.join("program"), rig.source.join("program"));
    fs::copy(program(), &below).unwrap();
    fs::set_permissions(&below, fs::Permissions::from_mode(0o755)).unwrap();
    let file = fs::File::open(&above).unwrap();
    assert!(fs::read(&above).unwrap() == fs::read(program()).unwrap());
    assert!(run(&below).unwrap(), "while a program reads it through the mount");
    drop(file);
    assert!(run(&below).unwrap());
    // Both ways at once.
    assert!(run(&above).unwrap());
}
