//! A listener that serves one page over HTTP: `GET /metrics`.
//!
//! One thread serves all clients, sleeping in `poll` while they are silent. A client has one request of a few headers, some
//! seconds, and then its connection is closed. What is not here: what the page says.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;

/// Clients at a time; more wait until one is done.
const CLIENTS_MAX: usize = 16;

/// The longest request: Prometheus sends some hundred bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// How long a client may take for all of it.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// After a failed `accept` or `poll` (no descriptors left, say), so that it is not tried in a hurry.
const PAUSE: Duration = Duration::from_millis(200);

/// The page that is asked for.
const PATH: &str = "/metrics";

/// The listening socket.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the socket.
    pub fn bind(address: SocketAddr) -> std::io::Result<Listener> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Listener { address: socket.local_addr()?, socket })
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Starts to answer. `page` makes the page anew for each request.
    pub fn serve(
        self,
        content_type: &'static str,
        page: impl Fn() -> String + Send + 'static,
    ) -> Result<(), Error> {
        let run = move || {
            let mut clients: Vec<Client> = Vec::new();
            loop {
                wait(&self.socket, &clients);
                let now = Instant::now();
                clients.retain_mut(|client| client.step(now, content_type, &page));
                while clients.len() < CLIENTS_MAX {
                    match self.socket.accept() {
                        Ok((stream, _)) => clients.extend(Client::new(stream, now)),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => {
                            log::warn!("metrics: {error}");
                            std::thread::sleep(PAUSE);
                            break;
                        }
                    }
                }
            }
        };
        let spawned = std::thread::Builder::new().name("metrics".into()).spawn(run);
        spawned.map(drop).map_err(|error| Error::failed(format!("metrics: {error}")))
    }
}

/// Sleeps until something can be done, or somebody's time is over.
fn wait(socket: &TcpListener, clients: &[Client]) {
    let mut polled: Vec<PollFd<'_>> =
        clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())).collect();
    if clients.len() < CLIENTS_MAX {
        polled.push(PollFd::new(socket, PollFlags::IN));
    }
    let until = clients.iter().map(|client| client.until).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // At most ten seconds, which fit; a millisecond more, so that the time is over when it is looked at.
    let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
    match poll(&mut polled, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => {
            log::warn!("metrics: {error}");
            std::thread::sleep(PAUSE);
        }
    }
}

/// Somebody who asks.
struct Client {
    stream: TcpStream,
    /// When it must be gone.
    until: Instant,
    phase: Phase,
}

enum Phase {
    /// What it has sent so far.
    Asking(Vec<u8>),
    /// The answer, and how much of it was taken.
    Answering(Vec<u8>, usize),
    /// It was told everything; closing before it has said everything could take the answer away from it.
    Leaving,
}

impl Client {
    fn new(stream: TcpStream, now: Instant) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client { stream, until: now + EXCHANGE_MAX, phase: Phase::Asking(Vec::new()) })
    }

    fn waits_for(&self) -> PollFlags {
        match self.phase {
            Phase::Asking(_) | Phase::Leaving => PollFlags::IN,
            Phase::Answering(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done now. False: the connection is over.
    fn step(&mut self, now: Instant, content_type: &str, page: &impl Fn() -> String) -> bool {
        if now >= self.until {
            return false;
        }
        loop {
            let done = match &mut self.phase {
                Phase::Asking(asked) => {
                    let mut bytes = [0; 1024];
                    let count = self.stream.read(&mut bytes);
                    asked.extend_from_slice(&bytes[..*count.as_ref().unwrap_or(&0)]);
                    if let Some(answer) = answer(asked, content_type, page) {
                        self.phase = Phase::Answering(answer, 0);
                    }
                    count
                }
                Phase::Answering(answer, told) => {
                    let count = self.stream.write(&answer[*told..]);
                    *told += count.as_ref().unwrap_or(&0);
                    if *told == answer.len() {
                        // Fails only if the client has gone, which the next read tells.
                        let _ = self.stream.shutdown(Shutdown::Write);
                        self.phase = Phase::Leaving;
                    }
                    count
                }
                Phase::Leaving => self.stream.read(&mut [0; 1024]),
            };
            match done {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

/// The whole answer, once enough was asked to know it.
fn answer(asked: &[u8], content_type: &str, page: &impl Fn() -> String) -> Option<Vec<u8>> {
    let (status, more, body) = match request(asked)? {
        Ok(()) => ("200 OK", format!("Content-Type: {content_type}\r\n"), page()),
        Err((status, more)) => {
            (status, format!("Content-Type: text/plain\r\n{more}"), format!("{status}; GET {PATH}\n"))
        }
    };
    let len_bytes = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {len_bytes}\r\nConnection: close\r\n\r\n");
    Some((head + &body).into_bytes())
}

/// Whether the page is asked for, or the status and headers that say why not; `None` while that is not known.
fn request(asked: &[u8]) -> Option<Result<(), (&'static str, &'static str)>> {
    let ended =
        asked.windows(4).any(|four| four == b"\r\n\r\n") || asked.windows(2).any(|two| two == b"\n\n");
    if !ended {
        let too_long = Err(("431 Request Header Fields Too Large", ""));
        return (asked.len() > REQUEST_BYTES_MAX).then_some(too_long);
    }
    let line = asked.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split_ascii_whitespace().collect();
    Some(match words[..] {
        [method, target, version] if version.starts_with("HTTP/1.") => {
            match (method, target.split('?').next()) {
                ("GET", Some(PATH)) => Ok(()),
                ("GET", _) => Err(("404 Not Found", "")),
                _ => Err(("405 Method Not Allowed", "Allow: GET\r\n")),
            }
        }
        _ => Err(("400 Bad Request", "")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_is_had_and_everything_else_is_told_why_not() {
        let status = |asked: &[u8]| request(asked).map(|asked| asked.map_err(|(status, _)| &status[..3]));
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some(Ok(())));
        assert_eq!(status(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some(Ok(())));
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), Some(Err("404")));
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Err("405")));
        assert_eq!(status(b"GET /metrics\r\n\r\n"), Some(Err("400")));
        assert_eq!(status(b"\xff\xfe\r\n\r\n"), Some(Err("400")));
        assert_eq!(status(&[b'x'; REQUEST_BYTES_MAX]), None);
        assert_eq!(status(&[b'x'; REQUEST_BYTES_MAX + 1]), Some(Err("431")));
    }
}
