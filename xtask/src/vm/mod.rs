//! `cargo xtask vm`: real guests on vhost-user disks, under qemu without KVM.
//!
//! A Debian kernel with busybox installs itself on a disk of the program (the debug build) and
//! boots from it through the BIOS and a boot loader. It partitions, formats, fills, checks and
//! trims a second disk, and keeps writing while the server is killed ten times. What it had synced
//! must be in the image.
//!
//! Not in the gate, because it takes minutes. Not here: measurements of time, which say nothing
//! about real guests: qemu emulates the processors.
//!
//! | file | idea |
//! |---|---|
//! | `mod` | the command |
//! | `trial` | the stages and what must be true after each |
//! | `system` | the guests' system and its installation |
//! | `machine` | qemu, and the shell on the guest's console |
//! | `server` | the server's process |

mod machine;
mod server;
mod system;
mod trial;

use std::path::{Path, PathBuf};

use crate::cargo::{cargo, target_of};
use crate::kernel;
use crate::step::Outcome;

/// Runs the command. Returns true if nothing failed.
pub fn run(words: &[&str], root: &Path) -> bool {
    let outcome = match words {
        [] => trial(root),
        _ => Outcome::Failed("usage: cargo xtask vm".into()),
    };
    match outcome {
        Outcome::Passed => {
            println!("vm: passed");
            true
        }
        Outcome::Skipped(why) => {
            println!("SKIPPED: {why}");
            true
        }
        Outcome::Failed(what) => {
            println!("vm: {what}");
            false
        }
    }
}

fn trial(root: &Path) -> Outcome {
    let kit = match Kit::prepare(root) {
        Ok(kit) => kit,
        Err(outcome) => return outcome,
    };
    let done = trial::run(&kit);
    match done {
        Ok(()) => Outcome::Passed,
        Err(what) => Outcome::Failed(format!("{what}\nlog of the servers:\n{}", tail(&kit.folder))),
    }
}

/// What all guests need.
struct Kit {
    /// The folder of images, sockets and logs; removed at the end.
    folder: PathBuf,
    program: PathBuf,
    kernel: kernel::Kernel,
    initramfs: PathBuf,
}

impl Kit {
    /// Builds the program, and fetches or makes the rest.
    fn prepare(root: &Path) -> Result<Kit, Outcome> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Outcome::Skipped("the guests are x86-64".into()));
        }
        let missing = system::missing();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            return Err(Outcome::Skipped(format!("not installed: {missing}; `make packages` installs all")));
        }
        let kernel = kernel::fetch(&PathBuf::from(target_of(root, "guest"))).map_err(Outcome::Skipped)?;
        match cargo(root, &["build", "--locked", "-p", "octavo-cli"], &[]) {
            Outcome::Passed => {}
            other => return Err(other),
        }
        let program = PathBuf::from(target_of(root, "debug/octavo"));
        // Short: the path of a socket has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("octavo-vm-{}", std::process::id()));
        let initramfs = folder.join("initramfs");
        std::fs::create_dir_all(&folder).map_err(|error| Outcome::Failed(error.to_string()))?;
        let kit = Kit { folder, program, kernel, initramfs };
        let written = system::write_initramfs(&kit.initramfs, &kit.folder, &kit.kernel);
        written.map_err(Outcome::Failed)?;
        Ok(kit)
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The last lines of the servers' log.
fn tail(folder: &Path) -> String {
    let (log, _) = server::log_of(folder, 0);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
