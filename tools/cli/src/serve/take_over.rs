//! The beginning of a server that takes over what another one has left (`hand_over.rs`, U5 to U7):
//! from a running server, or from the service manager.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use octavo::{Restored, WarmPages};
use octavo_block::HeldClient;
use rustix::net::{Shutdown, shutdown};

use super::catalog::Catalog;
use super::hand_over::SERVING;
use super::inheritance::Inheritance;
use super::manage;
use super::passing;
use crate::config::Config;
use crate::control::protocol::{self, Fault, Request, Verb};
use crate::environment::{Environment, STORED};
use crate::error::Error;
use crate::units::human_bytes;

/// How long the former server usually takes to end, at most.
const LAST_WORD: Duration = Duration::from_secs(10);

/// The most lines about partitions and exports that start cold.
const COLD_MAX: usize = 32;

/// Where the inheritance of a server comes from.
pub enum Predecessor {
    /// Nowhere: it starts with nothing.
    None,
    /// The service manager, under as many names.
    Stored(usize),
    /// A running server, which waits at the other end.
    Running(UnixStream),
}

/// Asks the running server of this configuration for all that it has.
pub fn ask(config: &Config) -> Result<(Inheritance, Predecessor), Error> {
    let Some(control) = &config.listen.control else {
        let why = "--take-over needs listen.control, the socket at which the running server is asked";
        return Err(Error::Usage(why.into()));
    };
    let path = &control.get_ref().0.0;
    let failed = |why: String| Error::failed(format!("{}: {why}", path.display()));
    let stream = UnixStream::connect(path)
        .map_err(|error| failed(format!("there is no running server to take over from: {error}")))?;
    protocol::send(&mut &stream, &Request::new(Verb::HandOver)).map_err(|error| failed(error.to_string()))?;
    let told = |dirty_bytes| {
        log::info!("the running server writes back: {} dirty left", human_bytes(dirty_bytes));
    };
    let descriptors = passing::receive(&stream, told).map_err(failed)?;
    let inheritance = Inheritance::of_descriptors(descriptors).map_err(failed)?;
    Ok((inheritance, Predecessor::Running(stream)))
}

/// What the service manager has kept.
pub fn stored(environment: &Environment) -> (Inheritance, Predecessor) {
    let descriptors = environment.take_descriptors();
    let count = descriptors.len();
    let others: Vec<OwnedFd> = descriptors.iter().filter_map(|one| one.try_clone().ok()).collect();
    let inheritance = Inheritance::of_descriptors(descriptors).unwrap_or_else(|why| {
        log::warn!("this server starts cold: {why}");
        // The manager holds the sockets, too. Its clients must not wait there, and this server has
        // to listen at the same paths. What is no socket refuses.
        others.iter().for_each(|one| _ = shutdown(one, Shutdown::Both));
        Inheritance::default()
    });
    let predecessor = if count == 0 { Predecessor::None } else { Predecessor::Stored(count) };
    (inheritance, predecessor)
}

/// Prepares the cache for pages. Returns `None` if they cannot be used.
pub fn expect(catalog: &Catalog, inheritance: &mut Inheritance) -> Option<WarmPages> {
    match WarmPages::open(inheritance.pages.take()?) {
        Ok(warm) => {
            catalog.cache.expect(&warm);
            Some(warm)
        }
        Err(error) => {
            log::warn!("this server starts cold: {error}");
            None
        }
    }
}

/// Adds what `octavo ctl` had added to the predecessor, unless the configuration has it now. A
/// successor that cannot must not take over; any other server starts without it.
pub fn add(catalog: &Catalog, asked: &[Request], predecessor: &Predecessor) -> Result<(), Error> {
    for request in asked.iter().filter(|request| !catalog.has(request)) {
        let added = Verb::of(&request.verb).map_err(Fault::from);
        let added = added.and_then(|verb| match verb {
            Verb::ExportAdd => manage::add_export(catalog, request, true),
            verb => manage::answer(catalog, verb, request, &mut |_| {}),
        });
        let Err(fault) = added else { continue };
        let name = request.object.as_ref().or(request.partition.as_ref());
        let name = name.map_or("", String::as_str);
        let why = format!("\"{name}\", which `octavo ctl` had added, is not served: {}", fault.message);
        match predecessor {
            Predecessor::Running(_) => return Err(Error::failed(why)),
            Predecessor::None | Predecessor::Stored(_) => log::warn!("{why}"),
        }
    }
    Ok(())
}

/// Takes the pages in.
pub fn restore(catalog: &Catalog, warm: Option<WarmPages>) {
    let Some(warm) = warm else { return };
    let all = human_bytes(warm.bytes());
    match catalog.cache.restore(warm) {
        Err(error) => log::warn!("this server starts cold: {error}"),
        Ok(Restored { bytes, cold, .. }) => {
            for cold in cold.iter().take(COLD_MAX) {
                let object = cold.object.as_ref().map(|name| format!(", \"{name}\"")).unwrap_or_default();
                log::warn!("partition \"{}\"{object} starts cold: {}", cold.partition, cold.reason);
            }
            if cold.len() > COLD_MAX {
                log::warn!("{} more partitions and exports start cold", cold.len() - COLD_MAX);
            }
            log::info!("warm: {} of {all} of pages came in", human_bytes(bytes));
        }
    }
}

/// U6: ends the predecessor, before this server reads from a socket.
pub fn commit(catalog: &Catalog, predecessor: Predecessor) -> Result<(), Error> {
    match predecessor {
        Predecessor::None => {}
        Predecessor::Stored(count) => {
            (0..count).for_each(|number| catalog.supervisor.forget(&format!("{STORED}{number}")));
        }
        Predecessor::Running(mut stream) => {
            let gone = |error| Error::failed(format!("the former server has not ended: {error}"));
            stream.set_read_timeout(Some(LAST_WORD)).map_err(gone)?;
            stream.write_all(SERVING).map_err(gone)?;
            wait_for_end(stream).map_err(gone)?;
        }
    }
    Ok(())
}

/// Waits for the end of a stream, which is the end of the process at its other end. That process
/// ends as soon as it has read what was sent, however long that takes; if it closes the stream
/// before, the stream is reset, which is an error.
fn wait_for_end(mut stream: impl Read) -> io::Result<()> {
    loop {
        match stream.read(&mut [0]) {
            Ok(_) => return Ok(()),
            // io_uring wakes the threads that have used it. A read with a timeout is not restarted.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                log::warn!("the former server knows that this one serves, and has not ended yet");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Serves the clients of the predecessor on.
pub fn adopt(catalog: &Catalog, clients: Vec<HeldClient>) {
    if !clients.is_empty() {
        log::info!("{} clients are taken over", clients.len());
    }
    clients.into_iter().for_each(|client| catalog.server.adopt(client));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that gives one answer after the other.
    struct Answers(Vec<io::Result<usize>>);

    impl Read for Answers {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.remove(0)
        }
    }

    /// One upgrade in thousands ended both servers: the old one had ended, and the new one took an
    /// interrupted read for a failure.
    #[test]
    fn neither_an_interruption_nor_a_slow_process_is_taken_for_a_failure() {
        let late = || Err(ErrorKind::WouldBlock.into());
        let mut answers = Answers(vec![Err(ErrorKind::Interrupted.into()), late(), late(), Ok(0)]);
        wait_for_end(&mut answers).unwrap();
        assert!(answers.0.is_empty());
        let reset = Answers(vec![Err(ErrorKind::Interrupted.into()), Err(ErrorKind::ConnectionReset.into())]);
        assert_eq!(wait_for_end(reset).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
