//! What the commands that try the real program share: its build, a folder, and how they end.

use std::path::{Path, PathBuf};

use crate::cargo::{cargo, target_of};
use crate::step::Outcome;

/// Prints how a command ended. Returns true if nothing failed.
pub fn finish(command: &str, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Passed => {
            println!("{command}: passed");
            true
        }
        Outcome::Skipped(why) => {
            println!("SKIPPED: {why}");
            true
        }
        Outcome::Failed(what) => {
            println!("{command}: {what}");
            false
        }
    }
}

/// Builds `octavo` for tests. Returns its path.
///
/// # Errors
///
/// The outcome of the build, if it is not [`Outcome::Passed`].
pub fn octavo(root: &Path) -> Result<PathBuf, Outcome> {
    match cargo(root, &["build", "--locked", "-p", "octavo-cli"], &[]) {
        Outcome::Passed => Ok(PathBuf::from(target_of(root, "debug/octavo"))),
        other => Err(other),
    }
}

/// A folder of one run, which is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates the folder `octavo-COMMAND-PROCESS`. Its name is short, because it holds sockets,
    /// whose paths have at most 107 bytes.
    pub fn new(parent: &Path, command: &str) -> Result<Folder, Outcome> {
        let folder = parent.join(format!("octavo-{command}-{}", std::process::id()));
        let created = std::fs::create_dir_all(&folder);
        created.map_err(|error| Outcome::Failed(format!("{}: {error}", folder.display())))?;
        Ok(Folder(folder))
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
