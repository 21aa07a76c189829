//! [`Reply`]: an answer whose body may stop, pause or break.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::{HeaderMap, Response, StatusCode};
use tokio::time::{Sleep, sleep};

use crate::connection::Connection;
use crate::contents::Version;
use crate::counts::Tally;

/// Bytes of a body that are handed over together.
const PIECE_BYTES: u64 = 64 << 10;

/// How long the bytes before a break have to reach the client.
const BEFORE_BREAK: Duration = Duration::from_millis(20);

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Part {
    Bytes(Bytes),
    Stored(Arc<Version>, Range<u64>),
    Wait(Duration),
    /// These bytes again and again.
    Endless(Bytes),
    /// The connection ends here: with a reset, or closed.
    Break {
        reset: bool,
    },
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    /// The length that the header tells.
    pub len: u64,
    pub parts: Vec<Part>,
}

impl Reply {
    /// An answer without a body.
    pub fn empty(status: u16) -> Reply {
        Reply { status, headers: HeaderMap::new(), len: 0, parts: Vec::new() }
    }

    /// An answer in XML.
    pub fn xml(status: u16, text: &str) -> Reply {
        let text = Bytes::from(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}"));
        let len = text.len() as u64;
        let reply = Reply { status, headers: HeaderMap::new(), len, parts: vec![Part::Bytes(text)] };
        reply.with("content-type", "application/xml")
    }

    /// An error of S3, such as `NoSuchKey`.
    pub fn error(status: u16, code: &str, message: &str) -> Reply {
        Reply::xml(status, &format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
    }

    /// An answer whose body has no end.
    pub fn endless(status: u16) -> Reply {
        let piece = vec![b' '; PIECE_BYTES as usize].into();
        Reply { parts: vec![Part::Endless(piece)], ..Reply::empty(status) }
    }

    /// Adds a header, if its value can be one.
    pub fn with(mut self, name: &str, value: &str) -> Reply {
        let name = hyper::header::HeaderName::try_from(name);
        if let (Ok(name), Ok(value)) = (name, hyper::header::HeaderValue::try_from(value)) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Replaces a header, or removes it.
    pub fn replace(mut self, name: &str, value: Option<&str>) -> Reply {
        self.headers.remove(name);
        value.into_iter().fold(self, |reply, value| reply.with(name, value))
    }

    /// Returns the answer as the connection sends it, which counts the bytes for `path`.
    pub fn into_response(
        self,
        tally: &Tally,
        connection: &Arc<Connection>,
        path: &str,
    ) -> Response<ReplyBody> {
        // RFC 9110, 15.4.5: a 304 has no length of its own.
        let is_endless = matches!(self.parts[..], [Part::Endless(_)]);
        let reply = match self.status {
            204 | 304 => self,
            _ if is_endless => self,
            _ => {
                let len = self.len.to_string();
                self.with("content-length", &len)
            }
        };
        let body = ReplyBody {
            parts: reply.parts.into(),
            waiting: None,
            tally: tally.clone(),
            connection: connection.clone(),
            path: path.to_owned(),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::IM_A_TEAPOT);
        *response.headers_mut() = reply.headers;
        response
    }
}

/// A body on its way.
#[derive(Debug)]
pub(crate) struct ReplyBody {
    parts: VecDeque<Part>,
    waiting: Option<Pin<Box<Sleep>>>,
    tally: Tally,
    connection: Arc<Connection>,
    path: String,
}

impl ReplyBody {
    /// Returns the next bytes, and leaves the rest of their part.
    fn next_bytes(&mut self) -> Option<io::Result<Bytes>> {
        match self.parts.pop_front()? {
            Part::Bytes(bytes) => Some(Ok(bytes)),
            Part::Endless(bytes) => {
                self.parts.push_front(Part::Endless(bytes.clone()));
                Some(Ok(bytes))
            }
            Part::Stored(version, range) => {
                let piece = range.start..range.end.min(range.start + PIECE_BYTES);
                if piece.end < range.end {
                    self.parts.push_front(Part::Stored(version.clone(), piece.end..range.end));
                }
                // A file is read on the thread of the connection: this server is for tests.
                Some(version.read(piece))
            }
            Part::Wait(_) | Part::Break { .. } => unreachable!("handled by `poll_frame`"),
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                std::task::ready!(waiting.as_mut().poll(context));
                self.waiting = None;
            }
            match self.parts.front() {
                None => return Poll::Ready(None),
                Some(Part::Wait(time)) => {
                    self.waiting = Some(Box::pin(sleep(*time)));
                    self.parts.pop_front();
                }
                Some(Part::Break { reset }) => {
                    let reset = *reset;
                    self.connection.end(reset);
                    return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())));
                }
                Some(Part::Bytes(_) | Part::Endless(_) | Part::Stored(..)) => {
                    let bytes = self.next_bytes().expect("there is a part")?;
                    if !bytes.is_empty() {
                        self.tally.counts().note_sent(&self.path, bytes.len() as u64);
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.waiting.is_none()
    }
}

/// The parts of a body that breaks after `range`.
pub(crate) fn broken(version: &Arc<Version>, range: Range<u64>, reset: bool) -> Vec<Part> {
    vec![Part::Stored(version.clone(), range), Part::Wait(BEFORE_BREAK), Part::Break { reset }]
}
