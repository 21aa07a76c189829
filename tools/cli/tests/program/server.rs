//! A server under test: its directory, its configuration, its process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a slow machine may take for a step that is usually immediate.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where the logs of mounts in the background go.
const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// The program with these arguments.
pub fn program(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(words).env("XDG_STATE_HOME", STATE);
    command
}

/// Runs the program to its end.
pub fn octavo(words: &[&str]) -> Output {
    program(words).output().unwrap()
}

/// Runs the program to its end, which must be a success; what it printed.
pub fn octavo_succeeds(words: &[&str]) -> String {
    let output = octavo(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program to its end, which must be a failure with this status and no output; its
/// complaint.
pub fn octavo_fails(words: &[&str], status: i32) -> String {
    let output = octavo(words);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{words:?}: {complaint}");
    assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    complaint
}

/// Runs the program to its end, which must be a success; the objects that it printed as lines of
/// JSON, and its complaints.
pub fn octavo_objects(words: &[&str]) -> (Vec<Value>, String) {
    let output = octavo(words);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {complaints}");
    (parsed(&String::from_utf8(output.stdout).unwrap()), complaints)
}

/// The objects in lines of JSON.
pub fn parsed(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks some values of an object, given as an object of these.
pub fn assert_has(object: &Value, expected: Value) {
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(object[key], *value, "{key} of {object}");
    }
}

/// Waits until something is so; panics with `what` if that takes longer than [`PATIENCE`].
pub fn wait_until(what: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until something is found; panics with `what` if that takes longer than [`PATIENCE`].
pub fn wait_for<T>(what: impl Fn() -> String, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", what());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal, by the name that kill(1) knows.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("/bin/sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.unwrap().success());
}

/// A server in a directory of its own.
pub fn served(setup: &Setup<'_>) -> (Directory, Server) {
    let directory = Directory::new();
    let server = Server::start(&directory, setup);
    (directory, server)
}

/// A directory that is removed when its test has passed.
pub struct Directory(PathBuf);

impl Directory {
    /// A new directory. Its name is short: the paths of sockets may have 107 bytes.
    pub fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: a ticket; nothing else is ordered by it.
        let ticket = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{ticket}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A sparse file of this length.
    pub fn disk(&self, name: &str, len_bytes: u64) -> PathBuf {
        let path = self.join(name);
        File::create(&path).unwrap().set_len(len_bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Best effort: a directory that stays only takes disk space.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// What a test's server looks like; the defaults are one write-back disk in 32 MiB.
#[derive(Clone, Copy)]
pub struct Setup<'s> {
    pub memory_max: &'s str,
    /// More lines of `[cache]`.
    pub cache: &'s str,
    pub partition: &'s str,
    pub serve: &'s str,
    /// More lines of `[listen]`.
    pub listen: &'s str,
    /// Name and path of each export. None: the file "disk", which is made if it is missing.
    pub exports: &'s [(&'s str, &'s Path)],
    /// The length of the file "disk".
    pub disk_bytes: u64,
    /// A shell's words to run before the server, such as limits.
    pub before: &'s str,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Setup {
            memory_max: "32MiB",
            cache: "",
            partition: "cache_mode = \"writeback\"",
            serve: "",
            listen: "",
            exports: &[],
            disk_bytes: 16 << 20,
            before: "",
        }
    }
}

/// A running server. Its drop ends it with SIGTERM, and expects that it loses nothing.
pub struct Server {
    process: Child,
    /// A test waited for its end.
    has_ended: bool,
    pub nbd: PathBuf,
    pub control: PathBuf,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Server {
    /// Starts a server in a directory, and waits until it listens.
    pub fn start(directory: &Directory, setup: &Setup<'_>) -> Server {
        let (nbd, control) = (directory.join("nbd.sock"), directory.join("control.sock"));
        let mut text = format!(
            "[cache]\nmemory_max = \"{}\"\n{}\n[[partition]]\nname = \"p\"\n{}\n[listen]\nnbd = \"unix:{}\"\n\
             control = \"unix:{}\"\n{}\n[serve]\n{}\n",
            setup.memory_max,
            setup.cache,
            setup.partition,
            nbd.display(),
            control.display(),
            setup.listen,
            setup.serve
        );
        let disk = directory.join("disk");
        if setup.exports.is_empty() && !disk.exists() {
            directory.disk("disk", setup.disk_bytes);
        }
        let usual = [("disk", &*disk)];
        for (name, path) in if setup.exports.is_empty() { &usual } else { setup.exports } {
            text +=
                &format!("[[export]]\nname = \"{name}\"\npath = \"{}\"\npartition = \"p\"\n", path.display());
        }
        let config = directory.join("octavo.toml");
        std::fs::write(&config, text).unwrap();
        let line = format!("{}\nexec \"$0\" serve --config \"$1\"", setup.before);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_octavo")]).arg(config);
        Server::spawn(command, directory, nbd, control)
    }

    /// Starts a command that becomes a server with these sockets.
    pub fn spawn(mut command: Command, directory: &Directory, nbd: PathBuf, control: PathBuf) -> Server {
        let stderr = directory.join("stderr");
        let log = File::options().create(true).append(true).open(&stderr).unwrap();
        let stdout = directory.join("stdout");
        let said = File::create(&stdout).unwrap();
        let process = command.stdin(Stdio::null()).stdout(said).stderr(log).spawn().unwrap();
        let mut server = Server { process, has_ended: false, nbd, control, stdout, stderr };
        server.wait_until_listening();
        server
    }

    fn wait_until_listening(&mut self) {
        let begun = Instant::now();
        while UnixStream::connect(&self.nbd).is_err() || UnixStream::connect(&self.control).is_err() {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("the server ended with {status} before it listened:\n{}", self.log());
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.nbd.display())
    }

    /// Everything the server has written to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits until the log holds a text.
    pub fn wait_for_log(&self, text: &str) {
        let missing = || format!("\"{text}\" is not in the log:\n{}", self.log());
        wait_until(missing, || self.log().contains(text));
    }

    /// Waits for a complete line on standard output that begins with this, after blanks. Returns
    /// the line without the blanks.
    pub fn wait_for_line(&self, beginning: &str) -> String {
        let said = || std::fs::read_to_string(&self.stdout).unwrap();
        let missing = || format!("\"{beginning}\" is not said:\n{}\n{}", said(), self.log());
        wait_for(missing, || {
            let said = said();
            let mut lines = said.rsplit_once('\n')?.0.lines().map(str::trim_start);
            lines.find(|line| line.starts_with(beginning)).map(str::to_owned)
        })
    }

    /// Where the server answers HTTP, as `host:port`. It must have `listen.metrics`.
    pub fn metrics_address(&self) -> String {
        let line = self.wait_for_line("metrics http://");
        let address = line.trim_start_matches("metrics http://").split('/').next();
        address.expect("an address").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Bytes of the process by the kernel's own sum (`/proc/PID/smaps_rollup`), such as `Rss`.
    pub fn memory(&self, name: &str) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.unwrap_or_else(|| panic!("{name} is not in\n{rollup}")).trim().strip_suffix(" kB");
        kib.expect("a number of kB").parse::<u64>().unwrap() << 10
    }

    /// Runs `octavo ctl` against this server.
    pub fn ctl(&self, words: &[&str]) -> Output {
        self.ctl_of(words)
    }

    /// Runs `octavo ctl` with words of any bytes.
    pub fn ctl_of(&self, words: &[impl AsRef<OsStr>]) -> Output {
        program(&["ctl", "--socket"]).arg(&self.control).args(words).output().unwrap()
    }

    /// Runs `octavo ctl` and expects success; its standard output.
    pub fn ctl_succeed(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctl {words:?}: {}\n{stderr}\n{}", output.status, self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `octavo ctl` and expects it to fail with this status; its standard error.
    pub fn ctl_fail(&self, status: i32, words: &[&str]) -> String {
        let output = self.ctl(words);
        assert_eq!(output.status.code(), Some(status), "ctl {words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs `octavo ctl` with `--json` and expects success; its answer.
    pub fn ctl_json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ctl_succeed(&[words, &["--json"]].concat())).unwrap()
    }

    /// The counters.
    pub fn stat(&self) -> Value {
        self.ctl_json(&["stat"])
    }

    /// Dirty bytes of the partition.
    pub fn dirty_bytes(&self) -> u64 {
        self.stat()["partitions"][0]["dirty_bytes"].as_u64().unwrap()
    }

    /// Sends a signal, by the name that kill(1) knows.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Sends a signal, after which the process must end with this status.
    pub fn end(&mut self, signal: &str, code: i32) {
        self.signal(signal);
        assert_eq!(self.wait().code(), Some(code), "{}", self.log());
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        self.has_ended = true;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            if begun.elapsed() > PATIENCE {
                self.process.kill().unwrap();
                panic!("the server does not end:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the server before the end of its test.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has failed: nothing is left to check.
            let _ = self.process.kill();
            let _ = self.process.wait();
        } else if !self.has_ended {
            self.end("TERM", 0);
        }
    }
}
