//! The guests' kernel: Debian's for virtual machines, with its modules.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::succeeds;

/// Debian's kernel package for virtual machines. It depends on the package that contains the
/// kernel.
const KERNEL: &str = "linux-image-cloud-amd64";

/// A kernel and its modules.
pub struct Kernel {
    /// The compressed kernel.
    pub image: PathBuf,
    /// The folder of the modules.
    modules: PathBuf,
}

/// Returns the kernel in `folder`, which is fetched first if it is missing.
pub fn fetch(folder: &Path) -> Result<Kernel, String> {
    let kernel = Kernel { image: folder.join("vmlinuz"), modules: folder.join("modules") };
    // The modules come first: a kernel without them was fetched before they were needed.
    if kernel.image.exists() && kernel.modules.exists() {
        return Ok(kernel);
    }
    let package = package()?;
    println!("fetching {package}");
    let unpacked = folder.join("package");
    for old in [&unpacked, &kernel.modules] {
        let _ = std::fs::remove_dir_all(old);
    }
    std::fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let fetched = succeeds(Command::new("apt-get").args(["download", &package]).current_dir(&unpacked));
    let file = only_file(&unpacked, "linux-image").filter(|_| fetched);
    let file = file.ok_or_else(|| format!("`apt-get download {package}` fetched nothing"))?;
    if !succeeds(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&unpacked)) {
        return Err(format!("cannot unpack {}", file.display()));
    }
    let image = only_file(&unpacked.join("boot"), "vmlinuz");
    let image = image.ok_or_else(|| format!("{package} has no /boot/vmlinuz"))?;
    let modules = only_file(&unpacked.join("lib/modules"), "");
    let modules = modules.ok_or_else(|| format!("{package} has no /lib/modules"))?;
    for (from, to) in [(modules, &kernel.modules), (image, &kernel.image)] {
        std::fs::rename(&from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    let _ = std::fs::remove_dir_all(&unpacked);
    Ok(kernel)
}

impl Kernel {
    /// Returns the files of these modules and of those that they need, in the order in which they
    /// are loaded.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>, String> {
        let mut files = Vec::new();
        names.iter().try_for_each(|name| self.add_module(name, &mut files))?;
        Ok(files)
    }

    fn add_module(&self, name: &str, files: &mut Vec<PathBuf>) -> Result<(), String> {
        let found = find(&self.modules.join("kernel"), name);
        let file = found.ok_or_else(|| format!("the kernel has no module {name}"))?;
        if files.contains(&file) {
            return Ok(());
        }
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        needed(&bytes).iter().try_for_each(|other| self.add_module(other, files))?;
        files.push(file);
        Ok(())
    }
}

/// Returns the modules that a module needs: its `depends=`, which ends with a zero.
fn needed(module: &[u8]) -> Vec<String> {
    let mark = b"\0depends=";
    let Some(at) = module.windows(mark.len()).position(|bytes| bytes == mark) else { return Vec::new() };
    let names = module[at + mark.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(names);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the file of a module in `folder`. A dash in its name counts as an underscore.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.into_iter().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return find(&path, name);
        }
        let is_it = path.file_stem()?.to_str()?.replace('-', "_") == name;
        (is_it && path.extension()? == "ko").then_some(path)
    })
}

/// Returns the name of the package that contains the kernel.
fn package() -> Result<String, String> {
    let ask = || {
        let output = Command::new("apt-cache").args(["depends", KERNEL]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let package = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
        Some(package.to_owned())
    };
    let update = || succeeds(Command::new("apt-get").arg("update")).then(ask).flatten();
    ask()
        .or_else(update)
        .ok_or_else(|| format!("apt does not know {KERNEL}, the package of the guests' kernel"))
}

fn only_file(folder: &Path, beginning: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let begins =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(beginning));
    entries.into_iter().find(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_those_that_it_needs() {
        let module = b"\x7fELF\0license=GPL\0depends=virtio,virtio_ring\0name=virtio_blk\0";
        assert_eq!(needed(module), ["virtio", "virtio_ring"]);
        assert!(needed(b"\0depends=\0name=virtio\0").is_empty());
        assert!(needed(b"nothing").is_empty());
    }
}
