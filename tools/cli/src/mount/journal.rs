//! [`Journal`]: what a mount could not write to its source before it ended, for the next mount of
//! the same source. A program that unmounts lazily, or a mount in the background, may have nobody
//! who looks at the exit status.
//!
//! - The file is filled with blanks when the mount starts. A disk that is full at the end takes the
//!   lines nevertheless, because they overwrite bytes that the file has. (A file system that never
//!   overwrites, such as Btrfs, may refuse them; the log has them, too.)
//! - The next mount shows the lines, and blanks them.
//! - Mounts of one source share the file. Each reads and writes under a lock of it.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::environment::make_private_dir;
use crate::own;

/// The length of the file, in bytes.
const BYTES: usize = 64 << 10;

/// The longest name of a file that is made of a path, in bytes.
const NAME_BYTES_MAX: usize = 180;

/// What is not written at the end of a mount.
pub struct Journal {
    file: File,
}

impl Journal {
    /// Opens the journal of a source in a directory, which is made if it is missing. Returns the
    /// lines of earlier mounts, too. The error is a sentence.
    pub fn open(directory: &Path, source: &Path) -> Result<(Journal, Vec<String>), String> {
        make_private_dir(directory)?;
        let path = directory.join(format!("lost-{}", name_of(source)));
        own::check(&path).map_err(|why| format!("{} {why}", path.display()))?;
        let failed = |error: io::Error| format!("cannot open {}: {error}", path.display());
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let journal = Journal { file: opened.map_err(failed)? };
        let lines = journal.locked(|text| Ok((text.lines().map(str::to_owned).collect(), String::new())));
        lines.map(|lines| (journal, lines)).map_err(failed)
    }

    /// Adds lines, as far as there is room.
    ///
    /// # Errors
    /// Those of the file.
    pub fn add(&self, lines: &[String]) -> io::Result<()> {
        self.locked(|mut text| {
            for line in lines {
                if text.len() + line.len() < BYTES {
                    text.extend([line.as_str(), "\n"]);
                }
            }
            Ok(((), text))
        })
    }

    /// Replaces the text under the lock.
    fn locked<T>(&self, change: impl FnOnce(String) -> io::Result<(T, String)>) -> io::Result<T> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let mut bytes = vec![b' '; BYTES];
        let len = self.file.metadata()?.len().min(BYTES as u64) as usize;
        self.file.read_exact_at(&mut bytes[..len], 0)?;
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        let text = if text.is_empty() { text } else { text + "\n" };
        let (result, mut text) = change(text)?;
        let blanks = BYTES.saturating_sub(text.len() + 1);
        text.extend(std::iter::repeat_n(' ', blanks));
        text.push('\n');
        self.file.write_all_at(&text.as_bytes()[..BYTES.min(text.len())], 0)?;
        self.file.sync_all()?;
        flock(&self.file, FlockOperation::Unlock)?;
        Ok(result)
    }
}

/// A name for a file about a path: `/srv/data` becomes `srv-data`. Long paths are cut, and end with
/// a hash.
pub fn name_of(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut name = String::new();
    for byte in bytes.strip_prefix(b"/").unwrap_or(bytes) {
        match byte {
            b'/' => name.push('-'),
            byte if byte.is_ascii_alphanumeric() || b"._".contains(byte) => name.push(char::from(*byte)),
            byte => name += &format!("%{byte:02x}"),
        }
    }
    if name.is_empty() {
        name.push('-');
    }
    if name.len() > NAME_BYTES_MAX {
        // FNV-1a.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        name.truncate(NAME_BYTES_MAX);
        name += &format!("-{hash:016x}");
    }
    name
}

/// The log of a mount in the background that names no other.
pub fn log_of(directory: &Path, path: &Path) -> PathBuf {
    directory.join(format!("mount-{}.log", name_of(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_mount_gets_the_lines_once() {
        let directory = std::env::temp_dir().join(format!("octavo-journal-{}", std::process::id()));
        let state = directory.join("state");
        let source = Path::new("/srv/data");
        let (journal, before) = Journal::open(&state, source).unwrap();
        assert_eq!(before, Vec::<String>::new());
        let file = state.join("lost-srv-data");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), BYTES as u64, "written in advance");
        journal.add(&["\"a\": 10 bytes lost".to_owned()]).unwrap();
        journal.add(&["\"b\": 20 bytes lost".to_owned()]).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), BYTES as u64);
        let other = Journal::open(&state, Path::new("/srv/other")).unwrap().1;
        assert_eq!(other, Vec::<String>::new());
        let (journal, before) = Journal::open(&state, source).unwrap();
        assert_eq!(before, ["\"a\": 10 bytes lost", "\"b\": 20 bytes lost"]);
        assert_eq!(Journal::open(&state, source).unwrap().1, Vec::<String>::new());
        // More than there is room for.
        journal.add(&vec!["x".repeat(1000); 100]).unwrap();
        let kept = Journal::open(&state, source).unwrap().1;
        assert!(kept.len() > 60 && kept.iter().all(|line| line.len() == 1000), "{}", kept.len());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn each_path_has_a_name_of_its_own() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("/srv/data"), "srv-data");
        assert_eq!(name("/srv-data"), "srv%2ddata");
        assert_eq!((name("/"), name("/a b,c")), ("-".into(), "a%20b%2cc".into()));
        let long = format!("/{}", "long/".repeat(100));
        let longer = format!("{long}x");
        assert!(name(&long).len() < 255 && name(&long) != name(&longer));
    }
}
