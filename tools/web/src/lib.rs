//! `octavo web` and `octavo report`: what operators look at, over a server's control socket.
//!
//! A process of its own polls the server, keeps the last hour, and serves one page to any number of
//! browsers. A fault here cannot reach the cache.
//!
//! | file | holds |
//! |---|---|
//! | `poll.rs` | the one task that asks the server |
//! | `client.rs`, `stat.rs` | requests and answers of the control socket |
//! | `interval.rs`, `history.rs` | what happened in one interval, and in the last hour |
//! | `board.rs` | the latest news, for readers of any speed |
//! | `server.rs`, `guard.rs` | HTTP; which requests are refused |
//! | `recording.rs`, `report.rs` | news in a file, and a report of them |
//! | `assets.rs`, `page/` | the page: HTML, CSS and JavaScript without a build |
//!
//! Data flows one way: client -> stat -> interval -> history and board -> pages. Not here: the
//! command line (`tools/cli`).

#![forbid(unsafe_code)]

mod assets;
mod board;
mod client;
mod guard;
mod history;
mod interval;
mod news;
mod poll;
mod recording;
mod report;
mod server;
mod stat;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

pub use board::{Board, Topic};
pub use guard::{Guard, IsOwnHost, TOKEN_BYTES_MIN, Token};
pub use history::{History, INTERVALS_MAX, ROWS_MAX};
pub use interval::{Amounts, Counts, Interval, Lasted, Row};
pub use recording::{BYTES_MIN, Reading, Recorder};
pub use server::CLIENTS_MAX;

/// The shortest interval.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The longest interval: a server closes connections that are silent for a minute.
pub const INTERVAL_MAX: Duration = Duration::from_secs(30);

/// What `octavo web` needs.
pub struct Settings {
    /// The server's control socket.
    pub socket: PathBuf,
    /// Where pages are served; port 0 chooses one.
    pub listen: SocketAddr,
    /// Between two polls.
    pub interval: Duration,
    /// Which requests are refused.
    pub guard: Guard,
    /// Where news are recorded.
    pub recorder: Option<Recorder>,
}

/// Serves pages until the process ends. `ready` gets the address once clients can connect. The
/// error is a sentence.
pub fn serve(settings: Settings, ready: impl FnOnce(SocketAddr)) -> Result<(), String> {
    let Settings { socket, listen, interval, guard, recorder } = settings;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime()?, async move {
        let failed = |error: std::io::Error| format!("cannot listen at {listen}: {error}");
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(failed)?;
        ready(listener.local_addr().map_err(failed)?);
        let (board, readers) = watch::channel(Board::default());
        let (ask, questions) = mpsc::channel(poll::QUESTIONS_MAX);
        let history = Arc::new(Mutex::new(History::new()));
        let may_change = guard.token.is_some();
        let news = news::Live { board, history: Arc::clone(&history), recorder };
        let poller = poll::Poller::new(socket, interval, may_change, news);
        let shared = Rc::new(server::Shared::new(guard, history, readers, ask));
        tokio::select! {
            _ = poller.run(questions, || true) => {}
            () = server::serve(listener, shared) => {}
        }
        Ok(())
    })
}

/// Polls a server for a while, or until `goes_on` says no, and returns its figures. The error is a
/// sentence.
pub fn sample(
    socket: &Path,
    interval: Duration,
    length: Duration,
    goes_on: impl Fn() -> bool,
) -> Result<Reading, String> {
    let until = Instant::now() + length;
    let poller = poll::Poller::new(socket.to_owned(), interval, false, news::Sampled::default());
    // Nobody asks questions.
    let (_, questions) = mpsc::channel(1);
    runtime()?.block_on(async {
        let sampled = poller.run(questions, || Instant::now() < until && goes_on()).await;
        sampled.into_reading()
    })
}

/// The HTML of a report.
pub fn report(reading: &Reading) -> String {
    report::html(reading)
}

/// One thread serves everything.
fn runtime() -> Result<Runtime, String> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("cannot start: {error}"))
}
