//! `octavo serve`: makes the cache that a configuration describes, lets clients in, and at the end
//! writes back what they left.
//!
//! 1. The configuration is read and checked. `--check` takes step 2 as well, without claiming the
//!    stores, and ends there.
//! 2. The cache, its partitions and exports are made. Whatever the engine refuses here is told with
//!    the line of the configuration that asked for it.
//! 3. Sockets open, and the control file system is mounted; the socket for clients comes last. The
//!    socket for metrics and health opens before the stores do.
//! 4. The main thread sleeps until a signal or the next look at the counters.
//! 5. At the first signal no more clients come in, those that are there get a moment for what they
//!    have asked, and every object is drained.
//! 6. What cannot be drained is named and given up.

mod attach;
mod demo;
mod status;
mod stop;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use octavo::numa::TopologySource;
use octavo::{Cache, CacheConfig, Object, Partition, PartitionConfig, disk};
use octavo_block::{Address, Export, Limits, Server, Traffic};

use crate::config::source::Placed;
use crate::config::{Config, DRAIN_TIMEOUT_DEFAULT, ExportSection, check};
use crate::control::drain::{self, Refusal};
use crate::control::health::{Health, Phase};
use crate::control::http::{Listener as Scraped, Page};
use crate::control::metrics::{self, Metrics};
use crate::control::mount::{self, Mounted, Unmounted};
use crate::control::recorders::{self, Recorders};
use crate::control::report::{AskClients, Clients};
use crate::control::server::{Asked, Listener};
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::logger::{self, Settings, Wishes};
use crate::{output, units};
use attach::Attachable;
use status::Status;

/// The most bytes that are read ahead of a stream: what most devices need to come near their
/// bandwidth.
const READ_AHEAD_DEFAULT: u64 = 512 << 10;

/// How long clients may take to finish what they have asked when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Serve disk images and devices to NBD clients
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo serve                                    a demo disk, and how to attach to it
  octavo serve --config /etc/octavo.toml          the disks that a file names
  octavo serve --config /etc/octavo.toml --check  only say what is wrong with the file

SIGTERM and Ctrl-C write back what is dirty and end; a second one ends at once.")]
pub struct Arguments {
    /// The configuration, TOML; without one a demo disk is made and served
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and serve nothing
    #[arg(long, requires = "config")]
    check: bool,
    /// Nodes and cores such as 2x4 instead of the machine's, for tests; before the configuration's
    /// cache.topology
    #[arg(long, value_name = "NODESxCORES")]
    topology: Option<TopologySource>,
    #[command(flatten)]
    log: Wishes,
}

/// Serves until a signal comes.
pub fn run(
    arguments: &Arguments,
    environment: &Environment,
    quiet: bool,
    log: Settings,
) -> Result<(), Error> {
    crate::heap::bound();
    // Once more when the configuration is read, which is a reason for lines itself.
    logger::change(log.of_server(&arguments.log, &Wishes::default()));
    logger::take_panics();
    let config = match &arguments.config {
        Some(path) => Config::read(path).map_err(Error::Config)?,
        None => demo::config(environment)?,
    };
    logger::change(log.of_server(&arguments.log, &config.log));
    check::doubtful(&config);
    let served = Served::make(&config, arguments.topology)?;
    let limits = limits(&config, &served.cache)?;
    if arguments.check {
        served.open(&config, disk::Store::rehearse)?;
        return output::text(&format!("{}: nothing is wrong\n", config.source.name));
    }

    let (stop, stopped) = channel();
    stop::start(served.cache.clone(), stop)?;
    let (health, traffic) = (Arc::new(Health::new(Instant::now())), Arc::<OnceLock<Traffic>>::default());
    // First of all sockets: while stores are being opened it says so.
    let scraped_at = scrape(&config, &served.cache, &health, &traffic)?;
    let recorders = served.record(&config)?;
    let exports = served.open(&config, disk::Store::open)?;
    let control = match &config.listen.control {
        Some(control) => {
            let bound = Listener::bind(&control.value);
            Some(bound.map_err(|message| Error::Config(vec![config.line(&control.place, message)]))?)
        }
        None => None,
    };
    // Before clients are let in: whoever finds the socket finds the rest.
    let mounted = mount(&config, &served.cache)?;
    let lengths: Vec<u64> = exports.iter().map(|export| export.object.len_bytes()).collect();
    watch::start(&exports)?;
    let server = listen(&config, &served.cache, exports, limits)?;
    let addresses = server.addresses();
    traffic.set(server.traffic()).unwrap_or_else(|_| unreachable!("one server is started"));
    if let Some(listener) = &control {
        listener.serve(Asked {
            cache: served.cache.clone(),
            recorders: Arc::clone(&recorders),
            drain_timeout: drain_timeout(&config),
            started: Instant::now(),
            clients: clients(&traffic),
            waiting: Arc::default(),
        })?;
    }
    health.enter(Phase::Serving, Instant::now());
    if !quiet {
        output::text(&banner(&config, &lengths, &addresses, scraped_at.as_deref(), mounted.is_some()))?;
    }

    let signal = wait(&stopped, &served.cache, &health);
    health.enter(Phase::Draining, Instant::now());
    log::info!("{}: no more clients; writing back what is dirty", stop::name(signal));
    server.shutdown(GRACE);
    // Who looks at what becomes of dirty pages asks the socket; a setting that takes long is not waited
    // for.
    drop(mounted);
    let refusals = drain::drain(&served.cache, drain_timeout(&config), |dirty_bytes| {
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

/// How a store is opened: [`disk::Store::open`], or [`disk::Store::rehearse`] for a check.
type OpenStore = fn(&Path, &disk::OpenOptions) -> Result<disk::Store, disk::OpenError>;

/// What the engine made of a configuration.
struct Served {
    cache: Cache,
    partitions: Vec<Partition>,
}

impl Served {
    /// Makes the cache and its partitions, for a check as for serving: how much memory each
    /// partition gets is decided by the cache's own threads, and a cache without them refuses
    /// what one with them can share out.
    fn make(config: &Config, topology: Option<TopologySource>) -> Result<Served, Error> {
        let section = &config.cache;
        let refused =
            |place, error: octavo::Error| Error::Config(vec![config.line(place, error.to_string())]);
        let defaults = CacheConfig::default();
        let page_bytes = section.page_bytes.as_ref().map(|bytes| bytes.value);
        let cache = Cache::new(CacheConfig {
            memory_max_bytes: section.memory_max.value,
            // Checked to be at most 64 KiB.
            page_bytes: page_bytes.map_or(defaults.page_bytes, |bytes| bytes as u32),
            engine: section.io.as_ref().map_or(defaults.engine, |io| io.value),
            buffers_max_bytes: section.buffers_max.as_ref().map(|bytes| bytes.value),
            reaper: section.reaper,
            topology: topology.or(section.topology.as_ref().map(|given| given.value)).unwrap_or_default(),
            numa: section.numa.as_ref().map_or(defaults.numa, |mode| mode.value),
            replication: section.replication,
            pressure: section.yields.then(octavo::pressure::PressureSource::linux),
            ..defaults
        })
        .map_err(|error| match (&error, &section.buffers_max) {
            (octavo::Error::NoMemory { .. }, Some(buffers)) => refused(&buffers.place, error),
            _ => refused(&section.memory_max.place, error),
        })?;
        // Partitions without a `max` share equally what those with one leave.
        let stat = cache.stat();
        let left = stat.memory_max_bytes.saturating_sub(stat.memory_charged_bytes);
        let given: u64 =
            config.partitions.iter().filter_map(|section| section.max.as_ref()).map(|max| max.value).sum();
        let sharing = config.partitions.iter().filter(|section| section.max.is_none()).count() as u64;
        let share = left.saturating_sub(given) / sharing.max(1);
        // More than there is may be bounded by `max`: then all begin with a part of theirs.
        let scaled = |bytes: u64| match given > left {
            true => (u128::from(bytes) * u128::from(left) / u128::from(given.max(1))) as u64,
            false => bytes,
        };
        let value = |bytes: &Option<Placed<u64>>| bytes.as_ref().map(|bytes| bytes.value);
        for group in &config.groups {
            let defaults = octavo::Limits::default();
            let limits = octavo::Limits {
                min_bytes: value(&group.min).unwrap_or(0),
                low_bytes: value(&group.low).unwrap_or(0),
                high_bytes: value(&group.high).unwrap_or(octavo::UNLIMITED),
                max_bytes: value(&group.max).unwrap_or(octavo::UNLIMITED),
                weight: value(&group.weight).map_or(defaults.weight, |weight| weight as u32),
            };
            cache.set_group(&group.name.value, limits).map_err(|error| refused(&group.name.place, error))?;
        }
        let mut partitions = Vec::new();
        for section in &config.partitions {
            let defaults = PartitionConfig::new(&section.name.value);
            let made = cache.partition(PartitionConfig {
                policy: section.policy.as_ref().map_or(defaults.policy, |policy| policy.value),
                cache_mode: section.cache_mode.as_ref().map_or(defaults.cache_mode, |mode| mode.value),
                max_bytes: value(&section.max),
                start_bytes: Some(
                    value(&section.max).map_or(share, scaled).max(value(&section.min).unwrap_or(0)),
                ),
                min_bytes: value(&section.min).unwrap_or(0),
                low_bytes: value(&section.low).unwrap_or(0),
                high_bytes: value(&section.high),
                weight: value(&section.weight).map_or(defaults.weight, |weight| weight as u32),
                read_ahead_max_bytes: value(&section.read_ahead).unwrap_or(READ_AHEAD_DEFAULT),
                node: section.node.as_ref().map(|node| node.value as u32),
                dirty_max_bytes: section.dirty_max.as_ref().map(|bytes| bytes.value),
                ..defaults
            });
            let place = section.max.as_ref().map_or(&section.place, |max| &max.place);
            let place = section.node.as_ref().map_or(place, |node| &node.place);
            partitions.push(made.map_err(|error| refused(place, error))?);
        }
        Ok(Served { cache, partitions })
    }

    /// Begins the recordings that the configuration asks for, before anything is opened: so they
    /// are exact.
    fn record(&self, config: &Config) -> Result<Arc<Recorders>, Error> {
        let recorders = Arc::new(Recorders::default());
        for section in &config.partitions {
            let Some(order) = &section.record else { continue };
            let partition =
                self.partitions.iter().find(|partition| partition.name() == order.value.partition);
            let partition = partition.expect("it was made of this section");
            let started = recorders::make_way(&order.value)
                .and_then(|()| recorders.start(partition, &order.value).map(drop));
            started.map_err(|message| Error::Config(vec![config.line(&order.place, message)]))?;
        }
        Ok(recorders)
    }

    /// Opens the exports' stores, for serving or for a check; tells all that cannot be opened.
    fn open(&self, config: &Config, open: OpenStore) -> Result<Vec<Export>, Error> {
        let mut exports = Vec::new();
        let mut problems = Vec::new();
        for section in &config.exports {
            match self.open_one(section, open) {
                Ok(object) => exports.push(Export {
                    name: section.name.value.clone(),
                    description: section
                        .description
                        .as_ref()
                        .map_or_else(String::new, |text| text.value.clone()),
                    read_only: section.read_only,
                    object,
                }),
                Err(message) => problems.push(config.line(&section.path.place, message)),
            }
        }
        if problems.is_empty() { Ok(exports) } else { Err(Error::Config(problems)) }
    }

    fn open_one(&self, section: &ExportSection, open: OpenStore) -> Result<Object, String> {
        let options = disk::OpenOptions { read_only: section.read_only, ..disk::OpenOptions::default() };
        let store = open(&section.path.value, &options).map_err(|error| match error {
            disk::OpenError::Permission { .. } | disk::OpenError::ReadOnlyDevice { .. }
                if !section.read_only =>
            {
                format!("{error}; to serve it for reading only: read_only = true")
            }
            _ => error.to_string(),
        })?;
        let partition = self
            .partitions
            .iter()
            .find(|partition| partition.name() == section.partition.value)
            .ok_or_else(|| format!("no partition is called \"{}\"", section.partition.value))?;
        partition.open(store, &section.name.value).map_err(|error| error.to_string())
    }
}

/// The clients that are let in where the configuration does not say how many, if two thirds of the
/// room are enough for them: the rest is lent to those that are there.
const CONNECTIONS_DEFAULT: usize = 64;

fn limits(config: &Config, cache: &Cache) -> Result<Limits, Error> {
    let mut limits = Limits::default();
    let room = limits.room(cache);
    limits.connections_max = (room / 3 * 2).clamp(1, CONNECTIONS_DEFAULT);
    if let Some(timeout) = &config.serve.handshake_timeout {
        limits.handshake_time = timeout.value;
    }
    if let Some(count) = &config.serve.connections_max {
        // Checked to be at most 65536.
        limits.connections_max = count.value as usize;
        if limits.connections_max > room {
            let share = units::human_bytes(cache.stat().buffers_max_bytes);
            let message = format!(
                "the share of memory_max for buffers, {share}, has room for {room} clients; a larger cache.buffers_max \
                 or cache.memory_max makes more"
            );
            return Err(Error::Config(vec![config.line(&count.place, message)]));
        }
    }
    Ok(limits)
}

/// Tells what the clients of a server do, before it has begun and when it has ended, too.
fn clients(traffic: &Arc<OnceLock<Traffic>>) -> AskClients {
    let traffic = Arc::clone(traffic);
    Box::new(move || match traffic.get() {
        Some(traffic) => Clients { connections: traffic.connections() as u64, exports: traffic.exports() },
        None => Clients::default(),
    })
}

/// Serves metrics and health over HTTP, where that is asked for. Returns the address.
fn scrape(
    config: &Config,
    cache: &Cache,
    health: &Arc<Health>,
    traffic: &Arc<OnceLock<Traffic>>,
) -> Result<Option<String>, Error> {
    let Some(address) = &config.listen.metrics else { return Ok(None) };
    let bound = Scraped::bind(address.value, config.listen.metrics_hosts.clone());
    let listener =
        bound.map_err(|error| Error::Config(vec![config.line(&address.place, error.to_string())]))?;
    let url = listener.url();
    let (cache, health) = (cache.clone(), Arc::clone(health));
    let metrics = Metrics::new(cache.clone(), clients(traffic));
    listener.serve(move |path| match path {
        "/metrics" => Some(Page { is_good: true, content_type: metrics::CONTENT_TYPE, text: metrics.page() }),
        "/healthz" => Some(told(health.dead(Instant::now()).into_iter().collect())),
        "/readyz" => {
            let stats: Vec<_> = drain::objects(&cache).iter().map(Object::stat).collect();
            Some(told(health.unready(&stats)))
        }
        _ => None,
    })?;
    Ok(Some(url))
}

/// The page of a check that fails for these reasons, or succeeds.
fn told(reasons: Vec<String>) -> Page {
    let is_good = reasons.is_empty();
    let text = if is_good { "ok\n".into() } else { reasons.join("\n") + "\n" };
    Page { is_good, content_type: "text/plain; charset=utf-8", text }
}

fn listen(config: &Config, cache: &Cache, exports: Vec<Export>, limits: Limits) -> Result<Server, Error> {
    let wrong = |place, message: String| Error::Config(vec![config.line(place, message)]);
    for nbd in &config.listen.nbd {
        if let Address::Unix(path) = &nbd.value
            && let Some(directory) = path.parent()
        {
            make_private_dir(directory).map_err(|message| wrong(&nbd.place, message))?;
        }
    }
    let addresses: Vec<Address> = config.listen.nbd.iter().map(|nbd| nbd.value.clone()).collect();
    Server::start(cache.clone(), exports, &addresses, limits).map_err(|error| match &error {
        octavo_block::Error::Listen { address, .. } => {
            let said = config.listen.nbd.iter().find(|nbd| nbd.value == *address);
            said.map_or_else(|| Error::failed(error.to_string()), |nbd| wrong(&nbd.place, error.to_string()))
        }
        _ => Error::failed(error.to_string()),
    })
}

/// Mounts the control file system where one is asked for. A system without FUSE serves without it.
fn mount(config: &Config, cache: &Cache) -> Result<Option<Mounted>, Error> {
    let Some(fs) = &config.control.fs else { return Ok(None) };
    match mount::mount(&fs.value, cache.clone()) {
        Ok(mounted) => Ok(Some(mounted)),
        Err(Unmounted::Path(why)) => Err(Error::Config(vec![config.line(&fs.place, why)])),
        Err(Unmounted::System(why)) => {
            log::warn!("{}; it is served without", config.line(&fs.place, format!("not mounted: {why}")));
            Ok(None)
        }
    }
}

fn drain_timeout(config: &Config) -> Duration {
    config.serve.drain_timeout.as_ref().map_or(DRAIN_TIMEOUT_DEFAULT, |timeout| timeout.value)
}

/// Sleeps until a signal comes, and shows the status line while there is traffic.
fn wait(stopped: &Receiver<i32>, cache: &Cache, health: &Health) -> i32 {
    let mut status = Status::new(cache, Instant::now());
    loop {
        match stopped.recv_timeout(status.period()) {
            Ok(signal) => return signal,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(line) = status.look(cache, Instant::now()) {
                    log::info!("{line}");
                }
                // Last: whatever blocks the above is a main thread that does not report.
                health.seen(Instant::now());
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread of signals does not end"),
        }
    }
}

/// What is served, where, and how to attach to the first of it.
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
            export.name.value,
            export.path.value.display(),
            units::human_bytes(*len_bytes),
            if export.read_only { ", read-only" } else { "" }
        );
    }
    if let Some(control) = &config.listen.control {
        let path = control.value.display();
        text += &format!("control socket {path}: octavo ctl --socket {path} stat\n");
    }
    if let (Some(fs), true) = (&config.control.fs, mounted) {
        text += &format!("control file system {}\n", fs.value.display());
    }
    if let Some(url) = metrics {
        text += &format!("metrics {url}/metrics, health {url}/healthz and {url}/readyz\n");
    }
    if let (Some(export), Some(len_bytes), Some(address)) =
        (config.exports.first(), lengths.first(), addresses.first())
    {
        let name = &export.name.value;
        text += &format!("\nto attach to \"{name}\":\n");
        let export = Attachable { name, len_bytes: *len_bytes, read_only: export.read_only };
        text += &attach::commands(address, &export);
        text += "\nas a disk of a libvirt domain, in its <devices>:\n";
        text += &attach::libvirt_disk(address, &export);
        text += "\nCtrl-C writes back what is dirty and ends.\n";
    }
    text
}

/// Gives up an object that cannot be drained, and says what that loses.
fn lost(refusal: Refusal) -> String {
    let bytes = match &refusal.object {
        Some(object) => object.abandon(),
        None => refusal.dirty_bytes,
    };
    format!("\"{}\": {}: {bytes} bytes lost ({})", refusal.name, refusal.reason, units::human_bytes(bytes))
}
