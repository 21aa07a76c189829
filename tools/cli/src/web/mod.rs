//! `octavo web`: a page that shows a running server; and `octavo report`.
//!
//! The page and its server are `octavo-web`. Here are the command line, the files that it names,
//! and the hosts that requests may name.

pub mod report;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use octavo_web::{BYTES_MIN, Guard, INTERVAL_MAX, INTERVAL_MIN, Recorder, Settings, Token};

use crate::control::host::Host;
use crate::ctl::connection;
use crate::environment::Environment;
use crate::error::Error;
use crate::units::{self, size_bytes};
use crate::{output, process};

/// Show a running server in a browser
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo web                                   http://127.0.0.1:9188, read-only
  octavo web --token-file /etc/octavo/token    changes with the token in this file
  octavo web --record /var/log/octavo.jsonl    also for `octavo report`
  ssh -L 9188:127.0.0.1:9188 HOST              the page of another machine, at this one's address")]
pub struct Arguments {
    /// The server's control socket, listen.control of its configuration [default: that of `octavo
    /// serve` without one, else /run/octavo/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where the page is served; other addresses than loopback need --allow-host
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9188")]
    listen: SocketAddr,
    /// Another name or address of this machine, under which browsers may ask for the page
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<Host>,
    /// Allow changes to those who know the one word in this file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Append the figures to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The most bytes of the recording, which is kept in two files
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "256MiB", requires = "record")]
    record_max: u64,
    /// How often the server is asked
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "1s")]
    interval: Duration,
}

/// Parses an interval. The error is a sentence.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration(text)?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        return Ok(interval);
    }
    Err(format!("\"{text}\" is out of range; expected {INTERVAL_MIN:?} to {INTERVAL_MAX:?}"))
}

/// Serves the page until a signal ends the process.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<(), Error> {
    let listen = arguments.listen;
    if !listen.ip().is_loopback() && arguments.allow_host.is_empty() {
        return Err(Error::Usage(format!(
            "--listen {listen}: other machines could read the figures at this address; name the host under which \
             they may, with --allow-host NAME, or forward a port: ssh -L 9188:127.0.0.1:9188"
        )));
    }
    if arguments.record_max < BYTES_MIN {
        let least = units::human_bytes(BYTES_MIN);
        return Err(Error::Usage(format!("--record-max: {least} are the least")));
    }
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    let recorder = arguments.record.as_deref().map(|path| Recorder::open(path, arguments.record_max));
    let hosts = arguments.allow_host.clone();
    let is_own_host = move |authority: &[u8], local| {
        Host::of_authority(authority).is_some_and(|host| host.is_own(local, &hosts))
    };
    let settings = Settings {
        // A server that does not run yet is waited for, as one that has ended is.
        socket: match &arguments.socket {
            None => connection::socket(None, environment).unwrap_or_else(|_| environment.control_socket()),
            named => connection::socket(named.as_deref(), environment)?,
        },
        listen,
        interval: arguments.interval,
        guard: Guard { is_own_host: Box::new(is_own_host), token },
        recorder: recorder.transpose().map_err(Error::failed)?,
    };
    process::raise_fds_max();
    let socket = settings.socket.display().to_string();
    let ready = |address| {
        let _ = output::notice(&format!("http://{address} shows the server at {socket}\n"));
    };
    octavo_web::serve(settings, ready).map_err(Error::failed)
}

/// Reads a token from a file that nobody else may read.
fn token(path: &Path) -> Result<Token, Error> {
    let failed = |why: String| Error::failed(format!("{}: {why}", path.display()));
    let mode = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.mode();
    if mode & 0o077 != 0 {
        return Err(failed("other users may read the token; allow only yourself: chmod 600".into()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Token::of_text(&text).map_err(failed)
}
