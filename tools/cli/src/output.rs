//! Writing to standard output and standard error without panicking.
//!
//! `println!` panics when its reader has gone (`octavo ctl stat | head -1`). Here a reader that has
//! gone is an error, [`Error::ReaderGone`], which ends a subcommand quietly and which a server
//! ignores.

use std::io::{ErrorKind, Write};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::closed;
use crate::error::Error;

/// How long a server waits until what it says at its start has been written.
const NOTICE_MAX: Duration = Duration::from_secs(1);

/// Writes text to standard output.
///
/// # Errors
///
/// [`Error::ReaderGone`] if it is a pipe that nobody reads any more; [`Error::Failed`] if it is
/// closed, or cannot be written to.
pub fn text(text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    must_be_open()?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Error::ReaderGone,
        _ => Error::failed(format!("cannot write to standard output: {error}")),
    })
}

/// Writes what a server says at its start. A server may outlive its terminal, so a standard output
/// that is closed, or that nobody reads any more, is no error. A full pipe must not keep the server
/// from serving: after a moment, a thread is left to wait for its reader.
pub fn notice(notice: &str) -> Result<(), Error> {
    let (told, tells) = sync_channel(1);
    let owned = notice.to_owned();
    let write = move || _ = told.send(text(&owned));
    let written = match std::thread::Builder::new().name("notice".into()).spawn(write) {
        Ok(_) => tells.recv_timeout(NOTICE_MAX).unwrap_or_else(|_| {
            log::warn!("standard output is not read; the server does not wait for its reader");
            Ok(())
        }),
        Err(_) => text(notice),
    };
    match written {
        Err(Error::ReaderGone) => Ok(()),
        Err(_) if closed::standard_output() => Ok(()),
        other => other,
    }
}

/// The error of a standard output that was closed when the program started.
pub fn must_be_open() -> Result<(), Error> {
    match closed::standard_output() {
        true => Err(Error::failed("cannot write to standard output: it is closed")),
        false => Ok(()),
    }
}

/// Writes a line to standard error. A failure is ignored: there is nowhere to report it.
pub fn error_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
