//! `octavo serve`: makes the cache that a configuration describes, serves clients, and writes dirty
//! pages back at the end.
//!
//! 1. The configuration is read and checked. `--check` takes step 2 as well, without claiming the
//!    stores, and ends there.
//! 2. The cache, its partitions and exports are made (`build`). A refusal of the engine is shown
//!    with the line of the configuration that asked for it.
//! 3. Sockets open, and the control file system is mounted (`sockets`). The socket for metrics and
//!    health opens before the stores do, the socket for clients last.
//! 4. The main thread sleeps until a signal arrives or the next status line is due.
//! 5. At the first signal the server admits no more clients, gives connected clients a moment to
//!    finish their requests, and drains every object.
//! 6. Objects that cannot be drained are named and given up.

mod attach;
mod build;
mod demo;
mod sockets;
mod status;
mod stop;
mod watch;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use octavo::numa::TopologySource;
use octavo::{Cache, disk};
use octavo_block::{Address, Traffic};

use crate::config::{Config, DRAIN_TIMEOUT_DEFAULT, check};
use crate::control::drain::{self, Refusal};
use crate::control::health::{Health, Phase};
use crate::control::server::Asked;
use crate::environment::Environment;
use crate::error::Error;
use crate::logger::{self, Settings, Wishes};
use crate::{output, units};
use build::Built;
use status::Status;

/// How long clients may take to finish their requests when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Serve disk images and devices to NBD clients
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo serve                                    a demo disk, and how to attach to it
  octavo serve --config /etc/octavo.toml          the disks that a file names
  octavo serve --config /etc/octavo.toml --check  only check the file

SIGTERM and Ctrl-C write dirty pages back and end the server; a second one ends it at once.")]
pub struct Arguments {
    /// The configuration, TOML [default: make and serve a demo disk]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and serve nothing
    #[arg(long, requires = "config")]
    check: bool,
    /// Emulate nodes and cores such as 2x4, for tests; replaces the configuration's cache.topology
    #[arg(long, value_name = "NODESxCORES")]
    topology: Option<TopologySource>,
    #[command(flatten)]
    log: Wishes,
}

/// Serves until a signal arrives.
pub fn run(
    arguments: &Arguments,
    environment: &Environment,
    quiet: bool,
    log: Settings,
) -> Result<(), Error> {
    crate::heap::bound();
    // Again after the configuration is read: reading it can log, too.
    logger::change(log.of_server(&arguments.log, &Wishes::default()));
    logger::take_panics();
    let config = match &arguments.config {
        Some(path) => Config::read(path)?,
        None => demo::config(environment)?,
    };
    logger::change(log.of_server(&arguments.log, &config.log.wishes()));
    check::doubtful(&config);
    let built = Built::new(&config, arguments.topology)?;
    if arguments.check {
        sockets::limits(&config, &built.cache)?;
        built.open(&config, disk::Store::rehearse)?;
        return output::text(&format!("{}: no problems\n", config.source.name));
    }
    serve(&config, &built, quiet)
}

/// Steps 3 to 6.
fn serve(config: &Config, built: &Built, quiet: bool) -> Result<(), Error> {
    let cache = &built.cache;
    let limits = sockets::limits(config, cache)?;
    let (stop, stopped) = channel();
    stop::start(cache.clone(), stop)?;
    let (health, traffic) = (Arc::new(Health::new(Instant::now())), Arc::<OnceLock<Traffic>>::default());
    let scraped_at = sockets::scrape(config, cache, &health, &traffic)?;
    let recorders = built.record(config)?;
    let exports = built.open(config, disk::Store::open)?;
    let control = sockets::control(config)?;
    let mounted = sockets::mount(config, cache)?;
    let lengths: Vec<u64> = exports.iter().map(|export| export.object.len_bytes()).collect();
    watch::start(&exports)?;
    // Last: a client that finds this socket finds the others, too.
    let server = sockets::listen(config, cache, exports, limits)?;
    let addresses = server.addresses();
    traffic.set(server.traffic()).unwrap_or_else(|_| unreachable!("one server is started"));
    if let Some(listener) = &control {
        listener.serve(Asked {
            cache: cache.clone(),
            recorders: Arc::clone(&recorders),
            drain_timeout: drain_timeout(config),
            started: Instant::now(),
            clients: sockets::clients(&traffic),
            waiting: Arc::default(),
        })?;
    }
    health.enter(Phase::Serving, Instant::now());
    if !quiet {
        output::notice(&banner(config, &lengths, &addresses, scraped_at.as_deref(), mounted.is_some()))?;
    }

    let signal = wait(&stopped, cache, &health);
    health.enter(Phase::Draining, Instant::now());
    log::info!("{}: no more clients; writing back dirty pages", stop::name(signal));
    server.shutdown(GRACE);
    // The control socket stays open, so that `octavo ctl` can watch the drain. The control file
    // system is unmounted; unmounting does not wait for a setting that takes long.
    drop(mounted);
    let refusals = drain::drain(cache, drain_timeout(config), |dirty_bytes| {
        if dirty_bytes > 0 {
            log::info!("draining: {} dirty left", units::human_bytes(dirty_bytes));
        }
    });
    recorders.stop_all();
    if refusals.is_empty() {
        log::info!("drained: every acknowledged write is in its store");
        return Ok(());
    }
    Err(Error::Failed(refusals.into_iter().map(lost).collect()))
}

fn drain_timeout(config: &Config) -> Duration {
    config.serve.drain_timeout.as_ref().map_or(DRAIN_TIMEOUT_DEFAULT, |timeout| timeout.0)
}

/// Sleeps until a signal arrives, and logs the status line while there is traffic.
fn wait(stopped: &Receiver<i32>, cache: &Cache, health: &Health) -> i32 {
    let mut status = Status::new(cache, Instant::now());
    loop {
        match stopped.recv_timeout(status.period()) {
            Ok(signal) => return signal,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(line) = status.look(cache, Instant::now()) {
                    log::info!("{line}");
                }
                // Last: a main thread that hangs above must not report.
                health.seen(Instant::now());
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread of signals does not end"),
        }
    }
}

/// The exports, the sockets, and how to attach to the first export.
fn banner(
    config: &Config,
    lengths: &[u64],
    addresses: &[Address],
    metrics: Option<&str>,
    mounted: bool,
) -> String {
    let mut text = String::new();
    for (export, len_bytes) in config.exports.iter().zip(lengths) {
        text += &format!(
            "\"{}\": {}, {}{}\n",
            export.name.get_ref(),
            export.path.get_ref().display(),
            units::human_bytes(*len_bytes),
            if export.read_only { ", read-only" } else { "" }
        );
    }
    if let Some(control) = &config.listen.control {
        let path = control.get_ref().0.0.display();
        text += &format!("control socket {path}: octavo ctl --socket {path} stat\n");
    }
    if let (Some(fs), true) = (&config.control.fs, mounted) {
        text += &format!("control file system {}\n", fs.get_ref().display());
    }
    if let Some(url) = metrics {
        text += &format!("metrics {url}/metrics, health {url}/healthz and {url}/readyz\n");
    }
    if let (Some(export), Some(len_bytes), Some(address)) =
        (config.exports.first(), lengths.first(), addresses.first())
    {
        text += &format!("\nto attach to \"{}\":\n", export.name.get_ref());
        text += &attach::commands(address, export, *len_bytes);
        text += "\nas a disk of a libvirt domain, in its <devices>:\n";
        text += &attach::libvirt_disk(address, export);
        text += "\nCtrl-C writes dirty pages back and ends.\n";
    }
    text
}

/// Gives up an object that cannot be drained, and says how many bytes that loses.
fn lost(refusal: Refusal) -> String {
    let bytes = match &refusal.object {
        Some(object) => object.abandon(),
        None => refusal.dirty_bytes,
    };
    format!("\"{}\": {}: {bytes} bytes lost ({})", refusal.name, refusal.reason, units::human_bytes(bytes))
}
