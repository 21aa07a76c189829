//! The signals of a server, in each state of its life. A thread of its own takes them
//! (`signals.rs`), and waits for nothing that the server does.
//!
//! The first SIGTERM or SIGINT:
//! - *starting*: the start gets [`START_GRACE`] to reach its end, which then ends the server in
//!   order; a start that hangs is given up;
//! - *serving*: the server ends in order: no more clients, dirty pages written, mounts unmounted;
//! - *leaving* for the program that replaces this one (`--take-over`): it waits in the kernel for
//!   that program;
//! - *guarding*: the process, which has nothing left to write, ends.
//!
//! The second one, while the server starts or ends: this thread ends the process at once. It
//! detaches the mounts, and says how many dirty bytes are lost. While the server leaves, the signal
//! waits as the first one does.
//!
//! | signal | effect |
//! |---|---|
//! | SIGHUP | asks for a reload of the configuration; without one, as SIGTERM |
//! | SIGPIPE | Rust's start-up code ignores it |
//! | SIGXFSZ | is ignored: a write beyond the limit on file sizes fails with EFBIG |

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use octavo::Cache;
use signal_hook::consts::{SIGHUP, SIGXFSZ};

use crate::control::drain;
use crate::error::Error;
use crate::lock::lock;
use crate::logger;
use crate::own;
use crate::signals::{self, Signals};
use crate::units;

/// How long a start that is to end may go on.
pub const START_GRACE: Duration = Duration::from_secs(3);

/// How often the thread looks at a start that is to end.
const LOOK: Duration = Duration::from_millis(100);

/// A wait without a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// How long the cleaning up of a process that ends at once may take.
const CLEANING_MAX: Duration = Duration::from_secs(3);

/// Receives the number of the signal that ends the server.
type End = Box<dyn Fn(i32) + Send>;

/// The states in which a signal has different effects.
enum State {
    Starting,
    Serving(End),
    Leaving,
    Guarding,
}

/// What the thread of signals knows of the server.
#[derive(Clone)]
pub struct Stop(Arc<Mutex<Shared>>);

struct Shared {
    state: State,
    /// The first signal that ends the server.
    asked: Option<(i32, Instant)>,
    /// The cache whose dirty bytes a sudden end loses.
    cache: Option<Cache>,
}

impl Stop {
    /// Blocks the signals of a server in the calling thread: they wait for [`start`](Self::start).
    /// The first act of a process that may become a server.
    pub fn prepare() {
        // Without the block, a signal ends the start.
        let _ = Signals::block(&signals::OF_SERVERS);
    }

    /// This process becomes no server: its signals have their usual effect again, and it starts
    /// programs without blocked signals.
    pub fn not_needed() {
        if let Ok(blocked) = Signals::block(&signals::OF_SERVERS) {
            blocked.unblock();
        }
    }

    /// Starts the thread. Call it before any other thread starts. `reload` gets a message for each
    /// SIGHUP, unless one is waiting there already.
    pub fn start(reload: Option<SyncSender<()>>) -> Result<Stop, Error> {
        let failed = |error: std::io::Error| Error::failed(format!("cannot handle signals: {error}"));
        signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
        let signals = Signals::block(&signals::OF_SERVERS).map_err(failed)?;
        let shared = Shared { state: State::Starting, asked: None, cache: None };
        let stop = Stop(Arc::new(Mutex::new(shared)));
        let told = stop.clone();
        let serve = move || {
            loop {
                match (signals.next(told.patience()), &reload) {
                    // A full channel holds a reload that will read what this one would.
                    (Some(SIGHUP), Some(reload)) => drop(reload.try_send(())),
                    (Some(signal), _) => told.take(signal),
                    (None, _) => told.give_up_start(),
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(serve).map_err(failed)?;
        Ok(stop)
    }

    /// Sets the cache whose dirty bytes are reported if the process ends at once.
    pub fn watch(&self, cache: &Cache) {
        lock(&self.0).cache = Some(cache.clone());
    }

    /// The start is over: `end` gets the first SIGTERM or SIGINT, also one of before.
    pub fn serving(&self, end: impl Fn(i32) + Send + 'static) {
        let mut shared = lock(&self.0);
        if let Some((signal, _)) = shared.asked {
            end(signal);
        }
        shared.state = State::Serving(Box::new(end));
    }

    /// The process has nothing left to write, and looks often at [`asked`](Self::asked).
    pub fn guarding(&self) {
        lock(&self.0).state = State::Guarding;
    }

    /// The process begins to serve again.
    pub fn starting(&self) {
        lock(&self.0).state = State::Starting;
    }

    /// The signal that has asked the server to end.
    pub fn asked(&self) -> Option<i32> {
        lock(&self.0).asked.map(|(signal, _)| signal)
    }

    /// Leaves all signals to the program that replaces this one. Returns a signal that was here
    /// before: the process has to end.
    pub fn leave(&self) -> Option<i32> {
        let mut shared = lock(&self.0);
        if let Some((signal, _)) = shared.asked {
            return Some(signal);
        }
        shared.state = State::Leaving;
        None
    }

    fn take(&self, signal: i32) {
        let mut shared = lock(&self.0);
        match (&shared.state, shared.asked) {
            (State::Leaving, _) => {
                drop(shared);
                // It becomes pending again. The next program takes it, or the process ends soon.
                let _ = rustix::process::Signal::from_named_raw(signal)
                    .map(|signal| rustix::process::kill_process(rustix::process::getpid(), signal));
                loop {
                    std::thread::park();
                }
            }
            (_, Some(_)) => {
                let cache = shared.cache.clone();
                drop(shared);
                end_at_once(cache, signal);
            }
            (State::Serving(end), None) => {
                end(signal);
                shared.asked = Some((signal, Instant::now()));
            }
            (State::Starting | State::Guarding, None) => shared.asked = Some((signal, Instant::now())),
        }
    }

    /// How long the thread waits for the next signal.
    fn patience(&self) -> Duration {
        let shared = lock(&self.0);
        let is_ending_start = matches!(shared.state, State::Starting) && shared.asked.is_some();
        if is_ending_start { LOOK } else { LONG }
    }

    /// Ends the process if its start was to end and hangs. Before the start is over, nothing is
    /// acknowledged, except by mounts: with their dirty bytes, the process waits.
    fn give_up_start(&self) {
        let shared = lock(&self.0);
        let (State::Starting, Some((signal, since))) = (&shared.state, shared.asked) else { return };
        if since.elapsed() < START_GRACE || shared.cache.as_ref().map_or(0, drain::dirty_bytes) > 0 {
            return;
        }
        // The lock stays held: the server must not begin to serve now.
        log::warn!("{}: the server has not started within {START_GRACE:?} and ends", name(signal));
        clean_up();
        std::process::exit(0);
    }
}

/// A signal's name.
pub fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

fn end_at_once(cache: Option<Cache>, signal: i32) -> ! {
    let dirty_bytes = cache.as_ref().map_or(0, drain::dirty_bytes);
    logger::failure(&Error::failed(format!(
        "a second {}: ended at once, {} dirty bytes left ({})",
        name(signal),
        dirty_bytes,
        units::human_bytes(dirty_bytes)
    )));
    clean_up();
    std::process::exit(128 + signal)
}

/// Detaches the mounts, which would be dead, and waits for the log. Both may hang with the store of
/// a mount or with a reader, so a thread does it, which is not waited for without limit.
fn clean_up() {
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    let clean = move || {
        own::detach_all();
        logger::flush();
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("cleaning".into()).spawn(clean).is_ok() {
        let _ = is_done.recv_timeout(CLEANING_MAX);
    }
}
