//! [`Tidier`]: a thread that closes files which were idle for long (F2, `files.rs`).

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fs::Fs;
use crate::lock::lock;

/// How often the thread looks: an eighth of the time that files may be idle, within these bounds.
const PERIOD_LEAST: Duration = Duration::from_millis(10);
const PERIOD_MOST: Duration = Duration::from_secs(60);

/// The room of the thread's stack.
const STACK_BYTES: usize = 256 << 10;

/// The thread of a mount and of those below it. It ends soon after this is dropped.
pub struct Tidier {
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Tidier {
    /// Starts the thread, for files that may be idle for this long.
    ///
    /// # Errors
    /// A sentence.
    pub fn start<'f>(all: impl Iterator<Item = &'f Arc<Fs>>, idle_max: Duration) -> Result<Tidier, String> {
        let all: Vec<Weak<Fs>> = all.map(Arc::downgrade).collect();
        let period = (idle_max / 8).clamp(PERIOD_LEAST, PERIOD_MOST);
        let (end, ended) = channel();
        let tidy = move || {
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                all.iter().filter_map(Weak::upgrade).for_each(|fs| fs.files.close_old());
            }
        };
        let thread = std::thread::Builder::new().name("octavo-fuse-tidy".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(tidy).map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Tidier { thread: Mutex::new(Some((end, thread))) })
    }

    /// Ends the thread, and waits for it.
    pub fn end(&self) {
        if let Some((end, thread)) = lock(&self.thread).take() {
            drop(end);
            let _ = thread.join();
        }
    }
}
