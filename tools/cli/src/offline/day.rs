//! `octavo bench day`: a server in operation, under a load that checks every block.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use octavo_bench::day::{self, Report, Settings};

use super::inputs::{self, Json};
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::{interruption, output};

/// Operate a server for a day, under a load that checks every block
#[derive(Args)]
#[command(after_help = "\
Tenants write and check disks over NBD while partitions come and go, limits change, a store fails, the
configuration is read again, another process takes over, and the server is killed.

Exit status: 1 if a block was lost or a step failed.

Examples:
  octavo bench day --minutes 10
  octavo bench day --seed 7 --report day.html --json day.json")]
pub struct Arguments {
    /// How long the day lasts; fractions such as 0.5 are allowed
    #[arg(long, value_name = "N", default_value = "360", value_parser = minutes)]
    minutes: Duration,
    /// The seed of events and load
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the report as a JSON object; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts and tables
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// A directory to create for disks and sockets; it must not exist, and is removed at the end if
    /// nothing was wrong [default: in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// A length from six seconds to a week.
fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes".to_owned())?;
    match (0.1..=10080.0).contains(&minutes) {
        true => Ok(Duration::from_secs_f64(60.0 * minutes)),
        false => Err("a day lasts from 0.1 to 10080 minutes".into()),
    }
}

/// Runs a day, and shows its report, also after an interruption.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let directory = match &arguments.directory {
        // The server needs absolute paths.
        Some(directory) => std::path::absolute(directory)
            .map_err(|error| Error::failed(format!("{}: {error}", directory.display())))?,
        None => {
            let directory = environment.cache_dir()?;
            make_private_dir(&directory).map_err(Error::failed)?;
            directory.join(format!("day-{}", std::process::id()))
        }
    };
    let program = std::env::current_exe();
    let program = program.map_err(|error| Error::failed(format!("cannot find this program: {error}")))?;
    let mut json = Json::to(arguments.json.as_deref())?;
    let stop = interruption::flag()?;
    let (length, seed) = (arguments.minutes, arguments.seed);
    let settings = Settings { program, directory, length, seed, stop: Arc::clone(&stop) };
    let say = |line: &str| {
        if !quiet {
            output::error_line(&format!("octavo: {line}"));
        }
    };
    let report = day::run(&settings, &say).map_err(|error| Error::failed(error.to_string()))?;
    json.lines(std::slice::from_ref(&report))?;
    inputs::write_page(arguments.report.as_deref(), || report.html())?;
    if !json.is_on_standard_output() {
        output::text(&report.text())?;
    }
    verdict(&report)?;
    interruption::unless_interrupted(&stop)
}

fn verdict(report: &Report) -> Result<(), Error> {
    match report.is_good() {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "wrong blocks were found {} times and {} steps failed; the report lists them",
            report.lost_count, report.troubles_count
        ))),
    }
}
