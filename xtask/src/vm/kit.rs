//! [`Kit`]: the programs, the kernel and the initramfs of the guests, and a folder for their files.

use std::path::{Path, PathBuf};

use super::system;
use crate::cargo::{build, cargo, executable, target_of};
use crate::kernel;
use crate::program::{Folder, octavo};
use crate::step::Outcome;

/// What all guests need.
pub struct Kit {
    /// The folder of images, sockets and logs; removed at the end.
    pub folder: Folder,
    pub program: PathBuf,
    /// A server of S3.
    pub objects: PathBuf,
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
        let program = octavo(root)?;
        let stub = cargo(root, &["build", "--locked", "-p", "octavo-s3-stub"], &[]);
        let objects = match stub {
            Outcome::Passed => PathBuf::from(target_of(root, "debug/octavo-s3-stub")),
            other => return Err(other),
        };
        let built = build(root, &["-p", "octavo-block", "--test", "vhost"], &[]).map_err(Outcome::Failed)?;
        let hostile = executable(&built, "vhost");
        let hostile = hostile.ok_or_else(|| Outcome::Failed("cargo built no tests of vhost-user".into()))?;
        let folder = Folder::new(&std::env::temp_dir(), "vm")?;
        let initramfs = folder.join("initramfs");
        let kit = Kit { folder, program, objects, hostile, kernel, initramfs };
        let written = system::write_initramfs(&kit.initramfs, &kit.folder, &kit.kernel);
        written.map_err(Outcome::Failed)?;
        Ok(kit)
    }
}
