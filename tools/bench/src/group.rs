//! Memory control groups of version 1 and 2, for programs whose memory is limited. A group's limit
//! covers the memory of its programs, the pages of the kernel's page cache that they were the first
//! to read, and the kernel's memory for both.
//!
//! Only root can create groups, as a rule. They are created in the root of the hierarchy.

use std::fs::{create_dir, read_to_string, remove_dir, write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::error::Error;
use crate::machine;

/// The two versions of control groups, and where each is mounted.
const HIERARCHIES: [(&str, Version); 2] =
    [("/sys/fs/cgroup/memory", Version::One), ("/sys/fs/cgroup", Version::Two)];

/// How often the removal of a group is tried: the kernel needs a moment after its last process.
const REMOVALS_MAX: u32 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The names of a group's files.
struct Names {
    limit: &'static str,
    used: &'static str,
    peak: &'static str,
    /// A file that keeps memory from being swapped, and its content. Missing without swap.
    no_swap: (&'static str, &'static str),
}

impl Version {
    const fn names(self) -> Names {
        match self {
            Version::One => Names {
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                peak: "memory.max_usage_in_bytes",
                no_swap: ("memory.swappiness", "0"),
            },
            Version::Two => Names {
                limit: "memory.max",
                used: "memory.current",
                peak: "memory.peak",
                no_swap: ("memory.swap.max", "0"),
            },
        }
    }
}

/// A control group. Dropping it removes it, if its processes have ended, and with it the cached
/// pages that are charged to it.
pub struct Group {
    path: PathBuf,
    version: Version,
}

impl Group {
    /// Creates a group with a limit. `name` is a part of its name.
    pub fn new(name: &str, limit_bytes: u64) -> Result<Group, Error> {
        let name = format!("octavo-bench-{}-{name}", std::process::id());
        let mut why = String::from("no memory control groups are mounted");
        for (root, version) in HIERARCHIES {
            if Path::new(root).join("cgroup.procs").exists() {
                match Group::in_root(Path::new(root), version, &name, limit_bytes) {
                    Ok(group) => return Ok(group),
                    Err(error) => why = error,
                }
            }
        }
        Err(Error::new(why))
    }

    fn in_root(root: &Path, version: Version, name: &str, limit_bytes: u64) -> Result<Group, String> {
        // In version 2, limits of child groups must be enabled. Version 1 has no such file.
        if version == Version::Two {
            let _ = write(root.join("cgroup.subtree_control"), "+memory");
        }
        let group = Group { path: root.join(name), version };
        let why = |error: std::io::Error| format!("{}: {error}", group.path.display());
        create_dir(&group.path).map_err(why)?;
        write(group.path.join(version.names().limit), limit_bytes.to_string()).map_err(why)?;
        let (swap, none) = version.names().no_swap;
        let _ = write(group.path.join(swap), none);
        Ok(group)
    }

    /// Moves a process into the group. Memory that it has already is not charged to the group.
    pub fn join(&self, process: u32) -> Result<(), Error> {
        write(self.path.join("cgroup.procs"), process.to_string()).map_err(Error::at("a control group"))
    }

    /// Returns a command that runs `program` in the group from its first instruction on. If
    /// setpriv is installed, the program gets SIGTERM when this process ends, however that ends.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = match machine::program("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "TERM", "sh"]);
                command
            }
            None => Command::new("sh"),
        };
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.path.join("cgroup.procs")).arg(program);
        command
    }

    /// Returns the most memory that the group has had, or, on kernels before 5.19 with version 2,
    /// the memory that it has now.
    pub fn peak_bytes(&self) -> u64 {
        let names = self.version.names();
        self.figure(names.peak).or_else(|| self.figure(names.used)).unwrap_or(0)
    }

    fn figure(&self, file: &str) -> Option<u64> {
        read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // In version 1, the parent would keep the pages. Version 2 has no such file.
        if self.version == Version::One {
            let _ = write(self.path.join("memory.force_empty"), "0");
        }
        for _ in 0..REMOVALS_MAX {
            match remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    sleep(Duration::from_millis(20));
                }
                // If the group cannot be removed, it stays.
                _ => return,
            }
        }
    }
}

/// Drops all clean pages, names and attributes that the kernel has cached.
pub fn drop_kernel_caches() -> Result<(), Error> {
    // Only clean pages are dropped.
    rustix::fs::sync();
    write("/proc/sys/vm/drop_caches", "3").map_err(Error::at("/proc/sys/vm/drop_caches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_own_files() {
        let root = std::env::temp_dir().join(format!("octavo-bench-groups-{}", std::process::id()));
        for (version, limit, peak) in [
            (Version::One, "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            (Version::Two, "memory.max", "memory.peak"),
        ] {
            create_dir(&root).unwrap();
            let group = Group::in_root(&root, version, "g", 4096).unwrap();
            let read = |file: &str| read_to_string(root.join("g").join(file)).unwrap();
            assert_eq!(read(limit), "4096");
            assert_eq!(group.peak_bytes(), 0);
            write(root.join("g").join(version.names().used), "11\n").unwrap();
            assert_eq!(group.peak_bytes(), 11);
            write(root.join("g").join(peak), "22\n").unwrap();
            assert_eq!(group.peak_bytes(), 22);
            std::fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn a_program_runs_in_its_group() {
        let Ok(group) = Group::new("test", 64 << 20) else {
            return println!("SKIP: memory control groups cannot be created here");
        };
        let output = group.command(Path::new("cat")).arg("/proc/self/cgroup").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("octavo-bench-") && group.peak_bytes() > 0, "{text}");
    }
}
