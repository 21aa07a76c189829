//! Writing to standard output and standard error without panicking.
//!
//! `println!` panics when its reader has gone (`octavo ctl stat | head -1`). Here a reader that has
//! gone ends the output and nothing else: a server outlives its terminal.

use std::io::{ErrorKind, Write};

use crate::error::Error;

/// Writes text to standard output. A closed pipe is success: the reader has seen enough.
pub fn text(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error; there is nobody to tell if that fails.
pub fn error_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
