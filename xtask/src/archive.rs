//! [`Archive`]: the initramfs of a guest, and the programs of this machine that go into it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An archive in the format of `cpio --format newc`, which the kernel unpacks.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Archive {
    /// Adds a folder, and the folders above it.
    pub fn folder(&mut self, path: &Path) {
        let path = path.strip_prefix("/").unwrap_or(path);
        if path.as_os_str().is_empty() || self.folders.iter().any(|folder| folder == path) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.folders.push(path.to_owned());
        self.entry(path, 0o040_755, b"");
    }

    /// Returns whether there is such a file.
    pub fn has(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file == path)
    }

    pub fn file(&mut self, path: &Path, bytes: &[u8], runs: bool) {
        self.files.push(path.to_owned());
        self.folder(path.parent().unwrap_or(Path::new("")));
        self.entry(path, if runs { 0o100_755 } else { 0o100_644 }, bytes);
    }

    pub fn link(&mut self, path: &Path, to: &str) {
        self.folder(path.parent().unwrap_or(Path::new("")));
        self.entry(path, 0o120_777, to.as_bytes());
    }

    /// Adds a file of this machine, without its debug information.
    pub fn copy(&mut self, path: &Path, from: &Path) -> io::Result<()> {
        let stripped = std::env::temp_dir().join(format!("octavo-guest-{}", std::process::id()));
        let strip = Command::new("strip").arg("-o").arg(&stripped).arg(from).stderr(Stdio::null()).status();
        let is_stripped = strip.is_ok_and(|status| status.success());
        let bytes = std::fs::read(if is_stripped { &stripped } else { from });
        let _ = std::fs::remove_file(&stripped);
        let runs = std::fs::metadata(from)?.permissions().mode() & 0o111 != 0;
        self.file(path, &bytes?, runs);
        Ok(())
    }

    fn entry(&mut self, path: &Path, mode: u32, bytes: &[u8]) {
        let path = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
        self.entries += 1;
        let links = 1;
        let len = u32::try_from(bytes.len()).expect("a file of an initramfs is below 4 GiB");
        let name_len = path.len() as u32 + 1;
        let (number, owner, device) = (self.entries, 0, 0);
        let fields = [number, mode, owner, owner, links, 0, len, device, device, device, device, name_len, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(bytes);
        self.pad();
    }

    /// Pads the archive: names and contents begin at multiples of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn end(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, b"");
        self.bytes
    }
}

/// Returns the libraries that a program loads, as `ldd` lists them.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(program).output().map_err(|error| format!("ldd: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Returns the path of a program, if it is in PATH.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_folder_once_and_ends() {
        let mut archive = Archive::default();
        archive.file(Path::new("/a/b/c"), b"12345", true);
        archive.file(Path::new("a/b/d"), b"", false);
        archive.link(Path::new("bin/sh"), "busybox");
        let bytes = archive.end();
        assert!(bytes.len().is_multiple_of(4));
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.matches("070701").count(), 7);
        for name in ["a\0", "a/b\0", "a/b/c\0", "a/b/d\0", "bin\0", "bin/sh\0", "TRAILER!!!\0"] {
            assert!(text.contains(name), "{name}");
        }
        // The file's mode, and its length.
        let at = text.find("a/b/c\0").unwrap() - 110;
        assert_eq!((&text[at + 14..at + 22], &text[at + 54..at + 62]), ("000081ed", "00000005"));
    }
}
