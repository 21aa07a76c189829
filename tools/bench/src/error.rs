//! The error of a run: one sentence for the user.

use std::fmt;

/// The reason why a suite ended without its figures.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// Creates an error with this sentence.
    pub fn new(what: impl Into<String>) -> Error {
        Error(what.into())
    }

    /// For `map_err`: puts the name of the failed step before the error's text.
    pub fn at<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
        move |error| Error(format!("{what}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<octavo::Error> for Error {
    fn from(error: octavo::Error) -> Error {
        Error(error.to_string())
    }
}
