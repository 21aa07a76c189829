//! Finding a server, asking it, and reading its answer.

use std::io::{BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::control::guarding;
use crate::control::protocol::{self, Body, REPLY_BYTES_MAX, Reply, Request, VERSION};
use crate::environment::Environment;
use crate::error::Error;
use crate::output;
use crate::units::human_bytes;

/// The control socket of the manual's examples.
const SYSTEM_SOCKET: &str = "/run/octavo/control.sock";

/// The path of the server's control socket: `named` if it is given, else that of a server without a
/// configuration, else that of the manual's examples.
pub fn socket(named: Option<&Path>, environment: &Environment) -> Result<PathBuf, Error> {
    if let Some(path) = named {
        // The form that configurations use, `unix:/path`, is accepted, too.
        let bare = path.to_str().and_then(|path| path.strip_prefix("unix:"));
        return Ok(bare.map_or(path.to_owned(), PathBuf::from));
    }
    let (own, system) = (environment.control_socket(), PathBuf::from(SYSTEM_SOCKET));
    let is_missing =
        |path: &Path| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match (is_missing(&own), is_missing(&system)) {
        (true, true) if own != system => Err(Error::failed(format!(
            "no server listens at {} or at {SYSTEM_SOCKET}; {HOW_TO_REACH_ONE}",
            own.display()
        ))),
        (true, false) => Ok(system),
        _ => Ok(own),
    }
}

/// What to do if there is no socket.
const HOW_TO_REACH_ONE: &str = "start `octavo serve`, or name its control socket with --socket";

/// A connection to a server.
pub struct Connection {
    path: PathBuf,
    /// For reading replies, and to close the connection.
    pub stream: UnixStream,
}

impl Connection {
    /// Connects.
    pub fn open(path: &Path) -> Result<Connection, Error> {
        let stream = UnixStream::connect(path).or_else(|error| {
            // A server that hands over to another one says so beside its socket.
            UnixStream::connect(guarding::path(path)).map_err(|_| error)
        });
        let stream = stream.map_err(|error| {
            let what = match error.kind() {
                ErrorKind::NotFound => format!("no server listens here; {HOW_TO_REACH_ONE}"),
                ErrorKind::ConnectionRefused => {
                    "no server listens here any more: the server that made this socket has ended".into()
                }
                _ => error.to_string(),
            };
            Error::failed(format!("{}: {what}", path.display()))
        })?;
        Ok(Connection { path: path.to_owned(), stream })
    }

    fn failed(&self, what: String) -> Error {
        Error::failed(format!("{}: {what}", self.path.display()))
    }

    fn broken(&self, error: std::io::Error) -> Error {
        self.failed(format!("the connection broke: {error}"))
    }

    /// Sends a request.
    pub fn send(&self, request: &Request) -> Result<(), Error> {
        protocol::send(&mut &self.stream, request).map_err(|error| self.broken(error))
    }

    /// Reads a reply.
    pub fn reply(&self, reader: &mut BufReader<&UnixStream>) -> Result<Body, Error> {
        let line = protocol::receive(reader, REPLY_BYTES_MAX).map_err(|error| self.broken(error))?;
        let line =
            line.ok_or_else(|| self.failed("the server closed the connection before it answered".into()))?;
        let reply: Reply = serde_json::from_slice(&line).map_err(|error| {
            self.failed(if error.is_eof() {
                "the server closed the connection in the middle of its answer".into()
            } else {
                format!("the answer is not that of an octavo server: {error}")
            })
        })?;
        match reply.v {
            VERSION => Ok(reply.body),
            other => Err(self.failed(format!(
                "the server uses version {other} of the protocol, this program version {VERSION}"
            ))),
        }
    }
}

/// The error for an answer that this program cannot read.
pub fn unreadable(error: serde_json::Error) -> Error {
    Error::failed(format!("the server's report cannot be read: {error}"))
}

/// Sends a request and reads replies up to the last.
pub fn ask(path: &Path, request: &Request) -> Result<Value, Error> {
    ask_with(path, request, output::text)
}

/// Like [`ask`]; `told` gets each progress report.
pub fn ask_with(
    path: &Path,
    request: &Request,
    told: impl Fn(&str) -> Result<(), Error>,
) -> Result<Value, Error> {
    let connection = Connection::open(path)?;
    connection.send(request)?;
    let mut reader = BufReader::new(&connection.stream);
    loop {
        match connection.reply(&mut reader)? {
            Body::Ok(answer) => return Ok(answer),
            Body::Progress(progress) => {
                told(&format!("draining: {} dirty left\n", human_bytes(progress.dirty_bytes)))?;
            }
            // Only `octavo record` and `octavo ctl events` ask for these.
            Body::Recording(_) | Body::Events(_) => {}
            Body::Error(fault) => {
                let mut lines: Vec<String> = fault.message.lines().map(str::to_owned).collect();
                lines.extend(fault.objects.iter().map(|object| {
                    let dirty_bytes = object.dirty_bytes;
                    format!(
                        "\"{}\": {}; {dirty_bytes} dirty bytes ({}) are not in its store",
                        object.name,
                        object.reason,
                        human_bytes(dirty_bytes)
                    )
                }));
                return Err(Error::Failed(lines));
            }
        }
    }
}
