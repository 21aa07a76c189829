//! `octavo record`: asks a running server to record a partition, and tells how far it is until it
//! ends.

use std::io::{BufReader, IsTerminal, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;

use crate::control::protocol::{Body, Request, Verb};
use crate::control::report::RecordingReport;
use crate::ctl::{self, Connection};
use crate::environment::Environment;
use crate::error::Error;
use crate::order::{Order, sample};
use crate::units::{human_bytes, human_count, size_bytes};
use crate::{interruption, output};

/// Record the page accesses of a running server's partition
#[derive(Args)]
#[command(after_help = "\
The server writes the file, with mode 0600. Ctrl-C ends the recording; `octavo simulate --trace FILE` repeats it.

Examples:
  octavo record vm1 --output /var/tmp/vm1.octr --seconds 600
  octavo record vm1 --output vm1.octr --sample 1/64 --rotate 1GiB --keep 8")]
pub struct Arguments {
    /// The partition's name
    partition: String,
    /// The file, NAME.octr; with --rotate its name has a number: NAME.00001.octr and so on
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Record the whole history of a share of the pages, such as 1/64 or 2%
    #[arg(long, value_name = "SHARE", value_parser = sample, default_value = "1")]
    sample: u32,
    /// Begin another file when one has so many bytes
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    rotate: Option<u64>,
    /// Keep the last N files
    #[arg(long, value_name = "N", requires = "rotate")]
    keep: Option<u32>,
    /// End after N seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The server's control socket [default: that of `octavo serve` without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How often somebody's wish to end is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Records until the server ends it, the time is over or somebody interrupts.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let here = std::path::absolute(&arguments.output)
        .map_err(|error| Error::failed(format!("{}: {error}", arguments.output.display())))?;
    let order = Order {
        partition: arguments.partition.clone(),
        file: here,
        sample_below: arguments.sample,
        rotate_bytes: arguments.rotate,
        keep: arguments.keep,
        seconds: arguments.seconds,
    };
    order.check().map_err(Error::Usage)?;
    let stop = interruption::flag()?;
    let connection = Connection::open(&ctl::socket(arguments.socket.as_deref(), environment)?)?;
    let failed = |error: std::io::Error| Error::failed(format!("the connection broke: {error}"));
    let stream = connection.stream.try_clone().map_err(failed)?;
    connection.send(&Request { record: Some(order), ..Request::new(Verb::Record) })?;
    // The end of what we say is the wish to end; the server then says what there is.
    let watch = move || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        // It may have ended by itself.
        let _ = stream.shutdown(Shutdown::Write);
    };
    std::thread::Builder::new().name("interruption".into()).spawn(watch).map_err(failed)?;
    let is_shown = std::io::stderr().is_terminal() && !quiet;
    let clear = || {
        if is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    };
    let mut reader = BufReader::new(&connection.stream);
    loop {
        match connection.reply(&mut reader)? {
            Body::Recording(report) if is_shown => {
                let _ = write!(std::io::stderr(), "\r{}\x1b[K", text(&report));
            }
            Body::Recording(_) | Body::Progress(_) => {}
            Body::Ok(answer) => {
                clear();
                let report: RecordingReport = serde_json::from_value(answer)
                    .map_err(|error| Error::failed(format!("the server's report cannot be read: {error}")))?;
                return match quiet {
                    true => Ok(()),
                    false => output::text(&format!("{}\n", text(&report))),
                };
            }
            Body::Error(fault) => {
                clear();
                return Err(Error::failed(fault.message));
            }
        }
    }
}

fn text(report: &RecordingReport) -> String {
    format!(
        "{}: {} accesses, {}, {} s ({}{})",
        report.file,
        human_count(report.accesses as f64),
        human_bytes(report.file_bytes),
        report.seconds,
        report.sample,
        if report.is_exact { ", from the first access" } else { "" }
    )
}
