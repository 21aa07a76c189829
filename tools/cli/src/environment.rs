//! The process's environment: the user, their directories, whether systemd's journal reads the log,
//! and the service manager.

use std::ffi::OsString;
use std::fs::{Permissions, set_permissions};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::descriptors;
use crate::error::Error;
use crate::supervisor::Supervisor;

/// Names the variable with the descriptors that a server has left to this process: their numbers,
/// separated by commas.
pub const DESCRIPTORS: &str = "OCTAVO_DESCRIPTORS";

/// Names the variable with the number of the socket of a server that wants them.
pub const SUCCESSOR: &str = "OCTAVO_SUCCESSOR";

/// Names the variable with the path of the control socket of a server that has handed over.
pub const GUARDED_CONTROL: &str = "OCTAVO_GUARDED_CONTROL";

/// Begins the names under which the service manager stores descriptors.
pub const STORED: &str = "octavo-";

/// A user and their directories.
#[derive(Clone, Debug)]
pub struct Environment {
    uid: u32,
    home: Option<PathBuf>,
    xdg_cache_home: Option<PathBuf>,
    xdg_state_home: Option<PathBuf>,
    /// The directory that the service manager has made for the service's state.
    state_directory: Option<PathBuf>,
    xdg_runtime_dir: Option<PathBuf>,
    /// Device and inode of the stream that systemd has connected to the journal.
    journal_stream: Option<(u64, u64)>,
    /// The socket of the service manager.
    notify_socket: Option<OsString>,
    /// How long the service manager waits for a sign of life of this process.
    watchdog: Option<Duration>,
    /// The command line, without the program.
    arguments: Vec<OsString>,
    /// The numbers of the descriptors that a former server has left.
    descriptors: Vec<RawFd>,
    /// The number of the socket of a server that wants them.
    successor: Option<RawFd>,
    /// The control socket of the server that this process was, and that has handed over.
    guarded_control: Option<PathBuf>,
    /// The most descriptors that the service manager keeps while this service restarts.
    stored_max: usize,
}

impl Environment {
    /// Reads the process's environment.
    pub fn read() -> Environment {
        let path = |name: &str| {
            let path = PathBuf::from(std::env::var_os(name)?);
            // The XDG specification: ignore paths that are not absolute.
            path.is_absolute().then_some(path)
        };
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let numbers = |text: String| text.split(',').filter_map(|one| one.parse().ok()).collect();
        let left = std::env::var(DESCRIPTORS).ok().map(numbers);
        // Processes that the server starts inherit the variables, which are not meant for them.
        let is_mine = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        Environment {
            uid: rustix::process::getuid().as_raw(),
            notify_socket: std::env::var_os("NOTIFY_SOCKET"),
            watchdog: number("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_mine).map(Duration::from_micros),
            arguments: std::env::args_os().skip(1).collect(),
            descriptors: left.unwrap_or_else(stored_descriptors),
            successor: number(SUCCESSOR).and_then(|number| RawFd::try_from(number).ok()),
            guarded_control: path(GUARDED_CONTROL),
            stored_max: number("FDSTORE").unwrap_or(0) as usize,
            home: path("HOME"),
            xdg_cache_home: path("XDG_CACHE_HOME"),
            xdg_state_home: path("XDG_STATE_HOME"),
            // systemd lists several, separated by colons.
            state_directory: std::env::var("STATE_DIRECTORY")
                .ok()
                .and_then(|list| list.split(':').next().map(PathBuf::from))
                .filter(|path| path.is_absolute()),
            xdg_runtime_dir: path("XDG_RUNTIME_DIR"),
            journal_stream: std::env::var("JOURNAL_STREAM").ok().and_then(|stream| {
                let (device, inode) = stream.split_once(':')?;
                Some((device.parse().ok()?, inode.parse().ok()?))
            }),
        }
    }

    /// The command line, without the program.
    pub fn arguments(&self) -> impl Iterator<Item = &OsString> {
        self.arguments.iter()
    }

    /// Takes the descriptors that a former server has left, in their order. Call it once.
    pub fn take_descriptors(&self) -> Vec<OwnedFd> {
        self.descriptors.iter().filter_map(|number| descriptors::take(*number)).collect()
    }

    /// Takes the socket of a server that wants these descriptors. Call it once.
    pub fn take_successor(&self) -> Option<UnixStream> {
        Some(descriptors::take(self.successor?)?.into())
    }

    /// The control socket of the server that this process was, and that has handed over.
    pub fn guarded_control(&self) -> Option<&Path> {
        self.guarded_control.as_deref()
    }

    /// The most descriptors that the service manager keeps while this service restarts; 0 if it
    /// keeps none.
    pub fn stored_max(&self) -> usize {
        self.notify_socket.as_ref().map_or(0, |_| self.stored_max)
    }

    /// The service manager.
    pub fn supervisor(&self) -> Supervisor {
        Supervisor::new(self.notify_socket.as_deref(), self.watchdog)
    }

    /// Whether standard error is still the stream that systemd has connected to the journal, and
    /// was not redirected since.
    pub fn has_journal(&self) -> bool {
        let stat = rustix::fs::fstat(std::io::stderr());
        stat.is_ok_and(|stat| self.journal_stream == Some((stat.st_dev, stat.st_ino)))
    }

    /// The directory for files that can be recreated: `$XDG_CACHE_HOME/octavo` or
    /// `~/.cache/octavo`.
    pub fn cache_dir(&self) -> Result<PathBuf, Error> {
        match (&self.xdg_cache_home, &self.home) {
            (Some(cache), _) => Ok(cache.join("octavo")),
            (None, Some(home)) => Ok(home.join(".cache/octavo")),
            (None, None) => Err(Error::Usage(
                "neither XDG_CACHE_HOME nor HOME is set, so there is no directory for the demo disk; use --config FILE"
                    .into(),
            )),
        }
    }

    /// The directory for files that outlive the process, such as logs: `$STATE_DIRECTORY`,
    /// `$XDG_STATE_HOME/octavo`, `/var/lib/octavo-mount` for root (the service's user owns
    /// `/var/lib/octavo`), or `~/.local/state/octavo`.
    pub fn state_dir(&self) -> Option<PathBuf> {
        match (&self.state_directory, &self.xdg_state_home, &self.home) {
            (Some(state), ..) => Some(state.clone()),
            (None, Some(state), _) => Some(state.join("octavo")),
            (None, None, _) if self.uid == 0 => Some(PathBuf::from("/var/lib/octavo-mount")),
            (None, None, home) => home.as_ref().map(|home| home.join(".local/state/octavo")),
        }
    }

    /// The directory of sockets: `$XDG_RUNTIME_DIR/octavo`, else `/run/octavo` for root and
    /// `/tmp/octavo-UID` for others.
    pub fn runtime_dir(&self) -> PathBuf {
        match (&self.xdg_runtime_dir, self.uid) {
            (Some(runtime), _) => runtime.join("octavo"),
            (None, 0) => PathBuf::from("/run/octavo"),
            (None, uid) => PathBuf::from(format!("/tmp/octavo-{uid}")),
        }
    }

    /// The NBD socket of a server without a configuration.
    pub fn nbd_socket(&self) -> PathBuf {
        self.runtime_dir().join("nbd.sock")
    }

    /// The control socket of a server without a configuration.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir().join("control.sock")
    }

    /// Makes the runtime directory, and refuses one that another user may have made.
    pub fn make_runtime_dir(&self) -> Result<(), Error> {
        let dir = self.runtime_dir();
        make_private_dir(&dir).map_err(Error::failed)?;
        let refuse =
            |why: String| Error::failed(format!("{}: {why}; set XDG_RUNTIME_DIR to another", dir.display()));
        let meta = std::fs::symlink_metadata(&dir).map_err(|error| refuse(error.to_string()))?;
        if !meta.is_dir() || meta.uid() != self.uid {
            return Err(refuse(format!("is not a directory of user {}", self.uid)));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(refuse("others may write to it".into()));
        }
        Ok(())
    }
}

/// The numbers of the descriptors that the service manager has kept (sd_listen_fds(3)), in the
/// order of their names.
fn stored_descriptors() -> Vec<RawFd> {
    let variable = |name: &str| std::env::var(name).ok();
    if variable("LISTEN_PID").is_none_or(|pid| pid != std::process::id().to_string()) {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let place = |name: &str| name.strip_prefix(STORED)?.parse::<u32>().ok();
    let mut stored: Vec<(u32, RawFd)> =
        names.split(':').zip(3..).filter_map(|(name, number)| Some((place(name)?, number))).collect();
    stored.sort_unstable();
    stored.into_iter().map(|(_, number)| number).collect()
}

/// Makes a directory and its missing parents, with mode 0700. The error is a sentence.
pub fn make_private_dir(dir: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| format!("cannot make the directory {}: {error}", dir.display()))
}

/// Makes a directory and its missing parents, with this mode, for this group. A directory that is
/// there stays as it is. The error is a sentence.
pub fn make_open_dir(dir: &Path, mode: u32, group: Option<u32>) -> Result<(), String> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_open_dir(parent, mode, group)?;
    }
    make_private_dir(dir)?;
    let opened = chown(dir, None, group).and_then(|()| set_permissions(dir, Permissions::from_mode(mode)));
    opened.map_err(|error| format!("cannot give the directory {} its group and mode: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(uid: u32, runtime: Option<&str>, cache: Option<&str>, home: Option<&str>) -> Environment {
        Environment {
            uid,
            home: home.map(Into::into),
            xdg_cache_home: cache.map(Into::into),
            xdg_state_home: None,
            state_directory: None,
            xdg_runtime_dir: runtime.map(Into::into),
            journal_stream: None,
            notify_socket: None,
            watchdog: None,
            arguments: Vec::new(),
            descriptors: Vec::new(),
            successor: None,
            guarded_control: None,
            stored_max: 0,
        }
    }

    #[test]
    fn the_directories_are_those_of_the_user() {
        let full = environment(7, Some("/run/user/7"), Some("/c"), Some("/home/u"));
        assert_eq!(full.control_socket(), Path::new("/run/user/7/octavo/control.sock"));
        assert_eq!(full.cache_dir().unwrap(), Path::new("/c/octavo"));
        let bare = environment(7, None, None, Some("/home/u"));
        assert_eq!(bare.nbd_socket(), Path::new("/tmp/octavo-7/nbd.sock"));
        assert_eq!(bare.cache_dir().unwrap(), Path::new("/home/u/.cache/octavo"));
        assert_eq!(environment(0, None, None, None).runtime_dir(), Path::new("/run/octavo"));
        assert_eq!(bare.state_dir().unwrap(), Path::new("/home/u/.local/state/octavo"));
        let root = environment(0, None, None, Some("/root"));
        assert_eq!(root.state_dir().unwrap(), Path::new("/var/lib/octavo-mount"));
        let own = Environment { xdg_state_home: Some("/s".into()), ..root };
        assert_eq!(own.state_dir().unwrap(), Path::new("/s/octavo"));
        let service = Environment { state_directory: Some("/var/lib/private/o".into()), ..own };
        assert_eq!(service.state_dir().unwrap(), Path::new("/var/lib/private/o"));
        assert_eq!(environment(0, None, None, None).cache_dir().unwrap_err().exit_status(), 2);
    }
}
