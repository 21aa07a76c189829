//! A listener that serves a few pages over HTTP: `GET` or `HEAD` of `/metrics`, `/healthz`,
//! `/readyz`.
//!
//! One thread serves all clients and sleeps in `poll` while they are silent. A client may send one
//! request with at most 64 headers and is disconnected after ten seconds. A request whose host is
//! not this server is refused (`host`). Not here: the content of the pages.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::host::Host;
use crate::error::Error;

/// Most clients at a time. One more replaces the client that has been connected for longest,
/// preferably one with an incomplete request (`make_place`), so that silent clients do not delay a
/// health probe.
const CLIENTS_MAX: usize = 16;

/// The longest request: Prometheus sends some hundred bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The most headers of a request; Prometheus sends six.
const HEADERS_MAX: usize = 64;

/// How long a client's request and answer may take together.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// Pause after a failed `accept` or `poll` (no descriptors left, say), so that the retries do not
/// spin.
const PAUSE: Duration = Duration::from_millis(200);

/// The answer to a client whose place another one gets.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n\
    Content-Length: 27\r\nConnection: close\r\n\r\ntoo many clients; ask again";

/// An answer to a request for a known page.
pub struct Page {
    /// Status 200 if true, else 503.
    pub is_good: bool,
    /// The media type of the text.
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

    /// The URL that the paths of pages are appended to.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts to answer requests. `page` creates the page at a path anew for each request, and
    /// returns `None` if there is no such page.
    pub fn serve(self, page: impl Fn(&str) -> Option<Page> + Send + 'static) -> Result<(), Error> {
        let run = move || {
            let mut clients: Vec<Client> = Vec::new();
            loop {
                wait(&self.socket, &clients);
                let now = Instant::now();
                clients.retain_mut(|client| client.step(now, &self.hosts, &page));
                // At most CLIENTS_MAX, so that each new client is read from at least once before a
                // later one can replace it.
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

/// If all places are taken, disconnects the client that has been connected for longest, preferably
/// one whose request is incomplete.
fn make_place(clients: &mut Vec<Client>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let rank = |client: &Client| (!matches!(client.phase, Phase::Asking(_)), client.until);
    let oldest = clients.iter().enumerate().min_by_key(|(_, client)| rank(client));
    if let Some((number, _)) = oldest {
        clients.swap_remove(number).refuse();
    }
}

/// Sleeps until a client or the listening socket is ready, or until a client's deadline.
fn wait(socket: &TcpListener, clients: &[Client]) {
    let mut polled: Vec<PollFd<'_>> =
        clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())).collect();
    polled.push(PollFd::new(socket, PollFlags::IN));
    let until = clients.iter().map(|client| client.until).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // At most ten seconds, which fit. A millisecond more, so that the time is over on waking.
    let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
    match poll(&mut polled, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => {
            log::warn!("metrics: {error}");
            std::thread::sleep(PAUSE);
        }
    }
}

/// A connection, and the progress of its request.
struct Client {
    stream: TcpStream,
    /// The deadline at which the client is disconnected.
    until: Instant,
    /// The address that it connected to.
    local: IpAddr,
    phase: Phase,
}

enum Phase {
    /// The bytes of the request so far.
    Asking(Vec<u8>),
    /// The answer, and how many of its bytes were sent.
    Answering(Vec<u8>, usize),
    /// The answer was sent. What the client still sends is read: closing before that could reset
    /// the connection and lose the answer.
    Leaving,
}

impl Client {
    fn new(stream: TcpStream, now: Instant) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        let local = stream.local_addr().ok()?.ip();
        Some(Client { stream, until: now + EXCHANGE_MAX, local, phase: Phase::Asking(Vec::new()) })
    }

    /// Tells a client that another one replaces it, as far as that is possible without waiting.
    fn refuse(mut self) {
        if matches!(self.phase, Phase::Asking(_)) {
            // A client that is not told is disconnected all the same.
            let _ = self.stream.write(BUSY);
        }
    }

    fn waits_for(&self) -> PollFlags {
        match self.phase {
            Phase::Asking(_) | Phase::Leaving => PollFlags::IN,
            Phase::Answering(..) => PollFlags::OUT,
        }
    }

    /// Reads and writes what is possible without waiting. False: the connection is over.
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
                        // Fails only if the client has disconnected, which the next read reports.
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

/// Why a request is not answered with a page: the status, and a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(&'static str, &'static str);

const MALFORMED: Refused =
    Refused("400 Bad Request", "this is no HTTP/1 request, or it does not name exactly one Host");
const FOREIGN: Refused = Refused(
    "403 Forbidden",
    "the Host of the request is not this server; use its address, localhost or the machine's name, or list \
     the name in listen.metrics_hosts",
);
const UNKNOWN: Refused = Refused("404 Not Found", PAGES);
const NOT_GET: Refused = Refused("405 Method Not Allowed", PAGES);
const PAGES: &str = "ask for GET /metrics, /healthz or /readyz";
const TOO_LONG: Refused =
    Refused("431 Request Header Fields Too Large", "a request may have 8 KiB and 64 headers");

/// A request: the path of a page, or why there is none.
struct Asked<'a> {
    path: Result<&'a str, Refused>,
    /// HEAD: the answer is that of GET without its body.
    is_head: bool,
}

/// The whole answer to a request.
fn answer(asked: Asked<'_>, page: &impl Fn(&str) -> Option<Page>) -> Vec<u8> {
    let (status, more, body) = match asked.path.and_then(|path| page(path).ok_or(UNKNOWN)) {
        Ok(Page { is_good, content_type, text }) => {
            let status = if is_good { "200 OK" } else { "503 Service Unavailable" };
            (status, format!("Content-Type: {content_type}\r\nCache-Control: no-store\r\n"), text)
        }
        Err(refused) => {
            let Refused(status, why) = refused;
            let allowed = if refused == NOT_GET { "Allow: GET, HEAD\r\n" } else { "" };
            (status, format!("Content-Type: text/plain\r\n{allowed}"), format!("{status}: {why}\n"))
        }
    };
    let len_bytes = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {len_bytes}\r\nConnection: close\r\n\r\n");
    (if asked.is_head { head } else { head + &body }).into_bytes()
}

/// The request that begins with these bytes; `None` if it is incomplete. `is_own` tells whether a
/// host is this server.
fn request(asked: &[u8], is_own: impl Fn(&Host) -> bool) -> Option<Asked<'_>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let path = match request.parse(asked) {
        Ok(httparse::Status::Complete(_)) => judge(&request, is_own),
        Ok(httparse::Status::Partial) if asked.len() <= REQUEST_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err(TOO_LONG),
        Err(_) => Err(MALFORMED),
    };
    Some(Asked { path, is_head: request.method == Some("HEAD") })
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
        // HTTP/1.0 does not require the header. No browser uses HTTP/1.0.
        (None, None, 0) => None,
        _ => return Err(MALFORMED),
    };
    // A request in the form for proxies has the host in its target, which takes precedence over the
    // header (RFC 9112, 3.2.2).
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
        "GET" | "HEAD" => Ok(path.split('?').next().unwrap_or_default()),
        _ => Err(NOT_GET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(asked: &[u8]) -> Option<&'static str> {
        let own = Host::Name("own".into());
        Some(match request(asked, |host| *host == own)?.path {
            Ok("/metrics") => "200",
            Ok(_) => "404",
            Err(Refused(status, _)) => &status[..3],
        })
    }

    #[test]
    fn a_known_page_is_answered_and_everything_else_gets_the_reason_why_not() {
        for (asked, expected) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: own\r\n\r\n"[..], Some("200")),
            (b"GET /metrics HTTP/1.1\nHost: own\n\n", Some("200")),
            (b"HEAD /metrics HTTP/1.1\r\nHost: own\r\n\r\n", Some("200")),
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

    /// Silent clients took all places, and the others were disconnected without a word.
    #[test]
    fn a_client_that_is_replaced_before_it_has_asked_is_told_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let now = Instant::now();
        let mut clients = Vec::new();
        let mut silent = Vec::new();
        for _ in 0..CLIENTS_MAX {
            silent.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            clients.extend(Client::new(listener.accept().unwrap().0, now));
        }
        make_place(&mut clients);
        assert_eq!(clients.len(), CLIENTS_MAX - 1);
        let mut said = String::new();
        silent[0].read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{said}");
    }

    /// A web page whose name was resolved to this machine (DNS rebinding) could read the figures.
    #[test]
    fn a_request_that_names_another_host_gets_nothing() {
        for (asked, expected) in [
            ("GET /metrics HTTP/1.1\r\nhOsT:\tOWN.:1 \r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.0\r\nHost: evil.example\r\n\r\n", "403"),
            // Nor does it learn which pages exist.
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
