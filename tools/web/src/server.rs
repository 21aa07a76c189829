//! Serves the page and its figures over HTTP/1.1.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` and its files | the page |
//! | `GET /api/history` | the intervals of the last hour |
//! | `GET /api/feed` | news as server-sent events, until the client leaves |
//! | `GET /api/sets?partition=NAME`, `GET /api/files` | the server's answer to this question |
//! | `POST /api/token` | 204 if the token is right |
//! | `POST /api/resize` | sets sizes; needs the token |
//!
//! Every list here is bounded: connections, refused connections, waiting questions, bodies, and
//! histories on their way to slow clients. A client that takes nothing for a minute is
//! disconnected by the kernel.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::assets;
use crate::board::Board;
use crate::client::Fault;
use crate::guard::{Guard, Refusal};
use crate::history::History;
use crate::poll::Question;

/// Most clients at a time. Further ones get 503.
pub const CLIENTS_MAX: usize = 1000;

/// Most clients that are being told so. Further ones are disconnected.
const REFUSED_MAX: usize = 64;

/// Most histories on their way: a slow client holds one in memory.
const HISTORIES_MAX: usize = 16;

/// The largest request of a page: the sizes of some hundred partitions.
const BODY_BYTES_MAX: usize = 12 << 10;

/// The longest head of a request, with what hyper reads ahead.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long a request's head may take.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a client may take nothing that is sent to it.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// Pause after a failed `accept` (no descriptors left, say), so that the retries do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Every file comes from this server, and no script or style is in the page itself.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What requests need.
pub struct Shared {
    /// Which requests are refused.
    pub guard: Guard,
    /// The last hour.
    pub history: Arc<Mutex<History>>,
    /// The latest news.
    pub board: watch::Receiver<Board>,
    /// To the poller.
    pub questions: mpsc::Sender<Question>,
    /// One for each history on its way.
    pub histories: Arc<Semaphore>,
}

impl Shared {
    /// What requests need.
    pub fn new(
        guard: Guard,
        history: Arc<Mutex<History>>,
        board: watch::Receiver<Board>,
        questions: mpsc::Sender<Question>,
    ) -> Shared {
        Shared { guard, history, board, questions, histories: Arc::new(Semaphore::new(HISTORIES_MAX)) }
    }
}

/// Accepts clients, until the task ends.
pub async fn serve(listener: TcpListener, shared: Rc<Shared>) {
    let (clients, refused) = (Arc::new(Semaphore::new(CLIENTS_MAX)), Arc::new(Semaphore::new(REFUSED_MAX)));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("cannot accept a client: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Ok(seat) = Arc::clone(&clients).try_acquire_owned() {
            tokio::task::spawn_local(talk(stream, Some(Rc::clone(&shared)), seat));
        } else if let Ok(seat) = Arc::clone(&refused).try_acquire_owned() {
            tokio::task::spawn_local(talk(stream, None, seat));
        }
    }
}

/// Answers one client; tells it that there is no place if `shared` is `None`.
async fn talk(stream: TcpStream, shared: Option<Rc<Shared>>, _seat: OwnedSemaphorePermit) {
    let Ok(local) = stream.local_addr() else { return };
    let unread_ms = UNREAD_MAX.as_millis() as u32;
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&stream, unread_ms) {
        log::debug!("cannot limit how long a client reads nothing: {error}");
    }
    let is_full = shared.is_none();
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move {
            Ok::<_, Infallible>(match shared {
                Some(shared) => answer(request, &shared, local).await,
                None => {
                    let why = format!("{CLIENTS_MAX} clients are connected already; close a page");
                    refusal((StatusCode::SERVICE_UNAVAILABLE, why))
                }
            })
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(HEAD_BYTES_MAX);
    http.keep_alive(!is_full);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        log::debug!("a client of the page: {error}");
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared, local: SocketAddr) -> Response<Body> {
    let (head, body) = request.into_parts();
    let mut response = match respond(&head, body, shared, local.ip()).await {
        Ok(response) => response,
        Err(refused) => {
            log::debug!("{} {}: {}", head.method, head.uri.path(), refused.1);
            refusal(refused)
        }
    };
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn respond(
    head: &Parts,
    body: Incoming,
    shared: &Shared,
    local: IpAddr,
) -> Result<Response<Body>, Refusal> {
    shared.guard.check(head, local)?;
    let path = head.uri.path();
    match (&head.method, path) {
        (&Method::GET, "/api/history") => history(shared),
        (&Method::GET, "/api/feed") => Ok(feed(shared.board.clone())),
        (&Method::GET, "/api/sets") => {
            let partition = parameter(head, "partition")?;
            ask(shared, json!({"do": "sets", "partition": partition})).await
        }
        (&Method::GET, "/api/files") => ask(shared, json!({"do": "files"})).await,
        (&Method::POST, "/api/token") => {
            shared.guard.check_change(head)?;
            Ok(Response::builder().status(StatusCode::NO_CONTENT).body(full("")).unwrap_or_default())
        }
        (&Method::POST, "/api/resize") => {
            shared.guard.check_change(head)?;
            let sizes = sizes(body).await?;
            log::info!("a page sets sizes: {sizes}");
            ask(shared, json!({"do": "resize", "sizes": sizes})).await
        }
        (&Method::GET | &Method::HEAD, _) => match assets::at(path) {
            Some((media_type, text)) => Ok(with_type(media_type, full(text))),
            None => Err((StatusCode::NOT_FOUND, format!("there is nothing at {path}"))),
        },
        _ => Err((StatusCode::METHOD_NOT_ALLOWED, "expected GET".into())),
    }
}

/// The history; the clients of a slow network wait for each other.
fn history(shared: &Shared) -> Result<Response<Body>, Refusal> {
    let Ok(seat) = Arc::clone(&shared.histories).try_acquire_owned() else {
        let why = format!("{HISTORIES_MAX} pages are loading already; try again");
        return Err((StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let text = {
        let history = shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_vec(&*history)
    };
    let text = text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let length = HeaderValue::from(text.len());
    // The seat is given back when the whole text is on its way, or the client has gone.
    let parts = stream::unfold((Some(Bytes::from(text)), seat), |(text, seat)| async {
        text.map(|text| (Ok(Frame::data(text)), (None, seat)))
    });
    let mut response = with_type("application/json", StreamBody::new(parts).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    Ok(response)
}

/// News as server-sent events. A client that reads slowly gets the latest when it reads again.
fn feed(board: watch::Receiver<Board>) -> Response<Body> {
    let frames = stream::unfold((board, 0), |(mut board, mut seen)| async move {
        loop {
            let (number, frames) = board.borrow_and_update().since(seen);
            seen = number;
            if !frames.is_empty() {
                return Some((Ok(Frame::data(frames)), (board, seen)));
            }
            board.changed().await.ok()?;
        }
    });
    with_type("text/event-stream", StreamBody::new(frames).boxed_unsync())
}

/// Passes a question on to the server.
async fn ask(shared: &Shared, request: Value) -> Result<Response<Body>, Refusal> {
    let (reply, answer) = oneshot::channel();
    if shared.questions.try_send(Question { request, reply }).is_err() {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "too many questions wait; try again".into()));
    }
    match answer.await {
        Ok(Ok(answer)) => Ok(with_type("application/json", full(answer.to_string()))),
        Ok(Err(Fault::Unknown(why))) => {
            Err((StatusCode::NOT_IMPLEMENTED, format!("this server does not offer it: {why}")))
        }
        Ok(Err(Fault::Refused(why))) => Err((StatusCode::CONFLICT, why)),
        Ok(Err(Fault::Unreachable(why))) => Err((StatusCode::BAD_GATEWAY, why)),
        Err(_) => Err((StatusCode::BAD_GATEWAY, "octavo web is ending".into())),
    }
}

/// A parameter of the request.
fn parameter(head: &Parts, name: &str) -> Result<String, Refusal> {
    let query = head.uri.query().unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let found = parameters.find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    found.ok_or_else(|| (StatusCode::BAD_REQUEST, format!("the parameter {name} is missing")))
}

/// Reads and checks `{"sizes":[["vm1",BYTES],..]}`.
async fn sizes(body: Incoming) -> Result<Value, Refusal> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| bad(error.to_string()))?;
    let mut body: Value = serde_json::from_slice(&body.to_bytes()).map_err(|error| bad(error.to_string()))?;
    let sizes = body["sizes"].take();
    let is_size = |size: &Value| {
        size.as_array().is_some_and(|pair| pair.len() == 2 && pair[0].is_string() && pair[1].is_u64())
    };
    match sizes.as_array() {
        Some(all) if !all.is_empty() && all.iter().all(is_size) => Ok(sizes),
        _ => Err(bad("expected {\"sizes\":[[\"NAME\",BYTES],..]}".into())),
    }
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

fn with_type(media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn refusal((status, why): Refusal) -> Response<Body> {
    let mut response = with_type("text/plain; charset=utf-8", full(format!("{why}\n")));
    *response.status_mut() = status;
    response
}
