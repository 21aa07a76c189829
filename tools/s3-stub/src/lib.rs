//! An S3-like HTTP server for tests and measurements: [`Stub`].
//!
//! - **Requests.** GET, HEAD, PUT, copies, DELETE, DeleteObjects, ListObjectsV2 and multipart
//!   uploads, in path style (`/bucket/key`), with ranges and conditions. Signatures are not
//!   checked.
//! - **Objects** are in memory, or files of a directory, which is read only.
//! - **Counts.** Every request and every byte of a body is counted, by operation and by path.
//! - **Lies.** A plan decides for each request whether the answer is wrong, broken or late.
//!
//! No released program and no other library depends on this crate.
//!
//! | file | idea |
//! |---|---|
//! | `contents.rs` | the objects, and their versions |
//! | `request.rs` | what a request asks for |
//! | `read.rs`, `write.rs`, `list.rs` | answers |
//! | `lies.rs` | which answers are wrong, and how |
//! | `reply.rs` | bodies that stop, pause or break |
//! | `counts.rs` | what was asked and sent |
//! | `server.rs`, `connection.rs` | connections |
//! | `config.rs` | settings |
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod config;
mod connection;
mod contents;
mod counts;
mod lies;
mod list;
mod read;
mod reply;
mod request;
mod server;
mod write;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Runtime;

pub use config::StubConfig;
pub use contents::Contents;
pub use counts::{Counts, PathCounts};
pub use lies::{Asked, Lie, Lies};
pub use request::Operation;

use server::State;

/// A running server, on threads of its own. Ends when it is dropped.
///
/// # Examples
/// ```
/// use octavo_s3_stub::{Lie, Lies, Stub};
///
/// let stub = Stub::start(Lies::none());
/// stub.put("bucket/warehouse/orders.parquet", vec![7; 100_000]);
/// // Every GET is now answered with 503.
/// stub.set_lies(Lies::always(Lie::Status { code: 503, retry_after_s: Some(1) }));
/// println!("a server of S3 at {}", stub.endpoint());
/// assert_eq!(stub.counts().gets(), 0);
/// ```
#[derive(Debug)]
pub struct Stub {
    state: Arc<State>,
    address: SocketAddr,
    /// `None` only in `drop`.
    runtime: Option<Runtime>,
}

impl Stub {
    /// Starts a server with default settings.
    ///
    /// # Panics
    /// If it cannot listen or start threads.
    pub fn start(lies: Lies) -> Stub {
        let stub = Stub::start_with(StubConfig::default()).expect("a server on a free port");
        stub.set_lies(lies);
        stub
    }

    /// Starts a server.
    ///
    /// # Errors
    /// What the system says if the address is taken, or threads cannot be started.
    pub fn start_with(config: StubConfig) -> io::Result<Stub> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("octavo-s3-stub")
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::new(config));
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        runtime.spawn(server::serve(listener, state.clone()));
        Ok(Stub { state, address, runtime: Some(runtime) })
    }

    /// Returns the URL of the server, such as `http://127.0.0.1:4711`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the objects, to look at and to change.
    pub fn contents(&self) -> &Contents {
        &self.state.contents
    }

    /// Creates or replaces the object at `path` (`bucket/key`). Returns its entity tag.
    pub fn put(&self, path: &str, bytes: impl Into<Bytes>) -> String {
        self.state.contents.put(path, bytes)
    }

    /// Removes an object, if there is one.
    pub fn delete(&self, path: &str) {
        self.state.contents.delete(path);
    }

    /// Gives later requests the answers that `lies` plans.
    pub fn set_lies(&self, lies: Lies) {
        self.state.set_lies(lies);
    }

    /// Returns what was counted since the start or the last [`reset_counts`](Stub::reset_counts).
    pub fn counts(&self) -> Counts {
        self.state.counts().clone()
    }

    /// Sets all counts to zero.
    pub fn reset_counts(&self) {
        *self.state.counts() = Counts::default();
    }
}

impl Drop for Stub {
    /// Ends without waiting for answers that pause.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
