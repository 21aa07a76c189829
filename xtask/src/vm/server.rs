//! [`Server`]: `octavo serve` as its own process, which the tests kill.

use std::fmt::Write as _;
use std::fs::{DirEntry, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest start of a server, and its longest end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk that the server attaches by vhost-user.
pub struct Disk {
    /// Also the name of its partition, unless another is given, and of its files.
    pub name: &'static str,
    pub partition: &'static str,
    pub len_bytes: u64,
}

impl Disk {
    /// The image of the disk.
    pub fn image(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.raw", self.name))
    }

    /// The socket of the disk.
    pub fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.sock", self.name))
    }

    /// Makes an image of zeros that takes no space.
    pub fn create(&self, folder: &Path) -> Result<(), String> {
        let image = self.image(folder);
        let made = File::create(&image).and_then(|file| file.set_len(self.len_bytes));
        made.map_err(|error| format!("{}: {error}", image.display()))
    }
}

/// The configuration of a server.
pub struct Settings<'a> {
    pub memory_max: &'a str,
    /// The partitions: a name, and further keys as lines of TOML.
    pub partitions: &'a [(&'a str, String)],
    pub disks: &'a [Disk],
}

/// A running server. It is killed when this is dropped.
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    process: Child,
}

impl Server {
    /// Writes a configuration, and starts a server that serves its disks.
    pub fn start(program: &Path, folder: &Path, settings: &Settings) -> Result<Server, String> {
        Server::start_with(program, folder, &text(folder, settings))
    }

    /// Writes this configuration, and starts a server.
    pub fn start_with(program: &Path, folder: &Path, text: &str) -> Result<Server, String> {
        std::fs::write(folder.join("octavo.toml"), text).map_err(|error| format!("octavo.toml: {error}"))?;
        Server::start_again(program, folder)
    }

    fn start_again(program: &Path, folder: &Path) -> Result<Server, String> {
        let process = spawn(program, folder, &[])?;
        let mut server = Server { program: program.to_owned(), folder: folder.to_owned(), process };
        let start = Instant::now();
        while UnixStream::connect(folder.join("control.sock")).is_err() {
            if let Ok(Some(status)) = server.process.try_wait() {
                return Err(format!("the server ended: {status}\n{}", log_of(folder, 0).0));
            }
            if start.elapsed() > PATIENCE {
                return Err("the server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Kills the server (SIGKILL), and starts it again with the same configuration.
    pub fn kill_and_restart(&mut self) -> Result<(), String> {
        self.kill();
        *self = Server::start_again(&self.program, &self.folder)?;
        Ok(())
    }

    /// Lets another process take over, and waits until this one has ended.
    pub fn replace(&mut self) -> Result<(), String> {
        let successor = spawn(&self.program, &self.folder, &["--take-over"])?;
        let mut former = std::mem::replace(&mut self.process, successor);
        ended(&mut former).inspect_err(|_| {
            let _ = former.kill();
        })
    }

    /// Waits until this many rings of guests run: each has a thread.
    pub fn wait_for_rings(&mut self, rings: usize) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let running = self.rings()?;
            if running >= rings {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{running} of {rings} rings run: see qemu.log for lost connections"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The number of threads that are rings.
    fn rings(&self) -> Result<usize, String> {
        let threads = PathBuf::from(format!("/proc/{}/task", self.process.id()));
        let entries =
            std::fs::read_dir(&threads).map_err(|error| format!("{}: {error}", threads.display()))?;
        // A thread may end meanwhile.
        let name =
            |entry: std::io::Result<DirEntry>| std::fs::read_to_string(entry.ok()?.path().join("comm")).ok();
        let is_ring = |name: &String| {
            name.trim().strip_prefix("vhost-").is_some_and(|number| number.parse::<usize>().is_ok())
        };
        Ok(entries.filter_map(name).filter(is_ring).count())
    }

    /// Ends the server by SIGTERM, which makes it write everything back.
    pub fn end(mut self) -> Result<(), String> {
        let kill = Command::new("kill").arg(self.process.id().to_string()).status();
        if !kill.is_ok_and(|status| status.success()) {
            return Err("cannot send SIGTERM to the server".into());
        }
        ended(&mut self.process)
    }

    /// Returns what `octavo ctl` prints.
    pub fn ctl(&self, words: &[&str]) -> Result<String, String> {
        let socket = format!("unix:{}", self.folder.join("control.sock").display());
        let mut command = Command::new(&self.program);
        let output = command.args(["ctl", "--socket", &socket]).args(words).output();
        let output = output.map_err(|error| format!("octavo ctl: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("octavo ctl: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a process that serves the configuration of a folder.
fn spawn(program: &Path, folder: &Path, words: &[&str]) -> Result<Child, String> {
    let cannot = |error: std::io::Error| format!("cannot start {}: {error}", program.display());
    let log = OpenOptions::new().create(true).append(true).open(folder.join("serve.log"));
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(folder.join("octavo.toml")).args(words);
    // For objects of S3, whose server does not check signatures.
    command.env("AWS_SKIP_SIGNATURE", "true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.map_err(cannot)?);
    command.spawn().map_err(cannot)
}

/// Waits for the end of a server that was told to end.
fn ended(process: &mut Child) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            other => return Err(format!("the server did not end well: {other:?}")),
        }
    }
}

/// Returns the log of all servers in a folder from a position on, and its length.
pub fn log_of(folder: &Path, from: u64) -> (String, u64) {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(folder.join("serve.log")) {
        let _ = file.seek(SeekFrom::Start(from)).and_then(|_| file.read_to_end(&mut bytes));
    }
    let end = from + bytes.len() as u64;
    (String::from_utf8_lossy(&bytes).into_owned(), end)
}

fn text(folder: &Path, settings: &Settings) -> String {
    let folder_name = folder.display();
    let mut text = format!("[cache]\nmemory_max = \"{}\"\n", settings.memory_max);
    for (name, keys) in settings.partitions {
        let _ = writeln!(text, "[[partition]]\nname = \"{name}\"\n{keys}");
    }
    for disk in settings.disks {
        let Disk { name, partition, .. } = disk;
        let (image, socket) = (disk.image(folder), disk.socket(folder));
        let _ = writeln!(
            text,
            "[[export]]\nname = \"{name}\"\npath = \"{}\"\npartition = \"{partition}\"\n\
             attach = \"vhost-user:{}\"\nqueues = 2",
            image.display(),
            socket.display()
        );
    }
    let _ = writeln!(
        text,
        "[listen]\nnbd = \"unix:{folder_name}/nbd.sock\"\ncontrol = \"unix:{folder_name}/control.sock\""
    );
    text
}
