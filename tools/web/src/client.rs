//! Asks a server over its control socket, one request at a time, on one connection.
//!
//! A connection that fails, answers too late or answers nonsense is closed; the next request opens
//! another. So a late answer is never taken for that of another request.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// The version of the protocol.
const VERSION: u64 = 1;

/// The longest reply in bytes, the same as that of `octavo ctl`.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// The most progress lines before an answer. Requests of this crate have none.
const PROGRESS_LINES_MAX: usize = 64;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server cannot be reached, or does not answer as a server would. A sentence.
    Unreachable(String),
    /// The server does not know the verb. A sentence.
    Unknown(String),
    /// The server refused the request. A sentence.
    Refused(String),
}

impl Fault {
    /// The sentence.
    pub fn message(&self) -> &str {
        match self {
            Fault::Unreachable(why) | Fault::Unknown(why) | Fault::Refused(why) => why,
        }
    }
}

/// A client of one server, which connects when it is asked something.
pub struct Client {
    path: PathBuf,
    stream: Option<BufReader<UnixStream>>,
    /// How long an answer may take.
    patience: Duration,
}

impl Client {
    /// A client of the server at this path.
    pub fn new(path: PathBuf, patience: Duration) -> Client {
        Client { path, stream: None, patience }
    }

    /// Sends a request, without its version, and returns what its `ok` contains.
    pub async fn ask(&mut self, request: &Value) -> Result<Value, Fault> {
        // Taken out, and put back only after a whole answer: a request that is cancelled or fails
        // closes the connection.
        let stream = self.stream.take();
        let answered = tokio::time::timeout(self.patience, exchange(&self.path, stream, request)).await;
        let what = match answered {
            Ok(Ok((stream, answer))) => {
                self.stream = Some(stream);
                return answer;
            }
            Ok(Err(what)) => what,
            Err(_) => format!("the server has not answered for {} s", self.patience.as_secs_f64()),
        };
        Err(Fault::Unreachable(format!("{}: {what}", self.path.display())))
    }
}

type Answered = (BufReader<UnixStream>, Result<Value, Fault>);

/// Sends a request on an open or a new connection, and reads its answer. The error is a sentence.
async fn exchange(
    path: &PathBuf,
    stream: Option<BufReader<UnixStream>>,
    request: &Value,
) -> Result<Answered, String> {
    let mut stream = match stream {
        Some(stream) => stream,
        None => BufReader::new(UnixStream::connect(path).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => "no server listens here".to_owned(),
            ErrorKind::ConnectionRefused => "no server listens here any more".to_owned(),
            _ => error.to_string(),
        })?),
    };
    let broken = |error: std::io::Error| format!("the connection broke: {error}");
    let mut request = request.clone();
    request["v"] = VERSION.into();
    stream.write_all(format!("{request}\n").as_bytes()).await.map_err(broken)?;
    for _ in 0..PROGRESS_LINES_MAX {
        let mut line = Vec::new();
        (&mut stream).take(REPLY_BYTES_MAX).read_until(b'\n', &mut line).await.map_err(broken)?;
        if line.is_empty() {
            return Err("the server closed the connection before it answered".into());
        }
        if line.last() != Some(&b'\n') {
            return Err(match line.len() as u64 {
                REPLY_BYTES_MAX => format!("the answer is longer than {REPLY_BYTES_MAX} bytes"),
                _ => "the server closed the connection in the middle of its answer".into(),
            });
        }
        if let Some(answer) = answer(&line)? {
            return Ok((stream, answer));
        }
    }
    Err("the server reports progress and does not answer".into())
}

/// The answer in a line; `None` if it only reports progress. The error is a sentence.
fn answer(line: &[u8]) -> Result<Option<Result<Value, Fault>>, String> {
    let strange = |what: String| format!("the answer is not that of an octavo server: {what}");
    let mut reply: Value = serde_json::from_slice(line).map_err(|error| strange(error.to_string()))?;
    match reply["v"].as_u64() {
        Some(VERSION) => {}
        Some(other) => {
            return Err(format!("the server uses version {other} of the protocol, this program {VERSION}"));
        }
        None => return Err(strange("it has no version".into())),
    }
    if let Some(ok) = reply.get_mut("ok") {
        return Ok(Some(Ok(ok.take())));
    }
    if let Some(error) = reply.get("error") {
        let message = error["message"].as_str().unwrap_or("the server gave no reason").to_owned();
        let is_unknown = ["there is no verb", "unknown verb"].iter().any(|start| message.starts_with(start));
        return Ok(Some(Err(if is_unknown { Fault::Unknown(message) } else { Fault::Refused(message) })));
    }
    match reply.get("progress").is_some() || reply.get("recording").is_some() {
        true => Ok(None),
        false => Err(strange(json!(reply).to_string().chars().take(80).collect())),
    }
}
