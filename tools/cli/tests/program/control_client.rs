//! A client of the control socket that sends many requests over one connection.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

/// A connection to the control socket.
pub struct ControlClient(BufReader<UnixStream>);

impl ControlClient {
    pub fn connect(socket: &Path) -> ControlClient {
        ControlClient(BufReader::new(UnixStream::connect(socket).unwrap()))
    }

    /// Sends a request, and returns the last line of the answer. None if the server has gone.
    pub fn try_ask(&mut self, mut request: Value) -> Option<Value> {
        request["v"] = 1.into();
        self.0.get_mut().write_all(format!("{request}\n").as_bytes()).ok()?;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let answer: Value = serde_json::from_str(&line).ok()?;
            if answer.get("progress").is_none() {
                return Some(answer);
            }
        }
    }

    /// Sends a request, and returns the last line of the answer.
    pub fn ask(&mut self, request: Value) -> Value {
        self.try_ask(request).expect("the server answers")
    }

    /// Sends a request that must succeed.
    pub fn succeeds(&mut self, request: Value) -> Value {
        let mut answer = self.ask(request.clone());
        assert!(answer.get("ok").is_some(), "{request}: {answer}");
        answer["ok"].take()
    }
}
