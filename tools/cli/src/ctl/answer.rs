//! Asking a server, and printing its answer as JSON or for people.

use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::connection::{ask, ask_with};
use crate::control::protocol::Request;
use crate::error::Error;
use crate::output;

/// How an answer is printed.
#[derive(Args)]
pub struct Json {
    /// Print the answer as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prints an answer as JSON, or as a text for people.
pub fn show(json: &Json, answer: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Error> {
    output::text(&if json.json { format!("{answer}\n") } else { text(answer) })
}

/// Asks, and prints the answer.
pub fn tell(
    json: &Json,
    path: &Path,
    request: &Request,
    text: impl FnOnce(&Value) -> String,
) -> Result<(), Error> {
    show(json, &ask(path, request)?, text)
}

/// Like [`tell`]; for people, prints how many dirty bytes are left to drain.
pub fn tell_with_progress(
    json: &Json,
    path: &Path,
    request: &Request,
    text: impl FnOnce(&Value) -> String,
) -> Result<(), Error> {
    let progress = |text: &str| if json.json { Ok(()) } else { output::text(text) };
    show(json, &ask_with(path, request, progress)?, text)
}
