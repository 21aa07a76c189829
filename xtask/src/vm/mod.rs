//! `cargo xtask vm`: real guests on vhost-user disks, under qemu without KVM.
//!
//! A Debian kernel with busybox installs itself on a disk of the program (the debug build) and
//! boots from it through the BIOS and a boot loader. It partitions, formats, fills, checks and
//! trims a second disk, also beside a guest that breaks its own rings, and keeps writing while the
//! server is killed ten times and then upgraded five times. All synced records must be in the
//! image.
//!
//! Not in the gate, because it takes minutes. Not here: measurements of time, which say nothing
//! about real guests: qemu emulates the processors.
//!
//! | file | idea |
//! |---|---|
//! | `mod` | the command |
//! | `evaluate` | hit ratios of two tenants, in one cache and in partitions |
//! | `trial` | the stages and what must be true after each |
//! | `kit` | what all guests need |
//! | `system` | the guests' system and its installation |
//! | `machine` | qemu, and the shell on the guest's console |
//! | `remote` | a guest that boots from an object of S3 |
//! | `server` | the server's process |

mod evaluate;
mod kit;
mod machine;
mod remote;
mod server;
mod system;
mod trial;

use std::path::Path;

use crate::step::Outcome;
use kit::Kit;

/// Runs the command. Returns true if nothing failed.
pub fn run(words: &[&str], root: &Path) -> bool {
    let outcome = match words {
        [] => with_kit(root, trial::run),
        ["--evaluate", names @ ..] => with_kit(root, |kit| evaluate::run(kit, names)),
        _ => Outcome::Failed("usage: cargo xtask vm [--evaluate [random] [files] [database]]".into()),
    };
    crate::program::finish("vm", outcome)
}

fn with_kit(root: &Path, run: impl FnOnce(&Kit) -> Result<(), String>) -> Outcome {
    let kit = match Kit::prepare(root) {
        Ok(kit) => kit,
        Err(outcome) => return outcome,
    };
    match run(&kit) {
        Ok(()) => Outcome::Passed,
        Err(what) => Outcome::Failed(format!("{what}\nlog of the servers:\n{}", tail(&kit.folder))),
    }
}

/// The last lines of the servers' log.
fn tail(folder: &Path) -> String {
    let (log, _) = server::log_of(folder, 0);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
