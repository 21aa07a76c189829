//! The server of a day: its configuration, and how it is started, replaced, killed and ended.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};

use super::checker::Mode;
use super::control::ask;
use super::samples::Resident;
use super::state::State;
use crate::error::Error;
use crate::scratch::{self, Running};

/// How long a server may take to start, to take over and to end.
const PATIENCE: Duration = Duration::from_secs(120);

const LOOK: Duration = Duration::from_millis(10);

/// A disk of a tenant, with a partition of its own.
#[derive(Clone)]
pub struct Disk {
    /// The name of its partition and export.
    pub name: &'static str,
    /// The disk's file.
    pub path: PathBuf,
    pub mode: Mode,
}

/// A running server.
pub struct Server {
    /// The program `octavo`.
    program: PathBuf,
    directory: PathBuf,
    process: Running,
}

/// What an upgrade has taken.
pub struct Upgrade {
    /// From the start of the new process to the end of the old one.
    pub took: Duration,
    /// The most memory that both processes and the pages between them had.
    pub resident_bytes: u64,
}

impl Server {
    /// Starts a server with the configuration in `directory`.
    pub fn start(program: &Path, directory: &Path, state: &State) -> Result<Server, Error> {
        let process = spawn(program, directory, false)?;
        let mut server = Server { program: program.into(), directory: directory.into(), process };
        *state.processes() = vec![server.pid()];
        server.wait_until_it_serves()?;
        Ok(server)
    }

    /// The socket for NBD clients.
    pub fn nbd(directory: &Path) -> PathBuf {
        directory.join("nbd.sock")
    }

    /// The control socket.
    pub fn control(directory: &Path) -> PathBuf {
        directory.join("control.sock")
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Sends a request to the control socket.
    pub fn ask(&self, request: Value) -> Result<Value, Error> {
        ask(&Server::control(&self.directory), request)
    }

    fn wait_until_it_serves(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let why = match self.ask(json!({"do": "stat"})) {
                Ok(stat) if stat["pid"] == self.pid() => return Ok(()),
                Ok(_) => "another server answers".into(),
                Err(error) => error.to_string(),
            };
            if let Some(status) = self.ended()? {
                return Err(self.failed(&format!("the server ended with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed(&format!("the server does not serve: {why}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.process.0.try_wait().map_err(Error::at("the server"))
    }

    fn failed(&self, what: &str) -> Error {
        Error::new(format!("{what}; its log is {}", self.directory.join("server.log").display()))
    }

    /// Replaces the server by a new process of the same program.
    pub fn upgrade(&mut self, state: &State) -> Result<Upgrade, Error> {
        let begun = Instant::now();
        let mut new = spawn(&self.program, &self.directory, true)?;
        state.processes().push(new.0.id());
        let (old, mut resident_bytes) = (self.pid(), 0);
        let status = loop {
            if let Some(status) = self.ended()? {
                break status;
            }
            // The new server first: pages that move to it meanwhile are not counted twice.
            let resident = Resident::of(&[new.0.id(), old]);
            resident_bytes = resident_bytes.max(resident.all_bytes);
            let status = new.0.try_wait().map_err(Error::at("the new server"))?;
            if let Some(status) = status {
                state.processes().pop();
                return Err(self.failed(&format!("the new server ended with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                state.processes().pop();
                return Err(self.failed("the new server has not taken over"));
            }
            std::thread::sleep(LOOK);
        };
        let took = begun.elapsed();
        self.process = new;
        *state.processes() = vec![self.pid()];
        if !status.success() {
            return Err(self.failed(&format!("the old server ended with {status}")));
        }
        self.wait_until_it_serves()?;
        Ok(Upgrade { took, resident_bytes })
    }

    /// Kills the server, and starts another.
    pub fn kill_and_restart(&mut self, state: &State) -> Result<(), Error> {
        state.announce_kill();
        state.processes().clear();
        self.process.0.kill().map_err(Error::at("kill the server"))?;
        self.process.0.wait().map_err(Error::at("wait for the killed server"))?;
        self.process = spawn(&self.program, &self.directory, false)?;
        *state.processes() = vec![self.pid()];
        self.wait_until_it_serves()
    }

    /// Limits the length of files that the server may write to. `None` removes the limit. Writes
    /// past it fail as on a full disk.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<(), Error> {
        let pid = Pid::from_child(&self.process.0);
        let wrong = |error: rustix::io::Errno| Error::at("limit the server's files")(error);
        // The hard limit stays.
        let now = rustix::process::getrlimit(Resource::Fsize);
        let limit = Rlimit { current: bytes.or(now.current), maximum: now.maximum };
        prlimit(Some(pid), Resource::Fsize, limit).map_err(wrong)?;
        Ok(())
    }

    /// Ends the server as a service manager does, and waits for it.
    pub fn stop(mut self, state: &State) -> Result<(), Error> {
        let signal = kill_process(Pid::from_child(&self.process.0), Signal::TERM);
        signal.map_err(Error::at("end the server"))?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.ended()? {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed("the server does not end"));
            }
            std::thread::sleep(LOOK);
        };
        state.processes().clear();
        match status.success() {
            true => Ok(()),
            false => Err(self.failed(&format!("the server ended with {status}"))),
        }
    }
}

/// Starts a process. It does not get the Ctrl-C of this process's terminal.
fn spawn(program: &Path, directory: &Path, takes_over: bool) -> Result<Running, Error> {
    let path = directory.join("server.log");
    let log = File::options().create(true).append(true).open(&path);
    let log = log.map_err(Error::at(&path.display().to_string()))?;
    let mut command = scratch::command(program);
    command.args(["serve", "--config"]).arg(directory.join("octavo.toml"));
    if takes_over {
        command.arg("--take-over");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    command.spawn().map(Running).map_err(Error::at("start the server"))
}

/// Writes the configuration of a server for these disks.
pub fn configure(directory: &Path, memory_max_bytes: u64, weight: u64, disks: &[Disk]) -> Result<(), Error> {
    let mut text = format!("[cache]\nmemory_max = {memory_max_bytes}\n");
    for disk in disks {
        let (name, mode) = (disk.name, mode(disk.mode));
        // TOML's basic strings have the escapes of Rust's.
        let path = format!("{:?}", disk.path.display().to_string());
        let _ = write!(
            text,
            "[[partition]]\nname = \"{name}\"\ncache_mode = \"{mode}\"\nweight = {weight}\n\
            [[export]]\nname = \"{name}\"\npath = {path}\npartition = \"{name}\"\n"
        );
    }
    let socket = |path: PathBuf| format!("{:?}", format!("unix:{}", path.display()));
    let (nbd, control) = (socket(Server::nbd(directory)), socket(Server::control(directory)));
    let _ = write!(text, "[listen]\nnbd = {nbd}\ncontrol = {control}\n");
    let path = directory.join("octavo.toml");
    std::fs::write(&path, text).map_err(Error::at(&path.display().to_string()))
}

/// The name of a mode in configurations.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Writeback => "writeback",
        Mode::Writethrough => "writethrough",
    }
}
