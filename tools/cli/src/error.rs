//! How a subcommand fails, and the exit status that says so.

/// The reason why the program ends without success.
#[derive(Debug)]
pub enum Error {
    /// The command line or the configuration is wrong: mend it and try again. One problem a line.
    Usage(Vec<String>),
    /// The machine, a store or the server refused.
    Failed(Vec<String>),
}

impl Error {
    /// A failure of one line.
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(vec![message.into()])
    }

    /// A wrong use of one line.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(vec![message.into()])
    }

    /// What to tell people.
    pub fn lines(&self) -> &[String] {
        match self {
            Error::Usage(lines) | Error::Failed(lines) => lines,
        }
    }

    /// What to tell the shell.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Failed(_) => 1,
        }
    }
}
