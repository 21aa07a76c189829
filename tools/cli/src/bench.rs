//! `octavo bench`: measures the engine on this machine.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use octavo_bench::{Listener, Options, Row};

use crate::config::units::size_bytes;
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::output;

/// Measure the engine on this machine
#[derive(Args)]
#[command(after_help = "\
Each case runs in turn with a bare loop that does the same work without the cache; `ratio` compares the two.

Examples:
  octavo bench hits
  octavo bench misses --json -
  octavo bench misses --file /mnt/nvme/scratch --json misses.jsonl")]
pub struct Arguments {
    /// What to measure
    #[arg(required_unless_present = "list")]
    suite: Option<Suite>,
    /// Say which suites and cases there are
    #[arg(long)]
    list: bool,
    /// Write a JSON object a line and case instead of a table; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only see that everything works, in a few seconds; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Time to measure each case for [default: 9 for hits, 15 for misses]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Cached bytes that hits are read from [default: 1GiB]; twice and a half that are in use
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    memory: Option<u64>,
    /// The file of 4 GiB to make on the disk that misses read; it must not exist, and is removed
    /// [default: in the user's cache directory]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// Reads of cached pages, beside a bare gather
    Hits,
    /// Reads of a file much larger than the cache, beside direct reads
    Misses,
}

const LIST: &str = "\
hits    single_128    128 bytes a call
hits    batch_128     128 bytes, 32 a call
hits    single_4096   a page a call
hits    batch_4096    a page, 32 a call
misses  disk_qd32     32 in flight on a disk
misses  memory_qd32   32 in flight on a file in memory
";

/// Measures, and prints rows as they come, or a table.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let Some(suite) = arguments.suite.filter(|_| !arguments.list) else { return output::text(LIST) };
    let options = Options {
        quick: arguments.quick,
        time: arguments.seconds.map(Duration::from_secs),
        memory_bytes: arguments.memory,
        file: match (&arguments.file, suite) {
            (Some(file), _) => file.clone(),
            (None, Suite::Hits) => PathBuf::new(),
            (None, Suite::Misses) => scratch_file(environment)?,
        },
    };
    options.validate().map_err(|error| Error::Usage(error.to_string()))?;
    let mut printer = Printer::new(arguments, quiet)?;
    let result = match suite {
        Suite::Hits => octavo_bench::hits(&options, &mut printer),
        Suite::Misses => octavo_bench::misses(&options, &mut printer),
    };
    printer.progress("");
    result.map_err(|error| Error::failed(error.to_string()))?;
    printer.end()
}

fn scratch_file(environment: &Environment) -> Result<PathBuf, Error> {
    let directory = environment.cache_dir()?;
    make_private_dir(&directory)?;
    Ok(directory.join(format!("bench-{}.raw", std::process::id())))
}

/// Where rows go.
enum Destination {
    Table,
    StandardOutput,
    File(PathBuf, File),
}

struct Printer {
    destination: Destination,
    rows: Vec<Row>,
    /// The first row that could not be written.
    error: Option<Error>,
    progresses: bool,
}

impl Printer {
    fn new(arguments: &Arguments, quiet: bool) -> Result<Printer, Error> {
        let destination = match &arguments.json {
            None => Destination::Table,
            Some(path) if path.as_os_str() == "-" => Destination::StandardOutput,
            Some(path) => {
                let file = File::create(path)
                    .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
                Destination::File(path.clone(), file)
            }
        };
        let progresses = std::io::stderr().is_terminal() && !quiet;
        Ok(Printer { destination, rows: Vec::new(), error: None, progresses })
    }

    fn end(self) -> Result<(), Error> {
        match (self.error, self.destination) {
            (Some(error), _) => Err(error),
            (None, Destination::Table) => output::text(&octavo_bench::table(&self.rows)),
            (None, _) => Ok(()),
        }
    }
}

impl Listener for Printer {
    fn row(&mut self, row: &Row) {
        let line = || format!("{}\n", serde_json::to_string(row).expect("a row is names and numbers"));
        let written = match &mut self.destination {
            Destination::Table => Ok(()),
            Destination::StandardOutput => output::text(&line()),
            Destination::File(path, file) => file
                .write_all(line().as_bytes())
                .map_err(|error| Error::failed(format!("{}: {error}", path.display()))),
        };
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
        self.rows.push(row.clone());
    }

    fn progress(&mut self, news: &str) {
        if self.progresses {
            // To the beginning of the line, and the rest of what stood there away.
            let _ = write!(std::io::stderr(), "\r{news}\x1b[K");
        }
    }

    fn warning(&mut self, warning: &str) {
        self.progress("");
        output::error_line(&format!("octavo: warning: {warning}"));
    }
}
