//! [`Opened`]: a file that is about to be cached, and what its extended attributes ask for. An
//! attribute of a directory holds for all files below it that have none of their own.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use octavo::{Advice, Partition};
use rustix::io::Errno;

use crate::lower;

/// Names the partition of a file.
const PARTITION: &str = "user.octavo.partition";
/// Tells how a file will be read.
const ADVICE: &str = "user.octavo.advice";

/// The longest value that has a meaning.
const VALUE_MAX: usize = 255;

/// Chooses the partition of a file.
pub type Chooser = dyn Fn(&Opened<'_>) -> Option<Partition> + Send + Sync;

/// A file that is about to be cached.
#[derive(Debug)]
pub struct Opened<'f> {
    path: &'f Path,
    file: BorrowedFd<'f>,
    root: &'f OwnedFd,
    partition: OnceCell<Option<String>>,
}

impl<'f> Opened<'f> {
    pub(crate) fn new(path: &'f Path, file: BorrowedFd<'f>, root: &'f OwnedFd) -> Opened<'f> {
        Opened { path, file, root, partition: OnceCell::new() }
    }

    /// The file's path below the source. Empty if it has 4096 bytes or more with that of the
    /// source: the kernel does not tell it.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Returns the value of the extended attribute `user.octavo.partition` of the file, or of the
    /// nearest directory above it that has one. The source itself counts, what is above it does
    /// not. Anybody who may write the file or own the directory can set it.
    pub fn partition_wanted(&self) -> Option<&str> {
        self.partition.get_or_init(|| self.label(PARTITION)).as_deref()
    }

    /// Returns the advice of `user.octavo.advice`, found likewise.
    pub(crate) fn advice(&self) -> Option<Advice> {
        let word = self.label(ADVICE)?;
        let advice = advice_of(&word);
        if advice.is_none() {
            log::warn!("{}: {ADVICE} is {word:?}: not an advice", self.path.display());
        }
        advice
    }

    fn label(&self, name: &str) -> Option<String> {
        let at = |path: &Path| {
            let mut value = [0; VALUE_MAX];
            let len = rustix::fs::getxattr(path, name, &mut value[..])?;
            Ok(String::from_utf8_lossy(&value[..len]).trim().to_owned())
        };
        let mut found = at(&lower::link_of(self.file));
        // By the root's descriptor: a path from `/` may lead to the mount itself.
        let root = lower::link_of(self.root.as_fd());
        let mut above = self.path.parent();
        while let (Err(Errno::NODATA), Some(directory)) = (&found, above) {
            found = at(&root.join(directory));
            above = directory.parent();
        }
        found.ok().filter(|value| !value.is_empty())
    }
}

fn advice_of(word: &str) -> Option<Advice> {
    Some(match word {
        "normal" => Advice::Normal,
        "sequential" => Advice::Sequential,
        "random" => Advice::Random,
        "noreuse" => Advice::NoReuse,
        "willneed" => Advice::WillNeed,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, XattrFlags};

    #[test]
    fn the_nearest_label_counts() {
        let folder = std::env::temp_dir().join(format!("octavo-labels-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        std::fs::write(folder.join("a/b/file"), "").unwrap();
        let open =
            |path: &Path| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (root, file) = (open(&folder), open(&folder.join("a/b/file")));
        let opened = || Opened::new(Path::new("a/b/file"), file.as_fd(), &root);
        let set = |path: &str, name: &str, value: &str| {
            rustix::fs::setxattr(folder.join(path), name, value.as_bytes(), XattrFlags::empty())
        };
        if let Err(errno) = set("", PARTITION, "rest") {
            println!("SKIPPED: the directory of temporary files has no extended attributes: {errno}");
            std::fs::remove_dir_all(&folder).unwrap();
            return;
        }
        assert_eq!(opened().partition_wanted(), Some("rest"));
        set("a", PARTITION, "tables\n").unwrap();
        assert_eq!(opened().partition_wanted(), Some("tables"));
        set("a/b/file", PARTITION, "own").unwrap();
        assert_eq!(opened().partition_wanted(), Some("own"));
        assert_eq!(opened().advice(), None);
        set("a/b", ADVICE, "noreuse").unwrap();
        assert_eq!(opened().advice(), Some(Advice::NoReuse));
        set("a/b/file", ADVICE, "some day").unwrap();
        assert_eq!(opened().advice(), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
