//! Connections: each request is counted, asked of the plan, and answered.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::config::StubConfig;
use crate::connection::Connection;
use crate::contents::Contents;
use crate::counts::{Counts, Tally};
use crate::lies::{Asked, Lie, Lies};
use crate::reply::{Reply, ReplyBody};
use crate::request::{Operation, Request};
use crate::write::Uploads;
use crate::{list, read, write};

/// The bucket that is no bucket: its one object has the counts.
const FIGURES: &str = "-";

/// A server, for all its connections.
#[derive(Debug)]
pub(crate) struct State {
    pub contents: Contents,
    uploads: Uploads,
    lies: RwLock<Lies>,
    pub tally: Tally,
    numbers: Mutex<BTreeMap<Operation, u64>>,
    first_byte: Duration,
}

impl State {
    pub fn new(config: StubConfig) -> State {
        State {
            contents: Contents::new(config.directory, config.version_ids),
            uploads: Uploads::default(),
            lies: RwLock::new(Lies::none()),
            tally: Tally::default(),
            numbers: Mutex::default(),
            first_byte: config.first_byte,
        }
    }

    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.tally.counts()
    }

    pub fn set_lies(&self, lies: Lies) {
        *self.lies.write().unwrap_or_else(PoisonError::into_inner) = lies;
    }

    /// Counts a request, and returns the lie that the plan has for it.
    fn lie_about(&self, request: &Request) -> Option<Lie> {
        let operation = request.operation;
        self.counts().note_request(operation, &request.path);
        let number = {
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let number = numbers.entry(operation).or_default();
            *number += 1;
            *number
        };
        let range = request.range().and_then(|wanted| wanted.known());
        let asked = Asked {
            operation,
            number,
            path: &request.path,
            range,
            if_match: request.header("if-match").is_some(),
            authorization: request.header("authorization"),
            contents: &self.contents,
        };
        self.lies.read().unwrap_or_else(PoisonError::into_inner).tell(&asked)
    }
}

/// A socket that can end with a reset.
struct Wire {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Wire {
    fn resets(&self) -> bool {
        self.connection.resets.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.resets() {
            // A socket that is closed without lingering sends a reset.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.resets() {
            true => Poll::Ready(Ok(())),
            false => Pin::new(&mut self.stream).poll_shutdown(context),
        }
    }
}

/// Accepts connections until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) {
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                tokio::spawn(connection(accepted, state.clone()));
            }
            // Too many open files, for example: later there may be fewer.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection((stream, _): (TcpStream, SocketAddr), state: Arc<State>) {
    let _ = stream.set_nodelay(true);
    let connection = Arc::new(Connection::default());
    let wire = Wire { stream, connection: connection.clone() };
    let answers = service_fn(move |request| answer(request, state.clone(), connection.clone()));
    // An error is a client that left, or a lie that ended the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(wire), answers).await;
}

/// Answers a request. An error ends the connection.
async fn answer(
    request: hyper::Request<Incoming>,
    state: Arc<State>,
    connection: Arc<Connection>,
) -> io::Result<Response<ReplyBody>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::new(parts.method, &parts.uri, parts.headers, body);
    if request.bucket == FIGURES {
        return Ok(figures(&request, &state).into_response(&state.tally, &connection, ""));
    }
    let lie = state.lie_about(&request);
    if matches!(request.operation, Operation::Head | Operation::Get | Operation::List) {
        pause(state.first_byte).await;
    }
    let (reply, lied) = match &lie {
        Some(Lie::ResetBefore) => {
            connection.end(true);
            state.counts().note_lie(Lie::ResetBefore.name());
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Some(Lie::Status { code, retry_after_s }) => {
            let reply = Reply::error(*code, "SlowDown", "Please reduce your request rate.");
            let reply = match retry_after_s {
                Some(seconds) => reply.with("retry-after", &seconds.to_string()),
                None => reply,
            };
            (reply, true)
        }
        Some(Lie::Answer(status, body)) => (Reply::xml(*status, body), true),
        Some(Lie::Headers(headers)) => {
            let reply = right(&request, &state, None).0;
            (headers.iter().fold(reply, |reply, (name, value)| reply.replace(name, value.as_deref())), true)
        }
        Some(Lie::Endless(status)) => (Reply::endless(*status), true),
        Some(Lie::Redirect(location)) => (Reply::empty(302).with("location", location), true),
        Some(Lie::Keys(count)) => (list::made_up(&request, *count), true),
        Some(Lie::SamePage) => (list::same_page(&request), true),
        Some(stall @ Lie::StallBefore(time)) => {
            // Before: the client may be gone after it.
            state.counts().note_lie(stall.name());
            pause(*time).await;
            (right(&request, &state, None).0, false)
        }
        lie => right(&request, &state, lie.as_ref()),
    };
    if let Some(lie) = lie.filter(|_| lied) {
        state.counts().note_lie(lie.name());
    }
    // An answer to a HEAD has no body.
    let parts = if request.operation == Operation::Head { Vec::new() } else { reply.parts };
    Ok(Reply { parts, ..reply }.into_response(&state.tally, &connection, &request.path))
}

/// Returns the right answer, or the lie about an object, and whether it is the lie.
fn right(request: &Request, state: &State, lie: Option<&Lie>) -> (Reply, bool) {
    match request.operation {
        Operation::Head | Operation::Get => read::answer(request, &state.contents, lie),
        Operation::List => (list::answer(request, &state.contents), false),
        _ => (write::answer(request, &state.contents, &state.uploads), false),
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// Answers `GET /-/counts`, which prints the counts, and `DELETE /-/counts`, which resets them.
fn figures(request: &Request, state: &State) -> Reply {
    match (&request.method, &*request.key) {
        (&hyper::Method::GET, "counts") => {
            let text = state.counts().to_string();
            Reply {
                len: text.len() as u64,
                parts: vec![crate::reply::Part::Bytes(text.into())],
                ..Reply::empty(200)
            }
        }
        (&hyper::Method::DELETE, "counts") => {
            *state.counts() = Counts::default();
            Reply::empty(204)
        }
        _ => Reply::empty(404),
    }
}
