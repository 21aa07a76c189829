//! Files to measure on. Each is created, filled and unlinked before it is used, so that none is
//! left behind, however the process ends. Also here: programs that are killed when their owner
//! drops them.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo::disk::Store;

use crate::case::{Case, Place};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine;
use crate::reference::DirectFile;
use crate::stage::{Run, Subject, cache_config, partition_config};

/// The directory of files in memory.
pub const MEMORY_DIRECTORY: &str = "/dev/shm";

/// A file whose pages have content of their own (`content.rs`).
pub struct Scratch {
    /// The file, open for the engine.
    pub store: Store,
    /// The file, open for blocking direct reads and writes.
    pub direct: Arc<DirectFile>,
    /// The file, open without O_DIRECT.
    pub buffered: File,
    /// A path through which other programs can open the file while this process runs.
    pub path: PathBuf,
    /// The length of the file, in bytes.
    pub file_bytes: u64,
    /// Whether the kernel says that the file is open with O_DIRECT.
    pub o_direct: bool,
    /// Whether it is a block device: the kernel's page cache then holds pages besides the device's
    /// own memory.
    pub is_device: bool,
}

impl Scratch {
    /// Creates the file of a case. On a disk, the file has the path that the user gave, with
    /// `suffix` appended.
    pub fn new(case: &Case, suffix: &str, run: &mut Run<'_>) -> Result<Scratch, Error> {
        let path = match case.store {
            Place::Disk => {
                let mut path = run.options.file.clone().into_os_string();
                path.push(suffix);
                PathBuf::from(path)
            }
            Place::Memory | Place::Ram => memory_file(),
        };
        let what = path.display().to_string();
        let file = create(&path).map_err(Error::at(&what))?;
        let made = Unlinked(&path);
        let file_bytes = case.file.0;
        content::write_file(&file, file_bytes, &mut |done| {
            run.news(case, &format!("writing {what}: {} of {} MiB", done >> 20, file_bytes >> 20));
        })
        .map_err(Error::at(&what))?;
        let device = match case.store {
            Place::Ram => LoopDevice::over(&path).map(Some).unwrap_or_else(|why| {
                run.listener.warning(&format!("no loop device ({why}): using a file in memory instead"));
                None
            }),
            Place::Disk | Place::Memory => None,
        };
        let is_device = device.is_some();
        let opened = device.as_ref().map_or(&*path, |device| &device.0);
        let what = opened.display().to_string();
        let store = Store::open(opened, &Default::default()).map_err(Error::at(&what))?;
        let direct = Arc::new(DirectFile::open(opened).map_err(Error::at(&what))?);
        let buffered = File::options().read(true).write(true).open(opened).map_err(Error::at(&what))?;
        let o_direct = direct.is_direct();
        drop(made);
        // From here on the device ends with its last descriptor, however this process ends.
        drop(device);
        if !(store.is_direct() && o_direct) {
            run.listener.warning(&format!(
                "{what}: O_DIRECT is not in force, so this measures the kernel's page cache; \
                choose another file system with --file"
            ));
        }
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), buffered.as_raw_fd()));
        Ok(Scratch { store, direct, path, file_bytes, o_direct, is_device, buffered })
    }

    /// Opens the file again, for one object of one cache.
    pub fn open(&self) -> Result<Store, Error> {
        open_unlocked(&self.path)
    }

    /// Returns the number of the file's pages.
    pub fn pages(&self) -> u64 {
        self.file_bytes / PAGE_BYTES as u64
    }
}

/// Opens a file that is open elsewhere, and may be locked there.
pub fn open_unlocked(path: &Path) -> Result<Store, Error> {
    let options = octavo::disk::OpenOptions { lock: false, ..Default::default() };
    Store::open(path, &options).map_err(Error::at(&path.display().to_string()))
}

/// Returns a new path for a file in memory.
fn memory_file() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-{}-{number}", std::process::id()))
}

/// Unlinks a file when dropped.
struct Unlinked<'p>(&'p Path);

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        // Fails if the file was never made.
        let _ = std::fs::remove_file(self.0);
    }
}

/// A block device over a file. The kernel removes it once this is dropped and it is closed.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> Result<LoopDevice, String> {
        let program = machine::program("losetup").ok_or("losetup is not installed")?;
        let mut command = Command::new(program);
        let output = command.args(["--find", "--show", "--direct-io=on"]).arg(file).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(LoopDevice(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // If the device cannot be detached, it stays.
        if let Some(program) = machine::program("losetup") {
            let _ = Command::new(program).arg("--detach").arg(&self.0).status();
        }
    }
}

/// Makes a new file; fails if it exists. Opens it with O_DIRECT if possible, so that the kernel's
/// page cache holds none of its pages afterwards.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.clone().custom_flags(libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // The kernel creates the file before it refuses the flag.
            let _ = std::fs::remove_file(path);
            options.open(path)
        }
        opened => opened,
    }
}

/// A directory that is removed with its content.
pub struct Directory(pub PathBuf);

impl Directory {
    /// Creates a directory for sockets and files in memory. `what` is a part of its name.
    pub fn in_memory(what: &str) -> Result<Directory, Error> {
        let path = Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-{what}-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::at(&path.display().to_string()))?;
        Ok(Directory(path))
    }

    /// Creates a directory on the disk under test, at the path that the user gave for files.
    pub fn on_disk(run: &Run<'_>) -> Result<Directory, Error> {
        let path = run.options.file.clone();
        std::fs::create_dir(&path).map_err(Error::at(&path.display().to_string()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Anything that cannot be removed stays.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a command that runs `program`. The program ends with this process, however that ends, if
/// setpriv is installed.
pub fn command(program: &Path) -> Command {
    match machine::program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// A program that is killed when this is dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file behind a cache. The cache drops first.
pub struct CachedFile {
    pub subject: Subject,
    pub scratch: Scratch,
}

impl CachedFile {
    /// Makes the file of a case, and a cache with frames for `frames_bytes` before it.
    pub fn new(
        case: &Case,
        run: &mut Run<'_>,
        frames_bytes: u64,
        buffers_bytes: u64,
    ) -> Result<CachedFile, Error> {
        let scratch = Scratch::new(case, "", run)?;
        let cache = cache_config(frames_bytes, buffers_bytes);
        let subject = Subject::new(cache, partition_config(case), scratch.open()?)?;
        Ok(CachedFile { subject, scratch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::tests::NeverBegins;
    use crate::stage::Options;

    #[test]
    fn a_file_that_exists_is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("octavo-bench-exists-{}", std::process::id()));
        std::fs::write(&path, "precious").unwrap();
        let options = Options { quick: true, file: path.clone(), ..Options::default() };
        let mut run = Run { suite: "misses", options: &options, listener: &mut NeverBegins, done: (0, 1) };
        let case = Case { store: Place::Disk, ..Case::default() };
        assert!(Scratch::new(&case, "", &mut run).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }
}
