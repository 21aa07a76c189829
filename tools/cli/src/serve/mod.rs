//! `octavo serve`: makes the cache that a configuration describes, serves clients, and writes dirty
//! pages back at the end.
//!
//! 1. The configuration is read and checked. `--check` takes step 2 as well, without claiming the
//!    stores, and ends there.
//! 2. The cache is made (`build`), and its partitions and exports (`catalog`, `reload`). A refusal
//!    of the engine is shown with the line of the configuration that asked for it.
//! 3. Sockets open, and the control file system is mounted (`sockets`). The socket for metrics and
//!    health opens before the stores do, the socket for clients last.
//! 4. The main thread sleeps until a signal arrives or the next status line is due. Threads of
//!    control clients, and a thread for SIGHUP, add and remove partitions and exports meanwhile
//!    (`manage`).
//! 5. At the first signal the server admits no more clients, gives connected clients a moment to
//!    finish their requests, and drains every object: those of exports while its mounts still
//!    serve, then those of mounts.
//! 6. Objects that cannot be drained are named and given up.
//!
//! A server that takes over from another one begins with what that one has left (`take_over`), and
//! a server that is replaced leaves it (`hand_over`).

mod attach;
mod build;
mod catalog;
mod demo;
mod files;
mod format;
mod guard;
mod hand_over;
mod inheritance;
mod lists;
mod manage;
mod mounts;
mod passing;
mod reload;
mod resize;
mod share;
mod sockets;
mod status;
mod step;
mod take_over;
mod tls;
mod watch;

use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use octavo::numa::TopologySource;
use octavo::{Cache, Object};
use octavo_block::{Address, Estate, Server};

use crate::config::source::Source;
use crate::config::values::Attach;
use crate::config::{Config, ExportSection, check};
use crate::control::drain;
use crate::control::events::{Event, EventLog};
use crate::control::health::{Health, Phase};
use crate::control::mount::Mounted;
use crate::control::report::{AskClients, MountReport};
use crate::control::server::{Asked, HandOver};
use crate::control::stop::{self, Stop};
use crate::environment::Environment;
use crate::error::Error;
use crate::logger::{self, Settings, Wishes};
use crate::{output, units};
use catalog::{Catalog, GRACE};
use inheritance::Inheritance;
use status::Status;
use step::Purpose;
use take_over::Predecessor;

/// Serve disk images and devices to NBD clients
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo serve                                    a demo disk, and how to attach to it
  octavo serve --config /etc/octavo.toml          the disks that a file names
  octavo serve --config /etc/octavo.toml --check  only check the file

SIGTERM and Ctrl-C write dirty pages back and end the server; a second one ends it at once.
SIGHUP reads the configuration again, like `octavo ctl reload`.")]
pub struct Arguments {
    /// The configuration, TOML [default: make and serve a demo disk]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file without an option, as other programs take it; the error says what to write instead
    #[arg(value_name = "FILE", hide = true)]
    stray: Option<PathBuf>,
    /// Check the configuration and serve nothing
    #[arg(long, requires = "config")]
    check: bool,
    /// Take over from the running server of this configuration: pages, sockets and clients
    #[arg(long, conflicts_with = "check")]
    take_over: bool,
    /// Emulate nodes and cores such as 2x4, for tests; replaces the configuration's cache.topology
    #[arg(long, value_name = "NODESxCORES")]
    topology: Option<TopologySource>,
    #[command(flatten)]
    log: Wishes,
}

/// How much longer than its drains the server asks the service manager to wait.
const LAST_WORD: Duration = Duration::from_secs(60);

/// Serves until a signal arrives.
pub fn run(
    arguments: &Arguments,
    environment: &Environment,
    quiet: bool,
    log: Settings,
) -> Result<(), Error> {
    crate::heap::bound();
    if let Some(stray) = &arguments.stray {
        return Err(Error::Usage(misplaced(stray)));
    }
    let (hang_up, hung_up) = sync_channel(1);
    // First: from here on, a signal ends the server, whatever hangs. A check has nothing to end.
    let stop = if arguments.check {
        Stop::not_needed();
        None
    } else {
        Some(Stop::start(Some(hang_up))?)
    };
    logger::queue()?;
    if stop.is_some() {
        crate::heap::keep_trimmed();
    }
    // Again after the configuration is read: reading it can log, too.
    logger::change(log.of_server(&arguments.log, &Wishes::default()));
    logger::take_panics();
    let resumed = match (environment.take_successor(), &stop) {
        (Some(successor), Some(stop)) => match guard::guard(environment, successor, stop)? {
            None => return Ok(()),
            resumed => resumed,
        },
        _ => None,
    };
    let in_force = resumed.as_ref().and_then(|left| left.config.clone());
    let config = match (in_force, &arguments.config) {
        (Some((name, text)), _) => Config::parse(Source::new(name, text))?,
        (None, Some(path)) => Config::read(path)?,
        (None, None) => demo::config(environment)?,
    };
    logger::change(log.of_server(&arguments.log, &config.log.wishes()));
    check::doubtful(&config);
    let cache = build::cache(&config, arguments.topology)?;
    if let Some(stop) = &stop {
        stop.watch(&cache);
    }
    let limits = sockets::limits(&config, &cache)?;
    let server = Server::new(cache.clone(), limits).map_err(|error| Error::failed(error.to_string()))?;
    let file = arguments.config.as_ref().filter(|file| can_be_read_again(file)).cloned();
    let supervisor = Arc::new(environment.supervisor());
    let catalog = Catalog::new(cache, server, file, (log, arguments.log), config.s3.clone(), supervisor);
    let Some(stop) = stop else {
        let name = config.source.name.clone();
        catalog.apply(config, Purpose::Check, &mut |_| {})?;
        return output::text(&format!("{name}: no problems\n"));
    };
    let is_resumed = resumed.is_some();
    let (inheritance, predecessor) = match resumed {
        Some(left) => (left, Predecessor::None),
        None if arguments.take_over => take_over::ask(&config)?,
        None => take_over::stored(environment),
    };
    let has_predecessor = is_resumed || !matches!(predecessor, Predecessor::None);
    let start = Start { inheritance, predecessor, has_predecessor, environment, stop, hung_up };
    serve(&config, &Arc::new(catalog), quiet, start)
}

/// What to write instead of a file that stands without an option.
fn misplaced(file: &Path) -> String {
    let shown = file.display();
    if file.extension().is_some_and(|extension| extension == "toml") {
        let quoted = attach::shell_quoted(&file.to_string_lossy());
        return format!("the configuration has an option: octavo serve --config {quoted}");
    }
    format!(
        "{shown}: exports are listed in a configuration: write an [[export]] with path = \"{shown}\" to a file, and \
         name it with --config (octavo.toml(5) has an example)"
    )
}

/// What a server begins with.
struct Start<'a> {
    inheritance: Inheritance,
    predecessor: Predecessor,
    /// A server has served the same before: another one, or this process itself.
    has_predecessor: bool,
    environment: &'a Environment,
    /// The signals.
    stop: Stop,
    /// Gets a message for each SIGHUP.
    hung_up: Receiver<()>,
}

/// Why a server ends.
enum Ending {
    /// A signal.
    Signal(i32),
    /// Another server takes over, at the other end of the connection.
    Succession(UnixStream),
}

/// Whether a file has a content of its own, unlike a pipe.
fn can_be_read_again(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file())
}

/// Steps 3 to 6.
fn serve(config: &Config, catalog: &Arc<Catalog>, quiet: bool, start: Start<'_>) -> Result<(), Error> {
    let cache = &catalog.cache;
    let Start { mut inheritance, predecessor, has_predecessor, environment, stop, hung_up } = start;
    let (end, ended) = channel();
    let succeed = end.clone();
    let health = Arc::new(Health::new(Instant::now()));
    let clients = || {
        let (images, mounts) = (Arc::clone(&catalog.images), Arc::clone(&catalog.mounts));
        sockets::clients(catalog.server.traffic(), images, mounts, Arc::clone(&catalog.remotes))
    };
    let events = config.listen.control.as_ref().map(|_| collect_events(cache)).transpose()?;
    let scraped_at = sockets::scrape(config, cache, &health, clients())?;
    // No client is accepted before the pages are in, and the predecessor has ended.
    catalog.server.hold();
    catalog.server.inherit(std::mem::take(&mut inheritance.estate.listeners));
    let warm = take_over::expect(catalog, &mut inheritance);
    let mut undo = mounts::Undo(Some(&catalog.mounts));
    let purpose = if has_predecessor { Purpose::Succeed } else { Purpose::Start };
    catalog.apply(config.clone(), purpose, &mut |_| {})?;
    take_over::add(catalog, &inheritance.asked, &predecessor)?;
    take_over::restore(catalog, warm);
    let control = sockets::control(config)?;
    let mounted = sockets::mount(config, cache)?;
    // Last: a client that finds this socket finds the others, too.
    sockets::listen(config, &catalog.server)?;
    take_over::commit(catalog, predecessor)?;
    // A signal from before ends the server in order, as one from now on.
    stop.serving(move |signal| _ = end.send(Ending::Signal(signal)));
    catalog.server.open().map_err(|error| Error::failed(error.to_string()))?;
    take_over::adopt(catalog, inheritance.estate.clients);
    if let (Some(listener), Some(events)) = (&control, &events) {
        let hand_over = Box::new(move |successor| _ = succeed.send(Ending::Succession(successor)));
        listener.serve(asked(catalog, clients(), events, hand_over))?;
    }
    reload_on(hung_up, catalog.clone())?;
    health.enter(Phase::Serving, Instant::now());
    let supervisor = &catalog.supervisor;
    supervisor.ready(&catalog.summary());
    if !quiet {
        let addresses = catalog.server.addresses();
        let exports = catalog.exports();
        output::notice(&mount_lines(catalog))?;
        output::notice(&banner(config, &exports, &addresses, scraped_at.as_deref(), mounted.is_some()))?;
    }

    undo.0 = None;
    let ending = loop {
        match wait(&ended, catalog, &health) {
            Ending::Succession(successor) if !hand_over::is_ready(catalog, &successor) => {}
            ending => break ending,
        }
    };
    health.enter(Phase::Draining, Instant::now());
    let ending = unless_stopped(ending, stop.asked());
    self::end(catalog, environment, (mounted, events), (ending, &stop))
}

/// A signal takes precedence over a successor (U8).
fn unless_stopped(ending: Ending, asked: Option<i32>) -> Ending {
    match (ending, asked) {
        (Ending::Succession(_), Some(signal)) => Ending::Signal(signal),
        (ending, _) => ending,
    }
}

/// Steps 5 and 6.
fn end(
    catalog: &Catalog,
    environment: &Environment,
    (mounted, events): (Option<Mounted>, Option<Arc<EventLog>>),
    (ending, stop): (Ending, &Stop),
) -> Result<(), Error> {
    let supervisor = &catalog.supervisor;
    match &ending {
        Ending::Signal(signal) => {
            supervisor.stopping("no more clients; writing back dirty pages");
            let name = stop::name(*signal);
            log::info!(event = "drain"; "{name}: no more clients; writing back dirty pages");
        }
        Ending::Succession(_) => {
            log::info!(event = "drain"; "another server takes over: writing back dirty pages");
        }
    }
    let is_left = matches!(ending, Ending::Succession(_)) || environment.stored_max() > 0;
    // The exports go, and theirs are the last handles: an object without any would close before its
    // store is synced and its pages are left to the next server.
    let _objects = drain::objects(&catalog.cache);
    catalog.stop();
    let estate = if is_left {
        catalog.server.hand_over(GRACE)
    } else {
        catalog.server.shutdown(GRACE);
        Estate::default()
    };
    let mut drained = Drained::default();
    if !catalog.mounts.list().is_empty() {
        drained = drain_exports(catalog);
    }
    catalog.mounts.end(catalog.drain_timeout.get());
    // The control socket stays open, so that `octavo ctl` can watch the drain. The control file
    // system is unmounted; unmounting does not wait for a setting that takes long.
    drop(mounted);
    drain_all(catalog, events.as_deref(), drained)?;
    if !is_left {
        drain::close(&catalog.cache);
        return Ok(());
    }
    let pages = hand_over::evacuate(catalog)?;
    let asked = if matches!(ending, Ending::Succession(_)) { stop.leave() } else { None };
    match unless_stopped(ending, asked) {
        Ending::Signal(_) => {
            if environment.stored_max() > 0 {
                hand_over::store(catalog, environment.stored_max(), pages, estate);
            }
            Ok(())
        }
        Ending::Succession(successor) => {
            Err(hand_over::become_guard(environment, catalog, (pages, estate), successor))
        }
    }
}

/// Objects that a first drain has had, and those that it gave up.
#[derive(Default)]
struct Drained {
    objects: Vec<Object>,
    refusals: Vec<drain::Refusal>,
}

/// Drains the exports while the mounts still serve (`own.rs`, S2).
fn drain_exports(catalog: &Catalog) -> Drained {
    let of_mounts = catalog.mounts.stores();
    let is_of_a_mount = |object: &Object| of_mounts.contains(&std::ptr::from_ref(object.store()));
    let objects = drain::objects(&catalog.cache).into_iter().filter(|object| !is_of_a_mount(object));
    let objects: Vec<Object> = objects.collect();
    let refusals = drain_some(catalog, objects.clone());
    Drained { objects, refusals }
}

/// Drains objects, and says how far it is.
fn drain_some(catalog: &Catalog, objects: Vec<Object>) -> Vec<drain::Refusal> {
    let supervisor = &catalog.supervisor;
    drain::drain(objects, catalog.drain_timeout.get(), |dirty_bytes| {
        if dirty_bytes > 0 {
            let progress = format!("draining: {} dirty left", units::human_bytes(dirty_bytes));
            log::info!("{progress}");
            supervisor.status(&progress);
        }
        // A drain that makes progress is not killed, however long it takes.
        supervisor.extend(catalog.drain_timeout.get() + LAST_WORD);
    })
}

/// Writes all dirty pages of objects that were not drained before. The error names what is lost.
fn drain_all(catalog: &Catalog, events: Option<&EventLog>, drained: Drained) -> Result<(), Error> {
    let Drained { objects: drained, mut refusals } = drained;
    let before: HashSet<_> = drained.iter().map(|object| std::ptr::from_ref(object.store())).collect();
    let is_new = |object: &Object| !before.contains(&std::ptr::from_ref(object.store()));
    let objects = drain::objects(&catalog.cache).into_iter().filter(is_new).collect();
    refusals.extend(drain_some(catalog, objects));
    catalog.recorders.stop_all();
    let give_up = |drain::Loss { name, line }| {
        if let Some(events) = events {
            events.add(Event { object: Some(name), ..Event::new("given-up", "error", line.clone()) });
        }
        line
    };
    let mut lost: Vec<String> = drain::lost(refusals).into_iter().map(give_up).collect();
    if lost.is_empty() {
        // All objects have answered, so the mounts close their files soon.
        lost = catalog.mounts.close(catalog.drain_timeout.get());
    }
    if lost.is_empty() {
        log::info!(event = "drain"; "drained: every acknowledged write is in its store");
        return Ok(());
    }
    Err(Error::Failed(lost))
}

/// Collects the events of the cache and of the log.
fn collect_events(cache: &Cache) -> Result<Arc<EventLog>, Error> {
    let events = EventLog::start(cache)?;
    let told = Arc::clone(&events);
    logger::listen(move |record| told.add_record(record));
    Ok(events)
}

/// What the control socket needs to answer. The server has started.
fn asked(catalog: &Arc<Catalog>, clients: AskClients, events: &Arc<EventLog>, hand_over: HandOver) -> Asked {
    let text = format!("octavo {} serves: {}", env!("CARGO_PKG_VERSION"), catalog.summary());
    events.add(Event::new("start", "info", text));
    let managed = catalog.clone();
    Asked {
        cache: catalog.cache.clone(),
        recorders: Arc::clone(&catalog.recorders),
        drain_timeout: Arc::clone(&catalog.drain_timeout),
        manage: Box::new(move |verb, request, progress| manage::answer(&managed, verb, request, progress)),
        hand_over,
        started: Instant::now(),
        clients,
        waiting: Arc::default(),
        events: Arc::clone(events),
        followers: Arc::default(),
    }
}

/// Starts the thread that reloads the configuration after each SIGHUP. A SIGHUP during a reload
/// causes one more.
fn reload_on(hung_up: Receiver<()>, catalog: Arc<Catalog>) -> Result<(), Error> {
    let reload = move || {
        while hung_up.recv().is_ok() {
            log::info!("SIGHUP: reading the configuration again");
            // The result has been logged.
            let _ = manage::reload(&catalog, false, &mut |_| {});
        }
    };
    let failed = |error| Error::failed(format!("cannot start a thread: {error}"));
    std::thread::Builder::new().name("reload".into()).spawn(reload).map_err(failed).map(drop)
}

/// Sleeps until the server is to end, and logs the status line while there is traffic.
fn wait(ended: &Receiver<Ending>, catalog: &Catalog, health: &Health) -> Ending {
    let (cache, supervisor) = (&catalog.cache, &catalog.supervisor);
    let mut status = Status::new(cache, Instant::now());
    let (mut looked, mut is_busy) = (Instant::now(), false);
    loop {
        match ended.recv_timeout(supervisor.period(status.period())) {
            Ok(ending) => return ending,
            Err(RecvTimeoutError::Timeout) => {
                // A watchdog may wake this thread more often.
                if looked.elapsed() >= status.period() {
                    looked = Instant::now();
                    let line = status.look(cache, looked);
                    match &line {
                        Some(line) => {
                            log::info!("{line}");
                            supervisor.status(line);
                        }
                        None if is_busy => supervisor.status(&catalog.summary()),
                        None => {}
                    }
                    is_busy = line.is_some();
                }
                // Last: a main thread that hangs above must not report.
                health.seen(Instant::now());
                supervisor.alive();
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread of signals does not end"),
        }
    }
}

/// A line for each mounted directory.
fn mount_lines(catalog: &Catalog) -> String {
    let line = |mount: MountReport| {
        let mode = if mount.read_only { ", read-only" } else { "" };
        format!("{} is mounted at {}{mode}\n", mount.source, mount.path)
    };
    catalog.mounts.report().into_iter().map(line).collect()
}

/// The exports, the sockets, and how to attach to the first export.
fn banner(
    config: &Config,
    exports: &[(ExportSection, u64)],
    addresses: &[Address],
    metrics: Option<&str>,
    mounted: bool,
) -> String {
    let mut text = String::new();
    for (export, len_bytes) in exports {
        text += &format!(
            "\"{}\": {}, {}{}{}\n",
            export.name.get_ref(),
            export.path.get_ref().display(),
            units::human_bytes(*len_bytes),
            if export.read_only { ", read-only" } else { "" },
            export
                .share
                .as_ref()
                .map(|share| format!(", shared in \"{}\"", share.get_ref()))
                .unwrap_or_default()
        );
    }
    if let Some(control) = &config.listen.control {
        let path = control.get_ref().0.0.display();
        let quoted = attach::shell_quoted(&path.to_string());
        text += &format!("control socket {path}: octavo ctl --socket {quoted} stat\n");
    }
    if let (Some(fs), true) = (&config.control.fs, mounted) {
        text += &format!("control file system {}\n", fs.get_ref().display());
    }
    if let Some(url) = metrics {
        text += &format!("metrics {url}/metrics, health {url}/healthz and {url}/readyz\n");
    }
    for (export, _) in exports {
        for attach in export.attached() {
            if let Attach::VhostUser(socket) = attach {
                text += &format!("\n\"{}\" as the disk of a virtual machine:\n", export.name.get_ref());
                text += &attach::vhost_user(socket, export);
                text += "\nas a disk of a libvirt domain with shared memory, in its <devices>:\n";
                text += &attach::libvirt_vhost_user(socket, export);
            }
        }
    }
    let listed = exports.iter().find(|(export, _)| export.attached().any(|attach| *attach == Attach::Nbd));
    let demands_tls = |address: &Address| {
        let required = config.tls.as_ref().is_some_and(|section| section.is_required());
        address.is_remote() || required && matches!(address, Address::Tcp(_))
    };
    if let (Some((export, _)), Some(address)) =
        (listed, addresses.iter().find(|address| demands_tls(address)))
    {
        text += &format!("\nto attach to \"{}\" over TLS:\n", export.name.get_ref());
        text += &attach::over_tls(address, export);
    }
    if let (Some((export, len_bytes)), Some(address)) =
        (listed, addresses.iter().find(|address| !demands_tls(address)))
    {
        text += &format!("\nto attach to \"{}\":\n", export.name.get_ref());
        text += &attach::commands(address, export, *len_bytes);
        text += "\nas a disk of a libvirt domain, in its <devices>:\n";
        text += &attach::libvirt_disk(address, export);
    }
    text + "\nCtrl-C writes dirty pages back and ends.\n"
}
