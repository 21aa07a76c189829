//! A mount in the background: the program runs itself again, and waits for a line that says that
//! the mount is usable.
//!
//! The second process is no child of a fork: it has one thread, and nothing of the first one's
//! memory. Its standard output is a pipe to the first process, which ends when a line arrives.
//! Until then, errors go to the standard error of the first process; afterwards to a log, which has
//! at most [`LOG_BYTES_MAX`], and a predecessor of the same length.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use super::place;
use crate::error::Error;
use crate::{logger, output, own};

/// The length at which a log becomes the predecessor of a new one, in bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Runs the program with these words in the background. Returns once its mount, at `path`, is
/// usable. Leaves nothing mounted otherwise.
pub fn start(words: impl IntoIterator<Item = OsString>, path: &Path, quiet: bool) -> Result<(), Error> {
    let failed = |error| Error::failed(format!("cannot run in the background: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = process.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if line.ends_with('\n') {
        return if quiet { Ok(()) } else { output::notice(&line) };
    }
    // It has said why.
    let status = process.wait().map_err(failed)?;
    // Or it was killed, and could not clean up.
    place::remove_dead(path);
    match (status.code(), status.signal()) {
        (Some(2), _) => Err(Error::Config(Vec::new())),
        (_, Some(signal)) => Err(Error::failed(format!("ended by signal {signal} before it was mounted"))),
        _ => Err(Error::Failed(Vec::new())),
    }
}

/// Leaves the session and the working directory of the process that started this one. Call it
/// before threads start.
pub fn leave() {
    // It fails for the leader of a session, which needs no other.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}

/// Says that the mount is usable, and closes standard output and standard error, so that no reader
/// of them waits for this process. The log goes to a file, if there is one.
pub fn ready(line: &str, log: Option<&Path>) -> Result<(), Error> {
    let nothing = File::options().read(true).write(true).open("/dev/null");
    let nothing = nothing.map_err(|error| Error::failed(format!("cannot open /dev/null: {error}")))?;
    let failed = |errno| Error::failed(format!("cannot close standard output: {errno}"));
    let errors = match log {
        Some(path) => open_log(path)?,
        None => nothing.try_clone().map_err(|error| Error::failed(error.to_string()))?,
    };
    output::notice(line)?;
    // Lines of before belong to the first process.
    logger::flush();
    rustix::stdio::dup2_stdout(&nothing).map_err(failed)?;
    rustix::stdio::dup2_stderr(&errors).map_err(failed)
}

/// Opens the file that gets the log, or makes it; not through a link that leads nowhere, which
/// would make it somewhere else.
pub fn open_log(path: &Path) -> Result<File, Error> {
    // The mount must not log to itself.
    own::check(path).map_err(|why| Error::failed(format!("the log {} {why}", path.display())))?;
    let opened = match File::options().append(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            File::options().create_new(true).append(true).open(path)
        }
        opened => opened,
    };
    opened.map_err(|error| Error::failed(format!("cannot open the log {}: {error}", path.display())))
}

/// Bounds the log of this process: it becomes the predecessor of a new one when it is long enough.
/// Files that are no regular ones are left alone.
pub fn bound_log(path: PathBuf) -> Result<(), Error> {
    let failed = |error| Error::failed(format!("cannot start a thread: {error}"));
    let (told, lines) = sync_channel(1);
    // One message is enough, however many lines there are.
    logger::listen(move |_| _ = told.try_send(()));
    let keep = move || keep_short(&path, &lines);
    std::thread::Builder::new().name("log".into()).spawn(keep).map_err(failed)?;
    Ok(())
}

/// A thread of its own: the directory of the log may hang, and lines must not wait for it.
fn keep_short(path: &Path, lines: &Receiver<()>) {
    while lines.recv().is_ok() {
        if let Ok(Some(fresh)) = rotated(path, LOG_BYTES_MAX) {
            // It fails only for descriptors that are not open.
            let _ = rustix::stdio::dup2_stderr(&fresh);
        }
    }
}

/// Renames a log of this length or more to that of its predecessor. Returns a new one.
fn rotated(path: &Path, bytes_max: u64) -> std::io::Result<Option<File>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_file() || metadata.len() < bytes_max {
        return Ok(None);
    }
    std::fs::rename(path, predecessor(path))?;
    File::options().create(true).append(true).open(path).map(Some)
}

/// The log before this one: `mount.log.1`.
fn predecessor(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("log")).to_owned();
    name.push(".1");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_one_predecessor() {
        let directory = std::env::temp_dir().join(format!("octavo-daemon-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("mount.log");
        for text in ["first", "second", "third"] {
            std::fs::write(&path, text).unwrap();
            assert!(rotated(&path, 100).unwrap().is_none());
            assert!(rotated(&path, 5).unwrap().is_some());
            assert_eq!(std::fs::read_to_string(directory.join("mount.log.1")).unwrap(), text);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
