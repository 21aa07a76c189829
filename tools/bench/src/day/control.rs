//! Requests to the server's control socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::Error;

/// The longest time for an answer, or for a part of it. Longer than a server waits for a store.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Sends a request, and returns what `ok` contains.
///
/// # Errors
///
/// The server refuses, or does not answer.
pub fn ask(socket: &Path, mut request: Value) -> Result<Value, Error> {
    request["v"] = 1.into();
    let wrong = |error: std::io::Error| Error::new(format!("{}: {error}", request["do"]));
    let mut stream = UnixStream::connect(socket).map_err(wrong)?;
    stream.set_read_timeout(Some(ANSWER_MAX)).map_err(wrong)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(wrong)?;
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).map_err(wrong)? == 0 {
            return Err(Error::new(format!("{}: the server ended without an answer", request["do"])));
        }
        let mut answer: Value = serde_json::from_str(&line).map_err(Error::at("an answer is no JSON"))?;
        if let Some(error) = answer.get("error") {
            return Err(Error::new(format!("the server refuses {request}: {error}")));
        }
        if answer.get("ok").is_some() {
            return Ok(answer["ok"].take());
        }
    }
}
