//! What can go wrong with a remote object, and whether it may pass.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// An error of a remote object. Names the object and what is wrong; never holds credentials, as
/// long as the [`Origin`](crate::Origin) keeps them out of its messages.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Arc<str>,
    message: Arc<str>,
    retry_after: Option<Duration>,
}

/// The longest message. Servers send texts of any length.
const MESSAGE_CHARS_MAX: usize = 2000;

/// Kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such object.
    NotFound,
    /// The credentials do not allow the request.
    Denied,
    /// The server does not accept the credentials.
    Unauthenticated,
    /// The object is no longer the version that was asked for.
    Changed,
    /// The range does not lie inside the object.
    Range,
    /// The server did not answer, or not in time, or said that it cannot now. Tried again.
    Unavailable,
    /// The answer contradicts the request: another range, another length, another version. Tried
    /// again.
    Wrong,
    /// The store cannot do what was asked.
    Unsupported,
    /// The cache itself failed.
    Engine,
    /// A setting is wrong.
    Config,
    /// Any other error, which is not tried again.
    Other,
}

impl ErrorKind {
    /// Whether the same request may succeed a moment later.
    pub fn may_pass(self) -> bool {
        matches!(self, ErrorKind::Unavailable | ErrorKind::Wrong)
    }
}

impl Error {
    /// Creates an error about the object at `path`. A message of more than 2,000 characters is cut.
    pub fn new(kind: ErrorKind, path: &str, message: impl fmt::Display) -> Error {
        let mut message = message.to_string();
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(end);
            message.push_str("..");
        }
        Error { kind, path: path.into(), message: message.into(), retry_after: None }
    }

    /// Returns the same error with the time that the server asks to wait before the next attempt.
    #[must_use]
    pub fn with_retry_after(self, time: Duration) -> Error {
        Error { retry_after: Some(time), ..self }
    }

    /// Returns the same error as one about the object at `path`.
    #[must_use]
    pub fn about(self, path: &str) -> Error {
        Error { path: path.into(), ..self }
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The path of the object. Empty for settings.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The time that the server asks to wait before the next attempt, if it asks for any.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The same error as the engine's stores tell it: its number says what happened.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match self.kind {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Denied | ErrorKind::Unauthenticated => io::ErrorKind::PermissionDenied,
            ErrorKind::Changed => io::ErrorKind::StaleNetworkFileHandle,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }

    pub(crate) fn engine(path: &str, error: &octavo::Error) -> Error {
        Error::new(ErrorKind::Engine, path, error)
    }

    /// The same error after several attempts.
    pub(crate) fn after(self, attempts: u32) -> Error {
        match attempts {
            0 | 1 => self,
            _ => self.and(&format!(" ({attempts} attempts)")),
        }
    }

    /// The same error with more text.
    pub(crate) fn and(self, more: &str) -> Error {
        Error { message: format!("{}{more}", self.message).into(), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for Error {}
