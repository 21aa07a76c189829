//! How a subcommand fails, and the exit status that says so.

/// The reason why the program ends without success.
#[derive(Debug)]
pub enum Error {
    /// A configuration is wrong, or what it names cannot be had: mend it. One problem a line, each
    /// beginning with its place in the file.
    Config(Vec<String>),
    /// The command line or the environment is wrong.
    Usage(String),
    /// The machine, a store or the server refused. One fact a line.
    Failed(Vec<String>),
    /// Somebody asked for an end before it was reached; what was done so far is shown. The signal's
    /// number.
    Interrupted(i32),
}

impl Error {
    /// A failure of one line.
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(vec![message.into()])
    }

    /// What to tell people.
    pub fn lines(&self) -> Vec<String> {
        let named = |line: &String| format!("octavo: {line}");
        match self {
            // As compilers do it: editors find the place at the beginning of the line.
            Error::Config(lines) => lines.clone(),
            Error::Usage(line) => vec![named(line)],
            Error::Failed(lines) => lines.iter().map(named).collect(),
            Error::Interrupted(_) => vec![named(&"interrupted; the results so far are kept".to_owned())],
        }
    }

    /// What to tell the shell.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Config(_) | Error::Usage(_) => 2,
            Error::Failed(_) => 1,
            Error::Interrupted(signal) => 128 + *signal as u8,
        }
    }
}
