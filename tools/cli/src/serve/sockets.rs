//! What a server opens to the outside: sockets for NBD clients, for `octavo ctl`, for metrics and
//! health, and the control file system.
//!
//! If one of them cannot be opened, the error names the line of the configuration that asked for
//! it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use octavo::{Cache, Object};
use octavo_block::{Address, Limits, Server, Traffic};

use super::mounts::Mounts;
use super::share::Images;
use crate::config::Config;
use crate::control::drain;
use crate::control::health::Health;
use crate::control::http::{Listener as Scraped, Page};
use crate::control::metrics::{self, Metrics};
use crate::control::mount::{self, Mounted, Unmounted};
use crate::control::report::{AskClients, Clients};
use crate::control::server::Listener;
use crate::environment::make_open_dir;
use crate::error::Error;
use crate::logger;
use crate::own;
use crate::remotes::Remotes;
use crate::units;

/// Most clients at a time by default, unless two thirds of the buffers' room allow fewer. The rest
/// of the room is lent to the clients that are connected.
const CONNECTIONS_DEFAULT: usize = 64;

/// The limits on clients.
pub fn limits(config: &Config, cache: &Cache) -> Result<Limits, Error> {
    let mut limits = Limits::default();
    let room = limits.room(cache);
    limits.connections_max = (room / 3 * 2).clamp(1, CONNECTIONS_DEFAULT);
    if let Some(mode) = &config.listen.socket_mode {
        limits.unix_mode = mode.get_ref().0.0;
    }
    limits.unix_group = config.listen.socket_group.as_ref().map(|group| group.get_ref().0.0);
    if let Some(timeout) = &config.serve.handshake_timeout {
        limits.handshake_time = timeout.0;
    }
    if let Some(count) = &config.serve.connections_max {
        // Checked to be at most 65536.
        limits.connections_max = count.get_ref().0 as usize;
        if limits.connections_max > room {
            let share = units::human_bytes(cache.stat().buffers_max_bytes);
            let message = format!(
                "the share of memory_max for buffers, {share}, has room for {room} clients; increase \
                 cache.buffers_max or cache.memory_max"
            );
            return Err(config.refused(count, message));
        }
    }
    Ok(limits)
}

/// Asks the server for its clients' figures, for the images that they share, and for its mounts.
pub fn clients(
    traffic: Traffic,
    images: Arc<Images>,
    mounts: Arc<Mounts>,
    remotes: Arc<Remotes>,
) -> AskClients {
    Box::new(move || Clients {
        connections: traffic.connections() as u64,
        exports: traffic.exports(),
        images: images.list(),
        mounts: mounts.report(),
        remotes: remotes.figures(),
    })
}

/// Binds the control socket, if the configuration has one.
pub fn control(config: &Config) -> Result<Option<Listener>, Error> {
    let Some(control) = &config.listen.control else { return Ok(None) };
    let path = &control.get_ref().0.0;
    let bound = check_socket(path).and_then(|()| Listener::bind(path));
    bound.map(Some).map_err(|why| config.refused(control, why))
}

/// Serves metrics and health over HTTP, if the configuration asks for it. Returns the URL.
pub fn scrape(
    config: &Config,
    cache: &Cache,
    health: &Arc<Health>,
    clients: AskClients,
) -> Result<Option<String>, Error> {
    let Some(address) = &config.listen.metrics else { return Ok(None) };
    let hosts = config.listen.metrics_hosts.iter().flat_map(|hosts| &hosts.0);
    let bound = Scraped::bind(address.get_ref().0, hosts.map(|host| host.get_ref().0.clone()).collect());
    let listener = bound.map_err(|error| config.refused(address, error.to_string()))?;
    let url = listener.url();
    let (cache, health) = (cache.clone(), Arc::clone(health));
    let metrics = Metrics::new(cache.clone(), clients, health.clone());
    listener.serve(move |path| match path {
        "/metrics" => Some(Page { is_good: true, content_type: metrics::CONTENT_TYPE, text: metrics.page() }),
        "/healthz" => Some(verdict(health.dead(Instant::now()).into_iter().collect())),
        "/readyz" => {
            let stats: Vec<_> = drain::objects(&cache).iter().map(Object::stat).collect();
            // A log that is not read needs attention, and clients are served nevertheless.
            let mut page = verdict(health.unready(&stats));
            page.text.extend(logger::trouble(Instant::now()).map(|why| why + "\n"));
            Some(page)
        }
        _ => None,
    })?;
    Ok(Some(url))
}

/// The page of a health check that fails for these reasons, or succeeds if there are none.
fn verdict(reasons: Vec<String>) -> Page {
    let is_good = reasons.is_empty();
    let text = if is_good { "ok\n".into() } else { reasons.join("\n") + "\n" };
    Page { is_good, content_type: "text/plain; charset=utf-8", text }
}

/// Refuses a socket on a mount of this server. The error is a sentence.
fn check_socket(path: &Path) -> Result<(), String> {
    own::check(path).map_err(|why| format!("{} {why}", path.display()))
}

/// Makes the folder of a socket if it is missing. Users who may connect to the socket may also
/// enter the folder. The error is a sentence.
pub fn make_socket_dir(directory: &Path, limits: &Limits) -> Result<(), String> {
    check_socket(directory)?;
    let passes = |class: u32| if limits.unix_mode & class == 0 { 0 } else { class & 0o111 };
    make_open_dir(directory, 0o700 | passes(0o070) | passes(0o007), limits.unix_group)
}

/// Lets NBD clients connect.
pub fn listen(config: &Config, server: &Server) -> Result<(), Error> {
    let all = &config.listen.nbd.0;
    for nbd in all {
        if let Address::Unix(path) = &nbd.get_ref().0
            && let Some(directory) = path.parent()
        {
            make_socket_dir(directory, server.limits()).map_err(|why| config.refused(nbd, why))?;
        }
    }
    let addresses: Vec<Address> = all.iter().map(|nbd| nbd.get_ref().0.clone()).collect();
    server.listen(&addresses).map_err(|error| {
        let wrong = match &error {
            octavo_block::Error::Listen { address, .. } => all.iter().find(|nbd| nbd.get_ref().0 == *address),
            _ => None,
        };
        wrong.map_or_else(|| Error::failed(error.to_string()), |nbd| config.refused(nbd, error.to_string()))
    })
}

/// Mounts the control file system, if the configuration asks for it. On a system without FUSE, the
/// server runs without it.
pub fn mount(config: &Config, cache: &Cache) -> Result<Option<Mounted>, Error> {
    let Some(fs) = &config.control.fs else { return Ok(None) };
    match mount::mount(fs.get_ref(), cache.clone()) {
        Ok(mounted) => Ok(Some(mounted)),
        Err(Unmounted::Path(why)) => Err(config.refused(fs, why)),
        Err(Unmounted::System(why)) => {
            log::warn!("{}; it is served without", config.line(fs, format!("not mounted: {why}")));
            Ok(None)
        }
    }
}
