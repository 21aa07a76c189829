//! The connections of one process to one export: made when threads need them, and kept.
//!
//! A connection that breaks while it is idle, because the server was restarted, is replaced without
//! an error. That must not hide a loss: a server that was killed has lost writes that it had
//! acknowledged. So the next sync after such a change fails once, if there were writes since the
//! last sync.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::address::Address;
use super::connection::{Command, Connection, Export, Fault};
use super::stream::OnSignal;
use crate::memory::Memory;
use crate::wait::BETWEEN_LOOKS;

/// What a pool connects to, and how.
#[derive(Clone, Debug)]
pub struct Target {
    /// The server.
    pub address: Address,
    /// The name of the export.
    pub export: String,
    /// The longest wait for the server.
    pub timeout: Option<Duration>,
    /// The most connections.
    pub connections_max: usize,
}

/// Connections to one export.
pub struct Pool {
    target: Target,
    on_signal: OnSignal,
    /// What the server said first.
    pub export: Export,
    state: Mutex<State>,
    returned: Condvar,
}

struct State {
    idle: Vec<Connection>,
    /// Connections that are idle or in use.
    count: usize,
    /// Writes that were acknowledged.
    writes: u64,
    /// Those of them that a sync has covered.
    synced: u64,
    /// Some of the others may be lost.
    is_lost: bool,
}

impl Pool {
    /// Connects.
    pub fn open(target: Target, on_signal: OnSignal) -> io::Result<Pool> {
        let first = Connection::open(&target.address, &target.export, target.timeout, on_signal)?;
        let export = first.export;
        let target = match export.can_multi_conn() {
            true => target,
            false => Target { connections_max: 1, ..target },
        };
        let state = State { idle: vec![first], count: 1, writes: 0, synced: 0, is_lost: false };
        Ok(Pool { target, on_signal, export, state: Mutex::new(state), returned: Condvar::new() })
    }

    /// Runs a command on a range, in requests of the length that the server takes.
    ///
    /// # Safety
    /// As [`Connection::run`].
    pub unsafe fn run(&self, command: Command, offset: u64, len: u64, memory: Memory) -> io::Result<()> {
        let mut done = 0;
        loop {
            let now = (len - done).min(self.export.request_max_bytes.into());
            let piece = if memory.len == 0 { memory } else { memory.skip(done as usize).first(now) };
            // SAFETY: the caller's promise.
            unsafe { self.run_one(command, offset + done, now as u32, piece) }?;
            done += now;
            if done == len {
                return Ok(());
            }
        }
    }

    /// Makes acknowledged writes durable.
    pub fn flush(&self) -> io::Result<()> {
        let writes = self.lock().writes;
        let none = Memory { start: std::ptr::null_mut(), len: 0 };
        // SAFETY: the memory is empty.
        unsafe { self.run_one(Command::Flush, 0, 0, none) }?;
        let mut state = self.lock();
        state.synced = writes;
        match std::mem::take(&mut state.is_lost) {
            true => Err(io::Error::other(
                "the connection broke after writes, which the server may have lost: write them again",
            )),
            false => Ok(()),
        }
    }

    /// # Safety
    /// As [`Connection::run`].
    unsafe fn run_one(&self, command: Command, offset: u64, len: u32, memory: Memory) -> io::Result<()> {
        let (mut connection, was_idle) = self.take(false)?;
        // SAFETY: the caller's promise.
        let mut result = unsafe { connection.run(command, offset, len, memory) };
        if let (Err(Fault::Connection(error)), true) = (&result, was_idle)
            && is_gone(error)
        {
            // Flushes are repeated, too: `is_lost` tells what they cannot know.
            self.drop_broken(connection);
            connection = self.take(true)?.0;
            // SAFETY: as above. The first attempt has ended.
            result = unsafe { connection.run(command, offset, len, memory) };
        }
        match result {
            Err(Fault::Connection(error)) => {
                self.drop_broken(connection);
                Err(error)
            }
            Err(Fault::Server(error)) => {
                self.give_back(connection);
                Err(error)
            }
            Ok(()) => {
                if !matches!(command, Command::Read | Command::Flush) {
                    self.lock().writes += 1;
                }
                self.give_back(connection);
                Ok(())
            }
        }
    }

    /// Takes an idle connection, makes one, or waits for one. Returns whether it was idle. With
    /// `fresh`, the idle ones are dropped: the server has gone that they lead to.
    fn take(&self, fresh: bool) -> io::Result<(Connection, bool)> {
        let mut state = self.lock();
        if fresh {
            state.count -= state.idle.len();
            state.idle.clear();
        }
        loop {
            if let Some(connection) = state.idle.pop() {
                return Ok((connection, true));
            }
            if state.count < self.target.connections_max {
                state.count += 1;
                break;
            }
            let waited = self.returned.wait_timeout(state, BETWEEN_LOOKS);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.idle.is_empty() && state.count >= self.target.connections_max {
                // A handler of a signal may use this pool.
                drop(state);
                (self.on_signal)()?;
                state = self.lock();
            }
        }
        drop(state);
        let Target { address, export, timeout, .. } = &self.target;
        let made = Connection::open(address, export, *timeout, self.on_signal).and_then(|connection| {
            let (is, was) = (connection.export.size, self.export.size);
            let sentence = || format!("the export has {is} bytes, and had {was}: attach to it again");
            if is == was { Ok(connection) } else { Err(io::Error::other(sentence())) }
        });
        match made {
            Ok(connection) => Ok((connection, false)),
            Err(error) => {
                self.lock().count -= 1;
                self.returned.notify_one();
                Err(error)
            }
        }
    }

    fn give_back(&self, connection: Connection) {
        self.lock().idle.push(connection);
        self.returned.notify_one();
    }

    fn drop_broken(&self, connection: Connection) {
        drop(connection);
        let mut state = self.lock();
        state.count -= 1;
        state.is_lost |= state.writes > state.synced;
        drop(state);
        self.returned.notify_one();
    }

    /// Ends the idle connections as the protocol asks.
    pub fn close(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        self.lock().count -= idle.len();
        let none = Memory { start: std::ptr::null_mut(), len: 0 };
        for mut connection in idle {
            // SAFETY: the memory is empty.
            let _ = unsafe { connection.run(Command::Disconnect, 0, 0, none) };
        }
    }

    /// Leaves the pool to the parent of `fork`: closes this process's copies of the idle
    /// descriptors. Another thread of the parent may have held the lock or a connection; then they
    /// stay until this process ends.
    pub fn leave_to_the_parent(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.idle.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server has closed the connection before it saw the request, or may have.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}
