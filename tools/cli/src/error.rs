//! How a subcommand fails, and the exit status that says so.

/// The reason why the program ends without success.
#[derive(Debug)]
pub enum Error {
    /// The configuration is wrong, or a file or device that it names is unavailable. One problem
    /// per line, each beginning with its place in the file.
    Config(Vec<String>),
    /// The command line or the environment is wrong.
    Usage(String),
    /// The machine, a store or the server refused. One fact per line.
    Failed(Vec<String>),
    /// A signal ended the subcommand early; the results so far are shown. The signal's number.
    Interrupted(i32),
    /// Nobody reads standard output any more.
    ReaderGone,
}

/// The exit status that shells report for a process that SIGPIPE ended, and expect if the reader of
/// its output has gone.
const ENDED_BY_SIGPIPE: u8 = 128 + 13;

impl Error {
    /// A failure of one line.
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(vec![message.into()])
    }

    /// The lines to show.
    pub fn lines(&self) -> Vec<String> {
        let named = |line: &String| format!("octavo: {line}");
        match self {
            // As compilers do: editors look for the place at the beginning of the line.
            Error::Config(lines) => lines.clone(),
            Error::Usage(line) => vec![named(line)],
            Error::Failed(lines) => lines.iter().map(named).collect(),
            Error::ReaderGone => Vec::new(),
            Error::Interrupted(_) => vec![named(&"interrupted; the results so far are kept".to_owned())],
        }
    }

    /// The exit status of the process.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Config(_) | Error::Usage(_) => 2,
            Error::Failed(_) => 1,
            Error::ReaderGone => ENDED_BY_SIGPIPE,
            Error::Interrupted(signal) => 128 + *signal as u8,
        }
    }
}
