//! The end of a server that leaves what it has to the next one: its pages, sockets and clients.
//!
//! For `octavo serve --take-over`:
//!
//! - **U1** The server writes all dirty pages while it still serves. If a store refuses, the server
//!   answers with the reason and goes on.
//! - **U2** It accepts no more clients and leaves those that it has between two requests. It drains
//!   once more; from here on a store that refuses ends the server, as after SIGTERM.
//! - **U3** The pages leave for a file in memory.
//! - **U4** The process replaces its program by itself, which frees all memory and all locks on
//!   stores, and keeps only the descriptors. The new program is a *guard*.
//! - **U5** The guard sends the descriptors to the successor, and waits.
//! - **U6** The successor opens the stores, takes the pages in, and says that it serves. The guard
//!   ends. Only then does the successor read from sockets.
//! - **U7** If the successor ends before that, the guard becomes a server again, with its
//!   descriptors and the old configuration. Its cache is cold if the successor had begun to use the
//!   pages.
//!
//! Under a service manager that keeps descriptors, SIGTERM ends a server with U2 and U3, and the
//! manager gives the descriptors to the process that it starts next.
//!
//! Not here: how descriptors travel (`passing.rs`), how a server begins with them (`take_over.rs`).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use octavo_block::Estate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use super::catalog::Catalog;
use super::inheritance::{Inheritance, memory_file};
use super::passing;
use crate::control::drain;
use crate::control::protocol::{self, Body, Progress, Reply};
use crate::environment::{Environment, STORED};
use crate::error::Error;
use crate::units::human_bytes;

/// How long a guard waits for its successor to serve.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a successor that has failed may take to end.
const LOCKED_MAX: Duration = Duration::from_secs(60);

/// What a successor says when it serves.
pub const SERVING: &[u8] = b"serving\n";

/// U1. False: the server goes on, and the successor has been told why.
pub fn is_ready(catalog: &Catalog, mut successor: &UnixStream) -> bool {
    let ready = catalog.can_be_replaced().and_then(|()| {
        let mut told = Ok(());
        let progress = |dirty_bytes| {
            if told.is_ok() {
                let reply = Reply::new(Body::Progress(Progress { dirty_bytes }));
                told = protocol::send(&mut successor, &reply);
            }
        };
        let objects = drain::objects(&catalog.cache);
        let refusals = drain::drain(objects, catalog.drain_timeout.get(), progress);
        told.map_err(|error| error.to_string())?;
        match refusals.first() {
            None => Ok(()),
            Some(refusal) => Err(format!("\"{}\" cannot be drained: {}", refusal.name, refusal.reason)),
        }
    });
    if let Err(why) = &ready {
        log::warn!("this server is not replaced: {why}");
        // A successor that has left needs no answer.
        let _ = protocol::send(&mut successor, &Reply::new(why.clone().into()));
    }
    ready.is_ok()
}

/// U3: returns the file of the pages, or `None` if they could not leave. The successor then starts
/// cold. An object that cannot be evacuated has bytes that its store lacks: an error.
pub fn evacuate(catalog: &Catalog) -> Result<Option<File>, Error> {
    catalog.recorders.stop_all();
    let evacuated = memory_file("octavo-pages")
        .and_then(|file| catalog.cache.evacuate(&file).map(|evacuated| (file, evacuated)));
    match evacuated {
        Ok((file, evacuated)) if evacuated.refused.is_empty() => {
            log::info!("{} of pages are left to the next server", human_bytes(evacuated.bytes));
            Ok(Some(file))
        }
        Ok((_, evacuated)) => Err(Error::Failed(
            evacuated.refused.iter().map(|one| format!("\"{}\": {}", one.object, one.error)).collect(),
        )),
        Err(error) => {
            log::warn!("the next server starts cold: the pages could not leave: {error}");
            Ok(None)
        }
    }
}

/// U4. Returns only an error.
pub fn become_guard(
    environment: &Environment,
    catalog: &Catalog,
    (pages, estate): (Option<File>, Estate),
    successor: UnixStream,
) -> Error {
    let (config, asked) = (catalog.config_in_force(), catalog.asked());
    let inheritance = Inheritance { pages, estate, config, asked };
    let error = match inheritance.into_descriptors() {
        Ok(descriptors) => passing::restart(environment, descriptors, successor),
        Err(error) => error,
    };
    Error::failed(format!(
        "this server cannot be replaced: {error}; every acknowledged write is in its store"
    ))
}

/// U5 to U7. Returns what is left if this process has to serve again.
pub fn guard(environment: &Environment, successor: UnixStream) -> Result<Option<Inheritance>, Error> {
    let descriptors = environment.take_descriptors();
    let sent = passing::send(&successor, &descriptors);
    if sent.is_ok() && serves(&successor) {
        if let Ok(peer) = socket_peercred(&successor) {
            environment.supervisor().succeeded_by(peer.pid.as_raw_nonzero().get());
        }
        log::info!("another server has taken over");
        return Ok(None);
    }
    wait_for_end(&successor);
    log::warn!("the server that was to take over has ended before it served; this one serves again");
    Inheritance::of_descriptors(descriptors).map(Some).map_err(Error::failed)
}

/// Waits until the process at the other end has ended. It closes its connection before, and has the
/// stores locked until then.
fn wait_for_end(successor: &UnixStream) {
    let Ok(peer) = socket_peercred(successor) else { return };
    // An error: the process has ended already.
    let Ok(process) = pidfd_open(peer.pid, PidfdFlags::empty()) else { return };
    let most = Timespec { tv_sec: LOCKED_MAX.as_secs() as i64, tv_nsec: 0 };
    let _ = retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&most)));
}

/// Waits until the successor serves. False: it has ended, or takes too long.
fn serves(mut successor: &UnixStream) -> bool {
    // This fails only for a duration of zero.
    let _ = successor.set_read_timeout(Some(PATIENCE));
    let mut answer = [0; SERVING.len()];
    match successor.read_exact(&mut answer) {
        Ok(()) => answer == SERVING,
        Err(error) => {
            if error.kind() == ErrorKind::WouldBlock {
                log::warn!("the server that was to take over does not serve after {PATIENCE:?}");
            }
            false
        }
    }
}

/// Leaves everything to the service manager, which gives it to the next process. It takes `most`
/// descriptors; the last clients are disconnected if there are more.
pub fn store(catalog: &Catalog, most: usize, pages: Option<File>, mut estate: Estate) {
    let others = 2 + estate.listeners.len();
    let clients = estate.clients.len();
    estate.clients.truncate(most.saturating_sub(others));
    if estate.clients.len() < clients {
        let left = clients - estate.clients.len();
        log::warn!("{left} clients are disconnected: FileDescriptorStoreMax is {most}");
    }
    let inheritance = Inheritance { pages, estate, config: None, asked: catalog.asked() };
    let stored = inheritance.into_descriptors().and_then(|descriptors| {
        descriptors.iter().enumerate().try_for_each(|(number, descriptor)| {
            catalog.supervisor.keep(&format!("{STORED}{number}"), descriptor.as_fd())
        })
    });
    if let Err(error) = stored {
        log::warn!("the next server starts cold: the service manager keeps no descriptors: {error}");
    }
}
