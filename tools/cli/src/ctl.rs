//! `octavo ctl`: asks a running server.

use std::io::{BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::config::units::human_bytes;
use crate::control::{self, Body, REPLY_BYTES_MAX, Reply, Request, VERSION, Verb};
use crate::environment::Environment;
use crate::error::Error;
use crate::output;
use crate::report::Report;

/// Ask a running server
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo ctl stat
  octavo ctl stat --json | jq '.partitions[] | {name, hits, misses}'
  octavo ctl --socket /run/octavo/control.sock sync && cp /var/lib/images/vm1.raw /backup/")]
pub struct Arguments {
    /// The server's control socket, listen.control of its configuration [default: that of `octavo serve`
    /// without one]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand)]
enum Question {
    /// What every partition and export holds and has done
    Stat {
        /// The exact counters, as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make every write that was acknowledged before durable
    Sync,
    /// Write all dirty pages and sync, with progress; try stores that refuse again
    Drain,
}

/// Asks, and prints the answer.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<(), Error> {
    let path = match &arguments.socket {
        // The form of the configuration is welcome, too.
        Some(path) => {
            path.to_str().and_then(|path| path.strip_prefix("unix:")).map_or(path.clone(), PathBuf::from)
        }
        None => environment.control_socket(),
    };
    match &arguments.question {
        Question::Stat { json } => {
            let answer = ask(&path, Verb::Stat)?;
            if *json {
                return output::text(&format!("{answer}\n"));
            }
            let report: Report = serde_json::from_value(answer)
                .map_err(|error| Error::failed(format!("the server's report cannot be read: {error}")))?;
            output::text(&report.table())
        }
        Question::Sync => ask(&path, Verb::Sync).map(drop),
        Question::Drain => {
            ask(&path, Verb::Drain)?;
            output::text("drained\n")
        }
    }
}

/// Sends a request and reads replies up to the last.
fn ask(path: &Path, verb: Verb) -> Result<serde_json::Value, Error> {
    let failed = |what: String| Error::failed(format!("{}: {what}", path.display()));
    let mut stream = UnixStream::connect(path).map_err(|error| {
        failed(match error.kind() {
            ErrorKind::NotFound => {
                "no server listens here; start `octavo serve`, or name its control socket with --socket"
                    .into()
            }
            ErrorKind::ConnectionRefused => {
                "no server listens here any more: the one that made this socket was killed".into()
            }
            _ => error.to_string(),
        })
    })?;
    let broken = |error: std::io::Error| failed(format!("the connection broke: {error}"));
    control::send(&mut stream, &Request::new(verb)).map_err(broken)?;
    let mut reader = BufReader::new(stream);
    loop {
        let line = control::receive(&mut reader, REPLY_BYTES_MAX).map_err(broken)?;
        let line = line.ok_or_else(|| failed("the server went away before it had answered".into()))?;
        let reply: Reply = serde_json::from_slice(&line)
            .map_err(|error| failed(format!("this is no answer of an octavo server: {error}")))?;
        if reply.v != VERSION {
            return Err(failed(format!("the server speaks version {}, this program {VERSION}", reply.v)));
        }
        match reply.body {
            Body::Ok(answer) => return Ok(answer),
            Body::Progress(progress) => {
                output::text(&format!("draining: {} dirty left\n", human_bytes(progress.dirty_bytes)))?;
            }
            Body::Error(fault) => {
                let mut lines = vec![fault.message];
                lines.extend(fault.objects.iter().map(|object| {
                    let dirty_bytes = object.dirty_bytes;
                    format!(
                        "\"{}\": {}; {dirty_bytes} dirty bytes ({}) are not in its store",
                        object.name,
                        object.reason,
                        human_bytes(dirty_bytes)
                    )
                }));
                return Err(Error::Failed(lines));
            }
        }
    }
}
