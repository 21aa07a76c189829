//! Files to measure on: made, filled, and without a name while they are in use, so that they are
//! gone whatever happens.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo::disk::{AlignedBytes, Store};

use crate::Error;
use crate::case::{Case, Place};
use crate::content::{self, PAGE_BYTES};
use crate::drivers::Run;
use crate::machine;
use crate::reference::DirectFile;

/// Where files in memory live.
pub const MEMORY_DIRECTORY: &str = "/dev/shm";

/// A file that holds pages with content of their own.
pub struct Scratch {
    /// Open for the engine.
    pub store: Store,
    /// Open for bare reads and writes.
    pub direct: Arc<DirectFile>,
    /// Open without O_DIRECT.
    pub buffered: File,
    /// A name by which programs of other people can open it while this process lives.
    pub path: PathBuf,
    /// Its length.
    pub file_bytes: u64,
    /// The kernel says that it is open with O_DIRECT.
    pub o_direct: bool,
    /// It is a block device, whose pages the kernel caches beside the bytes themselves.
    pub is_device: bool,
}

impl Scratch {
    /// Makes the file of a case; one on the disk has `suffix` in its name.
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
        write_file(file, file_bytes, &mut |done| {
            run.news(case, &format!("writing {what}: {} of {} MiB", done >> 20, file_bytes >> 20));
        })
        .map_err(Error::at(&what))?;
        let device = match case.store {
            Place::Ram => LoopDevice::over(&path).map_or_else(
                |why| {
                    let warning =
                        format!("no loop device ({why}): a file in memory takes the RAM disk's place");
                    run.listener.warning(&warning);
                    None
                },
                Some,
            ),
            Place::Disk | Place::Memory => None,
        };
        let is_device = device.is_some();
        let opened = device.as_ref().map_or(&*path, |device| &device.0);
        let what = opened.display().to_string();
        let store = Store::open(opened, &Default::default()).map_err(Error::at(&what))?;
        let direct = Arc::new(DirectFile::open(opened).map_err(Error::at(&what))?);
        let buffered = File::options().read(true).write(true).open(opened).map_err(Error::at(&what))?;
        let o_direct = machine::has_open_direct(opened);
        drop(made);
        // From here on the device goes with its last descriptor, whatever ends this process.
        drop(device);
        if !(store.is_direct() && o_direct) {
            let warning = format!("{what}: O_DIRECT is not in force; this measures the kernel's page cache");
            run.listener.warning(&warning);
        }
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), buffered.as_raw_fd()));
        Ok(Scratch { store, direct, path, file_bytes, o_direct, is_device, buffered })
    }

    /// Opens it once more, for one object of one cache.
    pub fn open(&self) -> Result<Store, Error> {
        let options = octavo::disk::OpenOptions { lock: false, ..Default::default() };
        Store::open(&self.path, &options).map_err(Error::at(&self.path.display().to_string()))
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.file_bytes / PAGE_BYTES as u64
    }
}

/// A name in memory that nobody else uses.
fn memory_file() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(MEMORY_DIRECTORY).join(format!("octavo-bench-{}-{number}", std::process::id()))
}

/// A file that loses its name when this is dropped.
struct Unlinked<'p>(&'p Path);

impl Drop for Unlinked<'_> {
    fn drop(&mut self) {
        // Where it was never made there is nothing to remove, and where it cannot be removed nothing to be
        // done.
        let _ = std::fs::remove_file(self.0);
    }
}

/// A block device over a file. It goes when this is dropped and nobody has it open any more.
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
        // What cannot be taken down stays; there is nobody to tell.
        if let Some(program) = machine::program("losetup") {
            let _ = Command::new(program).arg("--detach").arg(&self.0).status();
        }
    }
}

/// Writes pages that all have content of their own.
fn write_file(mut file: File, len_bytes: u64, progress: &mut dyn FnMut(u64)) -> std::io::Result<()> {
    const RUN_BYTES: usize = 1 << 20;
    let mut bytes = AlignedBytes::new(RUN_BYTES);
    for first in (0..len_bytes).step_by(RUN_BYTES) {
        if first % (64 << 20) == 0 {
            progress(first);
        }
        for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            content::fill(first / PAGE_BYTES as u64 + number as u64, page);
        }
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

/// Makes a new file, never one that exists, to be written past the kernel's page cache where that
/// can be: then it holds none of the pages afterwards.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.clone().custom_flags(libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // The name is made before the flag is refused.
            let _ = std::fs::remove_file(path);
            options.open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::suite::Suite;
    use crate::tests::Silent;

    #[test]
    fn a_file_that_exists_is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("octavo-bench-exists-{}", std::process::id()));
        std::fs::write(&path, "precious").unwrap();
        let options = Options { quick: true, file: path.clone(), ..Options::default() };
        let mut run = Run { suite: "misses", options: &options, listener: &mut Silent, done: (0, 1) };
        let suite = Suite::find("misses", true).unwrap();
        assert!(Scratch::new(&suite.cases[0], "", &mut run).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }
}
