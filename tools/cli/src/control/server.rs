//! The server's end of the control socket: one thread accepts connections, and each `octavo ctl`
//! gets a thread of its own.
//!
//! These threads use the cache, and reach the server's exports and NBD clients only through
//! [`Manage`]. They end with the process.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use octavo::{Cache, Partition};
use octavo_block::SocketPath;
use octavo_sim::recording::Ending;
use rustix::fs::Mode;
use serde_json::Value;

use super::protocol::{self, Body, Fault, Progress, Reply, Request, VERSION, Verb};
use super::{latency, verbs};
use crate::control::drain::{self, Refusal, Timeout};
use crate::control::events::EventLog;
use crate::control::recorders::Recorders;
use crate::control::report::{AskClients, Report};
use crate::environment::make_private_dir;
use crate::error::Error;
use crate::order::Order;
use crate::suggest;

/// Most control clients at a time.
const CLIENTS_MAX: usize = 16;

/// Most commands that may wait for a store at a time. The remaining four places stay free for
/// commands that do not wait, such as `stat` and `set`, however many stores hang.
const WAITING_MAX: usize = 12;

/// Most clients that may follow events at a time: other requests need connections, too.
const FOLLOWERS_MAX: usize = 4;

/// How long a client may stay silent, or leave its answer unread.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long a client may take to ask what is refused anyway.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Pause after a failed `accept` (no descriptors left, say), so that the retries do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The listening socket; removes its file when dropped.
pub struct Listener {
    socket: UnixListener,
    _path: SocketPath,
}

/// Adds and removes exports and partitions, as a request asks; told how many dirty bytes are left.
pub type Manage = Box<dyn Fn(Verb, &Request, &mut dyn FnMut(u64)) -> Result<Value, Fault> + Send + Sync>;

/// Passes the connection of a server that takes over to the main thread, which answers it.
pub type HandOver = Box<dyn Fn(UnixStream) + Send + Sync>;

/// What the threads need to answer requests.
pub struct Asked {
    /// The cache.
    pub cache: Cache,
    /// The recordings in progress.
    pub recorders: Arc<Recorders>,
    /// How long a drain may make no progress.
    pub drain_timeout: Arc<Timeout>,
    /// Adds and removes exports and partitions.
    pub manage: Manage,
    /// Hands over to the server at the other end of a connection.
    pub hand_over: HandOver,
    /// When the server began.
    pub started: Instant,
    /// Asks for the figures of NBD clients.
    pub clients: AskClients,
    /// How many commands may be waiting for a store now.
    pub waiting: Arc<AtomicUsize>,
    /// The last events.
    pub events: Arc<EventLog>,
    /// How many clients follow events.
    pub followers: Arc<AtomicUsize>,
}

impl Listener {
    /// Binds the socket with mode 0600. Replaces a socket file of this user if no server listens on
    /// it any more. The error is a sentence.
    pub fn bind(path: &Path) -> Result<Listener, String> {
        let failed = |error: std::io::Error| format!("cannot listen at unix:{}: {error}", path.display());
        if let Some(directory) = path.parent() {
            make_private_dir(directory)?;
        }
        SocketPath::clear(path).map_err(failed)?;
        // A umask instead of a later chmod: with chmod, other users could connect for a moment.
        let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let socket = bound.map_err(failed)?;
        Ok(Listener { socket, _path: SocketPath::of(path).map_err(failed)? })
    }

    /// Starts to answer every request with this error. The thread ends with the process.
    pub fn refuse(&self, why: String) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::failed(format!("control socket: {error}"));
        let socket = self.socket.try_clone().map_err(failed)?;
        let answer = move || {
            loop {
                let Ok((mut stream, _)) = socket.accept() else {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                // They fail only for a duration of zero.
                let _ = stream.set_read_timeout(Some(REFUSAL_MAX));
                let _ = stream.set_write_timeout(Some(REFUSAL_MAX));
                // A client that is answered before it has asked could not send its request.
                let _ = protocol::receive(&mut BufReader::new(&stream), protocol::REQUEST_BYTES_MAX);
                let _ = protocol::send(&mut stream, &Reply::new(why.clone().into()));
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(answer).map_err(failed)?;
        Ok(())
    }

    /// Starts to answer.
    pub fn serve(&self, asked: Asked) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::failed(format!("control socket: {error}"));
        let socket = self.socket.try_clone().map_err(failed)?;
        let asked = Arc::new(asked);
        let clients = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            loop {
                match socket.accept() {
                    Ok((stream, _)) => admit(stream, &asked, &clients),
                    Err(error) => {
                        log::warn!("control socket: {error}");
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(accept).map_err(failed)?;
        Ok(())
    }
}

/// One of a limited number of places, given back when dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// Takes a place if fewer than `max` are taken.
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Seat> {
        // Relaxed: no data is published through this count. If all places are taken, dropping
        // `seat` decrements it again.
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(Arc::clone(taken));
        (before < max).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Relaxed: see `take`.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn admit(mut stream: UnixStream, asked: &Arc<Asked>, clients: &Arc<AtomicUsize>) {
    // Both fail only for a duration of zero.
    let _ = stream.set_read_timeout(Some(SILENCE_MAX));
    let _ = stream.set_write_timeout(Some(SILENCE_MAX));
    let Some(seat) = Seat::take(clients, CLIENTS_MAX) else {
        let refusal = format!("{CLIENTS_MAX} control clients are connected already");
        // The client is refused whether it gets the reason or not.
        let _ = protocol::send(&mut stream, &Reply::new(refusal.into()));
        return;
    };
    let asked = Arc::clone(asked);
    let talk = move || {
        let _seat = seat;
        if let Err(error) = talk(&stream, &asked) {
            log::debug!("control client: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("control-client".into()).spawn(talk) {
        log::warn!("control client: {error}");
    }
}

fn talk(stream: &UnixStream, asked: &Asked) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let line = match protocol::receive(&mut reader, protocol::REQUEST_BYTES_MAX) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) => {
                if error.kind() == ErrorKind::InvalidData {
                    protocol::send(&mut &*stream, &Reply::new(error.to_string().into()))?;
                }
                return Err(error);
            }
        };
        let body = match request(&line) {
            Ok((Verb::HandOver, _)) => {
                (asked.hand_over)(stream.try_clone()?);
                return Ok(());
            }
            Ok((Verb::Record, request)) => record(request.record, stream, &mut reader, asked)?,
            Ok((Verb::Events, request)) if request.follow => follow(&request, stream, &reader, asked)?,
            Ok((verb, request)) => {
                // Held until the answer is complete.
                let seat = verb.may_wait().then(|| Seat::take(&asked.waiting, WAITING_MAX));
                match &seat {
                    None | Some(Some(_)) => answer(verb, &request, stream, asked)?,
                    Some(None) => Body::from(format!(
                        "{WAITING_MAX} commands wait for stores already; `octavo ctl partitions` and the log \
                         name the stores that do not answer"
                    )),
                }
            }
            Err(message) => message.into(),
        };
        protocol::send(&mut &*stream, &Reply::new(body))?;
    }
}

/// Parses a request. The error is a sentence.
fn request(line: &[u8]) -> Result<(Verb, Request), String> {
    let request: Request = serde_json::from_slice(line)
        .map_err(|error| format!("not a request such as {{\"v\":1,\"do\":\"stat\"}}: {error}"))?;
    if request.v != VERSION {
        return Err(format!(
            "this server does not know version {} of the protocol; it knows {VERSION}",
            request.v
        ));
    }
    Ok((Verb::of(&request.verb)?, request))
}

/// Time between two reports to a client that records.
const REPORT_PERIOD: Duration = Duration::from_millis(500);

/// Records until the client sends anything or disconnects, the time is over, or the recording ends.
fn record(
    order: Option<Order>,
    mut stream: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    asked: &Asked,
) -> std::io::Result<Body> {
    let Some(order) = order else {
        return Ok("the order is missing: \"record\":{\"partition\":..,\"file\":..}".to_owned().into());
    };
    let partitions = asked.cache.partitions();
    let partition = suggest::named("partition", &order.partition, &partitions, Partition::name);
    let recorder = match partition.and_then(|partition| asked.recorders.start(partition, &order)) {
        Ok(recorder) => recorder,
        Err(message) => return Ok(message.into()),
    };
    let end = order.seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    stream.set_read_timeout(Some(REPORT_PERIOD))?;
    let mut told = Ok(());
    // Each round waits for the client for half a second at most.
    let mut report = recorder.report();
    while report.ended.is_none() {
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        // Any input, even the end of the stream, asks to end the recording.
        let is_silent = |error: &std::io::Error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
        };
        if is_over || told.is_err() || !reader.fill_buf().is_err_and(|error| is_silent(&error)) {
            recorder.stop();
            report = recorder.wait(SILENCE_MAX);
            break;
        }
        report = recorder.report();
        told = protocol::send(&mut stream, &Reply::new(Body::Recording(report.clone())));
    }
    told?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(match &report.ended {
        Some(why) if why != Ending::Stopped.words() => {
            format!("the recording to {} has ended early: {why}", report.file).into()
        }
        Some(_) => Body::Ok(serde_json::to_value(report)?),
        None => format!("the recording to {} was stopped and has not ended yet", report.file).into(),
    })
}

/// Sends events as they happen, until the client sends anything or closes its side.
fn follow(
    request: &Request,
    mut stream: &UnixStream,
    reader: &BufReader<&UnixStream>,
    asked: &Asked,
) -> std::io::Result<Body> {
    let Some(_seat) = Seat::take(&asked.followers, FOLLOWERS_MAX) else {
        return Ok(format!("{FOLLOWERS_MAX} clients follow events already").into());
    };
    let follower = asked.events.follow()?;
    let mut page = asked.events.after(request.after.unwrap_or(0));
    // The first line is sent even without events: it shows the client that it follows them.
    let mut is_first = true;
    // What the client sent together with the request is here, and not in the socket.
    let mut has_spoken = !reader.buffer().is_empty();
    loop {
        if is_first || !page.events.is_empty() {
            is_first = false;
            protocol::send(&mut stream, &Reply::new(Body::Events(std::mem::take(&mut page.events))))?;
        }
        if has_spoken {
            return Ok(Body::Ok(serde_json::to_value(page)?));
        }
        has_spoken = follower.wait(stream)?;
        page = asked.events.after(page.next - 1);
    }
}

fn answer(verb: Verb, request: &Request, mut stream: &UnixStream, asked: &Asked) -> std::io::Result<Body> {
    let mut told = Ok(());
    let mut progress = |dirty_bytes| {
        if told.is_ok() {
            told = protocol::send(&mut stream, &Reply::new(Body::Progress(Progress { dirty_bytes })));
        }
    };
    match verb {
        Verb::Stat => {
            let mut report = Report {
                uptime_s: asked.started.elapsed().as_secs(),
                ..Report::of(&asked.cache, &(asked.clients)())
            };
            for partition in &mut report.partitions {
                (partition.recording, partition.recordings_broken_off) =
                    asked.recorders.report(&partition.name);
            }
            Ok(Body::Ok(serde_json::to_value(report)?))
        }
        Verb::Events => Ok(Body::Ok(serde_json::to_value(asked.events.after(request.after.unwrap_or(0)))?)),
        Verb::Latency => Ok(Body::Ok(latency::answer(&asked.cache, &(asked.clients)()))),
        Verb::Sync => Ok(done(drain::sync(&asked.cache), "synced")),
        Verb::Drain => {
            let objects = drain::objects(&asked.cache);
            Ok(done(drain::drain(objects, asked.drain_timeout.get(), &mut progress), "drained"))
        }
        verb if verb.concerns_what_is_served() => {
            // A client that has left must not keep a change from being made.
            Ok((asked.manage)(verb, request, &mut progress).map_or_else(Body::Error, Body::Ok))
        }
        verb => Ok(verbs::answer(verb, request, &asked.cache).map_or_else(Body::from, Body::Ok)),
    }
}

fn done(objects: Vec<Refusal>, verb: &str) -> Body {
    match objects.is_empty() {
        true => Body::Ok(serde_json::json!({})),
        false => Body::Error(Fault { message: format!("not everything could be {verb}"), objects }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_are_refused_with_the_reason() {
        let verb = request;
        assert_eq!(verb(br#"{"v":1,"do":"sync"}"#).unwrap().0, Verb::Sync);
        assert!(verb(b"hello").unwrap_err().contains("not a request"));
        assert!(verb(br#"{"v":2,"do":"sync"}"#).unwrap_err().contains("version 2"));
        assert!(verb(br#"{"v":1,"do":"stop"}"#).unwrap_err().contains("stat, sync, drain, record"));
    }
}
