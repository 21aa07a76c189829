//! A mount in the background: the program runs itself again, and waits for a line that says that
//! the mount is usable.
//!
//! The second process is no child of a fork: it has one thread, and nothing of the first one's
//! memory. Its standard output is a pipe to the first process, which ends when a line arrives.
//! Until then, errors go to the standard error of the first process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::{logger, output, own};

/// Runs the program with these words in the background. Returns once its mount is usable.
pub fn start(words: impl IntoIterator<Item = OsString>, quiet: bool) -> Result<(), Error> {
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

/// Opens the file that gets the log.
pub fn open_log(path: &Path) -> Result<File, Error> {
    // The mount must not log to itself.
    own::check(path).map_err(|why| Error::failed(format!("the log {} {why}", path.display())))?;
    let opened = File::options().create(true).append(true).open(path);
    opened.map_err(|error| Error::failed(format!("cannot open the log {}: {error}", path.display())))
}
