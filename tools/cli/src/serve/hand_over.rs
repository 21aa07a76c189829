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
//! - **U7** If the successor ends before that, or makes no progress, the guard becomes a server
//!   again, with its descriptors and the old configuration (`guard.rs`, G1 to G5). Its cache is
//!   cold if the successor had begun to use the pages.
//! - **U8** SIGTERM before U4 ends the server instead of the hand-over; afterwards it ends the
//!   guard.
//!
//! Under a service manager that keeps descriptors, SIGTERM ends a server with U2 and U3, and the
//! manager gives the descriptors to the process that it starts next.
//!
//! Not here: what the guard does (`guard.rs`), how descriptors travel (`passing.rs`), how a server
//! begins with them (`take_over.rs`).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use octavo_block::Estate;
use rustix::net::sockopt::socket_peercred;

use super::catalog::Catalog;
use super::inheritance::{Inheritance, memory_file};
use super::passing;
use crate::control::drain;
use crate::control::protocol::{self, Body, Progress, Reply};
use crate::environment::{Environment, STORED};
use crate::error::Error;
use crate::process;
use crate::units::human_bytes;

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
        // Clients would wait for it in vain (G2).
        if let Ok(peer) = socket_peercred(successor)
            && process::is_stopped(peer.pid.as_raw_nonzero().get())
        {
            return Err(format!("process {}, which asks to take over, is stopped", peer.pid.as_raw_nonzero()));
        }
        match refusals.first() {
            None => Ok(()),
            Some(drain::Refusal { name, reason, .. }) => Err(format!(
                "\"{name}\" cannot be drained: {reason}; `octavo ctl export abandon {name}` says what giving it \
                 up would lose"
            )),
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
    let control = catalog.control_path();
    let inheritance =
        Inheritance { pages, estate, config: catalog.config_in_force(), asked: catalog.asked() };
    let error = match inheritance.into_descriptors() {
        Ok(descriptors) => passing::restart(environment, descriptors, successor, control.as_deref()),
        Err(error) => error,
    };
    Error::failed(format!(
        "this server cannot be replaced: {error}; every acknowledged write is in its store"
    ))
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
