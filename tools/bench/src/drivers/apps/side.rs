//! A contestant: a directory, the cache in front of it, and the memory of the programs that use it.
//!
//! *Equal memory.* `memory` is the limit on everything that caches files. For Octavo it is the
//! limit of the control group that contains its server: frames, metadata, buffers, the process, and
//! anything that the kernel caches on behalf of the server. `programs` is the memory of the
//! programs: their data, their code, files that they map. With Octavo, it is the limit of a second
//! group, with the programs. Without it, one group contains the programs and the pages that they
//! read, and its limit is the sum. (Programs that need less for a while leave that to the kernel's
//! page cache, which gains from this. Octavo does not.)

use std::fmt::Write;
use std::fs::{File, create_dir_all, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::content::PAGE_BYTES;
use crate::error::Error;
use crate::group::{Group, drop_kernel_caches};

/// The memory of the server's process besides `memory_max`: its heap and stacks, and the kernel's
/// memory for them and for its pages of code.
const PROCESS_BYTES: u64 = 12 << 20;

/// The kernel's memory for a file that the mount keeps open: its inode, name and descriptor.
const OPEN_FILE_BYTES: u64 = 2 << 10;

/// How long a server may take until its directory is usable, and to end.
const SERVER_TIME: Duration = Duration::from_secs(60);

/// What a contestant is made from.
pub struct Scene<'s> {
    /// The program `octavo`.
    pub program: &'s Path,
    /// The directory with the contestant's files.
    pub lower: &'s Path,
    /// Where it is mounted.
    pub target: &'s Path,
    /// The limit on the memory that caches files.
    pub memory_bytes: u64,
    /// The limit on the memory of programs.
    pub programs_bytes: u64,
    /// The number of files that programs open.
    pub files: u64,
    /// Directories in `lower` with a partition each. If empty, there is one partition.
    pub tenants: &'s [&'static str],
}

/// A contestant.
pub struct Side {
    /// The directory in which programs find its files.
    pub path: PathBuf,
    /// The same directory without the cache.
    pub lower: PathBuf,
    /// Ends before its group.
    server: Option<Server>,
    group: Group,
}

impl Side {
    /// Prepares a contestant, with cold caches.
    pub fn start(name: &str, scene: &Scene<'_>) -> Result<Side, Error> {
        let is_kernel = name == "kernel";
        let memory_bytes = if is_kernel { scene.memory_bytes } else { 0 };
        let group = Group::new(&format!("{name}-programs"), scene.programs_bytes + memory_bytes)?;
        let tenants = if name == "one-cache" { &[] } else { scene.tenants };
        drop_kernel_caches()?;
        let server = match is_kernel {
            true => None,
            false => Some(Server::start(&Scene { tenants, ..*scene })?),
        };
        let path = if is_kernel { scene.lower } else { scene.target };
        Ok(Side { path: path.into(), lower: scene.lower.into(), server, group })
    }

    /// Returns a command that runs a program with this contestant's memory, in its directory.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.group.command(program);
        command.current_dir(&self.path);
        command
    }

    /// Returns the most memory that the server's group has had.
    pub fn server_bytes(&self) -> Option<u64> {
        Some(self.server.as_ref()?.group.peak_bytes())
    }

    /// Returns the bytes of frames that each partition has, by name.
    pub fn partitions(&self) -> Vec<(String, u64)> {
        self.server.as_ref().map_or(Vec::new(), Server::partitions)
    }

    /// Returns the pages that were read from disks for the programs' files so far: by the server,
    /// or, without a server, by programs that have ended. The latter includes their code.
    pub fn store_pages(&self) -> u64 {
        let reader = self.server.as_ref().map_or("self".into(), |server| server.child.id().to_string());
        read_bytes(&reader) / PAGE_BYTES as u64
    }
}

/// Returns the bytes that a process has read from disks, with those of its ended children.
fn read_bytes(process: &str) -> u64 {
    let io = read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    bytes.unwrap_or(0)
}

/// A process that serves a mounted directory. Dropping it unmounts the directory.
struct Server {
    child: Child,
    target: PathBuf,
    program: PathBuf,
    socket: PathBuf,
    group: Group,
}

impl Server {
    fn start(scene: &Scene<'_>) -> Result<Server, Error> {
        create_dir_all(scene.target).map_err(Error::at(&scene.target.display().to_string()))?;
        // Two servers of one run need different names.
        let name = scene.lower.file_name().unwrap_or_default().to_string_lossy();
        let group = Group::new(&format!("{name}-server"), scene.memory_bytes)?;
        let process_bytes = PROCESS_BYTES + scene.files * OPEN_FILE_BYTES;
        let memory_max_bytes = scene.memory_bytes.saturating_sub(process_bytes);
        let (log, socket) = (scene.target.with_extension("log"), scene.target.with_extension("sock"));
        let mut command = group.command(scene.program);
        if scene.tenants.is_empty() {
            command.arg("mount").args([scene.lower, scene.target]);
            command.args(["--memory-max", &memory_max_bytes.to_string()]);
        } else {
            let file = scene.target.with_extension("toml");
            std::fs::write(&file, configuration(scene, memory_max_bytes, &socket))
                .map_err(Error::at("octavo.toml"))?;
            command.args(["serve", "--config"]).arg(file);
        }
        let to = File::options().create(true).append(true).open(&log);
        let to = to.map_err(Error::at(&log.display().to_string()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to);
        let child = command.spawn().map_err(Error::at("octavo"))?;
        let target = scene.target.to_owned();
        let mut server = Server { child, target, program: scene.program.into(), socket, group };
        let until = Instant::now() + SERVER_TIME;
        while !server.is_mounted() {
            let has_ended = server.child.try_wait().map_err(Error::at("octavo"))?;
            if has_ended.is_some() || Instant::now() >= until {
                let text = read_to_string(&log).unwrap_or_default();
                return Err(Error::new(format!("the directory cannot be mounted: {}", text.trim())));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn is_mounted(&self) -> bool {
        let mounts = read_to_string("/proc/self/mounts").unwrap_or_default();
        let target = self.target.to_string_lossy();
        mounts.lines().any(|line| line.split(' ').nth(1) == Some(&target))
    }

    fn partitions(&self) -> Vec<(String, u64)> {
        let mut command = Command::new(&self.program);
        command.args(["ctl", "--socket"]).arg(&self.socket).args(["stat", "--json"]);
        let text = command.output().map(|output| output.stdout).unwrap_or_default();
        partition_sizes(&String::from_utf8_lossy(&text))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            // Fails if the server has ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + SERVER_TIME;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.is_mounted() {
            let _ = unmount(&self.target, UnmountFlags::DETACH);
        }
    }
}

/// Returns the configuration of a server with a partition for each tenant.
fn configuration(scene: &Scene<'_>, memory_max_bytes: u64, socket: &Path) -> String {
    let mut text = format!("[cache]\nmemory_max = {memory_max_bytes}\n");
    for tenant in scene.tenants {
        let _ = write!(text, "[[partition]]\nname = \"{tenant}\"\n");
    }
    let (source, target) = (scene.lower.display(), scene.target.display());
    let rest = scene.tenants.last().unwrap_or(&"");
    let _ = write!(text, "[[mount]]\nsource = \"{source}\"\npath = \"{target}\"\npartition = \"{rest}\"\n");
    for tenant in scene.tenants {
        let _ = write!(text, "[[mount.tenant]]\nmatch = \"/{tenant}/\"\npartition = \"{tenant}\"\n");
    }
    let _ = write!(text, "[listen]\ncontrol = \"unix:{}\"\n", socket.display());
    text
}

/// Returns the sizes of partitions, in bytes, from what `octavo ctl stat --json` prints.
fn partition_sizes(json: &str) -> Vec<(String, u64)> {
    let sizes = json.split("\"max_bytes\":").skip(1).filter_map(|rest| {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let name = rest.split_once("\"name\":\"")?.1.split_once('"')?.0;
        Some((name.to_owned(), rest[..digits].parse().ok()?))
    });
    sizes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_partitions_are_read_from_the_servers_answer() {
        let json = "{\"cache\":{\"memory_max_bytes\":9},\"partitions\":[{\"hits\":0,\"max_bytes\":31,\
                    \"misses\":5,\"name\":\"a\"},{\"max_bytes\":29,\"name\":\"b\"}],\"pid\":1}";
        assert_eq!(partition_sizes(json), [("a".to_owned(), 31), ("b".to_owned(), 29)]);
        assert_eq!(partition_sizes("no server"), []);
    }

    #[test]
    fn a_servers_configuration_has_a_partition_for_each_tenant() {
        let path = Path::new;
        let scene = Scene {
            program: path("octavo"),
            lower: path("/l"),
            target: path("/t"),
            memory_bytes: 32 << 20,
            programs_bytes: 16 << 20,
            files: 2,
            tenants: &["orders", "reports"],
        };
        let text = configuration(&scene, 20 << 20, path("/s"));
        assert!(text.contains("memory_max = 20971520"), "{text}");
        assert!(text.contains("match = \"/orders/\"\npartition = \"orders\""), "{text}");
        assert!(text.contains("source = \"/l\"\npath = \"/t\"\npartition = \"reports\""), "{text}");
    }
}
