//! `octavo bench`: measures the engine on this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use octavo_bench::{Begun, Listener, Options, Progress, Row, Suite};

use super::day;
use super::inputs::{self, Json};
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::units::size_bytes;
use crate::{interruption, output};

/// Measure the engine on this machine
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "\
The contestants of a case run in turns; `ratio` compares the engine with each of them, round by round.

Examples:
  octavo bench --list
  octavo bench hits
  octavo bench scaling --html scaling.html
  octavo bench apps fio rocksdb            as root
  octavo bench misses --case 'disk_*' --file /mnt/nvme/scratch --json misses.jsonl
  octavo bench day --minutes 10            a server in operation, under a load that checks it
  octavo bench ./mine.toml --quick")]
pub struct Arguments {
    #[command(subcommand)]
    operation: Option<Operation>,
    /// What to measure: a suite by name, or a file of one such as ./mine.toml
    #[arg(required_unless_present_any = ["list", "bounded_reader", "flow"])]
    suite: Option<String>,
    /// Run only these cases: names, patterns with `*`, or first words of names, such as `fio`
    /// [default: all that do not take very long]
    #[arg(value_name = "CASE", conflicts_with = "case")]
    cases: Vec<String>,
    /// List the suites and their cases
    #[arg(long)]
    list: bool,
    /// Run only cases whose names match; `*` matches any characters
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Write one JSON object per case and line instead of a table; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts and tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Only test that everything works, in a few seconds; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Measure each case for N seconds [default: set by the suite]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Bytes of the cache's frames, for all cases [default: set by the suite]
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    memory: Option<u64>,
    /// A file to create on the disk to measure; it must not exist, and is removed at the end
    /// [default: in the user's cache directory]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Run as the child process whose memory is limited; for internal use
    #[arg(long, hide = true, value_name = "FILE")]
    bounded_reader: Option<PathBuf>,
    /// Run as the child process that uses files as a server does; for internal use
    #[arg(long, hide = true, value_name = "LINE")]
    flow: Option<String>,
}

#[derive(Subcommand)]
enum Operation {
    Day(day::Arguments),
}

/// Measures, and writes JSON rows as they are measured, or a table at the end.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    if let Some(Operation::Day(day)) = &arguments.operation {
        return day::run(day, environment, quiet);
    }
    if let Some(path) = &arguments.bounded_reader {
        return octavo_bench::serve_bounded(path).map_err(|error| Error::failed(error.to_string()));
    }
    if let Some(line) = &arguments.flow {
        return octavo_bench::serve_flow(line).map_err(|error| Error::failed(error.to_string()));
    }
    let usage = |error: octavo_bench::Error| Error::Usage(error.to_string());
    let mut suites = match &arguments.suite {
        Some(name) => vec![Suite::find(name, arguments.quick).map_err(usage)?],
        None => Suite::names()
            .map(|name| Suite::find(name, arguments.quick))
            .collect::<Result<_, _>>()
            .map_err(usage)?,
    };
    if let Some(bytes) = arguments.memory {
        let with = |suite: Suite| suite.with_memory_bytes(bytes);
        suites = suites.into_iter().map(with).collect::<Result<_, _>>().map_err(usage)?;
    }
    let names: Vec<String> = arguments.case.iter().chain(&arguments.cases).cloned().collect();
    if !(arguments.list && names.is_empty()) {
        suites.iter_mut().for_each(|suite| suite.retain(&names));
    }
    if suites.iter().all(|suite| suite.cases.is_empty()) {
        return Err(Error::Usage(format!("no case is called \"{}\"", names.join("\" or \""))));
    }
    if arguments.list {
        return output::text(&suites.iter().map(described).collect::<String>());
    }
    let suite = &suites[0];
    let stop = interruption::flag()?;
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => scratch_file(environment)?,
    };
    let options = Options {
        quick: arguments.quick,
        time: arguments.seconds.map(Duration::from_secs),
        file,
        program: std::env::current_exe().ok(),
        stop: Arc::clone(&stop),
        rivals: Vec::new(),
    };
    let (json, progress) = (Json::to(arguments.json.as_deref())?, Progress::new(quiet));
    let mut printer = Printer { json, rows: Vec::new(), warnings: Vec::new(), error: None, progress };
    let result = octavo_bench::run(suite, &options, &mut printer);
    printer.progress.clear();
    // After an interruption, the results so far are shown.
    let shown = printer.end(suite, arguments);
    interruption::unless_interrupted(&stop)?;
    result.map_err(|error| Error::failed(error.to_string()))?;
    shown
}

/// A suite and its cases, for `--list`.
fn described(suite: &Suite) -> String {
    let about = suite.about.trim();
    let cases =
        suite.cases.iter().map(|case| format!("    {}  ({})\n", case.name, case.contestants.join(", ")));
    format!("{}: {}\n  {about}\n{}\n", suite.name, suite.title, cases.collect::<String>())
}

fn scratch_file(environment: &Environment) -> Result<PathBuf, Error> {
    let directory = environment.cache_dir()?;
    make_private_dir(&directory).map_err(Error::failed)?;
    Ok(directory.join(format!("bench-{}.raw", std::process::id())))
}

struct Printer {
    json: Json,
    rows: Vec<Row>,
    warnings: Vec<String>,
    /// The first row that could not be written.
    error: Option<Error>,
    progress: Progress,
}

impl Printer {
    fn end(self, suite: &Suite, arguments: &Arguments) -> Result<(), Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let page = || octavo_bench::html(suite, &self.rows, &self.warnings);
        inputs::write_page(arguments.html.as_deref(), page)?;
        match arguments.json {
            None => output::text(&octavo_bench::table(&suite.title, &self.rows)),
            Some(_) => Ok(()),
        }
    }
}

impl Listener for Printer {
    fn begins(&mut self, case: &Begun) {
        self.progress.begins(case);
    }

    fn row(&mut self, row: &Row) {
        if let Err(error) = self.json.lines(std::slice::from_ref(row)) {
            self.error.get_or_insert(error);
        }
        self.rows.push(row.clone());
    }

    fn progress(&mut self, news: &str) {
        self.progress.news(news);
    }

    fn warning(&mut self, warning: &str) {
        self.progress.clear();
        output::error_line(&format!("octavo: warning: {warning}"));
        self.warnings.push(warning.to_owned());
    }
}
