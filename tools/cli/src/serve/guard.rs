//! The guard of a hand-over (`hand_over.rs`, U5 to U7): it waits until the successor serves, and
//! serves again if that fails.
//!
//! - **G1** Before it sends anything, the guard opens a descriptor of the successor's process, and
//!   looks whether the successor is still connected. It can therefore not take another process for
//!   the successor.
//! - **G2** It waits as long as the successor makes progress, that is, uses processor time, and for
//!   [`PATIENCE`] at most. A successor that is stopped, or waits for something that does not
//!   answer, has failed after [`SILENCE_MAX`].
//! - **G3** It looks once more whether the successor has said that it serves, and then kills it. A
//!   process that was killed never wakes up. Until the guard has ended, a successor reads from no
//!   socket (U6), so what it may have said since is lost, and no request.
//! - **G4** It closes its connection and waits until the process is gone, and with it the locks on
//!   the stores, before it serves. A process that it may not kill ends by itself as soon as it
//!   runs: a connection that is closed before everything on it was read is an error at the other
//!   end.
//! - **G5** SIGTERM ends the guard, which has nothing left to write. The successor then ends, too.
//!
//! Meanwhile, the guard tells clients of the control socket what it waits for: at a socket of its
//! own beside it, which `octavo ctl` knows, because the successor makes the control socket anew.

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::hand_over::SERVING;
use super::inheritance::Inheritance;
use super::passing;
use crate::control::guarding;
use crate::control::server::Listener;
use crate::control::stop::{self, Stop};
use crate::environment::Environment;
use crate::error::Error;
use crate::process;

/// How long a guard waits for its successor to serve.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a successor may make no progress.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The processor time that is progress. A server whose main thread waits uses less in
/// [`SILENCE_MAX`].
const PROGRESS: Duration = Duration::from_millis(50);

/// Between two looks at the successor.
const LOOK: Duration = Duration::from_millis(200);

/// How often the log says that the guard waits for a process to end.
const REMINDER: Duration = Duration::from_secs(30);

/// What becomes of a hand-over.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The successor serves.
    Serves,
    /// It has ended, or has closed its connection.
    Ended,
    /// It makes no progress.
    Hangs,
    /// A signal ends the guard.
    Signal(i32),
}

/// The process that takes over.
struct Successor {
    stream: UnixStream,
    pid: Pid,
    /// None: it has ended.
    process: Option<OwnedFd>,
}

/// U5 to U7. Returns what is left if this process has to serve again.
pub fn guard(
    environment: &Environment,
    successor: UnixStream,
    stop: &Stop,
) -> Result<Option<Inheritance>, Error> {
    stop.guarding();
    let descriptors = environment.take_descriptors();
    let successor = Successor::new(successor)?;
    let pid = successor.pid.as_raw_nonzero();
    let _note = environment.guarded_control().and_then(|control| note(control, &successor));
    let outcome = match successor.process {
        None => Outcome::Ended,
        Some(_) => match passing::send(&successor.stream, &descriptors) {
            Ok(()) => successor.outcome(stop),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Outcome::Hangs,
            Err(_) => Outcome::Ended,
        },
    };
    match outcome {
        Outcome::Serves => {
            environment.supervisor().succeeded_by(pid.get());
            log::info!("another server has taken over");
            return Ok(None);
        }
        Outcome::Signal(_) => {}
        Outcome::Ended => {
            log::warn!("the server that was to take over has ended before it served; this one serves again");
        }
        Outcome::Hangs => {
            log::warn!(
                "the server that was to take over (process {pid}) makes no progress; it is killed, and this one \
                 serves again"
            );
            successor.kill();
        }
    }
    if let Some(signal) = successor.wait_for_end(stop) {
        let name = stop::name(signal);
        log::info!("{name}: ends while another server takes over; every acknowledged write is in its store");
        return Ok(None);
    }
    stop.starting();
    Inheritance::of_descriptors(descriptors).map(Some).map_err(Error::failed)
}

/// Answers control clients meanwhile. `None`: they are not answered.
fn note(control: &Path, successor: &Successor) -> Option<Listener> {
    let path = guarding::path(control);
    let why = format!(
        "this server (process {}) hands over to process {}, which does not serve yet; it serves again if that \
         process ends, or makes no progress for {} s",
        std::process::id(),
        successor.pid.as_raw_nonzero(),
        SILENCE_MAX.as_secs()
    );
    let listener = Listener::bind(&path).map_err(|why| log::warn!("{why}")).ok()?;
    listener.refuse(why).map_err(|error| log::warn!("{}", error.lines().join("; "))).ok()?;
    Some(listener)
}

impl Successor {
    /// The process at the other end of a connection (G1).
    fn new(stream: UnixStream) -> Result<Successor, Error> {
        let failed = |error: std::io::Error| Error::failed(format!("the successor: {error}"));
        let pid = socket_peercred(&stream).map_err(|errno| failed(errno.into()))?.pid;
        // An error: the process has ended already.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok().filter(|_| is_connected(&stream));
        stream.set_read_timeout(Some(LOOK)).map_err(failed)?;
        stream.set_write_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        Ok(Successor { stream, pid, process })
    }

    /// G2, and the last look of G3.
    fn outcome(&self, stop: &Stop) -> Outcome {
        let begun = Instant::now();
        let cpu = || process::cpu_of(self.pid.as_raw_nonzero().get());
        let mut moved = begun;
        let mut marked = cpu();
        let mut said = Vec::new();
        loop {
            match self.read(&mut said) {
                Some(outcome) => return outcome,
                None if said == SERVING => return Outcome::Serves,
                None => {}
            }
            if let Some(signal) = stop.asked() {
                return Outcome::Signal(signal);
            }
            let now = cpu();
            let has_moved = match (marked, now) {
                (Some(marked), Some(now)) => now.saturating_sub(marked) >= PROGRESS,
                // Its figures are hidden: only PATIENCE bounds the wait.
                _ => true,
            };
            if has_moved {
                marked = now;
                moved = Instant::now();
            }
            if moved.elapsed() >= SILENCE_MAX || begun.elapsed() >= PATIENCE {
                // It may have said so since the last look.
                let last = self.read(&mut said);
                return if said == SERVING { Outcome::Serves } else { last.unwrap_or(Outcome::Hangs) };
            }
        }
    }

    /// Reads what the successor says, for a moment. Returns how the hand-over ends if it says
    /// something else, or nothing any more.
    fn read(&self, said: &mut Vec<u8>) -> Option<Outcome> {
        let mut bytes = [0; SERVING.len()];
        match (&self.stream).read(&mut bytes[said.len()..]) {
            Ok(0) => return Some(Outcome::Ended),
            Ok(count) => said.extend_from_slice(&bytes[said.len()..][..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Some(Outcome::Ended),
        }
        (!SERVING.starts_with(said)).then_some(Outcome::Ended)
    }

    fn kill(&self) {
        let Some(process) = &self.process else { return };
        if let Err(errno) = pidfd_send_signal(process, Signal::KILL) {
            let pid = self.pid.as_raw_nonzero();
            log::error!("cannot kill process {pid}: {errno}; this server serves again when it has ended");
        }
    }

    /// Waits until the process has ended: it closes its connection before, and has the stores
    /// locked until then. Returns the signal that ends the wait.
    fn wait_for_end(self, stop: &Stop) -> Option<i32> {
        let Successor { stream, pid, process } = self;
        drop(stream);
        let mut told = Instant::now();
        let most = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        loop {
            if let Some(signal) = stop.asked() {
                return Some(signal);
            }
            let mut polled = [PollFd::new(process.as_ref()?, PollFlags::IN)];
            match poll(&mut polled, Some(&most)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return None,
            }
            if told.elapsed() >= REMINDER {
                told = Instant::now();
                log::warn!("process {} has not ended yet, and has the stores", pid.as_raw_nonzero());
            }
        }
    }
}

/// Whether the other end of a connection is open.
fn is_connected(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let found = poll(&mut polled, Some(&now));
    found.is_ok() && !polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
}
