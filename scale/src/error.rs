//! [`Error`]: whatever went wrong.

/// Whatever went wrong, for people.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;
