//! [`Calls`]: the requests that may wait for the lower file system, from their arrival to their
//! reply, whether a thread performs them or they wait for one (`stores.rs`). A program that is
//! killed meanwhile gets its reply at once, because the kernel cannot end it before.
//!
//! - **C1** A request is answered by the one that finds it unanswered under the lock: the thread
//!   that has performed it ([`Calls::end`]), or a look at its program ([`Calls::let_go`]).
//! - **C2** A request whose program was killed before a thread began it is not performed.
//! - **C3** A request that was answered early takes back what it has given the kernel
//!   (`operations/undo.rs`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::device::Device;
use crate::handles::Open;
use crate::lower;

struct Call {
    device: Arc<Device>,
    /// The thread that waits for the reply.
    caller: u32,
    since: Instant,
    is_answered: bool,
    /// The file and the number of a write.
    write: Option<(Arc<Open>, u64)>,
}

/// All such requests of a mount, by the kernel's numbers, which are used once.
#[derive(Default)]
pub struct Calls {
    count: AtomicUsize,
    table: Mutex<HashMap<u64, Call>>,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Call>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request that has arrived.
    pub fn begin(&self, unique: u64, caller: u32, device: &Arc<Device>) {
        let (device, since) = (device.clone(), Instant::now());
        self.lock().insert(unique, Call { device, caller, since, is_answered: false, write: None });
        self.count.fetch_add(1, SeqCst);
    }

    /// Notes that a request is this write of a file, for which reads wait.
    pub fn is_write(&self, unique: u64, open: &Arc<Open>, flight: u64) {
        if let Some(call) = self.lock().get_mut(&unique) {
            call.write = Some((open.clone(), flight));
        }
    }

    /// Whether the request is here, and so is to be answered.
    pub fn is_known(&self, unique: u64) -> bool {
        self.lock().contains_key(&unique)
    }

    /// C2.
    pub fn is_answered(&self, unique: u64) -> bool {
        self.lock().get(&unique).is_some_and(|call| call.is_answered)
    }

    /// Removes a request. Returns whether it has no answer yet (C1).
    pub fn end(&self, unique: u64) -> bool {
        let ended = self.lock().remove(&unique);
        if ended.is_some() {
            self.count.fetch_sub(1, SeqCst);
        }
        ended.is_some_and(|call| !call.is_answered)
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Answers the requests of programs that were killed, if they are older than `patience`.
    /// Returns the writes of that age: a store that hangs does not keep those who read.
    pub fn let_go(&self, patience: Duration) -> Vec<(Arc<Open>, u64)> {
        let now = Instant::now();
        let mut writes = Vec::new();
        let mut unanswered = Vec::new();
        for (unique, call) in &*self.lock() {
            if now.saturating_duration_since(call.since) < patience {
                continue;
            }
            writes.extend(call.write.clone());
            if !call.is_answered {
                unanswered.push((*unique, call.caller));
            }
        }
        // Without the lock: each look reads files of /proc.
        unanswered.retain(|(_, caller)| lower::is_killed(*caller));
        for (unique, _) in unanswered {
            let mut table = self.lock();
            let Some(call) = table.get_mut(&unique).filter(|call| !call.is_answered) else { continue };
            call.is_answered = true;
            call.device.reply(unique, Err(Errno::INTR), &[]);
        }
        writes
    }
}
