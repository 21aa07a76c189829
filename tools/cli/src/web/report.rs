//! `octavo report`: the page of `octavo web` as one file, from a recording or from a sample.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use octavo_web::Reading;

use crate::ctl::connection;
use crate::environment::Environment;
use crate::error::Error;
use crate::units::{self, duration};
use crate::{interruption, output};

/// Write a server's figures into one HTML file
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo report /var/log/octavo.jsonl          the last hour that `octavo web --record` recorded
  octavo report --for 60s -o minute.html       the next minute of the running server")]
pub struct Arguments {
    /// A recording of `octavo web --record` [default: the running server is sampled]
    recording: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// How long to sample the server [default: 60s]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "recording")]
    length: Option<Duration>,
    /// How often the server is asked [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = super::interval, conflicts_with = "recording")]
    interval: Option<Duration>,
    /// The server's control socket, listen.control of its configuration [default: that of `octavo
    /// serve` without one, else /run/octavo/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "recording")]
    socket: Option<PathBuf>,
}

/// How long a server is sampled by default.
const LENGTH: Duration = Duration::from_secs(60);

/// Writes the report. Ctrl-C ends a sample early, and its report is written.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let reading = match &arguments.recording {
        Some(path) => Reading::of_file(path).map_err(Error::failed)?,
        None => sample(arguments, environment, quiet)?,
    };
    if reading.history.last().is_none() {
        return Err(Error::failed("the recording has no interval, so there is nothing to show"));
    }
    let path = arguments.output.display();
    std::fs::write(&arguments.output, octavo_web::report(&reading))
        .map_err(|error| Error::failed(format!("{path}: {error}")))?;
    if quiet { Ok(()) } else { output::text(&format!("{path}\n")) }
}

fn sample(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<Reading, Error> {
    let socket = connection::socket(arguments.socket.as_deref(), environment)?;
    let stop = interruption::flag()?;
    let length = arguments.length.unwrap_or(LENGTH);
    let interval = arguments.interval.unwrap_or(Duration::from_secs(1));
    if length < 2 * interval {
        return Err(Error::Usage(format!("--for {length:?}: two intervals of {interval:?} are the least")));
    }
    if !quiet {
        let seconds = units::human_time(length.as_nanos() as u64);
        output::error_line(&format!("sampling {} for {seconds}; Ctrl-C ends it early", socket.display()));
    }
    // Relaxed: only the flag itself is read.
    let goes_on = || !stop.load(Ordering::Relaxed);
    octavo_web::sample(&socket, interval, length, goes_on).map_err(Error::failed)
}
