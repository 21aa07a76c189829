//! Tests on machines with two and with four NUMA nodes, which qemu emulates.
//!
//! A Debian kernel runs under qemu, which emulates the processors too: no KVM is needed, and there
//! is no AVX2. The root is an initramfs with the tests that need nodes ([`PROGRAMS`]): those of the
//! engine, built statically for musl, and those of the program, as the step `test` builds them,
//! with their libraries. If qemu, busybox or a kernel is missing and cannot be fetched, the step is
//! skipped with the reason.
//!
//! Not here: measurements of time. Such a guest is about thirty times slower than its host.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo::{succeeds, target_of};
use crate::step::Outcome;

/// The guests: the number of nodes, and the processors of each node.
const GUESTS: [(u32, u32); 2] = [(2, 2), (4, 1)];

/// Memory of each node, in MiB.
const NODE_MIB: u32 = 384;

/// The longest run of a guest, in seconds. A guest that takes longer hangs.
const GUEST_SECONDS_MAX: u32 = 150;

/// Debian's kernel package for virtual machines. It depends on the package that contains the
/// kernel.
const KERNEL: &str = "linux-image-cloud-amd64";

const MUSL: &str = "x86_64-unknown-linux-musl";
const GNU: &str = "x86_64-unknown-linux-gnu";

/// The last line that a guest prints.
const OVER: &str = "guest: all ran";

/// The test programs that run in guests: their file names there, and the module to run.
const PROGRAMS: [(&str, &str); 2] = [("engine", "on_nodes::"), ("program", "nodes::")];

/// Boots all guests.
pub fn run(root: &Path) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Outcome::Skipped("the guests are x86-64".into());
    }
    for program in ["qemu-system-x86_64", "busybox", "dpkg-deb", "ldd"] {
        if !succeeds(Command::new(program).arg("--help")) {
            return Outcome::Skipped(format!("{program} is not installed; `make test` installs it"));
        }
    }
    let folder = PathBuf::from(target_of(root, "guest"));
    let kernel = match kernel(&folder) {
        Ok(kernel) => kernel,
        Err(why) => return Outcome::Skipped(why),
    };
    let archive = match archive(root) {
        Ok(archive) => archive,
        Err(error) => return Outcome::Failed(error),
    };
    let initramfs = folder.join("initramfs");
    if let Err(error) = std::fs::write(&initramfs, archive) {
        return Outcome::Failed(format!("{}: {error}", initramfs.display()));
    }
    for (nodes, cores) in GUESTS {
        println!("a guest with {nodes} nodes of {cores} processors");
        if let Err(error) = boot(&kernel, &initramfs, nodes, cores) {
            return Outcome::Failed(format!("the guest of {nodes} nodes: {error}"));
        }
    }
    Outcome::Passed
}

/// Runs a guest. The error contains the guest's output.
fn boot(kernel: &Path, initramfs: &Path, nodes: u32, cores: u32) -> Result<(), String> {
    let mut qemu = Command::new("timeout");
    qemu.args([&GUEST_SECONDS_MAX.to_string(), "qemu-system-x86_64"]);
    // One thread emulates all processors, which takes no longer. With a thread per processor, on a
    // busy machine, a kernel thread waited forever for another processor (a soft lockup, which now
    // makes the kernel panic at once). qemu would emulate cmpxchg16b by stopping all processors, so
    // the guest has none. `nokaslr`: the kernel stays at its linked address. `no_timer_check`: on a
    // busy machine, the kernel does not see ten ticks of its timer in time, and panics.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "qemu64,-cx16"]);
    qemu.args(["-nodefaults", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", "stdio"]);
    let append = format!(
        "console=ttyS0 nokaslr no_timer_check quiet panic=-1 softlockup_panic=1 OCTAVO_NODES={nodes}"
    );
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs).args(["-append", &append]);
    qemu.args(["-smp", &(nodes * cores).to_string(), "-m", &format!("{}M", nodes * NODE_MIB)]);
    for node in 0..nodes {
        let (first, last) = (node * cores, node * cores + cores - 1);
        qemu.args(["-object", &format!("memory-backend-ram,id=m{node},size={NODE_MIB}M")]);
        qemu.args(["-numa", &format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}")]);
    }
    // The distances between nodes, which qemu takes only after all nodes.
    for (near, far) in (0..nodes).flat_map(|near| (0..nodes).map(move |far| (near, far))) {
        if near != far {
            qemu.args(["-numa", &format!("dist,src={near},dst={far},val=21")]);
        }
    }
    let output = qemu.stdin(Stdio::null()).output().map_err(|error| format!("qemu: {error}"))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    judge(&said).map(|summary| print!("{summary}")).map_err(|why| format!("{why}\n{said}"))
}

/// Extracts the result of each test program from the output of a guest. The error says what is
/// wrong.
fn judge(said: &str) -> Result<String, String> {
    let mut summary = String::new();
    let mut lines = said.lines();
    for (program, _) in PROGRAMS {
        let result =
            lines.by_ref().find_map(|line| line.split_once("test result: ").map(|(_, result)| result));
        let result = result.ok_or_else(|| format!("{program} did not end"))?;
        if !result.starts_with("ok. ") || result.starts_with("ok. 0 passed") {
            return Err(format!("{program}: {result}"));
        }
        writeln!(summary, "  {program}: {}", result.trim_end()).expect("strings take everything");
    }
    if !said.contains(OVER) {
        return Err(format!("the guest did not print \"{OVER}\""));
    }
    match said.lines().find(|line| line.contains("SKIP")) {
        Some(line) => Err(format!("a test was skipped: {line}")),
        None => Ok(summary),
    }
}

// ---- The kernel

/// Returns the kernel in `folder`, which is fetched first if it is missing.
fn kernel(folder: &Path) -> Result<PathBuf, String> {
    let kernel = folder.join("vmlinuz");
    if kernel.exists() {
        return Ok(kernel);
    }
    let package = kernel_package()?;
    println!("fetching {package}");
    let unpacked = folder.join("package");
    let _ = std::fs::remove_dir_all(&unpacked);
    std::fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let fetched = succeeds(Command::new("apt-get").args(["download", &package]).current_dir(&unpacked));
    let file = only_file(&unpacked, "linux-image").filter(|_| fetched);
    let file = file.ok_or_else(|| format!("`apt-get download {package}` fetched nothing"))?;
    if !succeeds(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&unpacked)) {
        return Err(format!("cannot unpack {}", file.display()));
    }
    let image = only_file(&unpacked.join("boot"), "vmlinuz");
    let image = image.ok_or_else(|| format!("{package} has no /boot/vmlinuz"))?;
    std::fs::rename(&image, &kernel).map_err(|error| format!("{}: {error}", image.display()))?;
    let _ = std::fs::remove_dir_all(&unpacked);
    Ok(kernel)
}

/// Returns the name of the package that contains the kernel.
fn kernel_package() -> Result<String, String> {
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

// ---- What the guest runs

/// Creates the initramfs.
fn archive(root: &Path) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    let add = |archive: &mut Archive, path: &Path, from: &Path| {
        archive.copy(path, from).map_err(|error| format!("{}: {error}", from.display()))
    };
    for folder in ["proc", "sys", "dev", "tmp"] {
        archive.folder(Path::new(folder));
    }
    let busybox = which("busybox").ok_or("busybox is not in PATH")?;
    add(&mut archive, Path::new("bin/busybox"), &busybox)?;
    archive.link(Path::new("bin/sh"), "busybox");
    // 1. The tests of the engine, which need no libraries.
    add(&mut archive, Path::new("engine"), &engine_tests(root)?)?;
    // 2. The tests of the program, which expect it at its build path, with a folder for files.
    let built = build(root, &["--workspace"], None)?;
    let tests = executable(&built, "program").ok_or("cargo built no tests of the program")?;
    let octavo = executable(&built, "octavo").ok_or("cargo built no octavo")?;
    for (path, from) in [(Path::new("program"), &tests), (octavo.as_path(), &octavo)] {
        add(&mut archive, path, from)?;
        for library in libraries(from)? {
            add(&mut archive, &library, &library)?;
        }
    }
    archive.folder(&PathBuf::from(target_of(root, "tmp")));
    // 3. The script that runs them.
    let runs =
        PROGRAMS.map(|(program, module)| format!("/{program} --test-threads 1 {module} || exit\n")).concat();
    let init = format!(
        "#!/bin/sh\ntrap '/bin/busybox poweroff -f' EXIT\n/bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t sysfs sys /sys\n\
         /bin/busybox mount -t devtmpfs dev /dev\nexport OCTAVO_NODES RUST_BACKTRACE=1\n{runs}echo {OVER}\n"
    );
    archive.file(Path::new("init"), init.as_bytes(), true);
    Ok(archive.end())
}

/// Builds the tests of the engine statically: for musl, or with glibc if rustup cannot install
/// musl.
fn engine_tests(root: &Path) -> Result<PathBuf, String> {
    let installed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    let has_musl = installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(MUSL));
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let (target, flags) = if has_musl || succeeds(Command::new("rustup").args(["target", "add", MUSL])) {
        (MUSL, flags)
    } else {
        println!("rustup cannot add {MUSL}: the tests are linked statically with glibc instead");
        (GNU, format!("{flags} -C target-feature=+crt-static"))
    };
    let built = build(root, &["-p", "octavo", "--test", "engine", "--target", target], Some(&flags))?;
    executable(&built, "engine").ok_or_else(|| "cargo built no tests of the engine".into())
}

/// Builds tests; returns cargo's messages about its artifacts.
fn build(root: &Path, arguments: &[&str], flags: Option<&str>) -> Result<Vec<Value>, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--locked", "--message-format", "json-render-diagnostics"]);
    cargo.args(arguments).current_dir(root).stderr(Stdio::inherit());
    if let Some(flags) = flags {
        cargo.env("RUSTFLAGS", flags);
    }
    let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run {}: {}", arguments.join(" "), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Returns the path of a test program, or of the program `octavo`.
fn executable(built: &[Value], name: &str) -> Option<PathBuf> {
    let of_name = |message: &&Value| message["target"]["name"] == name && message["executable"].is_string();
    let is_test = |message: &&Value| message["profile"]["test"] == true;
    let all: Vec<&Value> = built.iter().filter(of_name).collect();
    let wants_test = name != "octavo";
    let message = all.into_iter().find(|message| is_test(message) == wants_test)?;
    Some(PathBuf::from(message["executable"].as_str()?))
}

/// Returns the libraries that a program loads, as `ldd` lists them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(program).output().map_err(|error| format!("ldd: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

// ---- An initramfs

/// An archive in the format of `cpio --format newc`, which the kernel unpacks.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: Vec<PathBuf>,
}

impl Archive {
    /// Adds a folder, and the folders above it.
    fn folder(&mut self, path: &Path) {
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

    fn file(&mut self, path: &Path, bytes: &[u8], runs: bool) {
        self.folder(path.parent().unwrap_or(Path::new("")));
        self.entry(path, if runs { 0o100_755 } else { 0o100_644 }, bytes);
    }

    fn link(&mut self, path: &Path, to: &str) {
        self.folder(path.parent().unwrap_or(Path::new("")));
        self.entry(path, 0o120_777, to.as_bytes());
    }

    /// Adds a file of this machine, without its debug information.
    fn copy(&mut self, path: &Path, from: &Path) -> io::Result<()> {
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

    fn end(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, b"");
        self.bytes
    }
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

    #[test]
    fn a_guest_whose_tests_failed_were_skipped_or_did_not_run_has_not_passed() {
        let ok = "test result: ok. 3 passed; 0 failed\r\n";
        let said = format!("{ok}noise\n[  1.0] test result: ok. 1 passed\n{OVER}\n");
        assert!(judge(&said).unwrap().contains("program: ok. 1 passed"));
        for wrong in [
            format!("{ok}{OVER}"),
            format!("{ok}{ok}"),
            format!("{ok}SKIP: one node\n{ok}{OVER}"),
            format!("{ok}test result: FAILED. 1 passed; 1 failed\n{OVER}"),
            format!("{ok}test result: ok. 0 passed; 0 failed\n{OVER}"),
        ] {
            assert!(judge(&wrong).is_err(), "{wrong}");
        }
    }
}
