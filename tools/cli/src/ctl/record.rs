//! `octavo record`: asks a running server to record a partition, and shows the progress until it
//! ends.

use std::io::BufReader;
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;

use super::connection::{self, Connection};
use crate::control::protocol::{Body, Request, Verb};
use crate::control::report::RecordingReport;
use crate::environment::Environment;
use crate::error::Error;
use crate::order::Order;
use crate::progress::Line;
use crate::units::{human_bytes, human_count};
use crate::{interruption, output};

/// Record the page accesses of a running server's partition
#[derive(Args)]
#[command(after_help = "\
The server writes the file, with mode 0600. Ctrl-C ends the recording; `octavo simulate --trace FILE` replays it.

Examples:
  octavo record vm1 --output /var/tmp/vm1.octr --seconds 600
  octavo record vm1 --output vm1.octr --sample 1/64 --rotate 1GiB --keep 8")]
pub struct Arguments {
    #[command(flatten)]
    order: Order,
    /// The server's control socket [default: that of `octavo serve` without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How often the flag of an interruption is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Records until the server ends the recording, the time is over or a signal arrives.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let file = &arguments.order.file;
    let file =
        std::path::absolute(file).map_err(|error| Error::failed(format!("{}: {error}", file.display())))?;
    let order = Order { file, ..arguments.order.clone() };
    order.check().map_err(Error::Usage)?;
    let stop = interruption::flag()?;
    let connection = Connection::open(&connection::socket(arguments.socket.as_deref(), environment)?)?;
    let failed = |error: std::io::Error| Error::failed(format!("the connection broke: {error}"));
    let stream = connection.stream.try_clone().map_err(failed)?;
    connection.send(&Request { record: Some(order), ..Request::new(Verb::Record) })?;
    // Shutting down our side of the connection asks the server to end the recording. The server
    // then sends the final report.
    let watch = move || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        // The recording may have ended by itself.
        let _ = stream.shutdown(Shutdown::Write);
    };
    std::thread::Builder::new().name("interruption".into()).spawn(watch).map_err(failed)?;
    let mut progress = Line::new(quiet);
    let mut reader = BufReader::new(&connection.stream);
    loop {
        match connection.reply(&mut reader)? {
            Body::Recording(report) => progress.show(|| text(&report)),
            Body::Progress(_) | Body::Events(_) => {}
            Body::Ok(answer) => {
                progress.clear();
                let report: RecordingReport =
                    serde_json::from_value(answer).map_err(connection::unreadable)?;
                return match quiet {
                    true => Ok(()),
                    false => output::text(&format!("{}\n", text(&report))),
                };
            }
            Body::Error(fault) => return Err(Error::failed(fault.message)),
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
