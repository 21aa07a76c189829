//! A listener that serves a few pages over HTTP: `GET /metrics`, `/healthz`, `/readyz`.
//!
//! One thread serves all clients, sleeping in `poll` while they are silent. A client has one
//! request of a few headers, some seconds, and then its connection is closed. A request that names
//! a host other than this server is refused (`host`). What is not here: what the pages say.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::host::Host;
use crate::error::Error;

/// Clients at a time. One more takes the place of the one that has been silent for longest, so that
/// clients that say nothing keep no probe waiting.
const CLIENTS_MAX: usize = 16;

/// The longest request: Prometheus sends some hundred bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The most headers of a request; Prometheus sends six.
const HEADERS_MAX: usize = 64;

/// How long a client may take for all of it.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// After a failed `accept` or `poll` (no descriptors left, say), so that it is not tried in a
/// hurry.
const PAUSE: Duration = Duration::from_millis(200);

/// A page that is there.
pub struct Page {
    /// Whether it tells good news: 200, and 503 otherwise.
    pub is_good: bool,
    /// What the text is.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

/// The listening socket.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    hosts: Vec<Host>,
}

impl Listener {
    /// Binds the socket. Requests may name these hosts, beside those that [`Host::is_own`] knows by
    /// itself.
    pub fn bind(address: SocketAddr, hosts: Vec<Host>) -> std::io::Result<Listener> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Listener { address: socket.local_addr()?, socket, hosts })
    }

    /// Where the pages are: their paths come behind it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts to answer. `page` makes the page of a path anew for each request; `None`: there is
    /// none.
    pub fn serve(self, page: impl Fn(&str) -> Option<Page> + Send + 'static) -> Result<(), Error> {
        let run = move || {
            let mut clients: Vec<Client> = Vec::new();
            loop {
                wait(&self.socket, &clients);
                let now = Instant::now();
                clients.retain_mut(|client| client.step(now, &self.hosts, &page));
                // As many as there are places: the first of them are not sent away unheard.
                for _ in 0..CLIENTS_MAX {
                    match self.socket.accept() {
                        Ok((stream, _)) => {
                            make_place(&mut clients);
                            clients.extend(Client::new(stream, now));
                        }
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

/// Sends the client away that has been there for longest if there is no place: one that has not
/// asked yet, if there is one.
fn make_place(clients: &mut Vec<Client>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let rank = |client: &Client| (!matches!(client.phase, Phase::Asking(_)), client.until);
    let oldest = clients.iter().enumerate().min_by_key(|(_, client)| rank(client));
    if let Some((number, _)) = oldest {
        clients.swap_remove(number);
    }
}

/// Sleeps until something can be done, or somebody's time is over.
fn wait(socket: &TcpListener, clients: &[Client]) {
    let mut polled: Vec<PollFd<'_>> =
        clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())).collect();
    polled.push(PollFd::new(socket, PollFlags::IN));
    let until = clients.iter().map(|client| client.until).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // At most ten seconds, which fit; a millisecond more, so that the time is over when it is looked
    // at.
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
    /// The address that it connected to.
    local: IpAddr,
    phase: Phase,
}

enum Phase {
    /// What it has sent so far.
    Asking(Vec<u8>),
    /// The answer, and how much of it was taken.
    Answering(Vec<u8>, usize),
    /// It was told everything; closing before it has said everything could take the answer away
    /// from it.
    Leaving,
}

impl Client {
    fn new(stream: TcpStream, now: Instant) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        let local = stream.local_addr().ok()?.ip();
        Some(Client { stream, until: now + EXCHANGE_MAX, local, phase: Phase::Asking(Vec::new()) })
    }

    fn waits_for(&self) -> PollFlags {
        match self.phase {
            Phase::Asking(_) | Phase::Leaving => PollFlags::IN,
            Phase::Answering(..) => PollFlags::OUT,
        }
    }

    /// Does what can be done now. False: the connection is over.
    fn step(&mut self, now: Instant, hosts: &[Host], page: &impl Fn(&str) -> Option<Page>) -> bool {
        if now >= self.until {
            return false;
        }
        loop {
            let done = match &mut self.phase {
                Phase::Asking(asked) => {
                    let mut bytes = [0; 1024];
                    let count = self.stream.read(&mut bytes);
                    asked.extend_from_slice(&bytes[..*count.as_ref().unwrap_or(&0)]);
                    if let Some(asked) = request(asked, |host| host.is_own(self.local, hosts)) {
                        let answer = answer(asked, page);
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

/// Why a request is not answered with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    status: &'static str,
    /// A header and the end of its line.
    header: &'static str,
    why: &'static str,
}

const MALFORMED: Refused = Refused {
    status: "400 Bad Request",
    header: "",
    why: "it is no HTTP/1 request, or does not name one Host",
};
const FOREIGN: Refused = Refused {
    status: "403 Forbidden",
    header: "",
    why: "the Host that it names is not this server; ask by address, as localhost or by the machine's name, or list \
          the name in listen.metrics_hosts",
};
const UNKNOWN: Refused = Refused { status: "404 Not Found", header: "", why: PAGES };
const NOT_GET: Refused = Refused { status: "405 Method Not Allowed", header: "Allow: GET\r\n", why: PAGES };
const PAGES: &str = "GET /metrics, /healthz or /readyz";
const TOO_LONG: Refused = Refused {
    status: "431 Request Header Fields Too Large",
    header: "",
    why: "8 KiB and 64 headers are the most",
};

/// The whole answer to a request, which asks for the page of a path or is refused.
fn answer(asked: Result<&str, Refused>, page: &impl Fn(&str) -> Option<Page>) -> Vec<u8> {
    let (status, more, body) = match asked.and_then(|path| page(path).ok_or(UNKNOWN)) {
        Ok(Page { is_good, content_type, text }) => {
            let status = if is_good { "200 OK" } else { "503 Service Unavailable" };
            (status, format!("Content-Type: {content_type}\r\nCache-Control: no-store\r\n"), text)
        }
        Err(Refused { status, header, why }) => {
            (status, format!("Content-Type: text/plain\r\n{header}"), format!("{status}: {why}\n"))
        }
    };
    let len_bytes = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {len_bytes}\r\nConnection: close\r\n\r\n");
    (head + &body).into_bytes()
}

/// The path that is asked for; `None` while that is not known. `is_own` knows the hosts that are
/// this server.
fn request(asked: &[u8], is_own: impl Fn(&Host) -> bool) -> Option<Result<&str, Refused>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    Some(match request.parse(asked) {
        Ok(httparse::Status::Complete(_)) => judge(&request, is_own),
        Ok(httparse::Status::Partial) if asked.len() <= REQUEST_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(TOO_LONG),
        Err(_) => Err(MALFORMED),
    })
}

fn judge<'a>(
    request: &httparse::Request<'_, 'a>,
    is_own: impl Fn(&Host) -> bool,
) -> Result<&'a str, Refused> {
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(MALFORMED);
    };
    let mut headers = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let mut host = match (headers.next(), headers.next(), version) {
        (Some(header), None, _) => Some(Host::of_authority(header.value).ok_or(MALFORMED)?),
        // HTTP/1.0 has no such header; no browser speaks it.
        (None, None, 0) => None,
        _ => return Err(MALFORMED),
    };
    // What is asked through a proxy has the host in its target, which counts then (RFC 9112,
    // 3.2.2).
    let mut path = target;
    if let Some((scheme, rest)) = target.split_once("://")
        && scheme.eq_ignore_ascii_case("http")
    {
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        host = Some(Host::of_authority(authority.as_bytes()).ok_or(MALFORMED)?);
        path = rest;
    }
    if host.is_some_and(|host| !is_own(&host)) {
        return Err(FOREIGN);
    }
    match method {
        "GET" => Ok(path.split('?').next().unwrap_or_default()),
        _ => Err(NOT_GET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(asked: &[u8]) -> Option<&'static str> {
        let own = Host::Name("own".into());
        let answered = request(asked, |host| *host == own)?;
        Some(answered.map_or_else(
            |refused| &refused.status[..3],
            |path| match path {
                "/metrics" => "200",
                _ => "404",
            },
        ))
    }

    #[test]
    fn one_page_is_had_and_everything_else_is_told_why_not() {
        for (asked, expected) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: own\r\n\r\n"[..], Some("200")),
            (b"GET /metrics HTTP/1.1\nHost: own\n\n", Some("200")),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", Some("200")),
            (b"GET /metrics HTTP/1.1\r\nHost: own\r\n", None),
            (b"GET / HTTP/1.1\r\nHost: own\r\n\r\n", Some("404")),
            (b"POST /metrics HTTP/1.1\r\nHost: own\r\n\r\n", Some("405")),
            (b"OPTIONS * HTTP/1.1\r\nHost: own\r\n\r\n", Some("405")),
            (b"GET /metrics\r\n\r\n", Some("400")),
            (b"\xff\xfe\r\n\r\n", Some("400")),
            (&[b'x'; REQUEST_BYTES_MAX], None),
            (&[b'x'; REQUEST_BYTES_MAX + 1], Some("431")),
        ] {
            assert_eq!(status(asked), expected, "{}", asked.escape_ascii());
        }
        let headers = "a: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(status(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()), Some("431"));
    }

    /// A page of a name that was resolved anew to this machine (DNS rebinding) could read the
    /// figures.
    #[test]
    fn a_request_that_names_another_host_gets_nothing() {
        for (asked, expected) in [
            ("GET /metrics HTTP/1.1\r\nhOsT:\tOWN.:1 \r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.0\r\nHost: evil.example\r\n\r\n", "403"),
            // Nor does it learn which pages there are.
            ("GET /other HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
            ("POST /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost : own\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: own\r\nHost: own\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: own\r\nHOST: evil.example\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\nHost: own, evil.example\r\n\r\n", "400"),
            ("GET http://own/metrics HTTP/1.1\r\nHost: own\r\n\r\n", "200"),
            ("GET HTTP://own:1/metrics?x HTTP/1.1\r\nHost: evil.example\r\n\r\n", "200"),
            ("GET http://evil.example/metrics HTTP/1.1\r\nHost: own\r\n\r\n", "403"),
            ("GET http://evil.example/metrics HTTP/1.0\r\n\r\n", "403"),
            ("GET http://own@evil.example/metrics HTTP/1.1\r\nHost: own\r\n\r\n", "400"),
            ("GET http://own HTTP/1.1\r\nHost: own\r\n\r\n", "404"),
            ("GET http://own/metrics HTTP/1.1\r\n\r\n", "400"),
        ] {
            assert_eq!(status(asked.as_bytes()), Some(expected), "{}", asked.escape_debug());
        }
    }
}
