//! [`Kit`]: the programs, the kernel and the initramfs of the guests, and a folder for their files.

use std::path::{Path, PathBuf};

use super::system;
use crate::cargo::{build, cargo, executable, target_of};
use crate::kernel;
use crate::step::Outcome;

/// What all guests need.
pub struct Kit {
    /// The folder of images, sockets and logs; removed at the end.
    pub folder: PathBuf,
    pub program: PathBuf,
    /// The tests of the vhost-user device, of which one is a broken guest.
    pub hostile: PathBuf,
    pub kernel: kernel::Kernel,
    pub initramfs: PathBuf,
}

impl Kit {
    /// Builds the program, and fetches or makes the rest.
    pub fn prepare(root: &Path) -> Result<Kit, Outcome> {
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
        let built = build(root, &["-p", "octavo-block", "--test", "vhost"], &[]).map_err(Outcome::Failed)?;
        let hostile = executable(&built, "vhost");
        let hostile = hostile.ok_or_else(|| Outcome::Failed("cargo built no tests of vhost-user".into()))?;
        // Short: the path of a socket has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("octavo-vm-{}", std::process::id()));
        let initramfs = folder.join("initramfs");
        std::fs::create_dir_all(&folder).map_err(|error| Outcome::Failed(error.to_string()))?;
        let kit = Kit { folder, program, hostile, kernel, initramfs };
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
